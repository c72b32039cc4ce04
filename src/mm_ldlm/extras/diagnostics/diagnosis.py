"""Diagnosis of a non-finite step: repeat it with the same batch and noise, with hooks on every module.

All ranks repeat the step together, as sharded models need, and exchange their findings. No parameter changes.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mm_ldlm.core.files import write_json
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.parallel import full
from mm_ldlm.objectives.base import Batch
from mm_ldlm.training.forward_backward import Stepper, total
from mm_ldlm.training.loop import Run
from mm_ldlm.training.observers import Observer

LARGEST_NORM = 1e19
"""The square of a larger norm exceeds float32."""
_NOTHING = (
    "When the step was repeated, all values were finite on every rank, so the cause is not in the data or the weights. "
    "Check the memory, the devices and the network between hosts."
)


@dataclasses.dataclass
class Findings:
    """Findings of one rank, in the order of the computation.

    Attributes:
        examples: field → examples with non-finite values of it.
        parameters: parameters with non-finite values.
        forward: first module with a non-finite output from finite inputs.
        gradient: first parameter with a non-finite gradient.
        norm: largest norm of the gradients of a micro-batch, in float64, before the first with a non-finite gradient.
        steepest: parameter with the largest of these gradients.
    """

    rank: int
    kind: str
    examples: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    parameters: list[str] = dataclasses.field(default_factory=list)
    forward: str | None = None
    losses: list[str] = dataclasses.field(default_factory=list)
    gradient: str | None = None
    norm: float = 0.0
    steepest: str | None = None
    trouble: str | None = None

    def sentence(self) -> str:
        """Describe the first cause in one or two sentences; an empty text if all values were finite."""
        gradient = f" The first parameter with a non-finite gradient is {self.gradient}." if self.gradient else ""
        where = "; ".join(f"{name} of examples {numbers[:8]}" for name, numbers in self.examples.items())
        causes = [
            (where, f"the input is non-finite: {where} contain NaN or Inf. Remove these examples."),
            (self.parameters, f"{len(self.parameters)} parameters are not finite, first {self.parameters[:1]}."),
            (self.forward, f"the inputs are finite, the first non-finite output comes from {self.forward}.{gradient}"),
            (
                self.losses,
                f"the model's outputs are finite, but not the loss: {', '.join(self.losses)}. Check how the objective "
                f"computes it.{gradient}",
            ),
            (self.gradient, f"the loss is finite, but gradients became non-finite in the backward pass.{gradient}"),
            (
                self.norm > LARGEST_NORM,
                f"the gradients are finite, but too large for float32: their norm is {self.norm:.1e}, the largest "
                f"in {self.steepest}. An earlier update made the weights too large: lower "
                "training.optimizer.lr, or lengthen the warm-up.",
            ),
            (self.trouble, f"the step could not be repeated ({self.trouble})."),
        ]
        found = next((text for cause, text in causes if cause), None)
        return "" if found is None else f"Rank {self.rank}, a step of kind {self.kind}: {found}"


@dataclasses.dataclass
class Diagnosis(Observer):
    """Repeats a step that has just failed on every rank, and clears its gradients."""

    run: Run

    def refused(self, micros: list[Batch], *, kind: str, reason: str) -> str:
        """Write `diagnosis-step-XXXXXXXX.json`, and summarise it in one paragraph."""
        run, step, draw = self.run, self.run.learner.state.step, self.run.learner.state.draw
        run.learner.optimization.drop_gradients()
        found = Findings(rank=run.process.rank, kind=kind)
        try:
            _repeat(found, run.stepper, micros, step=step, draw=draw)
        except Exception as error:
            found.trouble = f"{type(error).__name__}: {error}"
        run.learner.optimization.drop_gradients()
        everyone = collectives.gather(found)
        by_trouble = sorted(everyone, key=lambda each: bool(each.trouble))
        paragraph = " ".join([text for each in by_trouble if (text := each.sentence())][:4]) or _NOTHING
        if run.process.is_main:
            ranks = [dataclasses.asdict(each) for each in everyone]
            document = {"step": step, "draw": draw, "reason": reason, "diagnosis": paragraph, "ranks": ranks}
            file = run.checkpointer.directory.parent / f"diagnosis-step-{step:08d}.json"
            write_json(file, document)
            run.tracker.event(step, "diagnosis", reason=paragraph)
        return paragraph


def _repeat(found: Findings, stepper: Stepper, micros: list[Batch], *, step: int, draw: int) -> None:
    root, objective = stepper.root, stepper.objective
    found.parameters = [name for name, p in root.named_parameters() if not _finite(p)]
    handles = [
        module.register_forward_hook(_outputs(found, name.removeprefix("model.")))
        for name, module in root.named_modules()
        if module not in (root, root.objective)  # its losses are named below
    ]
    try:
        for micro in micros:
            batch = micro.to(stepper.process.device)
            for name, value in batch.fields.items():
                bad_B = ~torch.isfinite(value).flatten(1).all(dim=1) & batch.real_B
                if numbers := batch.examples_B[bad_B].tolist():
                    found.examples.setdefault(name, []).extend(numbers)
            losses = stepper.losses(batch, kind=found.kind, draw=draw, step=step)
            wrong = [name for name, (value, _) in losses.items() if name in objective.weights and not _finite(value)]
            found.losses += [name for name in wrong if name not in found.losses]
            loss = total(losses, objective, batch) * stepper.process.world
            gradients = stepper.parallel.gradients(stepper.scaler.scale(loss))
            _gradients(found, {name: g for name, g in gradients.items() if g is not None})
    finally:
        for handle in handles:
            handle.remove()


def _gradients(found: Findings, gradients: dict[str, Tensor]) -> None:
    # Roughly in backward order: the parameter registered last is the nearest to the loss.
    bad = (name for name, gradient in reversed(gradients.items()) if not _finite(gradient))
    found.gradient = found.gradient or next(bad, None)
    if found.gradient is None:
        # In float64 the squares of float32 numbers do not overflow.
        norms = {name: float(full(gradient.detach().double().norm())) for name, gradient in gradients.items()}
        if (norm := math.hypot(*norms.values())) > found.norm:
            found.norm, found.steepest = norm, max(norms, key=norms.__getitem__)


# -- hooks -------------------------------------------------------------------------------------------------------------


def _outputs(found: Findings, name: str) -> Any:
    def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
        if found.forward is None and not _all_finite(outputs) and _all_finite(inputs):
            found.forward = name

    return hook


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


def _all_finite(value: Any) -> bool:
    """Return whether every floating-point tensor inside nested tuples, lists and dicts is finite."""
    return all(_finite(leaf) for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point())
