"""Diagnosis of a non-finite step: repeat it with the same batch and noise, with hooks on every module.

All ranks repeat the step together, as sharded models need, and exchange their findings. No parameter changes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core.files import write_text
from mm_ldlm.distributed import collectives
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.losses import total
from mm_ldlm.training.optimizer import Optimization
from mm_ldlm.training.stepper import Stepper
from mm_ldlm.training.tracker import Tracker

LARGEST_NORM = 1e19
"""The square of a larger norm exceeds float32."""


@dataclasses.dataclass
class Findings:
    """Findings of one rank, in the order of the computation."""

    rank: int
    kind: str
    examples: dict[str, list[int]]
    """field → examples whose values of it are not finite"""
    parameters: list[str]
    """parameters with non-finite values"""
    inputs: list[str] = dataclasses.field(default_factory=list)
    """arguments of the model that were not finite"""
    forward: str | None = None
    """first module with a non-finite output from finite inputs"""
    losses: list[str] = dataclasses.field(default_factory=list)
    backward: str | None = None
    """first module, in backward order, whose output's gradient was non-finite"""
    gradient: str | None = None
    """first parameter with a non-finite gradient"""
    norm: float = 0.0
    """largest norm of the gradients of a micro-batch, in float64; 0 if a gradient is not finite"""
    steepest: str | None = None
    """parameter with the largest of these gradients"""
    trouble: str | None = None
    largest: dict[str, float] = dataclasses.field(default_factory=dict)
    """largest finite magnitudes among module outputs"""

    @property
    def any(self) -> bool:
        return bool(
            self.examples
            or self.inputs
            or self.parameters
            or self.forward
            or self.losses
            or self.backward
            or self.gradient
            or self.overflow
        )

    @property
    def overflow(self) -> bool:
        """Whether the squares of finite gradients exceed float32, so that their norm is infinite."""
        return self.norm > LARGEST_NORM

    def sentence(self) -> str:
        """Describe the findings in one or two sentences."""
        start = f"Rank {self.rank}, a step of kind {self.kind}: "
        if self.examples:
            where = "; ".join(f"{name} of examples {numbers[:8]}" for name, numbers in self.examples.items())
            return f"{start}the input is not finite: {where} contain NaN or Inf. Remove these examples."
        if self.parameters:
            return f"{start}{len(self.parameters)} parameters are not finite, the first of them {self.parameters[0]}."
        if self.inputs:
            return f"{start}the model received values that are not finite: {', '.join(self.inputs)}."
        gradient = f" The first parameter with a non-finite gradient is {self.gradient}." if self.gradient else ""
        if self.forward:
            return f"{start}the first non-finite output, for finite inputs, is that of module {self.forward}.{gradient}"
        if self.losses:
            return f"{start}the model's outputs are finite, but not the loss: {', '.join(self.losses)}.{gradient}"
        if self.backward or self.gradient:
            where = f"at the output of module {self.backward}" if self.backward else "in the backward pass"
            return f"{start}the loss is finite, but gradients became non-finite {where}.{gradient}"
        if self.overflow:
            return (
                f"{start}the gradients are finite, but too large for float32: their norm is {self.norm:.1e}, the "
                f"largest are those of {self.steepest}. An earlier update made the weights too large: lower "
                "training.optimizer.lr, or lengthen the warm-up."
            )
        if self.trouble:
            return f"{start}the step could not be repeated ({self.trouble})."
        return f"{start}all values were finite when the step was repeated."


def diagnose(
    stepper: Stepper, optimization: Optimization, micros: list[Batch], *, kind: str, step: int, draw: int, reason: str,
    directory: Path, tracker: Tracker,
) -> str:  # fmt: skip
    """Repeat the step that has just failed, write `diagnosis-step-XXXXXXXX.json`, and summarise it in one paragraph.

    Every rank must call this. Gradients are cleared.
    """
    optimization.drop_gradients()
    mine = _repeat(stepper, micros, kind=kind, step=step, draw=draw)
    optimization.drop_gradients()
    everyone = collectives.gather(mine)
    guilty = [found for found in everyone if found.any]
    if guilty:
        paragraph = " ".join(found.sentence() for found in guilty[:4])
    elif any(found.trouble for found in everyone):
        paragraph = " ".join(found.sentence() for found in everyone if found.trouble)
    else:
        paragraph = (
            "When the step was repeated, all values were finite on every rank, so the cause is not in the data or the "
            "weights. Check the memory, the devices and the network between hosts."
        )
    if stepper.process.is_main:
        document = {
            "step": step, "draw": draw, "reason": reason, "diagnosis": paragraph,
            "ranks": [dataclasses.asdict(found) for found in everyone],
        }  # fmt: skip
        write_text(directory / f"diagnosis-step-{step:08d}.json", json.dumps(document, indent=1))
        tracker.event(step, "diagnosis", reason=paragraph)
    return paragraph


def _repeat(stepper: Stepper, micros: list[Batch], *, kind: str, step: int, draw: int) -> Findings:
    root, objective = stepper.root, stepper.objective
    found = Findings(rank=stepper.process.rank, kind=kind, examples={}, parameters=[])
    try:
        found.parameters = [name for name, p in root.named_parameters() if not bool(torch.isfinite(p.detach()).all())]
        with _Watch(root, found):
            for micro in micros:
                batch = micro.to(stepper.process.device)
                for name, numbers in _non_finite_examples(batch).items():
                    found.examples.setdefault(name, []).extend(numbers)
                losses = stepper.losses(batch, kind=kind, draw=draw, step=step)
                found.losses += [
                    name for name, (value, _) in losses.items()
                    if name in objective.weights and name not in found.losses and not bool(torch.isfinite(value))
                ]  # fmt: skip
                loss = total(losses, objective, batch) * stepper.parallel.gradient_scale
                gradients = stepper.parallel.gradients(loss if stepper.scaler is None else stepper.scaler.scale(loss))
                # Roughly in backward order: the parameter registered last is the nearest to the loss.
                bad = (
                    name
                    for name, gradient in reversed(list(gradients.items()))
                    if gradient is not None and not bool(torch.isfinite(gradient).all())
                )
                found.gradient = found.gradient or next(bad, None)
                if found.gradient is None:
                    norms = {name: _norm(g) for name, g in gradients.items() if g is not None}
                    if (norm := math.hypot(*norms.values())) > found.norm:
                        found.norm, found.steepest = norm, max(norms, key=norms.__getitem__)
    except Exception as error:
        found.trouble = f"{type(error).__name__}: {error}"
    return found


def _norm(gradient: Tensor) -> float:
    """Compute the norm of a gradient in float64, in which the squares of float32 numbers do not overflow."""
    found: Any = gradient.detach().double().norm()
    whole = getattr(found, "full_tensor", None)
    return float(found if whole is None else whole())


def _non_finite_examples(batch: Batch) -> dict[str, list[int]]:
    found = {}
    for name, value in batch.fields.items():
        if value.is_floating_point():
            bad_B = ~torch.isfinite(value).flatten(1).all(dim=1) & batch.real_B
            if numbers := batch.examples_B[bad_B].tolist():
                found[name] = numbers
    return found


class _Watch:
    """Context with hooks on all modules of the root."""

    def __init__(self, root: TrainableRoot, found: Findings) -> None:
        self.root, self.found = root, found
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        model: nn.Module = self.root.model
        self.handles.append(model.register_forward_pre_hook(self._inputs, with_kwargs=True))
        for name, module in self.root.named_modules():
            if module is not self.root:
                self.handles.append(module.register_forward_hook(self._forward(name.removeprefix("model."))))

    def __exit__(self, *unused: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _inputs(self, module: nn.Module, positional: Any, named: dict[str, Any]) -> None:
        handed: dict[Any, Any] = {**dict(enumerate(positional)), **named}
        for name, value in handed.items():
            if any(not bool(torch.isfinite(t).all()) for t in _floats(value)) and str(name) not in self.found.inputs:
                self.found.inputs.append(str(name))

    def _forward(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
            tensors = list(_floats(outputs))
            bad = any(not bool(torch.isfinite(t).all()) for t in tensors)
            if not bad and tensors:
                largest = max(float(t.detach().abs().amax()) for t in tensors if t.numel()) if any(
                    t.numel() for t in tensors
                ) else 0.0  # fmt: skip
                self.found.largest[name] = max(self.found.largest.get(name, 0.0), largest)
            if bad and self.found.forward is None and all(bool(torch.isfinite(t).all()) for t in _floats(inputs)):
                self.found.forward = name
            for tensor in tensors:
                if tensor.requires_grad and tensor.grad_fn is not None:
                    self.handles.append(tensor.register_hook(self._backward(name)))

        return hook

    def _backward(self, name: str) -> Any:
        def hook(gradient: Tensor) -> None:
            if self.found.backward is None and not bool(torch.isfinite(gradient).all()):
                self.found.backward = name

        return hook


def _floats(value: Any) -> Any:
    """Yield every floating-point tensor inside nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _floats(item)
    elif isinstance(value, dict):
        yield from _floats(list(value.values()))
