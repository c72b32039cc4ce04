"""Tokens per second, fraction of the chip's peak and memory of training in bf16: a middle size, and the 892M model.

FLOPs are those of torch's counter for a forward pass, times three for forward and backward pass: matrix products only,
without the recomputation by gradient checkpointing, so that a utilisation is that of the model and not that of the
hardware (PaLM, arXiv:2204.02311, appendix B).
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import task
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from mm_ldlm.core import to_dict
from mm_ldlm.models.attention import Attention
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.mmdit import MMDiT, MMDiTConfig
from mm_ldlm.training.throughput import peak_flops

pytestmark = pytest.mark.gpu
LATENTS = {"latents": (32,)}
MMDIT_892M = MMDiTConfig(
    dim=1024, depth=24, heads=16, latent_tokens=8, mlp_ratio=3.125, token_vectors="random", direct_views=False,
    gradient_checkpointing=True,
)  # fmt: skip
"""The model of conf/mmdit_892m, without a YAML reader"""
SHAPE_892M = DataShape(vocab_size=30_522, pad_id=0, mask_id=103, max_length=1024, fields=LATENTS)
PARAMETERS_892M = 891_404_154
MIDDLE = MMDiTConfig(dim=768, depth=12, heads=12, latent_tokens=8, token_vectors="random")
SHAPE_MIDDLE = DataShape(vocab_size=30_522, pad_id=0, mask_id=103, max_length=256, fields=LATENTS)
STATE_BYTES = 4 * 5
"""Bytes for each parameter: weight, gradient, two moments and average, in float32"""


def counted(config: MMDiTConfig, shape: DataShape, *, examples: int) -> int:
    """Return FLOPs of a forward pass in the mode l2t; nothing is computed."""
    with FakeTensorMode(), torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attention, "fused", False)  # the counter sees the products of attention
        model = MMDiT(config, shape).eval()
        time_B = torch.zeros(examples)
        with FlopCounterMode(display=False) as counter:
            model(
                torch.zeros(examples, shape.max_length, dtype=torch.int64), valid_BL=None, t_text_B=time_B,
                latents_Bd=torch.zeros(examples, shape.dim("latents")), t_latent_B=time_B, heads=("text", "length"),
            )  # fmt: skip
    return counter.get_total_flops()


def measure(
    device: str, root: Path, config: MMDiTConfig, shape: DataShape, *, examples: int, accumulation: int, steps: int
) -> dict[str, float]:
    """Train full texts in bf16, after two warm-up steps."""
    spec = task.spec(
        {"kind": "multimodal", "mode": "l2t"}, model=to_dict(config), shape=shape, device=device,
        precision={"autocast": "bf16"}, max_steps=steps + 2, log_every=1, ema={"enabled": True},
        batch={"examples": examples, "accumulation": accumulation}, checkpoint={"every_minutes": None},
        optimizer={"lr": 5e-5, "warmup_steps": 2, "clip": 0.5},
    )  # fmt: skip
    run = task.built(spec, root, data=task.data(spec, count=256, full=True))
    run.checkpointer.save = lambda line: []  # type: ignore[method-assign]
    task.train_until(run, 2)
    before = run.learner.state.seconds
    task.train_until(run, steps + 2)
    seconds = (run.learner.state.seconds - before) / steps
    assert all(math.isfinite(line["loss"]) for line in run.tracker.lines)
    rate = 3 * counted(config, shape, examples=examples) / seconds
    peak = peak_flops(run.process.device)
    found = {
        "parameters": sum(each.numel() for each in run.learner.root.model.parameters()), "tokens_per_second": examples * shape.max_length / seconds,
        "ms_per_step": 1e3 * seconds, "tflops_per_second": rate / 1e12,
    }  # fmt: skip
    if device == "cuda":
        found["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return found if peak is None else found | {"utilisation": rate / peak}


def test_throughput_of_a_middle_size(device: str, tmp_path: Path, measured: Any) -> None:
    config, shape, steps, examples = MIDDLE, SHAPE_MIDDLE, 20, 64
    if device == "cpu":
        config, shape, steps, examples = MMDiTConfig(dim=16, depth=2, heads=2, token_vectors="random"), task.SHAPE, 3, 8
    found = measure(device, tmp_path, config, shape, examples=examples, accumulation=1, steps=steps)
    measured(**found)
    assert 0 < found.get("utilisation", 0.5) < 1, "correct the peak of this device (training.throughput.PEAKS)"


def test_throughput_and_memory_of_the_892m_model(gpu: str, tmp_path: Path, measured: Any) -> None:
    """Two micro-batches of four texts of 1,024 tokens, as conf/gpu8 trains it on one of eight GPUs."""
    needed = 1.2 * STATE_BYTES * PARAMETERS_892M / 2**30
    if torch.cuda.get_device_properties(0).total_memory / 2**30 < needed:
        pytest.skip(f"weights, gradients, moments and averages need {needed:.0f} GiB")
    found = measure(gpu, tmp_path, MMDIT_892M, SHAPE_892M, examples=8, accumulation=2, steps=6)
    measured(**found)
    assert found["parameters"] == PARAMETERS_892M
    assert 0 < found.get("utilisation", 0.5) < 1
