"""Diagnostics of the model at an interval: norms, ratios, zeros, attention logits, activations.

All statistics of a step are collected on the device and read once. Names in the log: `grad_norm/PART`,
`param_norm/PART`, `update_ratio/PART`, `grad_zeros/PART`, `grad_nonfinite/PART`, `attention_logit_max/BLOCK`,
`activation_rms/BLOCK`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mm_ldlm.models.freezing import FreezingSnapshot, verify_parameter_freezing
from mm_ldlm.models.layers import Attention
from mm_ldlm.models.parts import count_by_part, tagged_parameters
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.gradients import append, gradient_statistics
from mm_ldlm.training.stepper import Stepper


def part_of(name: str, tag: str) -> str:
    """Name the group that a parameter is reported in: its part, or its block and stream in a model's blocks."""
    pieces = name.removeprefix("model.").split(".")
    if pieces[0] != "blocks" or len(pieces) < 3:
        return tag
    return f"block{pieces[1]}.stream{pieces[3]}" if pieces[2] == "streams" else f"block{pieces[1]}"


class Diagnostics:
    """Diagnostics of every `every`-th step; other steps have no overhead.

    Args:
        root: the trainable root.
        compiled: whether the model is compiled. Hooks would recompile its graph, so attention, activations and FLOPs
            are not measured then.
        scaler: the GradScaler of fp16, otherwise None.
        gradients: folder in which the statistics of the gradient of every parameter are written; None: not computed.
        writes: whether this rank writes them.
    """

    def __init__(
        self, every: int, root: TrainableRoot, *, compiled: bool, scaler: Any, device: torch.device,
        gradients: Path | None = None, writes: bool = True,
    ) -> None:  # fmt: skip
        self.every, self.root, self.compiled, self.scaler, self.device = every, root, compiled, scaler, device
        self.gradients, self.writes = gradients, writes
        self._by_parameter: tuple[list[str], Tensor] | None = None
        self.flops_per_token = 0.0
        """FLOPs of forward and backward pass per padded token, mean over the kinds of steps; 0 while unknown"""
        self._line: dict[str, float] = {}
        self._held: list[tuple[str, nn.Parameter, Tensor]] = []
        self._hooks: list[Any] = []
        self._seen: dict[str, Tensor] = {}
        self._numbers: dict[str, Tensor] = {}
        self._freezing: FreezingSnapshot | None = None

    def new_epoch(self) -> None:
        """Reset the peak of memory; on a CPU it is the peak since the start of the process and cannot be reset."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def due(self, step: int) -> bool:
        """Return whether the step after `step` finished ones is diagnosed: every `every`-th step, and the first."""
        return self.every > 0 and ((step + 1) % self.every == 0 or step == 0)

    # -- one detailed step ------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Start to observe attention and blocks; call before the forward pass."""
        if self.compiled:
            return
        for name, module in self.root.named_modules():
            name = name.removeprefix("model.")
            if isinstance(module, Attention):
                self._hooks.append(module.register_forward_hook(self._attention(name)))
        for number, block in enumerate(getattr(self.root.model, "blocks", ())):
            self._hooks.append(block.register_forward_hook(self._activation(number)))

    def count_flops(self, stepper: Stepper, batch: Batch) -> None:
        """Count the FLOPs of one extra forward pass of each kind of step; a whole step takes three times as many.

        The extra passes run once per session, because the counter makes torch decompose some operations, with other
        rounding.
        """
        if self.compiled:
            return
        kinds = stepper.objective.kinds
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            for kind in kinds:
                stepper.losses(batch.to(self.device), kind=kind, draw=0, step=0)
        self.flops_per_token = 3.0 * counter.get_total_flops() / (len(kinds) * batch.tokens_BL.numel())

    def before_update(self) -> None:
        """Collect gradient statistics after the backward pass.

        With fp16 the gradients are still scaled, and their zeros show underflow; norms are unscaled.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        groups: dict[str, list[nn.Parameter]] = {}
        for name, part_tag, parameter in tagged_parameters(self.root):
            if parameter.requires_grad:
                groups.setdefault(part_of(name, part_tag.name), []).append(parameter)
        self._numbers, self._held = {}, []
        seen: list[Tensor] = []
        for part, parameters in groups.items():
            with_grad = [p for p in parameters if p.grad is not None]
            self._numbers[f"param_norm/{part}"] = _norm([p.detach() for p in parameters])
            if not with_grad:
                continue
            grads = [_local(p.grad) for p in with_grad]
            self._numbers[f"grad_norm/{part}"] = _norm([p.grad for p in with_grad]) / scale
            seen += grads
            count = sum(g.numel() for g in grads)
            self._numbers[f"grad_zeros/{part}"] = torch.stack([(g == 0).sum() for g in grads]).sum().double() / count
            self._numbers[f"grad_nonfinite/{part}"] = torch.stack([(~torch.isfinite(g)).sum() for g in grads]).sum()
            self._held += [(part, p, p.detach().clone()) for p in with_grad]
        if self.scaler is not None:
            self._line["fp16_scale"] = scale
            self._numbers["fp16_underflow"] = underflow(seen)
        if self.gradients is not None:
            self._by_parameter = gradient_statistics(self.root, scale=scale)

    def after_update(self, step: int, *, applied: bool) -> None:
        """Collect the update ratios after the optimizer step, then read all statistics at once.

        A part whose weights were all 0 before the step has no ratio.

        Args:
            step: number of this step, counted from 1.
        """
        if applied:
            moved: dict[str, list[Tensor]] = {}
            for part, parameter, before in self._held:
                moved.setdefault(part, []).append(parameter.detach() - before)
            for part, differences in moved.items():
                self._numbers[f"update_ratio/{part}"] = _norm(differences) / self._numbers[f"param_norm/{part}"]
        self._held = []
        numbers = {**self._numbers, **self._seen}
        self._numbers, self._seen = {}, {}
        values = torch.stack([_whole(value).double() for value in numbers.values()]).tolist()
        found = zip(numbers, values, strict=True)
        self._line |= {name: x for name, x in found if math.isfinite(x) or not name.startswith("update_ratio/")}
        if self.gradients is not None and self._by_parameter is not None and self.writes:
            names, rows = self._by_parameter
            append(self.gradients, step, names, rows.tolist())
        self._by_parameter = None
        if self.device.type == "cuda":
            self._line["memory_peak_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        else:
            import resource

            self._line["memory_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    def take(self) -> dict[str, float]:
        """Return the numbers of the last diagnosed step, once."""
        line, self._line = self._line, {}
        return line

    def _attention(self, name: str) -> Any:
        key = f"attention_logit_max/{name.removesuffix('.attention').replace('blocks.', 'block')}"

        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            with torch.no_grad():
                q, k, _, key_mask = inputs
                logits = (q.float() @ k.float().mT).abs() / math.sqrt(q.shape[-1])
                if key_mask is not None:
                    logits = logits.masked_fill(~key_mask, 0.0)
                self._note(key, logits.amax())

        return hook

    def _activation(self, block: int) -> Any:
        def hook(module: nn.Module, inputs: Any, outputs: Tensor | tuple[Tensor, ...]) -> None:
            with torch.no_grad():
                outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
                squares = torch.stack([x.detach().float().square().mean() for x in outputs])
                self._note(f"activation_rms/block{block}", squares.mean().sqrt())

        return hook

    def _note(self, key: str, value: Tensor) -> None:
        self._seen[key] = torch.maximum(self._seen[key], value) if key in self._seen else value

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
            verify_parameter_freezing(self.root, self._freezing, check_gradients=False)


def underflow(grads: list[Tensor]) -> Tensor:
    """Compute the fraction (0-D) of entries that are exactly 0, without the rows of tokens that did not occur."""
    zeros, entries = [], []
    for grad in grads:
        zero_NM = (grad == 0).reshape(len(grad) if grad.ndim else 1, -1)
        live_N1 = ~zero_NM.all(dim=1, keepdim=True)
        zeros.append((zero_NM & live_N1).sum())
        entries.append(live_N1.sum() * zero_NM.shape[1])
    return torch.stack(zeros).sum().double() / torch.stack(entries).sum().clamp(min=1)


def _norm(tensors: list[Any]) -> Tensor:
    return nn.utils.get_total_norm(tensors)


def _whole(value: Tensor) -> Tensor:
    whole: Any = getattr(value, "full_tensor", None)
    return value if whole is None else whole()


def _local(value: Any) -> Tensor:
    """Return this rank's shard of a sharded tensor, on which zeros are counted."""
    return value.to_local() if hasattr(value, "to_local") else value
