"""Tests of a machine with a GPU (`make gpu-check`), and the report of what they measured.

Other runs of the tests leave this folder out. `GPU_CHECK=cpu pytest tests/gpu -m gpu` runs what a CPU can check, at
small sizes. Kedro and MLflow need not be installed.
"""

import datetime
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mm_ldlm.training.throughput import peak_flops

OUT = Path("data/gpu_check")


@pytest.fixture(scope="session")
def device() -> str:
    if os.environ.get("GPU_CHECK") == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        pytest.exit(
            f"no GPU was found (torch {torch.__version__}): check the driver, and that torch was built for CUDA. "
            "GPU_CHECK=cpu checks what a CPU can.",
            returncode=1,
        )
    return "cuda"


@pytest.fixture
def gpu(device: str) -> str:
    """The device of a test that a CPU cannot do."""
    if device == "cpu":
        pytest.skip("needs a GPU")
    return device


@pytest.fixture(autouse=True)
def _memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """`measured(name=number)` adds numbers to the report."""

    def record(**numbers: Any) -> None:
        for name, value in numbers.items():
            record_property(name, value)

    return record


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write `data/gpu_check/gpu_check.{json,md}` if tests ran on a GPU."""
    reports = [
        report for status in ("passed", "failed") for report in terminalreporter.stats.get(status, ())
        if report.when == "call" and report.nodeid.startswith("tests/gpu")
    ]  # fmt: skip
    if not reports or not torch.cuda.is_available():
        return
    device = torch.cuda.get_device_properties(0)
    machine = {
        "device": device.name, "devices": torch.cuda.device_count(), "memory_gib": round(device.total_memory / 2**30, 1),
        "torch": torch.__version__, "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "python": platform.python_version(), "peak_tflops": (peak_flops(torch.device("cuda", 0)) or 0) / 1e12,
    }  # fmt: skip
    tests = [
        {"test": report.nodeid.partition("::")[2], "result": report.outcome, "seconds": round(report.duration, 1),
         "measured": dict(report.user_properties), "reason": report.longreprtext.strip().splitlines()[-1:]}
        for report in reports
    ]  # fmt: skip
    today = datetime.date.today()
    lines = [
        f"## GPU check on {machine['devices']} × {device.name} ({today:%B %Y})", "",
        ", ".join(f"{name} {value}" for name, value in machine.items()), "",
        "| test | result | measured | seconds |", "| --- | --- | --- | --- |",
        *(f"| `{each['test']}` | {each['result']} | {_shown(each['measured'])} | {each['seconds']} |" for each in tests),
    ]  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    document = {"date": today.isoformat(), "machine": machine, "tests": tests}
    (OUT / "gpu_check.json").write_text(json.dumps(document, indent=1) + "\n")
    (OUT / "gpu_check.md").write_text("\n".join(lines) + "\n")
    terminalreporter.write_line(f"written: {OUT}/gpu_check.json and gpu_check.md; append the second to docs/log.md")


def _shown(numbers: dict[str, Any]) -> str:
    texts = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in numbers.items()}
    return "; ".join(f"{name} {text}" for name, text in texts.items())
