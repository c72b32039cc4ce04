"""Statistics of the gradient of every parameter, in `gradients.jsonl` of the run folder, on request.

One line for each diagnosed step: {"step": …, "parameters": {name: {norm, mean, std, largest, zeros, nonfinite}}}.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from torch import Tensor, nn

from mm_ldlm.distributed.parallel import full
from mm_ldlm.training.jsonl import JsonlTracker

FILE = "gradients.jsonl"
STATISTICS = ("norm", "mean", "std", "largest", "zeros", "nonfinite")
"""Norm, mean, standard deviation and largest absolute value of the entries; fractions that are 0 and not finite"""


def gradient_statistics(module: nn.Module, *, scale: float) -> tuple[list[str], Tensor]:
    """Compute the statistics of the gradients, (parameters, statistics) float64, and list the names of the rows.

    Every rank must call this. Parameters without a gradient are left out.

    Args:
        scale: what the gradients are divided by, the loss scale of fp16.
    """
    names, rows = [], []
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            continue
        grad = full(parameter.grad.detach()).double() / scale
        rows.append(
            torch.stack(
                [grad.norm(), grad.mean(), grad.std(correction=0), grad.abs().amax(), (grad == 0).double().mean(),
                 (~torch.isfinite(grad)).double().mean()]
            )
        )  # fmt: skip
        names.append(name)
    return names, torch.stack(rows) if rows else torch.zeros(0, len(STATISTICS), dtype=torch.float64)


def append(directory: Path, step: int, names: list[str], values: list[list[float]]) -> None:
    """Append one line to `gradients.jsonl`."""
    found = {name: dict(zip(STATISTICS, row, strict=True)) for name, row in zip(names, values, strict=True)}
    with contextlib.closing(JsonlTracker(directory / FILE)) as log:
        log.metrics(step, {"parameters": found})
