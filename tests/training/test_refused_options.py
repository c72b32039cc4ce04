"""Options of a training that contradict each other are refused under the keys of all that take part, and no others."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from mm_ldlm.core.config import parse, to_dict
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.training.config import BatchConfig, TrainingConfig

BASE: dict[str, Any] = {"max_steps": 200, "batch": {"examples": 8}}
# what is changed, the keys that the message names, and its numbers
CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"max_steps": None}, "max_steps epochs max_tokens", "found null for each"),
    ({"max_steps": 99, "optimizer": {"warmup_steps": 100}}, "optimizer.warmup_steps max_steps", r"\(99\), found 100"),
    ({"checkpoint": {"best_metric": "validation/loss"}}, "checkpoint.best_metric checkpoint.every_steps",
     "every validate_every = 0 steps, .* checkpoint.every_steps = 500"),
    ({"log_every": 7, "checkpoint": {"best_metric": "loss", "every_steps": 15}},
     "checkpoint.best_metric checkpoint.every_steps", "every log_every = 7 steps, .* checkpoint.every_steps = 15"),
    ({"log_every": 5, "checkpoint": {"best_metric": "validation_loss", "every_steps": 12}},
     "checkpoint.best_metric checkpoint.every_steps", "every log_every = 5"),
    ({"parameter_gradients": True, "diagnose_every": 0}, "parameter_gradients diagnose_every", "which is 0"),
    ({"init_from": ""}, "init_from", "name a run or a checkpoint"),
    ({"init_vocabulary": "by_token"}, "init_vocabulary", "read only with init_from"),
    ({"run_name": "a/b"}, "run_name", "'a/b', which contains a separator"),
    ({"run_name": "logs"}, "run_name", "'logs', which is the name of another file"),
    ({"run_name": ".a"}, "run_name", "begins with a dot"),
    ({"run_name": "é" * 101}, "run_name", "longer than 200 bytes"),
    ({"batch": {}}, "batch.tokens batch.examples batch.tokens_per_device batch.examples_per_device", "none of them"),
    ({"batch": {"tokens": 9, "examples_per_device": 3}}, "batch.tokens batch.examples_per_device",
     "found tokens=9 and examples_per_device=3"),
]  # fmt: skip
# what is accepted although it is near a contradiction
ACCEPTED: list[dict[str, Any]] = [
    {"max_steps": 100, "optimizer": {"warmup_steps": 100}}, {"max_steps": None, "epochs": 1},
    {"max_steps": None, "max_tokens": 1, "optimizer": {"warmup_steps": 100}},
    {"validate_every": 250, "checkpoint": {"best_metric": "validation/loss"}},
    {"log_every": 5, "validate_every": 7, "checkpoint": {"best_metric": "loss", "every_steps": 15}},
    {"parameter_gradients": True, "diagnose_every": 1}, {"init_from": "x", "init_vocabulary": "by_token"},
    {"run_name": "é" * 100}, {"run_name": "a.b"},
]  # fmt: skip


@pytest.mark.parametrize(("changed", "keys", "words"), CONTRADICTIONS, ids=str)
def test_a_contradiction_names_every_option_that_takes_part(changed: dict[str, Any], keys: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        parse(TrainingConfig, BASE | changed, at="training")
    named = re.findall(r"'(training[\w.]*)'", str(raised.value).split(": ")[0])
    assert named == [f"training.{key}" for key in keys.split()]


@pytest.mark.parametrize("changed", ACCEPTED, ids=str)
def test_what_is_near_a_contradiction_is_accepted(changed: dict[str, Any]) -> None:
    found = to_dict(parse(TrainingConfig, BASE | changed, at="training"))
    for key, value in changed.items():
        assert found[key] == ({**found[key], **value} if isinstance(value, dict) else value), key


@pytest.mark.parametrize("multiple", [1, 4, 8])
@pytest.mark.parametrize(("world", "accumulation"), [(1, 1), (3, 1), (2, 3), (8, 2)])
def test_the_examples_of_a_budget_per_device_are_a_multiple_of_both(
    multiple: int, world: int, accumulation: int
) -> None:
    given = BatchConfig(tokens_per_device=100, example_multiple=multiple, accumulation=accumulation, prefetch=3)
    found, ways = given.of_processes(world), world * accumulation
    assert (found.tokens, found.example_multiple) == (100 * ways, math.lcm(multiple, ways))
    assert (found.tokens_per_device, found.examples, found.accumulation, found.prefetch) == (
        None, None, accumulation, 3
    )  # fmt: skip
    whole = BatchConfig(examples=10, example_multiple=multiple, accumulation=accumulation)
    assert whole.of_processes(world) == whole, "the size of the global batch is what it says"
