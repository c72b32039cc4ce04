"""Forward and backward of MMDiT's blocks against the package `mmdit`, and against our own unfused attention.

Same depth, dim, heads, lengths, batch and mask, on the CPU; the peer without hyper-connections, its last text
feed-forward on. Ours does more in that time: QK-RMSNorm on both streams (the peer takes `qk_rmsnorm` and never hands it
on) and RoPE. CPU time of one thread; rounds alternate and the fastest of each counts, so that other work on the machine
weighs on both alike. Each in float32 and in bf16 by autocast, which `auto` of training takes where it is faster.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mm_ldlm.models.attention import Attention, key_mask
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.mmdit import MMDiT, MMDiTConfig

ROUNDS = 15
SHAPES = {
    # name: (batch, text length, latent tokens, dim, depth, heads)
    "base": (64, 14, 4, 192, 4, 6),
    "wide": (16, 64, 8, 512, 4, 8),
    "long": (2, 512, 8, 256, 4, 4),
}


def run() -> list[dict[str, Any]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            row
            for name, shape in SHAPES.items()
            for bf16 in (False, True)
            for row in _compare(f"{name}.{'bf16' if bf16 else 'fp32'}", *shape, bf16=bf16)
        ]
    finally:
        torch.set_num_threads(threads)


def _compare(
    name: str, B: int, L: int, K: int, D: int, depth: int, heads: int, *, bf16: bool
) -> list[dict[str, Any]]:  # fmt: skip
    config = MMDiTConfig(dim=D, depth=depth, heads=heads, latent_tokens=K)
    shape = DataShape(vocab_size=8, pad_id=0, mask_id=1, max_length=L, fields={"latents": (32,)})
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(B, L, D, generator=generator)
    latent = torch.randn(B, K, D, generator=generator)
    c = torch.randn(B, D, generator=generator)
    valid = torch.arange(L) < torch.randint(L // 2, L + 1, (B, 1), generator=generator)

    steps: dict[str, Callable[[], None]] = {}
    for attention in ("fused", "unfused"):
        model = build_on_meta(partial(MMDiT, config, shape), torch.Generator().manual_seed(0))
        for module in model.modules():
            if isinstance(module, Attention):
                module.fused = attention == "fused"
        steps[attention] = _ours(model, text, latent, c, valid)
    peer = _peer(B, L, K, D, depth, heads, text, latent, c, valid)
    if peer is not None:
        steps["mmdit"] = peer

    fastest = dict.fromkeys(steps, float("inf"))
    for _ in range(ROUNDS):
        for key, step in steps.items():
            start = time.process_time()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                step()
            fastest[key] = min(fastest[key], time.process_time() - start)

    ours = fastest["fused"] * 1e3
    tokens = f"{B}×({L}+{K}) tokens, dim {D}, depth {depth}, {heads} heads"
    note = f"forward + backward, CPU time of one thread, {tokens}"
    row = {"name": f"model.{name}.step", "value": ours, "unit": "ms"}
    if "mmdit" in fastest:
        theirs = fastest["mmdit"] * 1e3
        row |= {"peer": "mmdit", "peer_value": theirs, "ratio": theirs / ours}
    else:
        note += "; the peer is not installed (pip install mmdit)"
    own = fastest["unfused"] * 1e3
    return [
        row | {"note": note},
        {
            "name": f"model.{name}.fused_attention",
            "value": ours,
            "unit": "ms",
            "peer": "own unfused attention",
            "peer_value": own,
            "ratio": own / ours,
        },
    ]


def _ours(
    model: MMDiT, text: torch.Tensor, latent: torch.Tensor, c: torch.Tensor, valid: torch.Tensor
) -> Callable[[], None]:
    text, latent, c = (x.clone().requires_grad_() for x in (text, latent, c))

    def step() -> None:
        silu_c = torch.nn.functional.silu(c)
        mask = key_mask(valid, others=model.config.latent_tokens)
        outs = model._trunk(text, latent, silu_c, mask, (True, True))
        sum(out.sum() for out in outs).backward()  # type: ignore[union-attr]

    step()
    return step


def _peer(
    B: int,
    L: int,
    K: int,
    D: int,
    depth: int,
    heads: int,
    text: torch.Tensor,
    latent: torch.Tensor,
    c: torch.Tensor,
    valid: torch.Tensor,
) -> Callable[[], None] | None:
    try:
        from mmdit import MMDiT as Peer
    except ModuleNotFoundError:
        return None
    model = Peer(
        depth=depth,
        dim_image=D,
        dim_text=D,
        dim_cond=D,
        dim_head=D // heads,
        heads=heads,
        flash_attn=True,
        num_residual_streams=1,
        final_norm=False,
    )
    text, latent, c = (x.clone().requires_grad_() for x in (text, latent, c))

    def step() -> None:
        outs = model(
            text_tokens=text,
            image_tokens=latent,
            text_mask=valid,
            time_cond=c,
            should_skip_last_feedforward=False,
        )
        sum(out.sum() for out in outs).backward()

    step()
    return step
