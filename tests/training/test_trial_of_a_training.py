"""The training that is measured: its seed, steps, batches, data and vectors, as the forked ranks receive them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
from parts import ALONE

from mm_ldlm.core.config import parse
from mm_ldlm.models.base import DataShape
from mm_ldlm.training import trial
from mm_ldlm.training.config import TrainingConfig

SHAPE = DataShape(vocab_size=9, pad_id=0, mask_id=1, max_length=6, latent_dim=8)
TEXTS = [np.array([3, 4, 5]), np.array([6, 7, 8, 3, 4])]


class Records:
    """The manifest of so many training examples."""

    def __init__(self, train: int) -> None:
        self.manifest = self
        self.meta = {"splits": {"train": train, "validation": 5000}}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the ranks of a measurement receive; nothing is forked."""
    found: list[Any] = []

    def forked(work: Any, *, processes: int, seconds: float) -> Any:
        found.append((processes, seconds))
        return work(ALONE)

    def steps(*received: Any) -> dict[str, float]:
        found.append(received)
        return {"per_step": 0.25, "measured": 7}

    monkeypatch.setattr(trial, "sample_of", lambda records, config, *, latent_dim: (TEXTS, SHAPE))
    monkeypatch.setattr(trial, "run_forked", forked)
    monkeypatch.setattr(trial, "trial_steps", steps)
    monkeypatch.setattr(trial, "importlib", SimpleNamespace(import_module=lambda name: None))
    return found


def measured(rows: int, *, vectors: str, fewest: int = 1, **training: Any) -> Any:
    base = helpers.spec(model={"depth": 1, "token_vectors": vectors})
    settings = {"batch": {"examples": 4}, "device": "cpu", "launch": {"processes": 3}, **training}
    typed = {
        "model": base.model, "objective": base.objective, "tokenizer": None, "encoder": SimpleNamespace(dim=8),
        "training": parse(TrainingConfig, settings, at="training"),
    }  # fmt: skip
    return trial.measure(Records(rows), typed, seed=13, fewest_steps=fewest)  # type: ignore[arg-type]


@pytest.mark.parametrize("vectors", ["encoder", "random"])
def test_the_ranks_measure_the_training_on_as_many_examples(vectors: str, given: list[Any]) -> None:
    found = measured(10, vectors=vectors, epochs=4, optimizer={"warmup_steps": 3})
    assert found == trial.Trial(seconds=3.0, steps=12, per_step=0.25, measured=7, processes=3)
    (processes, seconds), (spec, data, process) = given
    assert (processes, seconds, process) == (3, 20.0, ALONE)
    assert (spec.seed, spec.shape, spec.training.max_steps, spec.training.epochs) == (13, SHAPE, 12, 4)
    assert spec.training.batch.examples == 4
    assert (data.validation, data.shape, data.folders) == (None, SHAPE, {})
    assert data.train.lengths.tolist() == [3, 5] * 5
    if vectors == "random":
        assert data.token_vectors is None
    else:
        assert (data.token_vectors.shape, data.token_vectors.dtype) == ((9, 8), np.float32)
        assert 0.5 < float(data.token_vectors.std()) < 1.5


def test_a_training_that_is_shorter_than_its_warm_up_is_measured_with_its_schedule(given: list[Any]) -> None:
    found = measured(8, vectors="random", epochs=1, optimizer={"warmup_steps": 50})
    assert (found.steps, found.seconds) == (2, 0.5)
    assert given[1][0].training.max_steps == 50


@pytest.mark.parametrize(("rows", "fewest", "measures"), [(0, 1, False), (1, 1, True), (8, 2, True), (8, 3, False)])
def test_a_training_of_too_few_examples_or_steps_is_not_measured(
    rows: int, fewest: int, measures: bool, given: list[Any]
) -> None:
    found = measured(rows, vectors="random", fewest=fewest, epochs=1, optimizer={"warmup_steps": 0})
    assert (found is not None) is measures
    assert bool(given) is measures


@pytest.mark.parametrize(("more", "measures"), [(0, True), (-1, False)])
def test_a_training_of_too_many_examples_or_parameters_is_not_measured(
    more: int, measures: bool, given: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = []
    plain = trial.refuse_beyond_memory

    def refuse(*about: Any, **named: Any) -> Any:
        needed.append(plain(*about, **named))
        return needed[-1]

    monkeypatch.setattr(trial, "refuse_beyond_memory", refuse)
    assert measured(8, vectors="random", epochs=1, optimizer={"warmup_steps": 0}) is not None
    monkeypatch.setattr(trial, "MOST_PARAMETERS", needed[0].parameters + more)
    assert (measured(8, vectors="random", epochs=1, optimizer={"warmup_steps": 0}) is not None) is measures
    monkeypatch.setattr(trial, "MOST_PARAMETERS", 30_000_000)
    monkeypatch.setattr(trial, "MOST_EXAMPLES", 8 + more)
    assert (measured(8, vectors="random", epochs=1, optimizer={"warmup_steps": 0}) is not None) is measures


@pytest.mark.parametrize(("minutes", "seconds"), [(None, 250.0), (1.0, 60.0), (100.0, 250.0)])
def test_the_time_ends_with_the_minutes_of_the_training(
    minutes: float | None, seconds: float, given: list[Any]
) -> None:
    found = measured(8, vectors="random", max_steps=1000, max_minutes=minutes)
    assert (found.steps, found.seconds) == (1000, seconds)
