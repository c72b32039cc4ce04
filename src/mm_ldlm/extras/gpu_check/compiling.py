"""Check of `torch.compile`: the same losses as without it, and the seconds of compiling and of a step."""

from __future__ import annotations

import math

from mm_ldlm.extras.gpu_check import task
from mm_ldlm.extras.gpu_check.outcome import Finding, Number, Setting
from mm_ldlm.extras.gpu_check.sessions import session
from mm_ldlm.models.base import DataShape

TOLERANCE = 1e-3
"""Largest relative difference of a loss in float32"""
STEPS = 6
SHAPE = DataShape(vocab_size=2000, pad_id=0, mask_id=1, max_length=128, latent_dim=64)


def compiled(setting: Setting) -> Finding:
    """Train a few steps with and without compilation, in float32, at one shape."""
    small = setting.small
    model = task.tiny_mmdit(depth=1) if small else task.tiny_mmdit(dim=512, depth=6) | {"heads": 8}
    losses: dict[bool, list[float]] = {}
    seconds: dict[bool, tuple[float, float]] = {}
    for chosen in (False, True):
        spec = task.spec(
            model, task.MULTIMODAL, device=setting.device, shape=task.TINY if small else SHAPE,
            precision={"compile": chosen}, max_steps=STEPS, batch={"examples": 16, "length_multiple": 4},
        )  # fmt: skip
        with session(spec, setting.folder, data=task.data(spec, full=True)) as run:
            seconds[chosen] = run.train(1), run.train(STEPS - 1) / (STEPS - 1)
            losses[chosen] = run.log.losses()
    differences = [abs(a - b) / abs(b) for a, b in zip(losses[True], losses[False], strict=True)]
    error = max(x if math.isfinite(x) else math.inf for x in differences)
    numbers: dict[str, Number] = {
        "loss error": error, "tolerance": TOLERANCE, "seconds of compiling": seconds[True][0] - seconds[True][1],
        "ms per step": 1e3 * seconds[True][1], "ms per step without": 1e3 * seconds[False][1],
    }  # fmt: skip
    faults = () if error <= TOLERANCE else (
        f"expected the losses of a compiled model within {TOLERANCE:g} of the others, found an error of {error:.3g}. "
        "Set training.precision.compile to false on this machine.",
    )  # fmt: skip
    return Finding(numbers, faults)
