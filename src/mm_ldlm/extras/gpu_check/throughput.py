"""Tokens per second, fraction of the chip's peak and memory of training in bf16: a middle size, and the 892M model."""

from __future__ import annotations

import math
from typing import Any

import torch

from mm_ldlm.core.config import to_dict
from mm_ldlm.distributed.process import choose_device
from mm_ldlm.extras.gpu_check import task
from mm_ldlm.extras.gpu_check.flops import BACKWARD, MMDIT_892M, SHAPE_892M, forward_flops
from mm_ldlm.extras.gpu_check.outcome import Finding, Number, Setting
from mm_ldlm.extras.gpu_check.sessions import session
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.mmdit import Head, MMDiTConfig
from mm_ldlm.training.throughput import peak_flops

HEADS: tuple[Head, ...] = ("text", "length")
"""Heads of the mode l2t"""
MIDDLE = MMDiTConfig(dim=768, depth=12, heads=12, latent_tokens=8, token_vectors="random")
SHAPE_MIDDLE = DataShape(vocab_size=30_522, pad_id=0, mask_id=103, max_length=256, latent_dim=384)
SMALL = MMDiTConfig(dim=16, depth=2, heads=2, latent_tokens=2, token_vectors="random", gradient_checkpointing=True)
STATE_BYTES = 4 * 5
"""Bytes for each parameter: weight, gradient, two moments and average, in float32"""


def throughput(setting: Setting) -> Finding:
    """A model of middle size: 12 blocks of dimension 768, 64 texts of 256 tokens in each step."""
    if setting.small:
        return measure(setting, SMALL, task.TINY, examples=8, accumulation=1, steps=3)
    return measure(setting, MIDDLE, SHAPE_MIDDLE, examples=64, accumulation=1, steps=20)


def memory_892m(setting: Setting) -> Finding:
    """The 892M model as conf/gpu8 trains it on one of eight GPUs: two micro-batches of four texts of 1,024 tokens."""
    if setting.small:
        return measure(setting, SMALL, task.TINY, examples=8, accumulation=2, steps=2)
    state = STATE_BYTES * sum_of_parameters(MMDIT_892M, SHAPE_892M) / 2**30
    whole = torch.cuda.get_device_properties(choose_device(setting.device)).total_memory / 2**30
    if whole < 1.2 * state:
        return Finding(
            {"device GiB": whole, "state GiB": state},
            left_out=f"expected at least {1.2 * state:.0f} GiB for weights, gradients, moments and averages, found a "
            f"device of {whole:.0f} GiB. Use training.parallel=fsdp on several GPUs.",
        )  # fmt: skip
    return measure(setting, MMDIT_892M, SHAPE_892M, examples=8, accumulation=2, steps=6)


def measure(
    setting: Setting, model: MMDiTConfig, shape: DataShape, *, examples: int, accumulation: int, steps: int
) -> Finding:
    """Train `steps` steps of full texts in bf16, after two warm-up steps."""
    spec = task.spec(
        to_dict(model), task.MULTIMODAL, device=setting.device, shape=shape, precision={"autocast": "bf16"},
        max_steps=steps + 2, batch={"examples": examples, "accumulation": accumulation, "length_multiple": 4},
        optimizer={"lr": 5e-5, "warmup_steps": 2, "clip": 0.5},
    )  # fmt: skip
    device = choose_device(setting.device)
    try:
        with session(spec, setting.folder, data=task.data(spec, count=256, full=True)) as run:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            run.train(2)
            seconds = run.train(steps) / steps
            losses, masked = run.log.losses(), [float(line["masking_rate"]) for line in run.log.lines]
    except torch.OutOfMemoryError:
        whole = torch.cuda.get_device_properties(device).total_memory / 2**30
        return Finding({"device GiB": whole}, (
            f"expected {examples // accumulation} texts of {shape.max_length} tokens to fit into {whole:.0f} GiB, "
            "found too little memory. Raise training.batch.accumulation.",
        ))  # fmt: skip
    tokens = examples * shape.max_length
    # On a GPU the vocabulary head is computed at every position, on a CPU at the masked ones.
    logits = tokens if device.type == "cuda" else round(tokens * sum(masked) / len(masked))
    operations = BACKWARD * forward_flops(
        model, shape, examples=examples, length=shape.max_length, logits=logits, heads=HEADS
    )  # fmt: skip
    peak = peak_flops(device)
    numbers: dict[str, Number] = {
        "parameters": sum_of_parameters(model, shape), "tokens per second": tokens / seconds,
        "ms per step": 1e3 * seconds, "TFLOP per second": operations / seconds / 1e12,
        "peak TFLOP per second": None if peak is None else peak / 1e12,
        "utilisation": None if peak is None else operations / seconds / peak,
    }  # fmt: skip
    if device.type == "cuda":
        numbers["memory GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
        numbers["device GiB"] = torch.cuda.get_device_properties(device).total_memory / 2**30
    return Finding(numbers, tuple(implausible(losses, numbers["utilisation"])))


def implausible(losses: list[float], utilisation: Any) -> list[str]:
    """List what shows that a measurement cannot be right."""
    faults = []
    if not all(math.isfinite(loss) for loss in losses):
        faults.append(f"expected finite losses, found {losses}. Run the check bf16.")
    if utilisation is not None and not 0 < utilisation < 1:
        faults.append(
            f"expected a utilisation between 0 and 1, found {utilisation:.3g}. Correct the peak of this device in "
            "training/throughput.py (PEAKS)."
        )
    return faults


def sum_of_parameters(model: MMDiTConfig, shape: DataShape) -> int:
    """Count the parameters of a model without allocating them."""
    from mm_ldlm.models.base import count_parameters
    from mm_ldlm.models.mmdit import MMDiT

    with torch.device("meta"):
        return count_parameters(MMDiT(model, shape))
