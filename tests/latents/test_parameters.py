"""Parameters of the stores accept their limits, and refuse values just beyond them under their own names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.dedup import NearDuplicateConfig
from mm_ldlm.data.corpus.filters import LengthConfig
from mm_ldlm.data.corpus.sources import SourceConfig
from mm_ldlm.data.corpus.splits import SplitConfig
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.encoders import LocalEncoderConfig
from mm_ldlm.data.latents.config import ExtractConfig, TokenClustersConfig, ValidationConfig
from mm_ldlm.data.latents.normaliser import NormaliserConfig
from mm_ldlm.families.ccdd.token_states import TokenStatesConfig
from mm_ldlm.families.images.decoding import ImageLimits
from mm_ldlm.families.images.store import ImagesConfig

MANY = 10**8
FRACTION: tuple[list[Any], list[Any]] = ([0, 0.5, 1], [-0.001, 1.001, None])
TYPES: tuple[list[Any], list[Any]] = (["float32", "float16"], ["float64", "bfloat16", None])
FLAG: tuple[list[Any], list[Any]] = ([True, False], [None, "x", 5])
ROWS: tuple[list[Any], list[Any]] = ([1, MANY], [0, MANY + 1, 1.5])
POSITIVE: tuple[list[Any], list[Any]] = ([1e-9, 5], [0, -1, None])
BYTES: tuple[list[Any], list[Any]] = ([1, 2**31 - 1], [0, 2**31])
OPTIONAL: tuple[list[Any], list[Any]] = ([None, 1], [0, -1, 1.5])

LIMITS: dict[Any, dict[str, tuple[list[Any], list[Any]]]] = {
    ExtractConfig: {
        "dtype": TYPES, "shard_rows": ([None, 1, MANY], [0, MANY + 1]), "processes": ([0, 4096], [-1, 4097]),
        "threads": ([1, 4096], [0, 4097]), "non_finite": (["stop", "quarantine"], ["warn", None]), "progress": FLAG,
    },
    TokenClustersConfig: {"count": ROWS},
    TokenStatesConfig: {"dtype": TYPES, "threads": ([1, 4096], [0, 4097])},
    NormaliserConfig: {
        "kind": (["standard", "robust", "whitening", "one_scale"], ["none", None]), "robust_rows": ROWS,
    },
    ImagesConfig: {"height": ([1, 65_536], [0, 65_537]), "width": ([1, 65_536], [0, 65_537]),
                   "channels": ([1, 3], [0, 2, 4])},
    ValidationConfig: {
        "verify_checksums": FLAG, "norm_tolerance": POSITIVE, "norm_outlier_iqrs": POSITIVE,
        "on_norm_outlier": (["warn", "quarantine"], ["remove"]),
        "on_duplicate_vector": (["warn", "quarantine"], ["remove"]), "max_duplicate_fraction": FRACTION,
        "collapsed_std": ([0, 1e-9], [-1e-9, None]), "max_collapsed_fraction": FRACTION, "max_drift": POSITIVE,
        "spot_rows": ([0, MANY], [-1, MANY + 1]), "spot_tolerance": ([None, 1e-9], [0, -1]),
        "on_leakage": (["remove", "report"], ["quarantine"]), "max_quarantine_fraction": FRACTION, "plot_rows": ROWS,
    },
    LengthConfig: {"min_characters": ([1], [0, None]), "min_words": ([1], [0, None]), "max_characters": OPTIONAL,
                   "max_words": OPTIONAL},
    SplitConfig: {"validation": ([0, 0.9], [-0.001, 0.99, 1]), "test": ([0, 0.9], [-0.001, 0.99, 1])},
    ImageLimits: {"max_bytes": BYTES, "max_pixels": BYTES},
    NearDuplicateConfig: {"threshold": ([0.1, 0.95], [0.09, 0.96]), "num_perm": ([64, 65_536], [63, 65_537]),
                          "shingle_characters": ([1, 65_536], [0, 65_537])},
    TokenizerConfig: {
        "max_length": ([1, 65_536], [0, 65_537]), "min_length": ([1, 64], [0, 65]),
        "too_long": (["drop", "truncate", "split"], ["cut", None]), "reduce_vocabulary": FLAG, "lowercase": FLAG,
    },
    IngestionConfig: {
        "unicode_form": (["NFC", "NFKC", "none"], ["NFD", None]), "collapse_whitespace": FLAG,
        "max_bad_fraction": FRACTION, "max_row_bytes": BYTES, "shard_rows": ROWS, "replace": FLAG, "progress": FLAG,
    },
    SourceConfig: {
        "max_samples": OPTIONAL, "weight": ([None, 1e-9], [0, -1]), "num_train": ROWS,
        "num_validation": ([0, MANY], [-1, MANY + 1]), "num_test": ([0, MANY], [-1, MANY + 1]),
    },
    LocalEncoderConfig: {
        "dtype": (["float32", "bfloat16", "float16"], ["float64", None]), "max_length": OPTIONAL,
        "device": (["auto", "cpu", "cuda", "cuda:7"], ["gpu", "cuda:", None]), "batch_tokens": ROWS,
        "batch_rows": ROWS, "truncate_dim": ([None, 384], [0, -1, 383]),
    },
}  # fmt: skip
NEEDED: dict[Any, dict[str, Any]] = {
    ImagesConfig: {"height": 8, "width": 8, "channels": 1}, TokenizerConfig: {"max_length": 64},
    IngestionConfig: {"sources": [{"kind": "starter"}]}, SourceConfig: {"kind": "starter"},
}  # fmt: skip
ELSEWHERE = {
    ExtractConfig: {"engine", "launch"}, SplitConfig: {"key"}, TokenizerConfig: {"name", "path", "revision"},
    LocalEncoderConfig: {"kind", "name", "path", "revision", "prompt", "language"},
}  # fmt: skip
"""Fields with tests of their own; those of sources and of the whole ingestion are in tests/corpus."""


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, fields in LIMITS.items() for name in fields])
def test_a_parameter_is_accepted_at_its_limits_and_refused_beyond(kind: Any, name: str) -> None:
    good, bad = LIMITS[kind][name]
    for value in good:
        found = getattr(parse(kind, NEEDED.get(kind, {}) | {name: value}, at="here"), name)
        assert (found, type(found) is bool) == (value, type(value) is bool)
    for value in bad:
        with pytest.raises(ConfigurationError, match=rf"'here\.{name}'"):
            parse(kind, NEEDED.get(kind, {}) | {name: value}, at="here")


@pytest.mark.parametrize("kind", [kind for kind in LIMITS if kind not in (IngestionConfig, SourceConfig)])
def test_every_parameter_has_its_limits_here(kind: Any) -> None:
    assert {field.name for field in dataclasses.fields(kind)} == {*LIMITS[kind], *ELSEWHERE.get(kind, set())}
