"""Data-parallel modules: DDP or FSDP2, and gradient accumulation without unnecessary communication."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.distributed.process import Process
from mm_ldlm.distributed.shared_memory import average_bucket, shared_memory


class Parallel:
    """A module wrapped for all ranks.

    `module` is the wrapped module that the loop calls; `inner` is the plain module for checkpoints and diagnostics.
    """

    def __init__(self, inner: nn.Module, process: Process, *, strategy: str = "ddp", some_unused: bool = True) -> None:
        """Wrap `inner`. `some_unused`: some steps do not use every trainable parameter (randomly drawn modes)."""
        self.inner: Any = inner
        self.process = process
        self.module: nn.Module = inner
        self.strategy = strategy if process.world > 1 else "none"
        if self.strategy == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            self.module = DistributedDataParallel(
                inner,
                device_ids=[process.device] if process.device.type == "cuda" else None,
                find_unused_parameters=some_unused,
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

    @property
    def gradient_scale(self) -> float:
        """Factor for a loss that is a part of the global sum, because DDP and FSDP average gradients over ranks."""
        return float(self.process.world)


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
