"""Benchmarks: each runs with a small setting, and results are kept by name. Nothing here asserts a time."""

import importlib
import sys
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
}
"""Benchmark → its constants for a small setting"""
SLOW = ("embedding", "training", "families", "sampling", "startup", "service")


@pytest.fixture
def runner(project: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(project))
    return importlib.import_module("benchmarks.__main__")


def test_results_are_kept_by_name_with_peer_and_ratio(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("benchmarks.made_up")
    rows = [
        {"name": "reading", "value": 200.0, "unit": "rows/s", "peer": "npz", "peer_value": 4.0, "ratio": 50.0},
        {"name": "opening", "value": 0.2, "unit": "s", "rows": 7},
    ]
    module.run = lambda: rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.made_up", module)
    results = runner.collect(["made_up"], results={"older": {"value": 1.0}, "opening": {"value": 9.0}})
    assert results["older"] == {"value": 1.0}
    assert results["reading"] == {"value": 200.0, "unit": "rows/s", "peer": "npz", "peer_value": 4.0, "ratio": 50.0}
    assert results["opening"] == {"value": 0.2, "unit": "s", "peer": None, "peer_value": None, "ratio": None, "rows": 7}


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


def test_an_unknown_benchmark_is_refused(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "no_such"])
    assert runner.main() == 2
    assert "no benchmark named no_such" in capsys.readouterr().err
