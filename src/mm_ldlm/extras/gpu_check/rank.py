"""One rank of `ranks` and `kill_resume`: `python -m mm_ldlm.extras.gpu_check.rank CASE.json`, by the launcher.

A case is {"spec": plain spec or null, "root": folder, "fault": arguments of `task.Faulty` or null, "device": name,
"megabytes": size of the all-reduce that is measured}. Without a spec the collectives are checked.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mm_ldlm.core.files import recorded, write_json
from mm_ldlm.distributed import collectives, failure
from mm_ldlm.distributed.process import Process, joined
from mm_ldlm.extras.gpu_check import task
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.worker import Result, train

REPEATS = 10


def train_case(spec: TrainingSpec, *, root: Path, fault: dict[str, Any] | None = None) -> Result:
    """Train a spec on the task, with deterministic kernels and optionally with a fault."""
    wrap = None if fault is None else lambda inner: task.Faulty(inner, **fault)
    with deterministic():
        return train(spec, root=root, data=task.data(spec), wrap_objective=wrap)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Use deterministic kernels where PyTorch has them: some backward passes on a GPU add in a random order."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def check_collectives(process: Process, *, megabytes: float) -> dict[str, Any]:
    """Check every operation of `distributed.collectives` on all ranks, and measure an all-reduce.

    Returns:
        "wrong": names of the operations with a wrong result on any rank; "gigabytes_per_second": bytes of the tensor
        divided by the seconds of an all-reduce.
    """
    rank, world, device = collectives.rank(), collectives.world(), process.device

    def filled(value: float) -> torch.Tensor:
        return torch.full((1000,), value, device=device)

    texts = [f"rank {number} " * (number + 1) for number in range(world)]
    right = {
        "sum": bool((collectives.sum_(filled(rank + 1)) == world * (world + 1) / 2).all()),
        "maximum": bool((collectives.max_(filled(rank)) == world - 1).all()),
        "gather": collectives.gather(texts[rank]) == texts,
    }
    collectives.barrier()
    wrong = [name for name, holds in right.items() if not holds]
    found = sorted({name for names in collectives.gather(wrong) for name in names})
    values = torch.ones(int(megabytes * 2**20 / 4), device=device)
    collectives.sum_(values)
    _wait(device)
    collectives.barrier()
    started = time.perf_counter()
    for _ in range(REPEATS):
        collectives.sum_(values)
    _wait(device)
    seconds = (time.perf_counter() - started) / REPEATS
    return {
        "wrong": found, "world": world, "backend": process.backend,
        "active": collectives.active(), "gigabytes_per_second": values.numel() * 4 / seconds / 1e9,
    }  # fmt: skip


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(path: Path) -> None:
    case = recorded(path)
    root = Path(case["root"])
    if case["spec"] is not None:
        train_case(TrainingSpec.from_dict(case["spec"]), root=root, fault=case["fault"])
        return
    with joined(device=case["device"], group_of_one=True) as process:
        found = check_collectives(process, megabytes=case["megabytes"])
        if process.is_main:
            write_json(root / "collectives.json", found)
        collectives.barrier()


if __name__ == "__main__":
    with failure.recorded():
        main(Path(sys.argv[1]))
