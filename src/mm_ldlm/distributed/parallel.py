"""Data-parallel modules: DDP or FSDP2, and gradient accumulation without unnecessary communication.

The processes of one host without GPUs average gradients through memory that all of them map, instead of gloo's sockets.
Every rank writes its part, waits for the others, and sums all parts in the order of the ranks, so that all ranks have
the same bits; with two ranks they are also gloo's. The memory has no name: the kernel frees it with the last process.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process


class Parallel:
    """A module wrapped for all ranks.

    `module` is the wrapped module that the loop calls; `inner` is the plain module for checkpoints and diagnostics.
    """

    def __init__(self, inner: nn.Module, process: Process, *, strategy: str = "ddp") -> None:
        self.inner: Any = inner
        self.process = process
        self.module: nn.Module = inner
        self.strategy = strategy if process.world > 1 else "none"
        if self.strategy == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            self.module = DistributedDataParallel(
                inner,
                device_ids=[process.device] if process.device.type == "cuda" else None,
                find_unused_parameters=True,  # a step of one mode does not use every parameter
                gradient_as_bucket_view=True,
                forward_sync_buffers=False,
            )
            elements = sum(p.numel() for p in inner.parameters() if p.requires_grad)
            if (memory := shared_memory(process, elements=elements)) is not None:
                self.module.register_comm_hook(memory, average_bucket)

    @contextlib.contextmanager
    def accumulate(self, *, last: bool) -> Iterator[None]:
        """Exchange gradients only in the backward pass of the last micro-batch."""
        if self.strategy == "ddp" and not last:
            with self.module.no_sync():  # type: ignore[operator]
                yield
            return
        if self.strategy == "fsdp":
            for module in self.inner.modules():
                setter: Any = getattr(module, "set_requires_gradient_sync", None)
                if setter is not None:
                    setter(last, recurse=False)
        yield

    def gradients(self, loss: Tensor) -> dict[str, Tensor | None]:
        """Compute this rank's gradients by parameter outside of training (a repeated step), leaving `.grad` empty.

        DDP's reducer must not see such a backward pass: it would count the parameters used there as used in the next
        step. Its hooks run where gradients are accumulated, which `autograd.grad` does not do.
        """
        named = {name: p for name, p in self.inner.named_parameters() if p.requires_grad}
        if self.strategy != "fsdp":
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            return dict(zip(named, found, strict=True))
        loss.backward()
        held = {name: p.grad for name, p in named.items()}
        for p in named.values():
            p.grad = None
        return held


def shard(module: nn.Module, blocks: list[nn.Module], process: Process) -> None:
    """Shard each block, then the rest, with FSDP2, in place.

    Parameters become DTensors, so the optimizer and the EMA must be created afterwards. They are gathered in float32
    and converted by autocast, because layers with float32 inputs under autocast, and validation, need them so.
    """
    if process.world == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(process.device.type, (process.world,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def reshard(module: nn.Module) -> None:
    """Free the gathered parameters of FSDP modules, so that the next forward pass gathers them anew.

    FSDP keeps those of the outermost module after a forward pass, for a backward pass. Without one they would be stale
    as soon as the sharded parameters change.
    """
    for part in module.modules():
        free: Any = getattr(part, "reshard", None)
        if free is not None:
            free()


def full(tensor: Tensor) -> Tensor:
    """Return the full value of a sharded tensor (every rank must call it), or the tensor itself."""
    whole: Any = getattr(tensor, "full_tensor", None)
    return tensor if whole is None else whole()


def assign(target: Tensor, value: Tensor) -> None:
    """Copy a full tensor into a plain or sharded one, in place (every rank must call it)."""
    if hasattr(target, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(target.device, target.dtype), target.device_mesh, target.placements)  # type: ignore[attr-defined]
    with torch.no_grad():
        target.copy_(value)


# -- gradients through shared memory -----------------------------------------------------------------------------------

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
        for part in tensor.view(-1).split(self.slots.shape[2] // tensor.element_size()):
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
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or not so much memory
            mine = os.memfd_create("gradients")
            os.posix_fallocate(mine, 0, size)
            path = f"/proc/{os.getpid()}/fd/{mine}"
    memory = _mapped(collectives.gather(path)[0], size)
    lacking = any(collectives.gather(memory is None))  # and no rank opens the file any more
    if mine >= 0:
        os.close(mine)
    return None if memory is None or lacking else SharedMemory(memory, process)


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
