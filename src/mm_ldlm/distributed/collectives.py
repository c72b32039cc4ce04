"""Collective operations; in a single process they return their input without communication."""

from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def active() -> bool:
    """Return whether this process belongs to a process group."""
    return dist.is_available() and dist.is_initialized()


def sum_(tensor: Tensor) -> Tensor:
    """Sum over all ranks, in place."""
    if active():
        dist.all_reduce(tensor)
    return tensor


def barrier() -> None:
    """Wait until all ranks arrive."""
    if active():
        dist.barrier()


def gather(value: T) -> list[T]:
    """Gather a Python value of every rank on every rank, in rank order."""
    if not active():
        return [value]
    found = [value] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
