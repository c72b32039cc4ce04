"""The time of a first run in its first minute: when the training is measured, and what is logged."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset

import mm_ldlm.app.parameters
from mm_ldlm.app.hooks import ProjectHooks, first_run, project
from mm_ldlm.app.hooks.first_run import measurable, measure_training, measures_training
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, WorkerFailed
from mm_ldlm.data.latents import extract, rate
from mm_ldlm.data.store import atomic
from mm_ldlm.training import trial
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.expected import EXPECTED

TYPED = dict.fromkeys(("model", "objective", "training", "encoder", "tokenizer"))
EXECUTED = ("ingestion", "embedding", "validation", "training", "sampling")


@pytest.fixture(autouse=True)
def _nothing_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXPECTED, "training", None)


def test_only_a_first_run_that_embeds_and_trains_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(first_run, "measurable", lambda typed: asked.append(typed) or True)
    runs = tmp_path / "runs"
    assert measures_training(TYPED, EXECUTED, seconds={}, runs=runs)
    assert measures_training(TYPED, EXECUTED, seconds={"evaluation": 3.0}, runs=runs), "another pipeline's"
    (runs / "logs").mkdir(parents=True)
    assert measures_training(TYPED, EXECUTED, seconds={}, runs=runs)
    assert asked == [TYPED] * 3
    for missing in ("ingestion", "embedding", "training"):
        assert not measures_training(TYPED, set(EXECUTED) - {missing}, seconds={}, runs=runs)
    for missing in TYPED:
        typed = {name: None for name in TYPED if name != missing}
        assert not measures_training(typed, EXECUTED, seconds={}, runs=runs)
    assert not measures_training(TYPED, EXECUTED, seconds={"training": 200.0}, runs=runs)
    (runs / "run-1").mkdir()
    (runs / "run-1" / "config.json").write_text("{}")
    assert not measures_training(TYPED, EXECUTED, seconds={}, runs=runs), "it may be continued"
    assert asked == [TYPED] * 3
    monkeypatch.setattr(first_run, "measurable", lambda typed: False)
    assert not measures_training(TYPED, EXECUTED, seconds={}, runs=tmp_path / "none")


TRAINING = {"max_steps": 200, "batch": {"examples": 6}, "device": "cpu", "launch": {"processes": 2},
            "optimizer": {"warmup_steps": 5}}  # fmt: skip


def sections(**training: Any) -> dict[str, Any]:
    return {
        "model": SimpleNamespace(stores=("token_vectors",)),
        "objective": SimpleNamespace(fields=("latents",), stores=()),
        "training": parse(TrainingConfig, TRAINING | training, at="training"),
        "encoder": SimpleNamespace(device="auto", dim=8),
    }


def test_only_trainings_whose_measurement_is_cheap_and_like_them_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(first_run.sys, "platform", "linux")
    assert measurable(sections())
    assert measurable(sections(max_steps=None, epochs=1))
    for changed in (
        {"device": "cuda"}, {"launch": {"processes": 2, "nodes": 2}}, {"threads": 2}, {"parallel": "fsdp"},
        {"precision": {"autocast": "fp16"}}, {"precision": {"compile": True}}, {"max_steps": 199},
    ):  # fmt: skip
        assert not measurable(sections(**changed)), changed
    assert measurable(sections(parallel="fsdp", launch={"processes": 1}))
    for section, other in (
        ("objective", SimpleNamespace(fields=(), stores=())),
        ("objective", SimpleNamespace(fields=("latents", "labels"), stores=())),
        ("objective", SimpleNamespace(fields=("latents",), stores=("label_names",))),
        ("model", SimpleNamespace(stores=("token_clusters",))),
        ("encoder", SimpleNamespace(device=None, dim=8)),
        ("encoder", SimpleNamespace(device="auto", dim=None)),
    ):
        assert not measurable({**sections(), section: other}), (section, other)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert not measurable(sections())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(first_run.sys, "platform", "darwin")
    assert not measurable(sections())


def test_what_was_measured_is_logged_and_expected_and_a_failure_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = trial.Trial(161.5, 950, 0.17, measured=6, processes=2)
    for answer, expected, line in (
        (found, 161.5, "time: the training will take about 3 min on this machine (950 steps of 0.17 s, measured over 6 "
         "trial steps of 2 processes)"),
        (None, None, None),
        (WorkerFailed("no result within 20 s"), None, "time: the training could not be measured (no result within "
         "20 s); it will show its time after its first steps"),
        (AssertionError("daemonic processes\nhave no children"), None, "time: the training could not be measured "
         "(AssertionError: daemonic processes\\nhave no children); it will show its time after its first steps"),
        (ConfigurationError("too large"), None, "time: the training could not be measured (too large); it will show "
         "its time after its first steps"),
    ):  # fmt: skip

        def measure(records: Any, typed: Any, *, seed: int, fewest_steps: int, answer: Any = answer) -> Any:
            assert (records, typed, seed, fewest_steps) == ("records", TYPED, 7, 200)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(trial, "measure", measure)
        monkeypatch.setattr(EXPECTED, "training", None)
        caplog.clear()
        measure_training("records", TYPED, seed=7)
        assert EXPECTED.training == expected
        assert [record.getMessage() for record in caplog.records] == ([] if line is None else [line])


@pytest.mark.parametrize(("own_seed", "seed"), [(None, 3), (11, 11), (0, 0)])
def test_the_hook_measures_once_before_the_records_are_read_and_outside_of_the_counted_seconds(
    own_seed: int | None, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Any] = []
    monkeypatch.setattr(project, "measures_training", lambda *_, **how: order.append(sorted(how)) or True)
    monkeypatch.setattr(project, "measure_training", lambda records, typed, seed: order.append((records, seed)))
    monkeypatch.setattr(project, "launches", lambda pipeline: True)
    monkeypatch.setattr(ProjectHooks, "_runs", lambda self, catalog: tmp_path)
    monkeypatch.setattr(ProjectHooks, "_outputs", lambda self, catalog: tmp_path)
    reader = node(lambda x: x, "records", "latents", name="embed_records", tags="embedding")
    hooks = ProjectHooks()
    monkeypatch.setattr(hooks._seconds, "count", lambda node: order.append("count"))
    hooks._catalog = DataCatalog({"records": MemoryDataset("the records")})
    hooks._announce({"training": SimpleNamespace(seed=own_seed)}, {"seed": 3}, Pipeline([reader]), hooks._catalog)
    for name in ("tokens", "records", "records"):
        hooks.before_dataset_loaded(name, reader)
    assert order == [["runs", "seconds"], "count", ("the records", seed), "count", "count"]


def test_a_run_without_processes_of_a_training_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "measures_training", lambda *_, **how: True)
    monkeypatch.setattr(ProjectHooks, "_runs", lambda self, catalog: tmp_path)
    monkeypatch.setattr(ProjectHooks, "_outputs", lambda self, catalog: tmp_path)
    hooks = ProjectHooks()
    plan = node(lambda x: x, "params:training", "training_spec", name="plan_training", tags="training")
    hooks._announce({}, {}, Pipeline([plan]), DataCatalog({}))
    assert hooks._unmeasured is None


@pytest.mark.parametrize("expected", [180.0, None])
def test_embedding_logs_the_time_until_the_end_of_the_training_once(
    expected: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(rate, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(EXPECTED, "training", expected)
    waits = threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: waits(self, timeout and timeout / 20))
    words, clocks = extract.until_trained, []
    monkeypatch.setattr(extract, "until_trained", lambda **given: clocks.append(given["now"]) or words(**given))
    with extract._watch(SimpleNamespace(progress_folder=tmp_path), 10_000, shown=False):
        for done in (1000, 2000, 3000, 4000):
            atomic.write_json(tmp_path / "rank-0.json", {"rows": done})
            time.sleep(0.1)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == (expected is not None)
    assert all(abs(clock - time.time()) < 60 for clock in clocks), "the time of the day"
    if expected is not None:
        assert lines[0].startswith("time: the model will be trained in about 3 min, at about ")
        assert "embedding takes about 5 s more, training about 3 min;" in lines[0]


def test_a_run_does_not_expect_what_an_earlier_one_of_this_process_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mm_ldlm.app.parameters, "SECTIONS", {"tracking": "mm_ldlm.app.tracking.config:TrackingConfig"})
    files = {name: JSONDataset(filepath=str(tmp_path / f"{name}.json")) for name in ("tracking_reference", "timings")}
    parameters = {"seed": 0, "tracking": {"enabled": False, "uri": "sqlite:///x.db", "experiment": "e"}}
    hooks, EXPECTED.training = ProjectHooks(), 180.0
    hooks._unmeasured = print
    hooks.after_context_created(SimpleNamespace(project_path=tmp_path))  # type: ignore[arg-type]
    catalog = DataCatalog({"parameters": MemoryDataset(parameters), **files})
    hooks.before_pipeline_run(run_params={"run_id": "1"}, pipeline=Pipeline([]), catalog=catalog)
    assert (EXPECTED.training, hooks._unmeasured) == (None, None)
