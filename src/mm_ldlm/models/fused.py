"""Q, K and V of all streams made ready for attention in one step, with a hand-written gradient.

The same mathematics as `layers.QKNorm`, `layers.rotate` and two concatenations, with fewer passes over memory: on the
CPU at small widths these passes cost as much as the matrix products. The plain path stays for compiled graphs
(the compiler fuses by itself), GPUs and autocast; a test holds both to the same values and gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class PrepareQKV(torch.autograd.Function):
    """(B, L_i, 3, H, E) of each stream → joint (B, S, 3, H, E): Q and K normalised, scaled and rotated, V as it is.

    Called as apply(epsilon, ropes, scale_1, qkv_1, scale_2, qkv_2, …); a rope is (L_i, 2, E/2) or None, a scale
    (2, H, E).
    """

    @staticmethod
    def forward(ctx: Any, epsilon: float, ropes: tuple[Tensor | None, ...], *pairs: Tensor) -> Tensor:
        scales, qkvs = pairs[::2], pairs[1::2]
        B, _, _, H, E = qkvs[0].shape
        joint = qkvs[0].new_empty(B, sum(qkv.shape[1] for qkv in qkvs), 3, H, E)
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
                cos, sin = rope[:, None, None, 0], rope[:, None, None, 1]
                (s1, s2), (n1, n2) = scale.chunk(2, -1), normed.chunk(2, -1)
                o1, o2 = out.chunk(2, -1)
                torch.mul(n1, s1 * cos, out=o1).addcmul_(n2, s2 * sin, value=-1)
                torch.mul(n2, s2 * cos, out=o2).addcmul_(n1, s1 * sin)
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
            g = grad[:, start:stop, :2]
            if rope is None:
                d_scaled = g.clone()
            else:
                cos, sin = rope[:, None, None, 0], rope[:, None, None, 1]
                d_scaled = torch.empty_like(normed)
                (d1, d2), (g1, g2) = d_scaled.chunk(2, -1), g.chunk(2, -1)
                torch.mul(g1, cos, out=d1).addcmul_(g2, sin)
                torch.mul(g2, cos, out=d2).addcmul_(g1, sin, value=-1)
            product = d_scaled * normed
            d_scale = product.sum((0, 1))
            along = product.mul_(scale).mean(-1, keepdim=True)
            d_qkv = normed.new_empty(*normed.shape[:2], 3, *normed.shape[3:])
            d_x = torch.sub(d_scaled.mul_(scale), normed * along, out=d_qkv[:, :, :2])
            d_x.mul_(inverse)
            d_qkv[:, :, 2].copy_(grad[:, start:stop, 2])
            results += [d_scale, d_qkv]
            start = stop
        return tuple(results)
