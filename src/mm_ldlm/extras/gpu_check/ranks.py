"""Checks of several processes: collectives, a poisoned rank, equality with one process; a kill and its resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.core.files import recorded, write_json
from mm_ldlm.distributed.launch import LaunchConfig, launch
from mm_ldlm.extras.gpu_check import task
from mm_ldlm.extras.gpu_check.outcome import Finding, Number, Setting
from mm_ldlm.extras.gpu_check.rank import train_case
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.spec import TrainingSpec

FILES = ("model", "ema", "optimizer")
TOLERANCE = 1e-3
"""Largest relative difference of the losses of several processes from those of one: sums have another order"""
POISONED, STEPS = 3, 6
KILLED, LAST = 5, 8


def ranks(setting: Setting) -> Finding:
    """One process per GPU over NCCL (two over gloo on a CPU): collectives, a NaN on one rank, losses of one process."""
    processes = 2 if setting.small else torch.cuda.device_count()
    start(setting, None, root=setting.folder, processes=processes, megabytes=1.0 if setting.small else 256.0)
    found = recorded(setting.folder / "collectives.json")
    numbers: dict[str, Number] = {
        "ranks": found["world"], "backend": found["backend"], "all-reduce GB per second": found["gigabytes_per_second"],
    }  # fmt: skip
    faults = []
    if found["wrong"] or not found["active"] or found["world"] != processes:
        faults.append(
            f"expected correct collectives over {processes} ranks of {found['backend']}, found wrong results of "
            f"{', '.join(found['wrong']) or 'no operation'} over {found['world']}. Check the interconnect and the "
            "version of NCCL."
        )
    kept = {"every_steps": 1, "keep_last": 2 * STEPS, "background": False}
    spec = _spec(setting, max_steps=STEPS, checkpoint=kept)
    poison = {"kind": "nan", "step": POISONED, "rank": processes - 1}
    several, one = setting.folder / "several", setting.folder / "one"
    start(setting, spec, root=several, processes=processes, fault=poison)
    moved = max(_difference(several, POISONED, several, POISONED + 1).values())
    trained = _difference(several, POISONED + 1, several, STEPS)["model"]
    skips = read_events(several / "run/training_log.jsonl", "skip")
    named = [skip["step"] for skip in skips if f"rank {processes - 1}" in skip["reason"]]
    train_case(spec, root=one, fault={**poison, "rank": 0})
    logs = [read_metrics(root / "run/training_log.jsonl") for root in (several, one)]
    losses = [[float(line["loss"]) for line in log if "loss" in line] for log in logs]
    differences = [abs(a - b) / abs(b) for a, b in zip(*losses, strict=False)]
    comparable = len(losses[0]) == len(losses[1]) and all(map(math.isfinite, differences))  # max may ignore a NaN
    error = max(differences, default=math.inf) if comparable else math.inf
    if moved or not trained or named != [POISONED]:
        faults.append(
            f"expected a NaN on rank {processes - 1} in step {POISONED} to be skipped on all ranks, found a change of "
            f"{moved:g} in that step, {trained:g} afterwards, and skips that name the rank in steps {named}. Check "
            "training/loop.py (agree)."
        )
    if not error <= TOLERANCE:
        faults.append(
            f"expected the losses of {processes} processes within {TOLERANCE:g} of one, found {error:.3g}. Check the "
            "gradients of DDP on this machine."
        )
    numbers |= {"change by a poisoned step": moved, "loss error to one process": error, "tolerance": TOLERANCE}
    return Finding(numbers, tuple(faults))


def kill_resume(setting: Setting) -> Finding:
    """A run that is killed by SIGKILL and resumed equals an undisturbed one to the bit, with deterministic kernels."""
    spec = _spec(setting, max_steps=LAST, checkpoint={"every_steps": 2, "background": False})
    whole, killed = setting.folder / "whole", setting.folder / "killed"
    train_case(spec, root=whole)
    message = ""
    try:
        start(setting, spec, root=killed, processes=1, fault={"kind": "kill", "step": KILLED})
    except WorkerFailed as error:
        message = str(error)
    survived = folder.newest_whole(killed / "run/checkpoints")[0]
    if survived is None or "SIGKILL" not in message:
        return Finding(
            faults=(f"expected SIGKILL in step {KILLED} after a checkpoint, found {message or 'a finished run'}.",)
        )
    train_case(spec, root=killed)
    resumed = read_events(killed / "run/training_log.jsonl", "start")[-1]["resumed_from"]
    differences = _difference(whole, LAST, killed, LAST)
    numbers: dict[str, Number] = {"killed in step": KILLED, "resumed from": str(resumed)}
    numbers |= {f"difference of {name}": value for name, value in differences.items()}
    if resumed != survived.name or any(differences.values()):
        return Finding(numbers, (
            f"expected the run resumed from {survived.name} to equal the undisturbed one to the bit, found one "
            f"resumed from {resumed} with differences {differences}. If two undisturbed runs differ as well, the "
            "device has no deterministic kernel for an operation of this model.",
        ))  # fmt: skip
    return Finding(numbers)


def start(
    setting: Setting, spec: TrainingSpec | None, *, root: Path, processes: int, fault: dict[str, Any] | None = None,
    megabytes: float = 1.0,
) -> None:  # fmt: skip
    """Launch the ranks of a case and wait for them.

    Raises:
        WorkerFailed: a rank failed, also where the fault was intended.
    """
    root.mkdir(parents=True, exist_ok=True)
    case = {
        "spec": None if spec is None else spec.to_dict(), "root": str(root.resolve()), "fault": fault,
        "device": setting.device, "megabytes": megabytes,
    }  # fmt: skip
    write_json(root / "case.json", case)
    config = LaunchConfig(processes=processes, monitor_interval=0.1)
    launch("mm_ldlm.extras.gpu_check.rank", [str(root / "case.json")], config=config, log_directory=root / "logs")


def _spec(setting: Setting, **training: Any) -> TrainingSpec:
    model = task.tiny_mmdit() if setting.small else task.tiny_mmdit(dim=256, depth=4)
    batch = {"examples": 64, "length_multiple": 4}
    objective = {"kind": "multimodal", "mode": "mixed"}
    return task.spec(model, objective, device=setting.device, batch=batch, **training)


def _difference(a: Path, a_step: int, b: Path, b_step: int) -> dict[str, float]:
    """Return the largest difference of each file of two checkpoints."""
    paths = [folder.find(root / "run", which=str(step)) for root, step in ((a, a_step), (b, b_step))]
    return {
        name: task.largest_difference(*(folder.tensors(path, f"{name}.safetensors") for path in paths))
        for name in FILES
    }
