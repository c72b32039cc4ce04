"""Statistics of the model at an interval: norms, ratios, zeros, attention logits, activations, FLOPs.

All statistics of a step are collected on the device and read once. Names in the log: `grad_norm/PART`,
`param_norm/PART`, `update_ratio/PART`, `grad_zeros/PART`, `grad_nonfinite/PART`, `attention_logit_max/BLOCK`,
`activation_rms/BLOCK`.
"""

import contextlib
import math
import resource
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mm_ldlm.distributed.parallel import full
from mm_ldlm.models.attention import Attention
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.objectives.base import Batch
from mm_ldlm.training.loop import Run
from mm_ldlm.training.observers import Observer

ZERO_DIAGNOSES = 3
"""Diagnosed steps in a row in which the gradient of a part was exactly 0; at step 0 this is normal behind gates"""


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


class Statistics(Observer):
    """Statistics of every `diagnose_every`-th step; other steps have no overhead.

    Hooks would recompile the graph of a compiled model, so attention, activations and FLOPs are not measured then.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.root, self.scaler = run, run.learner.root, run.learner.optimization.scaler
        self._detailed = False  # whether the present step is observed
        self._numbers: dict[str, Tensor] = {}
        self._held: list[tuple[str, nn.Parameter, Tensor]] = []
        self._hooks: list[Any] = []
        self._zeros: dict[str, int] = {}

    def before_step(self, step: int, micros: list[Batch]) -> None:
        """Count the FLOPs, once per session, and start to observe attention and blocks: in every n-th step, and the
        first.
        """
        every = self.run.config.diagnose_every
        self._detailed = every > 0 and ((step + 1) % every == 0 or step == 0)
        if not self._detailed or self.run.config.precision.compile:
            return
        if not self.run.throughput.flops_per_token:
            self._count_flops(micros[0])
        for name, module in self.root.named_modules():
            if isinstance(module, Attention):
                self._hooks.append(module.register_forward_hook(self._attention(name)))
        for number, block in enumerate(getattr(self.root.model, "blocks", ())):
            self._hooks.append(block.register_forward_hook(self._activation(number)))

    def _count_flops(self, batch: Batch) -> None:
        """Count the FLOPs of one extra forward pass of each kind of step; a step takes three times as many.

        The counter makes torch decompose some operations, with other rounding, so the passes are extra ones.
        """
        stepper, counter = self.run.stepper, FlopCounterMode(display=False)
        kinds = stepper.objective.kinds
        counter.mod_tracker = _NoModules()  # type: ignore[assignment]
        with torch.no_grad(), counter:
            for kind in kinds:
                stepper.losses(batch.to(self.run.process.device), kind=kind, draw=0, step=0)
        flops = 3.0 * counter.get_total_flops() / (len(kinds) * batch.tokens_BL.numel())
        self.run.throughput.flops_per_token = flops

    def before_update(self) -> None:
        """Collect gradient statistics after the backward pass.

        With fp16 the gradients are still scaled, and their zeros show underflow; norms are unscaled.
        """
        if not self._detailed:
            return
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

    def after_update(self, step: int, *, applied: bool) -> dict[str, float]:
        """Collect the update ratios after the optimizer step, then read all statistics at once and return them.

        A part whose weights were all 0 before the step has no ratio.

        Args:
            step: number of this step, counted from 1.
        """
        if not self._detailed:
            return {}
        moved: dict[str, list[Tensor]] = {}
        for part, parameter, before in self._held if applied else ():
            moved.setdefault(part, []).append(parameter.detach() - before)
        for part, differences in moved.items():
            norm = nn.utils.get_total_norm(differences)
            self._numbers[f"update_ratio/{part}"] = norm / self._numbers[f"param_norm/{part}"]
        values = torch.stack([full(value).double() for value in self._numbers.values()]).tolist()
        found = zip(self._numbers, values, strict=True)
        line = {name: x for name, x in found if math.isfinite(x) or not name.startswith("update_ratio/")}
        self._numbers, self._held = {}, []
        if self.scaler.is_enabled():
            line["fp16_scale"] = float(self.scaler.get_scale())
        if self.run.process.device.type == "cuda":
            line["memory_peak_gib"] = torch.cuda.max_memory_allocated(self.run.process.device) / 2**30
        else:
            line["memory_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        self._alert(step, line)
        return line

    def _alert(self, step: int, line: Mapping[str, float]) -> None:
        """Log an alert when the gradients of a part have been 0 several times in a row: it does not learn."""
        zero = [
            name.removeprefix("grad_zeros/") for name, value in line.items() if "grad_zeros/" in name and value == 1
        ]
        self._zeros = {part: self._zeros.get(part, 0) + 1 for part in zero}
        if dead := sorted(part for part, count in self._zeros.items() if count == ZERO_DIAGNOSES):
            reason = (
                f"the gradients of {', '.join(dead)} were exactly 0 in {ZERO_DIAGNOSES} diagnosed steps in a row: "
                "nothing in the loss depends on these parts, or every gradient underflowed"
            )
            self.run.tracker.event(step, "alert", name="zero_gradients_of_parts", reason=reason)

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


def _local(value: Any) -> Tensor:
    """Return this rank's shard of a sharded tensor, on which zeros are counted."""
    return value.to_local() if hasattr(value, "to_local") else value
