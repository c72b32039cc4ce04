"""Checks of single operations on the device against formulas in float64 on the CPU: values and gradients.

An error is the largest difference divided by the largest value of the reference. The tolerance in float32 is below the
rounding of TensorFloat-32, so that a check fails where TF32 is used although it is switched off.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mm_ldlm.diffusion.distributions import token_loss
from mm_ldlm.extras.gpu_check.outcome import Finding, Number, Setting
from mm_ldlm.models.layers import EPSILON, Attention, QKNorm, modulate, prepare_qkv, rope_table

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Largest relative error by the type of the inputs"""
Function = Callable[..., Tensor]


def attention(setting: Setting) -> Finding:
    """Attention with and without key mask and soft cap, short and long, in float32, bf16 and fp16."""
    shapes = (
        [(2, 2, 18, 16), (1, 2, 80, 16)] if setting.small else [(8, 6, 18, 32), (4, 16, 300, 64), (1, 16, 1032, 64)]
    )
    compared = Compared(setting)
    for B, H, S, E in shapes:
        mask = torch.arange(S) < torch.tensor([[S // 2 + 1]] + [[S]] * (B - 1))
        for name, softcap, key_mask in (
            ("plain", None, None), ("masked", None, mask[:, None, None]), ("capped", 20.0, mask[:, None, None]),
        ):  # fmt: skip
            layer = Attention(fused=True, softcap=softcap)

            def ours(q: Tensor, k: Tensor, v: Tensor, layer: Attention = layer, m: Tensor | None = key_mask) -> Tensor:
                return layer(q, k, v, None if m is None else m.to(q.device))

            def reference(
                q: Tensor, k: Tensor, v: Tensor, cap: float | None = softcap, m: Tensor | None = key_mask
            ) -> Tensor:
                logits = q @ k.mT / math.sqrt(q.shape[-1])
                logits = logits if cap is None else cap * torch.tanh(logits / cap)
                return (logits if m is None else logits.masked_fill(~m, -torch.inf)).softmax(-1) @ v

            for dtype in TOLERANCE:
                inputs = compared.draw(3, (B, H, S, E), dtype=dtype)
                compared.add(f"{name} of {S} positions", ours, reference, inputs)
    return compared.finding()


def cross_entropy(setting: Setting) -> Finding:
    """The training loss over the vocabulary, with its in-place backward pass, for logits in float32."""
    M, V = (64, 500) if setting.small else (2048, 30_522)
    compared = Compared(setting)
    targets = torch.randint(2, V - 10, (M,), generator=compared.generator)

    def ours(logits: Tensor) -> Tensor:
        found = token_loss(logits * 1.0, targets.to(logits.device), mask_id=1, pad_id=0, vocab_size=V - 10)
        return torch.stack([found.nll_M, found.log_norm_M])

    def reference(logits: Tensor) -> Tensor:
        forbidden = torch.zeros(V, dtype=logits.dtype)
        forbidden[[0, 1, *range(V - 10, V)]] = -torch.inf
        norm_M = (logits + forbidden).logsumexp(-1)
        return torch.stack([norm_M - logits.gather(1, targets[:, None])[:, 0], norm_M])

    compared.add("token loss", ours, reference, compared.draw(1, (M, V), dtype=torch.float32, scale=3.0))
    return compared.finding()


def normalisation(setting: Setting) -> Finding:
    """LayerNorm with modulation; RMSNorm and rotation (RoPE) of Q and K, joined over two streams."""
    B, L, K, H, E = (2, 10, 2, 2, 8) if setting.small else (8, 512, 8, 16, 64)
    compared = Compared(setting)
    rope_L2e = rope_table(L, E, 10_000.0)

    def reference_modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        normed = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        return normed * (1 + scale[:, None]) + shift[:, None]

    compared.add(
        "LayerNorm with modulation", modulate, reference_modulate,
        [*compared.draw(1, (B, L, H * E)), *compared.draw(2, (B, H * E))],
    )  # fmt: skip

    def ours(text: Tensor, latent: Tensor, text_scale: Tensor, latent_scale: Tensor) -> Tensor:
        norms: list[QKNorm | None] = []
        for scale in (text_scale, latent_scale):
            norm = QKNorm(H, E)
            del norm.scale  # the parameter, in favour of an input that has a gradient
            norm.scale = scale  # type: ignore[assignment]
            norms.append(norm)
        return prepare_qkv([text, latent], norms, (rope_L2e.to(text.device), None))

    def reference(text: Tensor, latent: Tensor, text_scale: Tensor, latent_scale: Tensor) -> Tensor:
        ready = []
        for qkv, scale, turned in ((text, text_scale, True), (latent, latent_scale, False)):
            qk = qkv[:, :, :2]
            qk = qk / (qk.square().mean(-1, keepdim=True) + EPSILON).sqrt() * scale
            if turned:
                factor = torch.complex(rope_L2e[:, 0].double(), rope_L2e[:, 1].double())[:, None, None]
                qk = torch.view_as_real(torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * factor).flatten(-2)
            ready.append(torch.cat([qk, qkv[:, :, 2:]], dim=2))
        return torch.cat(ready, dim=1)

    inputs = [compared.draw(1, (B, length, 3, H, E))[0] for length in (L, K)]
    compared.add("QK-norm and RoPE", ours, reference, [*inputs, *compared.draw(2, (2, H, E))])
    return compared.finding()


class Compared:
    """Comparison of functions on the device with references, over one generator of inputs."""

    def __init__(self, setting: Setting) -> None:
        self.device = torch.device(setting.device)
        self.generator = torch.Generator().manual_seed(0)
        self.worst: dict[torch.dtype, float] = {}
        self.faults: list[str] = []
        self.count = 0

    def draw(
        self, number: int, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32, scale: float = 1.0
    ) -> list[Tensor]:
        """Draw tensors whose values the type represents exactly, so that only the operation has an error."""
        return [(torch.randn(shape, generator=self.generator) * scale).to(dtype) for _ in range(number)]

    def add(self, name: str, ours: Function, reference: Function, inputs: list[Tensor]) -> None:
        """Compare the values and the gradients of one case."""
        dtype = inputs[0].dtype
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            found = _with_gradients(ours, [x.to(self.device) for x in inputs])
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        wanted = _with_gradients(reference, [x.double() for x in inputs])
        errors = [relative_error(a, b) for a, b in zip(found, wanted, strict=True)]
        worst = max(errors)
        self.count += 1
        self.worst[dtype] = max(self.worst.get(dtype, 0.0), worst)
        if not worst <= TOLERANCE[dtype]:
            what = "the value" if errors[0] == worst else f"the gradient of input {errors.index(worst)}"
            self.faults.append(
                f"{name}, {_name(dtype)}: expected {what} within {TOLERANCE[dtype]:g} of the float64 reference, found "
                f"an error of {worst:.3g}. Check the versions of the driver and of torch, and that TF32 is off."
            )

    def finding(self) -> Finding:
        numbers: dict[str, Number] = {"cases": self.count}
        numbers |= {f"error {_name(dtype)}": worst for dtype, worst in self.worst.items()}
        numbers |= {f"tolerance {_name(dtype)}": TOLERANCE[dtype] for dtype in self.worst}
        return Finding(numbers, tuple(self.faults[:4]))


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, divided by the largest value of `wanted`; infinity if a value is not finite."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    if not bool(torch.isfinite(found).all()):
        return math.inf
    scale = max(float(wanted.abs().max()), 1e-30)
    return float((found - wanted).abs().max()) / scale


def _with_gradients(function: Function, inputs: list[Tensor]) -> list[Tensor]:
    """Return the value, and the gradients of its sum with fixed weights."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*leaves)
    weight = torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64).view(value.shape).to(value)
    return [value, *torch.autograd.grad((value * weight).sum(), leaves)]


def _name(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
