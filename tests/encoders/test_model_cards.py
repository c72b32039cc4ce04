"""The encoders of the registry are those of their model cards."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mm_ldlm.encoders.registry import REGISTRY
from mm_ldlm.encoders.spec import EncoderSpec

ENCODERS: dict[str, dict[str, Any]] = {
    "minilm": {"dim": 384, "max_length": 256, "licence": "Apache-2.0"},
    "sonar": {"dim": 1024, "normalised": False, "architecture": "m2m100_encoder", "language": "eng_Latn",
              "licence": "CC-BY-NC-4.0"},
    "e5": {"dim": 1024, "prompt": "query: ", "licence": "MIT"},
    "qwen3": {"dim": 1024, "pooling": "last", "padding_side": "left", "max_length": 8192, "truncation": (32, 1024),
              "final_token": "<|endoftext|>", "licence": "Apache-2.0"},
    "t5": {"dim": 1024, "normalised": False, "architecture": "t5_encoder", "licence": "Apache-2.0"},
    "bge-m3": {"dim": 1024, "pooling": "cls", "max_length": 8192, "licence": "MIT"},
}  # fmt: skip
"""What the model cards say, where it differs from the defaults of a spec"""


@pytest.mark.parametrize("name", REGISTRY)
def test_an_encoder_of_the_registry_has_what_its_model_card_says(name: str) -> None:
    spec = REGISTRY[name]
    given = {field.name: field.default for field in dataclasses.fields(EncoderSpec)} | ENCODERS[name]
    free = ("name", "source", "revision", "digests")  # tests/encoders/test_weights.py
    assert {key: value for key, value in dataclasses.asdict(spec).items() if key not in free} == {
        key: value for key, value in given.items() if key not in free
    }
    assert spec.name == name
