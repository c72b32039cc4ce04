"""Planning: what a budget of tokens and a seed of the training become in the spec."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import helpers
import pytest

from mm_ldlm.config import parse_kind, to_dict
from mm_ldlm.errors import ConfigurationError
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.tracking.jsonl import read_metrics
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
