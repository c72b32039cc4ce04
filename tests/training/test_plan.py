"""Planning: what the limits, the batch size per device and the seed of the training become in the spec."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
from mm_ldlm.training.tracker import Silent

from mm_ldlm.core.config import parse_kind, to_dict
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.distributed.process import joined
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.training import preflight
from mm_ldlm.training.batches import BatchPlan, Loader
from mm_ldlm.training.build import build
from mm_ldlm.training.data import open_data
from mm_ldlm.training.jsonl import read_metrics
from mm_ldlm.training.plan import plan
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.worker import train


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    helpers.write_stores(root)
    return root


def test_a_run_ends_at_the_first_step_that_reaches_its_tokens_with_its_schedule(stores: Path) -> None:
    spec = helpers.planned(stores, max_steps=1000, max_tokens=500, run_name="budget")
    result = train(spec, root=stores / "runs")
    lines = read_metrics(stores / "runs" / "budget" / "training_log.jsonl")
    tokens = [line["tokens"] for line in lines]
    assert result.ending == "finished"
    assert tokens[-1] >= 500 > tokens[-2]
    assert len(tokens) == result.step == spec.training.max_steps
    same = helpers.planned(stores, max_steps=result.step, run_name="steps")
    train(same, root=stores / "runs")
    rates = [line["lr"] for line in read_metrics(stores / "runs" / "steps" / "training_log.jsonl")]
    assert [line["lr"] for line in lines] == rates, "the schedule ends with the budget"
    assert rates[-1] < rates[2]


def test_a_resumed_run_under_a_budget_sees_the_same_tokens(stores: Path) -> None:
    spec = helpers.planned(stores, max_steps=1000, max_tokens=500, run_name="resumed")
    assert train(spec, root=stores / "runs", pause_at=2).ending == "paused"
    result = train(spec, root=stores / "runs")
    assert result.step == spec.training.max_steps
    lines = read_metrics(stores / "runs" / "resumed" / "training_log.jsonl")
    assert lines[-1]["tokens"] >= 500 > lines[-2]["tokens"]


def test_max_steps_ends_the_run_where_it_comes_first(stores: Path) -> None:
    assert helpers.planned(stores, max_steps=3, max_tokens=10**6).training.max_steps == 3


def test_a_budget_that_ends_within_the_warm_up_is_refused(stores: Path) -> None:
    with pytest.raises(ConfigurationError, match="warmup_steps"):
        helpers.planned(stores, max_steps=100, max_tokens=1, optimizer={"lr": 1e-3, "warmup_steps": 50})


def test_a_budget_is_the_same_run_as_its_number_of_steps(stores: Path) -> None:
    budget = helpers.planned(stores, max_steps=1000, max_tokens=500)
    assert budget.fingerprint == helpers.planned(stores, max_steps=budget.training.max_steps).fingerprint


def test_a_seed_of_the_training_replaces_that_of_the_project(stores: Path) -> None:
    base = helpers.spec()
    dataset = helpers.commit_dataset(stores)

    def planned(seed: int | None) -> TrainingSpec:
        return plan(
            dataset, runs=stores / "runs", model=to_dict(base.model), objective=to_dict(base.objective),
            training=to_dict(base.training) | {"seed": seed}, encoder={"name": "none"}, seed=7, tracking={},
        )  # fmt: skip

    assert [planned(seed).seed for seed in (None, 0, 3)] == [7, 0, 3]
    assert len({planned(seed).fingerprint for seed in (None, 0, 3)}) == 3
    assert planned(7).fingerprint == planned(None).fingerprint


def test_a_training_with_validations_and_no_text_for_them_is_refused_before_its_workers_start(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path, splits=("train",))
    with pytest.raises(ConfigurationError) as error:
        helpers.planned(tmp_path, max_steps=5, validate_every=3)
    assert str(error.value) == (
        "parameter 'training.validate_every' is 3, but the split 'validation' has no examples. Add texts, hold out "
        "more of them (`--params ingestion.splits.validation=0.1,ingestion.splits.test=0.1`), or set "
        "training.validate_every to 0."
    )
    assert helpers.planned(tmp_path, max_steps=5, validate_every=0).training.max_steps == 5


def test_the_curriculum_of_adaptive_masking_ends_with_the_budget(stores: Path) -> None:
    planned = helpers.planned(stores, max_steps=1000, max_tokens=500, run_name="curriculum")
    objective = parse_kind(
        OBJECTIVES,
        {"kind": "adaptive_masking", "importance": "none", "curriculum": {"pace": "step"}, "warmup_steps": 0},
        at="objective",
    )
    model = parse_kind(MODELS, {"kind": "dit", "dim": 16, "depth": 1, "heads": 2}, at="model")
    train(dataclasses.replace(planned, objective=objective, model=model), root=stores / "runs")
    lines = read_metrics(stores / "runs" / "curriculum" / "training_log.jsonl")
    assert [lines[place]["curriculum_stage"] for place in (0, len(lines) // 2, -1)] == [1, 2, 3]


# -- epochs ------------------------------------------------------------------------------------------------------------


def seen(spec: TrainingSpec, *, steps: int) -> list[int]:
    """How often each training example occurs in so many steps of a planned run."""
    rows = helpers.Rows(56)
    batches = BatchPlan(rows.lengths, spec.training.batch, seed=spec.seed, max_length=helpers.LONGEST)
    chosen = np.concatenate([planned.examples for planned in batches.first(steps)])
    return sorted(set(np.bincount(chosen, minlength=56).tolist()))


def test_epochs_end_when_every_example_was_seen_so_often_and_the_schedule_ends_there(stores: Path) -> None:
    spec = helpers.planned(stores, max_steps=None, epochs=3, run_name="epochs")
    assert seen(spec, steps=spec.training.steps) == [3]
    assert train(spec, root=stores / "runs", pause_at=2).ending == "paused"
    result = train(spec, root=stores / "runs")
    assert (result.ending, result.step) == ("finished", spec.training.steps)
    lines = read_metrics(stores / "runs" / "epochs" / "training_log.jsonl")
    assert [lines[0]["epoch"], lines[-1]["epoch"]] == [0, 2]
    same = helpers.planned(stores, max_steps=result.step, run_name="as_steps")
    assert same.fingerprint == spec.fingerprint
    train(same, root=stores / "runs")
    rates = [line["lr"] for line in read_metrics(stores / "runs" / "as_steps" / "training_log.jsonl")]
    assert [line["lr"] for line in lines] == rates


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        ({"max_steps": 5, "epochs": 3, "max_tokens": 10**6}, "max_steps"),
        ({"max_steps": 1000, "epochs": 1, "max_tokens": 10**6}, "epochs"),
        ({"max_steps": 1000, "epochs": 30, "max_tokens": 500}, "max_tokens"),
        ({"max_steps": None, "epochs": 30, "max_tokens": 500}, "max_tokens"),
    ],
)
def test_the_first_limit_ends_the_run_and_a_cut_epoch_is_reported(
    limits: dict[str, Any], first: str, stores: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        steps = helpers.planned(stores, **limits).training.steps
    alone = {"max_steps": None, "epochs": None, "max_tokens": None, first: limits[first]}
    assert steps == helpers.planned(stores, **alone).training.steps
    (record,) = [record for record in caplog.records if "ends the training after" in record.message][:1]
    assert record.message.startswith(f"training.{first} ends the training after {steps} steps")
    assert (record.levelno == logging.WARNING) == (first != "epochs")
    assert (f"To train all epochs, set training.{first} to null" in record.message) == (first != "epochs")


def test_max_minutes_ends_a_run_of_epochs(stores: Path) -> None:
    spec = helpers.planned(stores, max_steps=None, epochs=20, max_minutes=1e-6, run_name="minutes")
    result = train(spec, root=stores / "runs")
    assert (result.ending, result.step) == ("finished", 1)


def test_a_training_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"at least one limit of the training.*Set epochs or max_steps"):
        helpers.spec(max_steps=None, max_minutes=5)


# -- batch size per device ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "processes"), [(1, 1), (1, 8), (8, 8), (1, 3)])
@pytest.mark.parametrize(
    "batch",
    [
        {"examples_per_device": 2},
        {"tokens_per_device": 24, "example_multiple": 1},
        {"examples_per_device": 2, "accumulation": 2},
    ],
)
def test_a_batch_size_per_device_fits_any_number_of_devices(
    batch: dict[str, int], nodes: int, processes: int, stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec, sampler and batches of every rank of `NNODES=8 NPROC_PER_NODE=8`, without the machines."""
    monkeypatch.setenv("NNODES", str(nodes))
    monkeypatch.setenv("NPROC_PER_NODE", str(processes))
    spec = helpers.planned(stores, batch={"length_multiple": 4, "prefetch": 0, **batch})
    world, found = nodes * processes, spec.training.batch
    ways = world * found.accumulation
    assert (found.examples_per_device, found.tokens_per_device) == (None, None)
    assert TrainingSpec.from_dict(spec.to_dict()).training.batch == found
    if "examples_per_device" in batch:
        assert found.examples == 2 * ways
    else:
        assert found.tokens == 24 * ways

    rows = helpers.Rows(1000)
    plan = BatchPlan(rows.lengths, found, seed=spec.seed, max_length=helpers.LONGEST)
    process: Any = SimpleNamespace(world=world)
    assert preflight.batches(plan, process, epoch=0).ok
    ranks = [Loader(plan, rows, fields=("latents",), rank=rank, world=world, fill=False) for rank in range(world)]
    for planned in plan.first(3):
        micros = [micro for rank in ranks for micro in rank.make(planned)]
        assert len(micros) == ways
        dealt = np.concatenate([micro.examples_B.numpy() for micro in micros])
        assert sorted(dealt[dealt >= 0].tolist()) == sorted(planned.examples.tolist())
        if len(planned.examples) == planned.full_size:
            sizes = {len(micro.examples_B) for micro in micros}
            assert len(sizes) == 1, "every device has the same work"
            if "examples_per_device" in batch:
                assert sizes == {2}
            else:
                assert 24 // 2 <= sizes.pop() * planned.length <= max(24, planned.length)


def test_a_global_batch_that_is_too_small_for_64_devices_names_the_size_per_device() -> None:
    plan = BatchPlan(helpers.Rows(256).lengths, helpers.spec().training.batch, seed=0, max_length=helpers.LONGEST)
    process: Any = SimpleNamespace(world=64)
    check = preflight.batches(plan, process, epoch=0)
    assert "fewer examples than its 64 micro-batches over all ranks" in check.found
    assert "set training.batch.examples_per_device" in check.remedy


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({}, "set exactly one of tokens, examples, tokens_per_device, examples_per_device.*found none of them"),
        ({"examples": 64, "examples_per_device": 8}, "found examples=64 and examples_per_device=8"),
        ({"examples_per_device": 0}, "greater than 0"),
    ],
)
def test_a_batch_has_exactly_one_size(batch: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        helpers.spec(batch=batch)


def test_a_size_of_all_devices_beyond_every_memory_is_refused(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "4096")
    with pytest.raises(ConfigurationError, match=r"'training.batch.examples'.*less than or equal to 100000000"):
        helpers.planned(stores, batch={"examples_per_device": 10**8})


# -- validation --------------------------------------------------------------------------------------------------------


def test_the_batch_of_the_validation_has_a_size_of_its_own(stores: Path) -> None:
    spec = helpers.planned(stores, validate_every=5, validation_batch=3)
    assert spec.fingerprint != helpers.planned(stores, validate_every=5).fingerprint
    with joined(device="cpu") as process:
        data = open_data(spec, stores / "runs")
        parts: Any = build(spec, root=stores / "runs", data=data, process=process, tracker=Silent())
    sizes = [len(examples) for examples, _ in parts.validate.plan.epoch(0)]
    assert max(sizes) == 3
    assert sum(sizes) == 8
    assert parts.loader.plan.config.examples == 16


@pytest.mark.parametrize(
    ("model", "objective", "read"),
    [
        ({"kind": "dit", "dim": 16, "depth": 1, "heads": 2}, {"kind": "text_diffusion"}, set()),
        ({"depth": 1}, {"kind": "multimodal"}, {"latents", "normaliser", "encoder"}),
        ({"kind": "image_mmdit", "dim": 16, "depth": 1, "heads": 2}, {"kind": "image_text"},
         {"images", "image_normaliser"}),
    ],
    ids=["text", "latents", "images"],
)  # fmt: skip
def test_a_spec_names_what_its_training_reads_and_nothing_else(
    model: dict[str, Any], objective: dict[str, Any], read: set[str], stores: Path
) -> None:
    """Another encoder does not make another run of a model that reads no latents."""
    spec = helpers.planned(stores, model=model, objective=objective)
    assert set(spec.fingerprints) == {"index", "tokens", "tokenizer"} | read
    assert spec.encoder == ({"name": "none"} if "latents" in read else {})
    assert (spec.dataset, spec.seed, spec.tracking) == ("../dataset", 7, {})
    (stores / "runs").mkdir(exist_ok=True)
    data = open_data(spec, stores / "runs")
    assert set(data.folders) == {"tokenizer"} | (read & {"normaliser", "image_normaliser"}), "what sampling needs"
    assert data.validation is not None
    assert (len(data.train.lengths), len(data.validation.lengths)) == (56, 8)
