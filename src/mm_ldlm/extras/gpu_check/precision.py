"""Checks of training in bf16, and in fp16 with its loss scaler."""

from __future__ import annotations

import math
from typing import Any

from mm_ldlm.extras.gpu_check import task
from mm_ldlm.extras.gpu_check.outcome import Finding, Number, Setting
from mm_ldlm.extras.gpu_check.sessions import session
from mm_ldlm.training.sanity import SanityConfig, check_sanity

LOSS_TOLERANCE = 0.05
"""Largest relative difference of a loss in bf16 or fp16 from that in float32, during the first steps"""
STEPS = 6
OVERFLOW = 3
"""Step whose gradients overflow in the check of fp16"""
GROWTH = 4
"""Number of steps without overflow after which the scale grows again; PyTorch's default is 2,000"""


def bf16(setting: Setting) -> Finding:
    """Sanity checks under bf16 autocast, and the losses of the first steps against float32."""
    losses = {name: _losses(setting, name) for name in ("fp32", "bf16")}
    error, faults = _deviation(losses, "bf16")
    config = SanityConfig(examples=8, max_steps=40, max_seconds=60.0, fall=0.8)
    spec = _spec(setting, "bf16")
    checks = check_sanity(spec, root=setting.folder, config=config, data=task.data(spec))
    faults += [f"sanity check {check.name}: {check.found}. {check.remedy}." for check in checks if not check.ok]
    numbers: dict[str, Number] = {
        "loss error": error, "tolerance": LOSS_TOLERANCE,
        "sanity checks": len(checks), "sanity checks passed": sum(check.ok for check in checks),
    }  # fmt: skip
    return Finding(numbers, tuple(faults))


def fp16(setting: Setting) -> Finding:
    """An overflow skips the step and halves the loss scale, which grows again and is restored from a checkpoint."""
    losses = {name: _losses(setting, name) for name in ("fp32", "fp16")}
    error, faults = _deviation(losses, "fp16")
    spec = _spec(setting, "fp16", max_steps=OVERFLOW + 1 + GROWTH)

    def wrap(inner: Any) -> Any:
        return task.Faulty(inner, kind="overflow", step=OVERFLOW)

    with session(spec, setting.folder, checkpoints=True, wrap_objective=wrap) as run:
        scaler: Any = run.parts.stepper.scaler
        scaler.set_growth_interval(GROWTH)
        run.train(OVERFLOW)
        before, scale, skipped = run.tensors(), float(scaler.get_scale()), run.parts.state.skipped
        run.train(1)
        moved, lowered = task.largest_difference(before, run.tensors()), float(scaler.get_scale())
        checkpoint, skipped = run.parts.checkpointer.newest(), run.parts.state.skipped - skipped
        run.train(GROWTH)
        grown = float(scaler.get_scale())
        progress = task.largest_difference(before, run.tensors())
    with session(spec, setting.folder) as again:
        again.parts.checkpointer.restore(checkpoint)
        restored = float(again.parts.stepper.scaler.get_scale())
        difference = task.largest_difference(before, again.tensors())
    expectations = {
        f"the step with an overflow is skipped (1 skip; found {skipped})": skipped == 1,
        f"it moves nothing (largest change {moved:g})": moved == 0,
        f"it halves the scale (from {scale:g}; found {lowered:g})": lowered == scale / 2,
        f"{GROWTH} steps without overflow double the scale again (found {grown:g})": grown == 2 * lowered,
        "these steps train": 0 < progress < math.inf,
        f"a checkpoint restores the scale ({lowered:g}; found {restored:g})": restored == lowered,
        f"and the weights (largest difference {difference:g})": difference == 0,
    }
    faults += [f"expected that {what}." for what, holds in expectations.items() if not holds]
    numbers: dict[str, Number] = {
        "loss error": error, "tolerance": LOSS_TOLERANCE, "scale": scale, "scale after overflow": lowered,
        "scale after growth": grown, "scale restored": restored, "skipped": skipped,
    }  # fmt: skip
    return Finding(numbers, tuple(faults))


def _spec(setting: Setting, autocast: str, *, max_steps: int = STEPS) -> Any:
    model = task.tiny_mmdit() if setting.small else task.tiny_mmdit(dim=256, depth=4)
    return task.spec(
        model, task.MULTIMODAL, device=setting.device, precision={"autocast": autocast}, max_steps=max_steps
    )


def _losses(setting: Setting, autocast: str) -> list[float]:
    spec = _spec(setting, autocast)
    with session(spec, setting.folder) as run:
        run.train(STEPS)
        return run.log.losses()


def _deviation(losses: dict[str, list[float]], name: str) -> tuple[float, list[str]]:
    """Return the largest relative difference from float32, and a fault if it is too large."""
    wanted, found = losses["fp32"], losses[name]
    differences = [abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True)]
    error = max(x if math.isfinite(x) else math.inf for x in differences)
    if error <= LOSS_TOLERANCE:
        return error, []
    return error, [
        f"expected the losses of {len(wanted)} steps in {name} within {LOSS_TOLERANCE:g} of float32, found "
        f"{', '.join(f'{x:.4g}' for x in found)} instead of {', '.join(f'{x:.4g}' for x in wanted)}. Train in float32 "
        "on this device, and check the versions of the driver and of torch."
    ]
