"""One rank of the check of collectives: `python -m tests.gpu.ranks DEVICE FILE`."""

import sys
import time
from pathlib import Path
from typing import Any

import torch

from mm_ldlm.core.files import write_json
from mm_ldlm.distributed import collectives, failure
from mm_ldlm.distributed.process import Process, joined

REPEATS = 10


def check(process: Process) -> dict[str, Any]:
    """Compare every operation with its formula, and measure an all-reduce: bytes of the tensor by seconds."""
    device, rank, world = process.device, process.rank, process.world

    def filled(value: float) -> torch.Tensor:
        return torch.full((1000,), value, device=device)

    texts = [f"rank {number} " * (number + 1) for number in range(world)]
    right = {
        "sum": bool((collectives.sum_(filled(rank + 1)) == world * (world + 1) / 2).all()),
        "gather": collectives.gather(texts[rank]) == texts,
    }
    wrong = {
        name for names in collectives.gather([name for name, holds in right.items() if not holds]) for name in names
    }
    values = torch.ones((64 if device.type == "cuda" else 1) * 2**20, device=device)
    for repeat in range(REPEATS + 1):
        if repeat == 1:
            wait(device)
            started = time.perf_counter()
        collectives.sum_(values)
    wait(device)
    rate = values.numel() * 4 * REPEATS / (time.perf_counter() - started) / 1e9
    return {"wrong": sorted(wrong), "world": world, "gigabytes_per_second": rate}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    with failure.recorded(), joined(device=sys.argv[1], group_of_one=True) as process:
        found = check(process)
        if process.is_main:
            write_json(Path(sys.argv[2]), found | {"backend": process.backend})
        collectives.barrier()
