"""Average gradients over the processes of one host through memory that all of them map, instead of gloo's sockets.

Every rank writes its part, waits for the others, and sums all parts in the order of the ranks, so that all ranks have
the same bits; with two ranks they are also gloo's. The memory has no name: the kernel frees it with the last process.
"""

import mmap
import os

import torch
import torch.distributed as dist
from torch import Tensor

from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process

CHUNK = 16 * 2**20
"""Largest number of elements that are averaged at a time"""


class SharedMemory:
    """One part of the memory for each rank, in two halves.

    The halves take turns: a rank overwrites a half after the barrier of the other one, and no rank arrives at that
    barrier before it has read the first.
    """

    def __init__(self, memory: mmap.mmap, process: Process) -> None:
        self.rank, self.world = process.rank, process.world
        self.slots = torch.frombuffer(memory, dtype=torch.uint8).view(2, process.world, -1)
        self.turn = 0

    def average_(self, tensor: Tensor) -> None:
        """Average a contiguous tensor over all ranks, in place; every rank must call it with equal shapes."""
        most = self.slots.shape[2] // tensor.element_size()
        for part in tensor.view(-1).split(most):
            slots = self.slots[self.turn].view(tensor.dtype)[:, : len(part)]
            self.turn = 1 - self.turn
            torch.div(part, self.world, out=slots[self.rank])
            dist.barrier()
            torch.add(slots[0], slots[1], out=part)
            for slot in slots[2:]:
                part.add_(slot)


def shared_memory(process: Process, *, elements: int) -> SharedMemory | None:
    """Make memory for `elements` float32 numbers of each rank, at most `CHUNK`; every rank must call this.

    Returns None where the ranks cannot share memory: one rank, a GPU, several hosts, or a system that refuses it.
    """
    if process.device.type != "cpu" or process.local_world != process.world or not collectives.active():
        return None
    # a multiple of 64 bytes, so that every rank's part begins with a cache line
    size = 2 * process.world * 4 * (-(-min(elements, CHUNK) // 16) * 16)
    mine, path = -1, ""
    if process.is_main:
        mine = _anonymous(size)
        path = f"/proc/{os.getpid()}/fd/{mine}"
    path = collectives.gather(path)[0]
    memory = _mapped(path, size)
    lacking = collectives.max_(torch.tensor([float(memory is None)]))  # and no rank opens the file any more
    if mine >= 0:
        os.close(mine)
    return None if memory is None or bool(lacking > 0) else SharedMemory(memory, process)


def _anonymous(size: int) -> int:
    """Open a file in memory with no name and room for `size` bytes; return its descriptor, or -1."""
    try:
        file = os.memfd_create("gradients")
        os.posix_fallocate(file, 0, size)
    except (AttributeError, OSError):  # not Linux, or not so much memory
        return -1
    return file


def _mapped(path: str, size: int) -> mmap.mmap | None:
    try:
        with open(path, "rb+") as file:
            return mmap.mmap(file.fileno(), size) if os.fstat(file.fileno()).st_size == size else None
    except (OSError, ValueError):
        return None


def average_bucket(memory: SharedMemory, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients: the communication hook of DDP, which reads the annotations of its hooks."""
    gradients: Tensor = bucket.buffer()
    memory.average_(gradients)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done
