"""Attention on the CPU: Q, K and V of all streams prepared at once, and gradients that torch computes slowly.

`PrepareQKV` computes the same as `blocks.QKNorm`, `rope.rotate` and two concatenations with fewer passes over memory:
at small dimensions these passes cost as much as the matrix products. Compiled graphs (the compiler fuses by itself),
GPUs and fp16 use the plain path; a test checks that both have the same values and gradients.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

MATRIX = 1 << 20
"""Elements of the attention matrices that are in memory at once."""


def _pairs(x: Tensor) -> Tensor:
    """View neighbouring coordinates (…, E) as complex numbers (…, E/2), without a copy."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _turn(rope_L2e: Tensor) -> Tensor:
    """Convert the RoPE table to complex factors (L, 1, 1, E/2), so that a rotation is one product."""
    return torch.complex(rope_L2e[:, 0], rope_L2e[:, 1])[:, None, None]


def short_attention(q_BHSE: Tensor, k_BHSE: Tensor, v_BHSE: Tensor, key_mask: Tensor | None) -> Tensor:
    """Compute softmax(QKᵀ/√E)V by two batched products: for few positions faster on the CPU than the fused kernel."""
    B, H, S, E = q_BHSE.shape
    q, k, v = q_BHSE.flatten(0, 1), k_BHSE.flatten(0, 1), v_BHSE.flatten(0, 1)
    if key_mask is None:
        logits = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=E**-0.5)
    else:
        bias = q.new_zeros(key_mask.shape).masked_fill_(~key_mask, -torch.inf)
        logits = torch.baddbmm(bias.expand(-1, H, -1, -1).flatten(0, 1), q, k.mT, alpha=E**-0.5)
    return torch.bmm(logits.softmax(-1), v).view(B, H, S, E)


class LongAttention(torch.autograd.Function):
    """Softmax(QKᵀ/√E)V by torch's kernel, with a gradient by batched products; its own on the CPU is slow in bf16.

    Called as apply(q, k, v, key_mask) with the shapes of `blocks.Attention`.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(q, k, v, key_mask)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=key_mask)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_mask = ctx.saved_tensors
        scale, heads = q.shape[-1] ** -0.5, q.shape[1]
        rows = max(1, MATRIX // (heads * q.shape[2] * k.shape[2]))  # of the batch, whose matrices fit into the cache
        parts = []
        for start in range(0, len(q), rows):
            qi, ki, vi, grad = (x[start : start + rows].flatten(0, 1) for x in (q, k, v, grads[0]))
            qi = qi * scale
            logits = qi @ ki.mT
            if key_mask is not None:
                mask = key_mask[start : start + rows].expand(-1, heads, -1, -1).flatten(0, 1)
                logits.masked_fill_(~mask, -torch.inf)
            p = logits.softmax(-1)
            d_logits = torch._softmax_backward_data(grad @ vi.mT, p, -1, p.dtype)
            parts.append((d_logits @ ki * scale, d_logits.mT @ qi, p.mT @ grad))
        d_q, d_k, d_v = (
            torch.cat(part).view_as(x) for part, x in zip(zip(*parts, strict=True), (q, k, v), strict=True)
        )
        return d_q, d_k, d_v, None


class PrepareQKV(torch.autograd.Function):
    """Join (B, L_i, 3, H, E) of each stream to (B, S, 3, H, E); Q and K are normalised, scaled and rotated.

    Called as apply(epsilon, ropes, scale_1, qkv_1, scale_2, qkv_2, …); a rope is (L_i, 2, E/2) or None, a scale
    (2, H, E).
    """

    @staticmethod
    def forward(ctx: Any, epsilon: float, ropes: tuple[Tensor | None, ...], *pairs: Tensor) -> Tensor:
        scales, qkvs = pairs[::2], pairs[1::2]
        B, _, _, H, E = qkvs[0].shape
        S = sum(qkv.shape[1] for qkv in qkvs)
        # Q, K and V each lie in memory as (B, H, S, E), ready for batched matrix products.
        joint = qkvs[0].new_empty(3, B, H, S, E).permute(1, 3, 0, 2, 4)
        saved: list[Tensor] = []
        start = 0
        for qkv, scale, rope in zip(qkvs, scales, ropes, strict=True):
            stop = start + qkv.shape[1]
            x = qkv[:, :, :2]
            inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(E).add_(epsilon).rsqrt_()
            normed = x * inverse
            out = joint[:, start:stop, :2]
            if rope is None:
                torch.mul(normed, scale, out=out)
            else:
                torch.mul(_pairs(normed * scale), _turn(rope), out=_pairs(out))
            joint[:, start:stop, 2].copy_(qkv[:, :, 2])
            saved += [normed, inverse, scale]
            start = stop
        ctx.save_for_backward(*saved)
        ctx.ropes = ropes
        return joint

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        saved = ctx.saved_tensors
        results: list[Any] = [None, None]
        start = 0
        for i, rope in enumerate(ctx.ropes):
            normed, inverse, scale = saved[3 * i : 3 * i + 3]
            stop = start + normed.shape[1]
            d_scaled = grad[:, start:stop, :2]
            if rope is not None:
                pairs = _pairs(d_scaled if d_scaled.stride(-1) == 1 else d_scaled.contiguous())
                d_scaled = torch.empty_like(normed)  # the memory layout of all tensors below
                torch.mul(pairs, _turn(rope).conj(), out=_pairs(d_scaled))
            product = d_scaled * normed
            d_scale = product.sum((0, 1))
            along = product.mul_(scale).mean(-1, keepdim=True)
            d_normed = torch.mul(d_scaled, scale, out=product).addcmul_(normed, along, value=-1)
            d_qkv = normed.new_empty(*normed.shape[:2], 3, *normed.shape[3:])
            torch.mul(d_normed, inverse, out=d_qkv[:, :, :2])
            d_qkv[:, :, 2].copy_(grad[:, start:stop, 2])
            results += [d_scale, d_qkv]
            start = stop
        return tuple(results)
