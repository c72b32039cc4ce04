"""Parameters accept their limits, and refuse values just beyond them under their own keys."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import operator
from typing import Any

import pytest

from base_parameters import base
from mm_ldlm.app.parameters import SECTIONS
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError

TINY = 5e-324
"""The smallest positive number."""
BELOW_1, ABOVE_1 = math.nextafter(1, 0), math.nextafter(1, 2)
LIMITS: list[tuple[str, list[Any], list[Any]]] = [
    ("evaluation.bootstrap.replicates", [20, 100_000], [19, 100_001]),
    ("evaluation.bootstrap.level", [0.5, 0.999], [0.499, 1.0]),
    ("evaluation.inversion.length_edges", [[], [3], [3, 5]], [[5, 3], [3, 3], [0, 2]]),
    ("evaluation.inversion.reference", [None, "confidence, 1 step"], ["nothing"]),
    ("evaluation.inversion.sweep_sentences", [1, 10**8], [0, 10**8 + 1]),
    ("evaluation.inversion.baseline_rows", [0, 10**8], [-1, 10**8 + 1]),
    ("evaluation.latents.candidates", [1], [0]),
    ("evaluation.latents.calibration_sentences", [0, 1], [-1]),
    ("evaluation.latents.calibration_samples", [2, 10_000], [0, 1, 10_001]),
    ("evaluation.latents", [{"calibration_sentences": 0, "calibration_samples": 1}], [{"calibration_samples": 1}]),
    ("evaluation.likelihood.sentences", [None, 1], [0]),
    ("evaluation.likelihood.draws", [1, 10_000], [0, 10_001]),
    ("evaluation.likelihood.buckets", [1, 1000], [0, 1001]),
    ("evaluation.generation.batch_size", [1], [0]),
    ("evaluation.generation.self_bleu_texts", [1, 100_000], [0, 100_001]),
    ("evaluation.classification.split", ["train", "validation"], ["dev", None]),
    ("evaluation.classification.bins", [1, 1000], [0, 1001]),
    ("evaluation.classification.baseline_grid", [[0.5]], [[], [0.0], [-1.0]]),
    ("evaluation.classification.baseline_rows", [0], [-1]),
    ("evaluation.images.classifier_rows", [1], [0]),
    ("evaluation.images.pictures", [1], [0]),
    ("evaluation.sts.too_long", ["truncate", "refuse"], ["cut"]),
    ("evaluation.sts.files", [{"mine": "a.csv"}], [{"starter": "a.csv"}, {"a b": "a.csv"}, {"": "a.csv"}]),
    ("evaluation.checkpoint", ["latest", "best", 0, "17", "step-00000005"], ["newest", -1, "", "step-"]),
    ("evaluation.device", [None, "cpu", "cuda", "cuda:0"], ["gpu", "cuda:", "cuda:x", "auto", ""]),
    ("evaluation.batch_tokens", [None, 1], [0]),
    ("evaluation.use_ema", [True, False], [5, "x", None]),
    ("reporting.smoothing", [0, 0.999], [-0.001, 1]),
    ("reporting.examples", [1], [0]),
    ("sampling.rows", [0, 10**8], [-1, 10**8 + 1]),
    ("sampling.split", ["train", "validation", "test"], ["dev"]),
    ("sampling.tasks", [None, [], ["l2t", "unconditional"]], [["infill"], ["edit"], ["interpolate"], ["nothing"]]),
    ("sampling.checkpoint", ["latest", "best", 7], ["newest"]),
    ("sampling.length", ["argmax", "sample", "top-2", 5], ["top-", "longest", 0, -1]),
    ("sampling.l2t.samples", [1, 1000], [0, 1001]),
    ("sampling.l2t.keep", ["best", "all"], ["first"]),
    ("sampling.search.candidates", [1, 1000], [0, 1001]),
    ("sampling.search.rounds", [0, 1000], [-1, 1001]),
    ("sampling.search.beam", [1, 1000], [0, 1001]),
    ("sampling.search.remask_ratio", [0, 1], [-0.001, 1.001]),
    ("sampling.search.remask_noise", [0], [-0.001]),
    ("sampling.search.resize", [0, 1], [-0.001, 1.001]),
    ("sampling.search.lengths", [1], [0]),
    ("sampling.search.good_enough", [0.001], [0, -1]),
    ("sampling.unconditional.count", [1], [0]),
    ("sampling.unconditional.length", ["sample", "argmax", 5], ["top-3", 0]),
    ("sampling.unconditional.order", ["text_first", "latent_first"], ["together", "both"]),
    ("sampling.infill", [{}, {"texts": ["a"]}, {"texts": ["a", "b"], "latents_of": ["c", "d"]}],
     [{"texts": ["a", "b"], "latents_of": ["c"]}, {"latents_of": ["c"]}]),
    ("sampling.edit", [{}, {"sources": ["a", "b"], "targets": ["c"]}, {"sources": ["a", "b"], "targets": ["c", "d"]}],
     [{"sources": ["a", "b"], "targets": ["c", "d", "e"]}, {"sources": ["a", "b"]}]),
    ("sampling.edit.strength", [0, 1], [-0.001, 1.001]),
    ("sampling.edit.which", ["least_likely", "random"], ["likely"]),
    ("sampling.interpolate", [{"starts": ["a"], "ends": ["b"]}], [{"starts": ["a"]}, {"ends": ["b"]}]),
    ("sampling.interpolate.steps", [2, 10_000], [1, 10_001]),
    ("sampling.interpolate.path", ["slerp", "lerp"], ["line"]),
    ("sampling.images.image", [{"kind": "ddim", "draws": 1}], [{"kind": "ddim", "draws": 2}]),
    ("sampling.images.length", ["argmax", "sample", 5], ["top-2", 0]),
    ("sampling.images.joint_count", [1], [0]),
    ("sampling.images.joint_steps", [1, 10_000], [0, 10_001]),
    ("training.optimizer.name", ["adamw", "muon"], ["sgd", None]),
    ("training.optimizer.lr", [TINY, 1e30], [0, -TINY, 1.001e30]),
    ("training.optimizer.betas", [[0, 0], [BELOW_1, BELOW_1]],
     [[1, 0.95], [0.9, 1], [-TINY, 0.95], [0.9, -TINY], [0.9, 2], [0.9], [0.9, 0.95, 0.99], [], 0.9, None]),
    ("training.optimizer.eps", [TINY, 1e30], [0, -TINY, 1.001e30]),
    ("training.optimizer.weight_decay", [0, 1e30], [-TINY, 1.001e30]),
    ("training.optimizer.muon_lr", [TINY, 1e30], [0, -TINY, 1.001e30]),
    ("training.optimizer.muon_momentum", [0, BELOW_1], [1, -TINY]),
    ("training.optimizer.schedule", ["cosine", "linear", "constant"], ["step", None]),
    ("training.optimizer.warmup_steps", [0, base()["training"]["max_steps"]],
     [-1, base()["training"]["max_steps"] + 1]),
    ("training.optimizer.min_lr_ratio", [0, 1], [-TINY, ABOVE_1]),
    ("training.optimizer.clip", [None, TINY, 1e30], [0, -TINY, 1.001e30]),
    ("training.ema.decay", [0, BELOW_1], [1, -TINY]),
    ("comparison.jobs", [1, 4096], [0, 4097]),
    ("comparison.seeds", [[0], [2**63 - 1], [1, 2]], [[], [1, 1], [-1], [2**63]]),
    ("comparison.budget", [None, {"tokens": 1}, {"seconds": 0.5}], [{}, {"tokens": 0}, {"seconds": 0}]),
]  # fmt: skip
"""Parameter → values that are accepted, up to its limits, and values that are refused, just beyond them"""


@pytest.mark.parametrize(("key", "fits", "refused"), LIMITS, ids=[key for key, _, _ in LIMITS])
def test_a_limit_is_the_last_value_that_is_accepted(key: str, fits: list[Any], refused: list[Any]) -> None:
    section, *parts = key.split(".")
    module, _, name = SECTIONS[section].partition(":")
    kind = getattr(importlib.import_module(module), name)

    def parsed(value: Any) -> None:
        found = copy.deepcopy(base()[section])
        place = functools.reduce(operator.getitem, parts[:-1], found)
        assert parts[-1] in place, f"{key} is no parameter of conf/base"
        place[parts[-1]] = value
        parse(kind, found, at=section)

    for value in fits:
        parsed(value)
    for value in refused:
        with pytest.raises(ConfigurationError) as error:
            parsed(value)
        assert key in str(error.value), value
        assert len(str(error.value).splitlines()) <= 4
