"""An objective with faults at chosen steps of chosen ranks: `objective.kind` is the import path of `FaultyConfig`."""

import functools
import os
import signal
from typing import Any, Literal

import torch

from mm_ldlm.core import config
from mm_ldlm.distributed.environment import rank_info
from mm_ldlm.objectives.base import Batch, Losses
from mm_ldlm.objectives.multimodal import MultimodalConfig

KIND = "tests.training.faults:FaultyConfig"


@config
class Fault:
    """What goes wrong in the loss of one step of some ranks.

    Attributes:
        kind: a loss or a gradient that is not finite, a weight that becomes infinite behind the forward pass, an error,
            the end of the process, or a request to stop after this step.
        times: how often it happens in a process; a batch that is computed again has the same faults.
        every_attempt: whether it happens again after a restart of the ranks.
    """

    kind: Literal["nan_loss", "inf_gradient", "inf_weight", "raise", "exit", "kill", "stop"]
    step: int
    ranks: tuple[int, ...] = (0,)
    times: int = 1000
    every_attempt: bool = True


@config
class FaultyConfig(MultimodalConfig):
    """The multimodal objective with faults."""

    kind: str = KIND
    faults: tuple[Fault, ...] = ()

    def build(self, shape: Any, **more: Any) -> Any:
        objective = super().build(shape, **more)
        spoiled = [set[tuple[int, ...]]() for _ in self.faults]
        objective.forward = functools.partial(_forward, objective.forward, self.faults, spoiled)
        return objective


def _forward(
    inner: Any, faults: tuple[Fault, ...], spoiled: list[set[tuple[int, ...]]], model: Any, batch: Batch,
    generator: Any, *, kind: str, step: int,
) -> Losses:  # fmt: skip
    losses: Losses = inner(model, batch, generator, kind=kind, step=step)
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    examples = tuple(batch.examples_B.tolist())
    for fault, before in zip(faults, spoiled, strict=True):
        due = fault.step == step and rank_info().rank in fault.ranks and len(before - {examples}) < fault.times
        if due and (fault.every_attempt or not restarted):
            before |= {examples} if torch.is_grad_enabled() else set()
            losses = _with_fault(fault, losses, model)
    return losses


def _with_fault(fault: Fault, losses: Losses, model: Any) -> Losses:
    if fault.kind == "raise":
        raise ZeroDivisionError("planted")
    if fault.kind == "exit":
        os._exit(7)
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.kind == "stop":
        for _ in range(2):  # a service manager signals all processes of a run, and the launcher its ranks
            signal.raise_signal(signal.SIGTERM)
    name = next(name for name in losses if name.endswith("_loss"))
    value, count = losses[name]
    if fault.kind == "nan_loss":
        value = value * torch.nan
    elif fault.kind == "inf_gradient":
        value = value.clone()
        value.register_hook(lambda gradient: gradient * torch.inf)
    elif fault.kind == "inf_weight":
        bias = next(p for name, p in model.named_parameters() if name.endswith("bias") and p.requires_grad)
        bias.data[0] = torch.inf  # the backward pass does not need it
    return {**losses, name: (value, count)}
