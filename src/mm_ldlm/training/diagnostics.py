"""Diagnostics of the model at an interval: norms, ratios, zeros, attention logits, activations, FLOPs.

All statistics of a step are collected on the device and read once. Names in the log: `grad_norm/PART`,
`param_norm/PART`, `update_ratio/PART`, `grad_zeros/PART`, `grad_nonfinite/PART`, `attention_logit_max/BLOCK`,
`activation_rms/BLOCK`. On request the statistics of the gradient of every parameter are appended to `gradients.jsonl`
in the run folder, one line for each diagnosed step: {"step": …, "parameters": {name: {norm, mean, std, …}}}.
"""

import contextlib
import math
import resource
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mm_ldlm.distributed.parallel import full
from mm_ldlm.distributed.process import Process
from mm_ldlm.models.freezing import FreezingSnapshot
from mm_ldlm.models.layers import Attention
from mm_ldlm.models.parts import count_by_part, tagged_parameters
from mm_ldlm.objectives.base import Batch
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.learner import Learner
from mm_ldlm.training.stepper import Stepper

GRADIENTS = "gradients.jsonl"
STATISTICS = ("norm", "mean", "std", "largest", "zeros", "nonfinite")
"""Norm, mean, standard deviation and largest absolute value of the entries; fractions that are 0 and not finite"""


def part_of(name: str, tag: str) -> str:
    """Name the group that a parameter is reported in: its part, or its block and stream in a model's blocks."""
    pieces = name.removeprefix("model.").split(".")
    if pieces[0] != "blocks" or len(pieces) < 3:
        return tag
    return f"block{pieces[1]}.stream{pieces[3]}" if pieces[2] == "streams" else f"block{pieces[1]}"


class _NoModules(contextlib.nullcontext[None]):
    """Takes the place of the hooks by which torch counts per module: they fail for a model whose output is a view of a
    parameter, such as a row of a table."""

    parents = ("Global",)


class Diagnostics:
    """Diagnostics of every `diagnose_every`-th step; other steps have no overhead.

    Hooks would recompile the graph of a compiled model, so attention, activations and FLOPs are not measured then.

    Attributes:
        flops_per_token: FLOPs of forward and backward pass per padded token, mean over the kinds of steps; 0 while
            unknown.
    """

    def __init__(self, learner: Learner, config: TrainingConfig, process: Process, *, directory: Path) -> None:
        self.root, self.scaler = learner.root, learner.optimization.scaler
        self.config, self.process, self.directory = config, process, directory
        self.flops_per_token = 0.0
        self._line: dict[str, float] = {}
        self._numbers: dict[str, Tensor] = {}
        self._held: list[tuple[str, nn.Parameter, Tensor]] = []
        self._gradients: dict[str, Tensor] = {}
        self._hooks: list[Any] = []
        self._freezing: FreezingSnapshot | None = None

    def due(self, step: int) -> bool:
        """Return whether the step after `step` finished ones is diagnosed: every n-th step, and the first."""
        every = self.config.diagnose_every
        return every > 0 and ((step + 1) % every == 0 or step == 0)

    # -- one detailed step ------------------------------------------------------------------------------------------

    def before_step(self, stepper: Stepper, batch: Batch) -> None:
        """Count the FLOPs, once per session, and start to observe attention and blocks."""
        if self.config.precision.compile:
            return
        if not self.flops_per_token:
            self._count_flops(stepper, batch)
        for name, module in self.root.named_modules():
            if isinstance(module, Attention):
                self._hooks.append(module.register_forward_hook(self._attention(name)))
        for number, block in enumerate(getattr(self.root.model, "blocks", ())):
            self._hooks.append(block.register_forward_hook(self._activation(number)))

    def _count_flops(self, stepper: Stepper, batch: Batch) -> None:
        """Count the FLOPs of one extra forward pass of each kind of step; a whole step takes three times as many.

        The counter makes torch decompose some operations, with other rounding, so the passes are extra ones.
        """
        kinds, counter = stepper.objective.kinds, FlopCounterMode(display=False)
        counter.mod_tracker = _NoModules()  # type: ignore[assignment]
        with torch.no_grad(), counter:
            for kind in kinds:
                stepper.losses(batch.to(self.process.device), kind=kind, draw=0, step=0)
        self.flops_per_token = 3.0 * counter.get_total_flops() / (len(kinds) * batch.tokens_BL.numel())

    def before_update(self) -> None:
        """Collect gradient statistics after the backward pass.

        With fp16 the gradients are still scaled, and their zeros show underflow; norms are unscaled.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        scale = float(self.scaler.get_scale())
        groups: dict[str, list[nn.Parameter]] = {}
        for name, part_tag, parameter in tagged_parameters(self.root):
            if parameter.requires_grad:
                groups.setdefault(part_of(name, part_tag.name), []).append(parameter)
        for part, parameters in groups.items():
            self._numbers[f"param_norm/{part}"] = nn.utils.get_total_norm([p.detach() for p in parameters])
            if not (with_grad := [p for p in parameters if p.grad is not None]):
                continue
            grads = [_local(p.grad) for p in with_grad]
            self._numbers[f"grad_norm/{part}"] = nn.utils.get_total_norm([p.grad for p in with_grad]) / scale  # type: ignore[misc]
            zeros = torch.stack([(g == 0).sum() for g in grads]).sum().double()
            self._numbers[f"grad_zeros/{part}"] = zeros / sum(g.numel() for g in grads)
            self._numbers[f"grad_nonfinite/{part}"] = torch.stack([(~torch.isfinite(g)).sum() for g in grads]).sum()
            self._held += [(part, p, p.detach().clone()) for p in with_grad]
        if self.scaler.is_enabled():
            self._line["fp16_scale"] = scale
        if self.config.parameter_gradients:
            self._gradients = gradient_statistics(self.root, scale=scale)

    def after_update(self, step: int, *, applied: bool) -> None:
        """Collect the update ratios after the optimizer step, then read all statistics at once.

        A part whose weights were all 0 before the step has no ratio.

        Args:
            step: number of this step, counted from 1.
        """
        moved: dict[str, list[Tensor]] = {}
        for part, parameter, before in self._held if applied else ():
            moved.setdefault(part, []).append(parameter.detach() - before)
        for part, differences in moved.items():
            norm = nn.utils.get_total_norm(differences)
            self._numbers[f"update_ratio/{part}"] = norm / self._numbers[f"param_norm/{part}"]
        values = torch.stack([full(value).double() for value in self._numbers.values()]).tolist()
        found = zip(self._numbers, values, strict=True)
        self._line |= {name: x for name, x in found if math.isfinite(x) or not name.startswith("update_ratio/")}
        if self._gradients and self.process.is_main:
            with contextlib.closing(Tracker(self.directory / GRADIENTS)) as log:
                named = {name: dict(zip(STATISTICS, x.tolist(), strict=True)) for name, x in self._gradients.items()}
                log.metrics(step, {"parameters": named})
        self._numbers, self._held, self._gradients = {}, [], {}
        if self.process.device.type == "cuda":
            self._line["memory_peak_gib"] = torch.cuda.max_memory_allocated(self.process.device) / 2**30
        else:
            self._line["memory_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    def take(self) -> dict[str, float]:
        """Return the numbers of the last diagnosed step, once."""
        line, self._line = self._line, {}
        return line

    def _attention(self, name: str) -> Any:
        block = name.removeprefix("model.").removesuffix(".attention").replace("blocks.", "block")

        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            with torch.no_grad():
                q, k, _, key_mask = inputs
                logits = (q.float() @ k.float().mT).abs() / math.sqrt(q.shape[-1])
                if key_mask is not None:
                    logits = logits.masked_fill(~key_mask, 0.0)
                self._note(f"attention_logit_max/{block}", logits.amax())

        return hook

    def _activation(self, block: int) -> Any:
        def hook(module: nn.Module, inputs: Any, outputs: Tensor | tuple[Tensor, ...]) -> None:
            with torch.no_grad():
                outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
                squares = torch.stack([x.detach().float().square().mean() for x in outputs])
                self._note(f"activation_rms/block{block}", squares.mean().sqrt())

        return hook

    def _note(self, key: str, value: Tensor) -> None:
        self._numbers[key] = torch.maximum(self._numbers.get(key, value), value)

    # -- freezing ---------------------------------------------------------------------------------------------------

    def watch_freezing(self) -> dict[str, Any]:
        """Take a snapshot of the frozen weights; return the numbers of trained parameters for the log."""
        self._freezing = FreezingSnapshot(self.root)
        parameters, of_model = (sum(p.numel() for p in m.parameters()) for m in (self.root, self.root.model))
        own = {"objective_parameters": parameters - of_model} if parameters > of_model else {}
        return {"parameters": parameters, **own, "parts": count_by_part(self.root)}

    def verify_freezing(self) -> None:
        """Check at a checkpoint that no frozen parameter has moved.

        Raises:
            FreezingError: a frozen parameter has moved.
        """
        if self._freezing is not None:
            self._freezing.verify(self.root)


def gradient_statistics(module: nn.Module, *, scale: float) -> dict[str, Tensor]:
    """Compute `STATISTICS` (6,) float64 of the gradient of every parameter that has one. Every rank must call this.

    Args:
        scale: divisor of the gradients, the loss scale of fp16.
    """
    found = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            grad = full(parameter.grad.detach()).double() / scale
            found[name] = torch.stack(
                [grad.norm(), grad.mean(), grad.std(correction=0), grad.abs().amax(), (grad == 0).double().mean(),
                 (~torch.isfinite(grad)).double().mean()]
            )  # fmt: skip
    return found


def _local(value: Any) -> Tensor:
    """Return this rank's shard of a sharded tensor, on which zeros are counted."""
    return value.to_local() if hasattr(value, "to_local") else value
