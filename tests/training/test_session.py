"""Sessions of a run in the launching process, on a dataset of files."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core import ConfigurationError, FingerprintError, WorkerFailed
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.training import session
from mm_ldlm.training.data import open_data, token_counts
from mm_ldlm.training.session import run_session, write_status
from mm_ldlm.training.spec import TrainingSpec

Plan = Callable[..., TrainingSpec]


def test_a_finished_run_continues_to_higher_limits_and_is_not_that_of_other_parameters(
    planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Callable[..., Any]
) -> None:
    def trains(seconds: float | None, *, step: int = 3, **keys: Any) -> bool:
        launched.clear()
        fingerprint = "" if seconds is None else first.fingerprint
        write_status(runs / "mine", "finished", step, seconds=seconds, fingerprint=fingerprint)
        assert run_session(planned(run_name="mine", **keys).to_dict(), runs)["step"] == step
        return bool(launched)

    runs, launched, first = tmp_path / "runs", list[Any](), planned(run_name="mine")
    monkeypatch.setattr(session, "launch", lambda *_, **keys: launched.append(keys))
    assert first.training.steps == 4
    assert not trains(60.5, max_minutes=1)
    assert not trains(None, max_minutes=1), "a run of an older version"
    assert trains(60.5, max_minutes=2)
    assert trains(60.5)
    assert not trains(60.5, step=4)
    assert trains(60.5, launch={"nodes": 2, "job": "ours"})
    assert launched[0]["config"].job == "ours"
    with refuses(ConfigurationError, "training.run_name", "mine"):
        trains(60.5, max_minutes=1, optimizer={"lr": 0.5, "warmup_steps": 0})
    monkeypatch.setattr(session, "launch", lambda *_, **keys: write_status(runs / "mine", "stopped", 3))
    with pytest.raises(WorkerFailed, match="stopped before its first checkpoint"):
        trains(60.5)


def test_pitfall_25_data_that_changed_after_the_plan_are_refused(
    planned: Plan, tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    spec = planned()
    changed = dataclasses.replace(spec, fingerprints={**spec.fingerprints, "latents": "f" * 32})
    with refuses(FingerprintError, "latents", "f" * 32):
        open_data(changed, tmp_path / "runs")


def test_the_data_of_a_run_are_those_of_the_dataset(
    planned: Plan, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.training.data._COUNTED_ROWS", 7)
    spec = planned(model={"token_vectors": "encoder"})
    data = open_data(spec, tmp_path / "runs")
    rows = dataset.rows("train")
    assert data.train.lengths.tolist() == dataset.lengths("train").tolist()
    for source, split in ((data.train, "train"), (data.validation, "validation")):
        kept, normaliser = dataset.rows(split)[[2, 1]], dataset.normaliser("latents")
        expected = dataset.field("latents").batch(kept, normaliser=normaliser)
        assert source.field("latents", np.array([2, 1])).tolist() == expected.tolist()
    assert data.stores["token_vectors"].shape == (spec.shape.vocab_size, 8)
    counts = token_counts(data.train, spec.shape)
    assert int(counts.sum()) == int(data.train.lengths.sum())
    assert counts[spec.shape.pad_id] == 0
    tokens = data.train.tokens(rows, length=spec.shape.max_length)
    assert all(int((tokens == index).sum()) == count for index, count in enumerate(counts.tolist()) if count)
