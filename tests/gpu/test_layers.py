"""Single operations on the device against formulas in float64 on the CPU: values and gradients.

An error is the largest difference divided by the largest value of the reference. The tolerance in float32 is below the
rounding of TensorFloat-32, so that a test fails where TF32 is used although it is switched off.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.diffusion.distributions import token_loss
from mm_ldlm.models.attention import EPSILON, Attention, QKNorm
from mm_ldlm.models.blocks import modulate, prepare_qkv
from mm_ldlm.models.rope import rope_table

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Largest relative error by the type of the inputs"""
Function = Callable[..., Tensor]


def draw(number: int, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> list[Tensor]:
    """Draw tensors whose values the type represents exactly, so that only the operation has an error."""
    return [(torch.randn(shape) * scale).to(dtype) for _ in range(number)]


def with_gradients(function: Function, inputs: list[Tensor]) -> list[Tensor]:
    """Return the value, and the gradients of its sum with fixed weights."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*leaves)
    weight = torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64).view(value.shape).to(value)
    return [value, *torch.autograd.grad((value * weight).sum(), leaves)]


def relative_error(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    error = float((found - wanted).abs().max()) / max(float(wanted.abs().max()), 1e-30)
    return error if error == error else math.inf


def compare(device: str, ours: Function, reference: Function, inputs: list[Tensor], measured: Any) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    found = with_gradients(ours, [x.to(device) for x in inputs])
    wanted = with_gradients(reference, [x.double() for x in inputs])
    errors = [relative_error(a, b) for a, b in zip(found, wanted, strict=True)]
    measured(error=max(errors))
    assert max(errors) <= TOLERANCE[inputs[0].dtype], errors


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("softcap", "masked"), [(None, False), (None, True), (20.0, True)])
@pytest.mark.parametrize("length", [18, 80, 1032])
def test_attention(device: str, length: int, softcap: float | None, masked: bool, dtype: Any, measured: Any) -> None:
    B, H, S, E = (2, 2, min(length, 80), 16) if device == "cpu" else (4, 16, length, 64)
    layer = Attention(softcap=softcap)
    mask = (torch.arange(S) < torch.tensor([[S // 2 + 1]] + [[S]] * (B - 1)))[:, None, None] if masked else None

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return layer(q, k, v, None if mask is None else mask.to(q.device))

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(-1) @ v

    compare(device, ours, reference, draw(3, B, H, S, E, dtype=dtype), measured)


def test_cross_entropy_with_its_backward_pass_in_place(device: str, measured: Any) -> None:
    M, V = (64, 500) if device == "cpu" else (2048, 30_522)
    targets = torch.randint(2, V - 10, (M,))

    def ours(logits: Tensor) -> Tensor:
        found = token_loss(logits * 1.0, targets.to(logits.device), mask_id=1, pad_id=0, vocab_size=V - 10)
        return torch.stack([found.nll_M, found.log_norm_M])

    def reference(logits: Tensor) -> Tensor:
        forbidden = torch.zeros(V, dtype=logits.dtype)
        forbidden[[0, 1, *range(V - 10, V)]] = -torch.inf
        norm_M = (logits + forbidden).logsumexp(-1)
        return torch.stack([norm_M - logits.gather(1, targets[:, None])[:, 0], norm_M])

    compare(device, ours, reference, draw(1, M, V, scale=3.0), measured)


def test_layer_norm_with_modulation(device: str, measured: Any) -> None:
    B, L, D = (2, 10, 16) if device == "cpu" else (8, 512, 1024)

    def reference(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        normed = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        return normed * (1 + scale[:, None]) + shift[:, None]

    compare(device, modulate, reference, [*draw(1, B, L, D), *draw(2, B, D)], measured)


def test_qk_norm_and_rotary_positions_of_two_streams(device: str, measured: Any) -> None:
    B, L, K, H, E = (2, 10, 2, 2, 8) if device == "cpu" else (8, 512, 8, 16, 64)
    rope_L2e = rope_table(L, E, 10_000.0)

    def ours(text: Tensor, latent: Tensor, *scales: Tensor) -> Tensor:
        norms: list[Any] = [QKNorm(H, E) for _ in scales]
        for norm, scale in zip(norms, scales, strict=True):
            del norm.scale  # the parameter, in favour of an input that has a gradient
            norm.scale = scale
        return prepare_qkv([text, latent], norms, (rope_L2e.to(text.device), None))

    def reference(text: Tensor, latent: Tensor, *scales: Tensor) -> Tensor:
        ready = []
        for qkv, scale, turned in zip((text, latent), scales, (True, False), strict=True):
            qk = qkv[:, :, :2]
            qk = qk / (qk.square().mean(-1, keepdim=True) + EPSILON).sqrt() * scale
            if turned:
                factor = torch.complex(rope_L2e[:, 0].double(), rope_L2e[:, 1].double())[:, None, None]
                qk = torch.view_as_real(torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * factor).flatten(-2)
            ready.append(torch.cat([qk, qkv[:, :, 2:]], dim=2))
        return torch.cat(ready, dim=1)

    inputs = [draw(1, B, length, 3, H, E)[0] for length in (L, K)]
    compare(device, ours, reference, [*inputs, *draw(2, 2, H, E)], measured)
