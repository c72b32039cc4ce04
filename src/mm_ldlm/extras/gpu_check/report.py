"""The report: one JSON with everything that was measured, and a Markdown section for docs/log.md."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import mm_ldlm
from mm_ldlm.core.files import write_json, write_text
from mm_ldlm.distributed.process import choose_device
from mm_ldlm.extras.gpu_check.outcome import Outcome, text
from mm_ldlm.training.throughput import peak_flops

FORMAT_VERSION = 1


def machine(device: str) -> dict[str, Any]:
    """Describe the device and the versions; the host is not named."""
    found: dict[str, Any] = {
        "mm_ldlm": mm_ldlm.__version__, "torch": torch.__version__, "python": platform.python_version(),
        "system": platform.system(), "device": "CPU", "devices": 0, "memory_gib": None, "capability": None,
        "peak_tflops": None, "cuda": torch.version.cuda, "nccl": None,
    }  # fmt: skip
    if device == "cpu":
        return found
    chosen = choose_device(device)
    properties = torch.cuda.get_device_properties(chosen)
    peak = peak_flops(chosen)
    return found | {
        "device": properties.name, "devices": torch.cuda.device_count(),
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}", "peak_tflops": None if peak is None else peak / 1e12,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }  # fmt: skip


def write(outcomes: Sequence[Outcome], *, device: str, command: str, out: Path) -> tuple[Path, Path]:
    """Write `gpu_check.json` and `gpu_check.md`; return their paths."""
    described, today = machine(device), datetime.date.today()
    document = {
        "format_version": FORMAT_VERSION, "date": today.isoformat(), "command": command, "machine": described,
        "passed": not any(outcome.status == "failed" for outcome in outcomes),
        "checks": [outcome.to_dict() for outcome in outcomes],
    }  # fmt: skip
    paths = out / "gpu_check.json", out / "gpu_check.md"
    out.mkdir(parents=True, exist_ok=True)
    write_json(paths[0], document)
    write_text(paths[1], markdown(outcomes, described, command=command, today=today))
    return paths


def markdown(outcomes: Sequence[Outcome], machine: dict[str, Any], *, command: str, today: datetime.date) -> str:
    """Return a section with a table, one line for each check, as docs/log.md has them."""
    count = f"{machine['devices']} × {machine['device']}" if machine["devices"] else machine["device"]
    memory = f", {machine['memory_gib']} GiB each" if machine["memory_gib"] else ""
    lines = [
        f"## GPU check on {count} ({today:%B %Y})", "",
        f"`{command}`; {count}{memory}, torch {machine['torch']}, CUDA {machine['cuda'] or 'none'}, "
        f"NCCL {machine['nccl'] or 'none'}, mm_ldlm {machine['mm_ldlm']}.", "",
        "| check | result | measured | seconds |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for outcome in outcomes:
        measured = "; ".join(f"{name} {text(value)}" for name, value in outcome.numbers.items())
        both = ". ".join(part for part in (measured, outcome.reason) if part).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| `{outcome.name}` | {outcome.status} | {both} | {outcome.seconds:.0f} |")
    return "\n".join(lines) + "\n"
