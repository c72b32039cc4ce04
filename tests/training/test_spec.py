"""Plans: which limit ends a training, which parameters make another run, and what does not fit together."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.conftest import SETTINGS

from mm_ldlm.core import ConfigurationError, parse
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.training.config import OptimizerConfig, TrainingConfig
from mm_ldlm.training.spec import TrainingSpec, _resolved

Plan = Callable[..., TrainingSpec]


def test_the_first_limit_ends_the_training_at_an_exact_step(planned: Plan, dataset: Dataset) -> None:
    lengths = dataset.lengths("train")
    assert planned(max_steps=None, epochs=2).training.max_steps == 12
    tokens = int(lengths.sum())
    assert planned(max_steps=None, max_tokens=tokens).training.max_steps == 6
    assert planned(max_steps=3, epochs=2, max_tokens=10 * tokens).training.max_steps == 3
    assert planned(max_steps=99, epochs=2, max_tokens=10 * tokens).training.max_steps == 12


def test_the_global_batch_counts_all_processes(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NPROC_PER_NODE": "3", "NNODES": "2", "NODE_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    spec = planned(batch={"examples": None, "examples_per_device": 2, "accumulation": 2})
    assert (spec.training.batch.examples, spec.training.batch.examples_per_device) == (24, None)


def test_a_plan_names_only_what_its_objective_reads(planned: Plan) -> None:
    both, text = (
        planned(model={"token_vectors": "encoder"}),
        planned(objective={"kind": "text_diffusion"}, model={"kind": "dit"}),
    )
    own = {"latents", "normaliser", "encoder", "token_vectors"}
    assert both.fingerprints.keys() == {"tokens", "index", "tokenizer", *own}
    assert text.fingerprints.keys() == {"tokens", "index", "tokenizer"}
    assert text.encoder == {}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"log_every": 3, "threads": 2, "preflight": False, "show_every_seconds": 5}, True),
        ({"checkpoint": {"every_steps": 2}, "launch": {"processes": 2}, "resume": "never"}, True),
        ({"batch": {"prefetch": 0}}, True),
        ({"optimizer": {"lr": 0.1}}, False),
        ({"batch": {"examples": 4}}, False),
        ({"ema": {"decay": 0.5}}, False),
        ({"max_steps": 3}, False),
        ({"seed": 0}, False),
        ({"init_from": "other"}, False),
        ({"precision": {"tf32": True}}, False),
        ({"model": {"depth": 3}}, False),
        ({"objective": {"kind": "multimodal", "mode": "l2t"}}, False),
    ],
)
def test_a_run_is_another_one_if_its_result_is(planned: Plan, changed: dict[str, Any], same: bool) -> None:
    assert (planned(**changed).name == planned().name) is same


def test_a_spec_is_read_as_it_was_written(planned: Plan, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    spec = planned()
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec.to_dict()))
    assert TrainingSpec.read(file) == spec
    written = spec.to_dict()
    written["training"]["optimizer"] |= OptimizerConfig.RETIRED  # by an earlier version
    assert TrainingSpec.from_dict(written) == spec
    for change in ({"format_version": 1}, {"model": {"kind": "none"}}, {"seed": "x"}, {"shape": []}, {"training": 1}):
        file.write_text(json.dumps(spec.to_dict() | change))
        with refuses(ConfigurationError):
            TrainingSpec.read(file)
    with refuses(ConfigurationError, "none.json"):
        TrainingSpec.read(tmp_path / "none.json")


def test_what_does_not_fit_together_is_refused(planned: Plan, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    with refuses(ConfigurationError, "mmdit", "text_diffusion"):
        planned(objective={"kind": "text_diffusion"})
    with refuses(ConfigurationError, "run_name", "mine"):
        planned(run_name="mine", resume="mine/checkpoints/step-00000003")
    assert planned(run_name="other", resume="mine/checkpoints/step-00000003").name == "other"


def test_a_dataset_without_the_examples_that_are_needed_is_refused(
    tmp_path: Path, write_dataset: Callable[..., Dataset], refuses: Callable[..., Any]
) -> None:
    made = write_dataset(tmp_path / "data", ["w1 w2", "w3", "w4 w5", "w6"], ["train"] * 4, latents=np.eye(4, 8))
    config = parse(TrainingConfig, {"batch": {"examples": 2}, "max_steps": 200, "validate_every": 5}, at="training")
    with refuses(ConfigurationError, "validation"):
        _resolved(config, made, seed=0)


@given(st.integers(0, 9), st.integers(1, 18))
def test_the_best_checkpoint_is_written_where_its_metric_is_measured(every: int, steps: int) -> None:
    checkpoint, fits = {"every_steps": steps, "best_metric": "validation/loss"}, every > 0 and steps % every == 0
    with contextlib.nullcontext() if fits else pytest.raises(ConfigurationError, match="best_metric"):
        parse(TrainingConfig, SETTINGS | {"checkpoint": checkpoint, "validate_every": every}, at="training")
