from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest


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


def test_every_benchmark_has_run_and_a_docstring(runner: ModuleType) -> None:
    for name in runner.names():
        module = importlib.import_module(f"benchmarks.{name}")
        assert callable(module.run), name
        assert module.__doc__, name


def test_an_unknown_benchmark_is_refused(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "no_such"])
    assert runner.main() == 2
    assert "no benchmark named no_such" in capsys.readouterr().err
