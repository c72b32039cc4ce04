"""Benchmarks: each runs with a small setting, and results are kept by name. Nothing here asserts a time."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SMALL: dict[str, dict[str, Any]] = {
    "cross_entropy": {"ROUNDS": 1, "SHAPES": {"small": (8, 4, 16)}},
    "model": {"ROUNDS": 1, "SHAPES": {"small": (2, 4, 2, 16, 1, 2)}},
    "stores": {"ROWS": 100, "BATCH": 8, "BATCHES": 2, "LARGE_ROWS": 70_000, "READS": 100},
    "embedding": {"SENTENCES": 16, "ROUNDS": 1},
    "training": {"STEPS": 2, "ROUND": 1},
    "families": {"STEPS": 1, "ROUNDS": 1},
    "sampling": {"SENTENCES": 4, "ROUNDS": 1},
    "startup": {"ROUNDS": 1},
    "service": {"REQUESTS": 60, "SINGLE": 3, "FIRST": 20},
    "starter_entropy": {"TEXTS": 3},
}
"""Benchmark → its constants for a small setting"""
SLOW = ("embedding", "training", "families", "sampling", "startup", "service")


@pytest.fixture
def runner(project: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(project))
    return importlib.import_module("benchmarks.__main__")


def test_every_benchmark_has_a_small_setting(runner: ModuleType) -> None:
    assert set(runner.names()) == SMALL.keys()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SMALL])
def test_every_benchmark_runs(
    name: str, runner: ModuleType, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    for constant, value in SMALL[name].items():
        monkeypatch.setattr(module, constant, value)
    if name in ("sampling", "service"):
        monkeypatch.setattr(module, "DATA", request.getfixturevalue("finished") / "data" / "test")
    rows = module.run()
    assert rows
    assert all({"name", "value", "unit"} <= row.keys() and row["name"].startswith(name) for row in rows)
