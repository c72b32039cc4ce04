"""The command of the GPU acceptance: processes, time, report, exit codes, and the packages that it needs."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mm_ldlm.extras import gpu_check as package
from mm_ldlm.extras.gpu_check import __main__ as command
from mm_ldlm.extras.gpu_check import child, report
from mm_ldlm.extras.gpu_check.outcome import Finding, Outcome, Setting, text
from mm_ldlm.extras.gpu_check.registry import CHECKS, Entry
from mm_ldlm.extras.gpu_check.runner import CHILD, run_checks

_CHILD = """
import json, os, sys, time
name, device, folder = sys.argv[1:]
print("a line of", name)
if name == "attention": os.abort()
if name == "models": time.sleep(60)
if name == "bf16": sys.exit(3)
finding = {"numbers": {"x": 1.5}, "faults": [], "left_out": ""}
if name == "memory_892m": finding["left_out"] = "too small a device"
if name == "ranks": finding["faults"] = ["the first", "the second"]
json.dump(finding, open(os.path.join(folder, "finding.json"), "w"))
"""


@pytest.fixture
def other_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of a child that crashes, hangs, ends early or passes, by the name of the check."""
    (tmp_path / "other_child.py").write_text(_CHILD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return "other_child"


def test_a_crash_or_an_early_end_fails_that_check_alone(tmp_path: Path, other_child: str) -> None:
    shown: list[str] = []
    names = ["attention", "bf16", "compile", "flops"]
    found = run_checks(names, device="cpu", out=tmp_path, seconds=60, show=shown.append, child=other_child)
    assert [outcome.status for outcome in found] == ["failed", "failed", "left out", "passed"]
    assert "found exit code -6 (a line of attention)" in found[0].reason
    assert "found exit code 3" in found[1].reason
    assert found[3].numbers == {"x": 1.5}
    assert len(shown) == 4
    assert (tmp_path / "logs/flops.log").read_text() == "a line of flops\n"


def test_every_part_of_what_a_check_found_is_read(tmp_path: Path, other_child: str) -> None:
    names = ["ranks", "memory_892m", "flops"]
    found = run_checks(names, device="cpu", out=tmp_path, seconds=60, show=lambda line: None, child=other_child)
    assert [outcome.status for outcome in found] == ["failed", "left out", "passed"]
    assert "the first" in found[0].reason
    assert "the second" in found[0].reason
    assert "too small a device" in found[1].reason
    assert [outcome.numbers for outcome in found] == [{"x": 1.5}] * 3


def test_a_check_that_takes_too_long_is_ended_and_those_after_it_are_left_out(tmp_path: Path, other_child: str) -> None:
    found = run_checks(
        ["models", "flops"], device="cpu", out=tmp_path, seconds=0.5, show=lambda line: None, child=other_child
    )
    assert [outcome.status for outcome in found] == ["failed", "left out"]
    assert "expected an end within the 0 s" in found[0].reason or "within the 1 s" in found[0].reason
    assert "--seconds were used up" in found[1].reason


def test_an_exception_of_a_check_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, "flops", Entry("nowhere:nothing", "a check without a module"))
    found = child.run("flops", Setting("cpu", tmp_path))
    assert "found ModuleNotFoundError" in found.faults[0]


def test_every_check_of_the_registry_is_a_documented_function() -> None:
    for name, entry in CHECKS.items():
        function = entry.load()
        assert function.__doc__, name
        assert entry.what, name


def test_without_a_gpu_the_command_says_so_and_how_to_check_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert command.main([]) == 1
    said = capsys.readouterr().err
    assert "No GPU was found" in said
    assert "python -m mm_ldlm.extras.gpu_check --device cpu" in said


def test_an_unknown_check_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "atention"]) == 1
    assert "found 'atention'. Did you mean 'attention'?" in capsys.readouterr().err


def test_the_list_has_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CHECKS)


@pytest.mark.parametrize(("status", "code"), [("passed", 0), ("failed", 1), ("left out", 0)])
def test_the_report_is_json_and_a_table_for_the_log(
    status: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = ("expected 1 | 2, found 3.",) if status == "failed" else ()
    left_out = "No such device." if status == "left out" else ""
    outcome = Outcome.of("flops", Finding({"error": float("inf"), "parameters": 1234, "peak": None}, faults, left_out))
    monkeypatch.setattr(command, "run_checks", lambda names, **more: [outcome])
    assert command.main(["--device", "cpu", "--out", str(tmp_path)]) == code
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert found["passed"] is (code == 0)
    assert found["checks"][0]["numbers"] == {"error": "inf", "parameters": 1234, "peak": None}
    assert found["machine"]["torch"] == torch.__version__
    lines = (tmp_path / "gpu_check.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| `flops`"))
    assert f"| {status} | error inf; parameters 1,234; peak unknown" in row
    assert row.replace("\\|", "").count("|") == 5
    assert lines[0].startswith("## GPU check on CPU (")


def test_a_check_with_faults_failed_whatever_was_left_out() -> None:
    found = [
        Outcome.of("flops", Finding({}, faults, left_out))
        for faults in ((), ("One.", "Two."))
        for left_out in ("", "No.")
    ]
    assert [(outcome.status, outcome.reason) for outcome in found] == [
        ("passed", ""), ("left out", "No."), ("failed", "One. Two."), ("failed", "One. Two.")
    ]  # fmt: skip


_BARE = """
import sys
BANNED = ("kedro", "kedro_datasets", "mlflow", "datasets", "pandas", "pydantic", "transformers", "yaml", "omegaconf",
        "sentence_transformers", "tqdm", "scipy", "sklearn", "huggingface_hub", "psutil")
from importlib.machinery import PathFinder
find = PathFinder.find_spec.__func__
def hide(cls, name, path=None, target=None):  # as where the package is not installed
    return None if name.split(".")[0] in BANNED else find(cls, name, path, target)
PathFinder.find_spec = classmethod(hide)
import json
from pathlib import Path
from mm_ldlm.gpu_check import __main__, child
from mm_ldlm.gpu_check.registry import CHECKS
for entry in CHECKS.values():
    entry.load()
root = Path(sys.argv[1])
for name in sys.argv[2:]:
    (root / name).mkdir()
    child.main(name, "cpu", str(root / name))
    found = json.loads((root / name / "finding.json").read_text())
    assert found["numbers"] and not found["faults"], found["faults"]
assert not [name for name in sys.modules if name.split(".")[0] in BANNED]
"""


def test_a_bare_host_is_enough(tmp_path: Path) -> None:
    """The checks run where Kedro, MLflow, pydantic, transformers and further packages cannot be imported."""
    assert importlib.util.find_spec(CHILD)
    names = ["models", "extraction"]
    done = subprocess.run(
        [sys.executable, "-c", _BARE, str(tmp_path), *names], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_the_options_of_the_command_reach_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def run(names: list[str], **given: Any) -> list[Outcome]:
        seen.append((names, {name: value for name, value in given.items() if name != "show"}))
        return [
            Outcome.of(name, Finding({}, faults), seconds=3.5) for name, faults in zip(names, ((), ("x",)), strict=True)
        ]

    monkeypatch.setattr(command, "run_checks", run)
    options = ["--device", "cpu", "--seconds", "77", "--out", str(tmp_path), "--only", "flops", "attention"]
    assert command.main(options) == 1
    assert seen == [(["attention", "flops"], {"device": "cpu", "out": tmp_path, "seconds": 77.0})]
    assert "1 passed, 1 failed" in capsys.readouterr().out
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert [(check["name"], check["status"], check["seconds"]) for check in found["checks"]] == [
        ("attention", "passed", 3.5), ("flops", "failed", 3.5)
    ]  # fmt: skip
    assert found["command"] == f"python -m mm_ldlm.extras.gpu_check {' '.join(options)}"


def test_a_gpu_is_described_in_the_units_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(name="NVIDIA H100 PCIe", total_memory=85 * 2**30, major=9, minor=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: about.name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "nccl", SimpleNamespace(version=lambda: (2, 27, 5)))
    found = report.machine("cuda")
    assert {name: found[name] for name in ("device", "devices", "memory_gib", "capability", "peak_tflops", "nccl")} == {
        "device": "NVIDIA H100 PCIe", "devices": 3, "memory_gib": 85.0, "capability": "9.1", "peak_tflops": 756.0,
        "nccl": "2.27.5",
    }  # fmt: skip
    cpu = report.machine("cpu")
    assert (cpu["device"], cpu["devices"], cpu["memory_gib"]) == ("CPU", 0, None)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "yes"), (False, "no"), (None, "unknown"), ("nccl", "nccl"), (1234567, "1,234,567"),
     (0.00012345, "0.000123"), (999.4, "999"), (999.6, "1,000"), (1234.5, "1,234"), (-1234.5, "-1,234"), (0.5, "0.5")],
)  # fmt: skip
def test_numbers_of_the_table_have_three_digits(value: Any, shown: str) -> None:
    assert text(value) == shown


def test_every_check_of_a_setting_is_in_the_registry() -> None:
    """A function that takes a setting and returns a finding, in any module; only one needs a GPU."""
    names = [found.name for found in pkgutil.iter_modules(package.__path__) if found.name != "__main__"]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    checks = {
        f"{module.__name__.rpartition('.')[2]}:{name}"
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
        and inspect.signature(function).parameters.keys() == {"setting"}
    }  # fmt: skip
    assert {entry.path for entry in CHECKS.values()} == checks
    assert [name for name, entry in CHECKS.items() if not entry.cpu] == ["compile"]
