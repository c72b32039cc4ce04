"""Attention of a transformer over all of its streams, and the keys that it may read.

On the CPU, torch's kernel is slow for short texts, and its gradient in bf16 for long ones, so that batched products
compute these. Compiled graphs, GPUs and fp16 use the kernel.

B batch, L positions of one stream, S positions of all streams, H heads, E dimension of a head.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-6
"""Added to the variance by every norm of the models"""
SHORT = 64
"""Number of positions up to which attention on the CPU is computed by plain batched products"""
MATRIX = 1 << 20
"""Elements of the attention matrices that are in memory at once."""


def by_hand(x: Tensor) -> bool:
    """Whether the functions below compute in place of torch's kernel."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and not torch.compiler.is_compiling()


class Attention(nn.Module):
    """Attention softmax(QKᵀ/√E)V over all streams; a module without weights, so that hooks can observe Q and K."""

    fused = True
    """Whether a kernel that keeps no attention matrix may compute it; measurements set this to False."""

    def __init__(self, *, softcap: float | None) -> None:
        super().__init__()
        self.softcap = softcap

    def forward(self, q_BHSE: Tensor, k_BHSE: Tensor, v_BHSE: Tensor, key_mask: Tensor | None) -> Tensor:
        """Compute (B, H, S, E); `key_mask` (B, 1, 1, S) is true at keys that may be read, at least one in each row."""
        if self.fused and self.softcap is None:
            if by_hand(q_BHSE):
                # On the CPU the attention of short texts is float32 under autocast too, which costs as little.
                short, half = q_BHSE.shape[2] <= SHORT, torch.is_autocast_enabled("cpu")
                with torch.autocast("cpu", enabled=False):
                    if half and not short:
                        return LongAttention.apply(q_BHSE.bfloat16(), k_BHSE.bfloat16(), v_BHSE.bfloat16(), key_mask)
                    q_BHSE, k_BHSE, v_BHSE = q_BHSE.float(), k_BHSE.float(), v_BHSE.float()
                    if short:
                        return short_attention(q_BHSE, k_BHSE, v_BHSE, key_mask)
            return F.scaled_dot_product_attention(q_BHSE, k_BHSE, v_BHSE, attn_mask=key_mask)
        logits = (q_BHSE @ k_BHSE.transpose(-1, -2)).float() / math.sqrt(q_BHSE.shape[-1])
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        if key_mask is not None:
            logits = logits.masked_fill(~key_mask, -torch.inf)
        return logits.softmax(dim=-1).to(v_BHSE.dtype) @ v_BHSE


def key_mask(valid_BL: Tensor | None, *, others: int = 0) -> Tensor | None:
    """Make the mask (B, 1, 1, L + others) of the keys that may be read; None if all of them are.

    Padding of the text is excluded. The `others` keys of another stream are always read; without them a row of padding
    alone reads its first position, because no row may lack a key.
    """
    if valid_BL is None:
        return None
    # The check is cheap on the CPU; on a GPU it would wait for the device, and it would break a compiled graph.
    if valid_BL.device.type == "cpu" and not torch.compiler.is_compiling() and bool(valid_BL.all()):
        return None
    if others:
        return F.pad(valid_BL, (0, others), value=True)[:, None, None, :]
    first_L = torch.arange(valid_BL.shape[1], device=valid_BL.device) == 0
    return (valid_BL | (first_L & ~valid_BL.any(dim=1, keepdim=True)))[:, None, None, :]


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
    """Softmax(QKᵀ/√E)V by batched products, which the gradient computes again: in bf16 faster than torch's kernel.

    Called as apply(q, k, v, key_mask) with the shapes of `Attention`.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(q, k, v, key_mask)
        parts = [
            LongAttention.logits(qi, ki, mask).softmax(-1) @ vi for mask, (qi, ki, vi) in chunks(key_mask, q, k, v)
        ]
        return torch.cat(parts).view_as(q)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *qkv, key_mask = ctx.saved_tensors
        scale, parts = qkv[0].shape[-1] ** -0.5, []
        for mask, (qi, ki, vi, grad) in chunks(key_mask, *qkv, grads[0]):
            logits = LongAttention.logits(qi, ki, mask)
            with torch.enable_grad():
                p = logits.requires_grad_().softmax(-1)
            (d_logits,) = torch.autograd.grad(p, logits, grad @ vi.mT)
            parts.append((d_logits @ ki * scale, d_logits.mT @ qi * scale, p.mT @ grad))
        d_q, d_k, d_v = (torch.cat(part).view_as(x) for part, x in zip(zip(*parts, strict=True), qkv, strict=True))
        return d_q, d_k, d_v, None

    @staticmethod
    def logits(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Compute QKᵀ/√E of some rows, −∞ where the mask is false."""
        logits = (q * q.shape[-1] ** -0.5) @ k.mT
        return logits if mask is None else logits.masked_fill_(~mask, -torch.inf)


def chunks(key_mask: Tensor | None, *each: Tensor) -> Iterator[tuple[Tensor | None, list[Tensor]]]:
    """Yield the mask and tensors (BH, S, E) of parts of the batch whose attention matrices fit into the cache."""
    B, H, S, _ = each[0].shape
    rows = max(1, MATRIX // (H * S * S))
    for start in range(0, B, rows):
        part = slice(start, start + rows)
        mask = None if key_mask is None else key_mask[part].expand(-1, H, -1, -1).flatten(0, 1)
        yield mask, [x[part].flatten(0, 1) for x in each]


class QKNorm(nn.Module):
    """RMSNorm over each head's coordinates with a learned scale per head, for Q and K at once, in float32."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(2, heads, head_dim))

    def init_weights(self, generator: torch.Generator) -> None:
        nn.init.ones_(self.scale)

    def forward(self, qk_BL2HE: Tensor) -> Tensor:
        return F.rms_norm(qk_BL2HE.float(), qk_BL2HE.shape[-1:], eps=EPSILON) * self.scale

    def each(self, q_BLHE: Tensor, k_BKHE: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise Q and K of different lengths."""
        normed = (F.rms_norm(x.float(), x.shape[-1:], eps=EPSILON) for x in (q_BLHE, k_BKHE))
        q_BLHE, k_BKHE = (x * scale for x, scale in zip(normed, self.scale, strict=True))
        return q_BLHE, k_BKHE
