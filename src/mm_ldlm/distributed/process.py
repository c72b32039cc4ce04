"""The process group: join it with this rank's device, and leave it cleanly."""

import atexit
import contextlib
import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from mm_ldlm.core import ConfigurationError, WorkerFailed
from mm_ldlm.distributed import entry, environment
from mm_ldlm.distributed.device import choose_device
from mm_ldlm.distributed.environment import RankInfo

CPU = torch.device("cpu")
_LEFT: list[Any] = []
"""Groups that were left, until the process exits: if DDP held the last reference, its destructor would wait for the
threads of gloo and keep the lock of the interpreter that they need, for ever (torch 2.13)"""
atexit.register(_LEFT.clear)


@dataclasses.dataclass(frozen=True)
class Process(RankInfo):
    """This rank, its device, and the backend of its process group (None without one)."""

    device: torch.device = CPU
    backend: str | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0


@contextlib.contextmanager
def joined(
    *, device: str = "auto", timeout_minutes: float = 10, threads: int | None = None, group_of_one: bool = False
) -> Iterator[Process]:
    """Join the process group that the environment describes and leave it at the end.

    A single process has no group, unless `group_of_one` is set: then a machine with one GPU can check NCCL too.

    The restart attempt is a prefix of the store: ranks restarted by the elastic agent would otherwise read the
    addresses of dead peers (torch 2.13: 0 of 7 recoveries succeeded without the prefix).

    Raises:
        WorkerFailed: The other ranks did not join within `timeout_minutes`.
    """
    rank_info = environment.rank_info()
    if rank_info.agent_store:
        entry.die_with_parent()  # torchrun ends no rank when it is killed
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = choose_device(device, local_rank=rank_info.local_rank)
    if chosen.type == "cuda":
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise ConfigurationError(
                f"parameter 'training.device': {chosen} is not on this machine, which has {torch.cuda.device_count()} "
                "GPUs. Set it to auto or cpu."
            )
        torch.cuda.set_device(chosen)
    if rank_info.world == 1 and not group_of_one:
        yield Process(**vars(rank_info), device=chosen)
        return
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    timeout = datetime.timedelta(minutes=timeout_minutes)
    try:
        store = dist.TCPStore(
            rank_info.master_address,
            rank_info.master_port,
            None if rank_info.agent_store else rank_info.world,
            is_master=rank_info.rank == 0 and not rank_info.agent_store,
            timeout=timeout,
        )
        prefixed = dist.PrefixStore(f"attempt_{rank_info.attempt}", store)
        dist.init_process_group(
            backend, store=prefixed, rank=rank_info.rank, world_size=rank_info.world, timeout=timeout,
            device_id=chosen if backend == "nccl" else None,
        )  # fmt: skip
    except (dist.DistError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WorkerFailed(
            f"rank {rank_info.rank} of {rank_info.world} could not join the others at {rank_info.master_address}:"
            f"{rank_info.master_port} within {timeout_minutes:g} minutes ({reason}). Check that every host "
            "was started, that the address is the first host's, and that the port is open between the hosts."
        ) from error
    try:
        yield Process(**vars(rank_info), device=chosen, backend=backend)
    finally:
        _LEFT.append(dist.group.WORLD)
        # After an error the peers may be gone; an error of destroying the group must not hide the first one.
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
