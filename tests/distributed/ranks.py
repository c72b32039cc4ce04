"""Ranks that the tests launch: `python -m tests.distributed.ranks CASE FOLDER`; those of `reports` are forked."""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from mm_ldlm.core import ConfigurationError
from mm_ldlm.distributed import environment, failure

RANK = environment.rank_info().rank


def reports(folder: Path) -> None:
    """Write what every collective operation, and every way to average gradients, gives on this rank."""
    import torch
    from torch import nn

    from mm_ldlm.distributed import collectives, parallel
    from mm_ldlm.distributed.parallel import Parallel, full
    from mm_ldlm.distributed.process import joined

    rank = environment.rank_info().rank
    parallel.CHUNK = 32
    with joined(device="cpu", timeout_minutes=1, threads=1) as process:
        found: dict[str, Any] = {
            "sum": collectives.sum_(torch.arange(4.0) * (rank + 1)).tolist(),
            "gather": collectives.gather({"rank": rank, "text": "ä€😀"[:rank]}),
        }
        others = (lambda *_: None) if rank else parallel._mapped
        with mock.patch.object(parallel, "_mapped", others):
            found["unmapped"] = parallel.shared_memory(process, elements=3) is None
        found["hosts"] = parallel.shared_memory(dataclasses.replace(process, local_world=1), elements=3) is None
        memory = parallel.shared_memory(process, elements=101)
        for name, tensor in tensors(rank).items():
            memory.average_(tensor)
            found[name] = repr(tensor.double().flatten().tolist())
        for strategy in ("ddp", "fsdp"):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
            if strategy == "fsdp":
                from mm_ldlm.distributed.parallel import shard

                shard(model, [model[0]], process)
            wrapped = Parallel(model, process, strategy=strategy)
            for micro in range(2):  # of accumulation: gradients are exchanged in the last one only
                x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2 * rank + micro))
                with wrapped.accumulate(last=micro == 1):
                    (wrapped.module(x).sum() * process.world).backward()
            found[strategy] = [full(p.grad).flatten().tolist() for p in model.parameters() if p.grad is not None]
    (folder / f"{rank}.json").write_text(json.dumps(found))


def leaves_work(folder: Path) -> None:
    """Leave the group while an operation of this rank waits for the other one, and drop the module after that."""
    import torch
    import torch.distributed as dist

    from mm_ldlm.distributed.parallel import Parallel
    from mm_ldlm.distributed.process import joined

    rank, tensor = environment.rank_info().rank, torch.zeros(3)
    with joined(device="cpu", timeout_minutes=1, threads=1) as process:
        wrapped = Parallel(torch.nn.Linear(3, 1), process)
        time.sleep(rank)
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 1:
            with contextlib.suppress(RuntimeError):  # the other one has ended
                work.wait()
        del work
    del wrapped
    (folder / f"{rank}.json").write_text("1")


def tensors(rank: int) -> dict[str, Any]:
    """Gradients of a rank: longer than the shared memory, of several dimensions and types, empty, not finite."""
    import torch

    long = torch.randn(101, generator=torch.Generator().manual_seed(rank))
    return {
        "long": long, "shaped": long[:24].clone().view(2, 3, 4), "double": long.double(), "bf16": long.bfloat16(),
        "empty": torch.empty(0), "nan": torch.tensor([1.0, torch.nan if rank else 1.0]),
        "inf": torch.tensor([1.0, torch.inf if rank else 1.0]),
    }  # fmt: skip


def refuses(folder: Path) -> None:
    error = ConfigurationError("expected seven, found eight. Write seven.")
    failure.note(error, step=5)
    raise error


def breaks(folder: Path) -> None:
    raise ZeroDivisionError("a plain defect")


def exits(folder: Path) -> None:
    print("the last words", file=sys.stderr, flush=True)
    os._exit(7)


def is_killed(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits_beside_a_collective(folder: Path, end: Callable[[], None] = lambda: os._exit(7)) -> None:
    """Rank 1 ends without an error; the others lose their connection in the middle of an all-reduce."""
    import torch

    from mm_ldlm.distributed import collectives
    from mm_ldlm.distributed.process import joined

    with joined(device="cpu", timeout_minutes=1, threads=1):
        collectives.barrier()
        if RANK == 1:
            end()
        collectives.sum_(torch.zeros(10))


def is_terminated_beside_a_collective(folder: Path) -> None:
    exits_beside_a_collective(folder, end=lambda: os.kill(os.getpid(), signal.SIGTERM))


def aborts_beside_a_collective(folder: Path) -> None:
    exits_beside_a_collective(folder, end=os.abort)


def hangs_beside_a_collective(folder: Path) -> None:
    import torch

    from mm_ldlm.distributed import collectives
    from mm_ldlm.distributed.process import joined

    with joined(device="cpu", timeout_minutes=0.05, threads=1):
        collectives.barrier()
        if RANK == 1:
            time.sleep(600)
        collectives.sum_(torch.zeros(10))


def waits_beside_a_collective(folder: Path) -> None:
    from mm_ldlm.distributed.process import joined

    with joined(device="cpu", timeout_minutes=1, threads=1):
        (folder / f"joined-{RANK}").touch()
        time.sleep(600)


def waits(folder: Path) -> None:
    time.sleep(600)


if __name__ == "__main__":
    case, rest = globals()[sys.argv[1]], Path(sys.argv[2])
    with failure.recorded():
        (case if sys.argv[1].endswith("beside_a_collective") or RANK == 1 else waits)(rest)
