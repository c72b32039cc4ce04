"""A small validated dataset for the tests of plans, sessions and initial weights."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.task import SIZE

from mm_ldlm.core import parse, parse_kind
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.models.base import MODELS
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.spec import TrainingSpec, plan

SETTINGS = {
    "batch": {"examples": 8}, "max_steps": 4, "optimizer": {"warmup_steps": 2}, "diagnose_every": 0, "device": "cpu",
    "checkpoint": {"background": False}, "launch": {"processes": 1}, "show_every_seconds": None,
}  # fmt: skip


def texts(count: int) -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(f"w{word}" for word in draw.integers(0, 20, draw.integers(2, 9))) for _ in range(count)]


@pytest.fixture
def dataset(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> Dataset:
    """Sixty texts with latents, of which the last twelve are held out."""
    splits = ["train"] * 48 + ["validation"] * 6 + ["test"] * 6
    latents = np.random.default_rng(1).normal(size=(60, 8))
    return write_dataset(tmp_path / "data", texts(60), splits, latents=latents, token_vectors=np.eye(23, 8))


@pytest.fixture
def planned(dataset: Dataset, tmp_path: Path) -> Callable[..., TrainingSpec]:
    """`planned(objective=…, model=…, **training)` plans a run of the dataset in `tmp_path / "runs"`."""

    def made(*, objective: Any = None, model: Any = None, **training: Any) -> TrainingSpec:
        options = {"kind": "mmdit", **(model or {})}
        has = {field.name for field in dataclasses.fields(MODELS.load(options["kind"]))}
        options = {name: value for name, value in SIZE.items() if name in has} | options
        settings: dict[str, Any] = dict(SETTINGS)
        for key, value in training.items():
            settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
        (tmp_path / "runs").mkdir(exist_ok=True)
        return plan(
            dataset, runs=tmp_path / "runs", model=parse_kind(MODELS, options, at="model"),
            objective=parse_kind(OBJECTIVES, objective or {"kind": "multimodal"}, at="objective"),
            training=parse(TrainingConfig, settings, at="training"), encoder={"name": "e"}, seed=3,
        )  # fmt: skip

    return made
