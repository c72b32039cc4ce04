"""Defaults of the parameters that make the data: those of the classes and those of conf/base are the same.

A value that differs on purpose is listed with both of its values, and a class without a section in conf/base with all.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from mm_ldlm.config import to_dict
from mm_ldlm.corpus.config import IngestionConfig
from mm_ldlm.corpus.dedup import NearDuplicateConfig
from mm_ldlm.corpus.filters import LengthConfig
from mm_ldlm.corpus.images import ImageLimits
from mm_ldlm.corpus.sources.config import SourceConfig
from mm_ldlm.corpus.splits import SplitConfig
from mm_ldlm.corpus.tokenizer import TokenizerConfig
from mm_ldlm.encoders import LocalEncoderConfig
from mm_ldlm.encoders.http_encoder import HttpEncoderConfig
from mm_ldlm.encoders.precomputed import PrecomputedEncoderConfig
from mm_ldlm.encoders.registry import REGISTRY
from mm_ldlm.encoders.spec import EncoderSpec
from mm_ldlm.latents.config import ExtractConfig, TokenClustersConfig, ValidationConfig
from mm_ldlm.latents.images import ImagesConfig
from mm_ldlm.latents.layout import ExportConfig
from mm_ldlm.latents.normaliser import NormaliserConfig
from mm_ldlm.latents.token_states import TokenStatesConfig

NONE = object()
"""Stands for a field without a default."""
SECTIONS: dict[str, Any] = {
    "ingestion": IngestionConfig, "ingestion.length": LengthConfig, "ingestion.splits": SplitConfig,
    "ingestion.images": ImageLimits, "tokenizer": TokenizerConfig, "encoder": LocalEncoderConfig,
    "embedding": ExtractConfig, "images": ImagesConfig, "token_states": TokenStatesConfig,
    "token_clusters": TokenClustersConfig, "validation": ValidationConfig, "normaliser": NormaliserConfig,
    "image_normaliser": NormaliserConfig, "export": ExportConfig,
}  # fmt: skip
STARTER = "${globals:starter.num_%s}"
DIFFERENT: dict[tuple[str, str], tuple[Any, Any]] = {
    ("ingestion", "sources"): (NONE, [{"kind": "starter"} | {
        f"num_{split}": STARTER % split for split in ("train", "validation", "test")
    }]),
    ("ingestion", "length"): (to_dict(LengthConfig()), {**to_dict(LengthConfig()), "max_characters": 10_000}),
    ("ingestion.length", "max_characters"): (None, 10_000),
    ("tokenizer", "max_length"): (NONE, 24),
    ("tokenizer", "reduce_vocabulary"): (False, True),
    ("images", "height"): (NONE, 32), ("images", "width"): (NONE, 32), ("images", "channels"): (NONE, 3),
    ("normaliser", "kind"): ("standard", "whitening"),
    ("image_normaliser", "kind"): ("standard", "one_scale"),
}  # fmt: skip
"""(section, key) → default of the class, value in conf/base"""


def conf() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted((Path(__file__).parents[1] / "conf" / "base" / "parameters").glob("*.yml")):
        found |= yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return found


def defaults(cls: Any) -> dict[str, Any]:
    """Each field with its default as plain JSON."""
    made = {}
    for field in dataclasses.fields(cls):
        value = field.default if field.default is not dataclasses.MISSING else field.default_factory
        value = value() if field.default is dataclasses.MISSING and callable(value) else value
        made[field.name] = NONE if value is dataclasses.MISSING else to_dict(value)
    return made


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_conf_base_has_the_defaults_of_its_class(section: str) -> None:
    written: Any = conf()
    for key in section.split("."):
        written = written[key]
    own = defaults(SECTIONS[section])
    assert written.keys() == own.keys()
    for key, value in written.items():
        expected = DIFFERENT.get((section, key), (value, own[key]))
        assert (own[key], value) == expected, f"{section}.{key}"
        assert isinstance(value, bool) == isinstance(own[key], bool) or expected[0] is NONE, key


WITHOUT_SECTION: dict[Any, dict[str, Any]] = {
    NearDuplicateConfig: {"threshold": 0.8, "num_perm": 64, "shingle_characters": 5},
    SourceConfig: {
        "kind": NONE, "name": None, "path": None, "dataset": None, "subset": None, "revision": None, "streaming": True,
        "splits": None, "tokens": False, "latents": False, "columns": ["text"], "meta_columns": [],
        "label_column": None, "labels": None, "pair_column": None, "vector_column": None, "vectors": None,
        "split": None, "split_column": None, "unit": "line", "encoding": "utf-8", "delimiter": ",", "header": True,
        "image_column": "image", "max_samples": None, "weight": None, "num_train": 20_000, "num_validation": 500,
        "num_test": 500,
    },
    HttpEncoderConfig: {
        "kind": "http", "url": NONE, "name": NONE, "dim": None, "shorten": False, "prompt": "", "normalised": True,
        "encoding": "float", "key_variable": None, "batch_rows": 64, "batch_bytes": 100_000, "connections": 4,
        "requests_per_minute": None, "timeout": 60.0, "retries": 8, "max_wait": 120.0, "min_cosine": 0.999,
    },
    PrecomputedEncoderConfig: {
        "kind": "precomputed", "name": NONE, "dim": NONE, "normalised": NONE, "for_new_texts": None,
    },
    EncoderSpec: {
        "name": NONE, "source": NONE, "revision": None, "dim": None, "pooling": "mean", "prompt": "",
        "padding_side": "right", "max_length": 512, "normalised": True, "truncation": None, "architecture": "auto",
        "final_token": None, "language": None, "licence": "unknown", "digests": [],
    },
}  # fmt: skip


@pytest.mark.parametrize("cls", WITHOUT_SECTION)
def test_defaults_of_parameters_that_conf_base_does_not_name(cls: Any) -> None:
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults(cls).items()}
    assert found == WITHOUT_SECTION[cls]


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
