"""The training loss over the vocabulary, `diffusion.distributions.token_loss`, against PyTorch's functions on the CPU.

Both start from the same hidden vectors and embedding table: logits, excluded ids, cross-entropy, the most probable
token, and the gradients of vectors and table. The time is the CPU time of one thread, system time (page faults)
included; rounds alternate and the fastest of each counts.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.diffusion.distributions import token_loss

ROUNDS = 15
SHAPES = {
    # name: (masked tokens, dim of the table, vocabulary)
    "tatoeba": (1_000, 384, 12_191),
    "bert": (1_000, 384, 30_522),
}
PAD, MASK = 0, 1


def run() -> list[dict[str, Any]]:
    """Measure every shape; `ratio` is the time of PyTorch's functions over ours."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_compare(name, *shape) for name, shape in SHAPES.items()]
    finally:
        torch.set_num_threads(threads)


def _compare(name: str, M: int, dim: int, V: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(M, dim, generator=generator, requires_grad=True)
    table = (torch.randn(V, dim, generator=generator) * 0.05).requires_grad_()
    targets = torch.randint(2, V, (M,), generator=generator)
    forbidden = torch.zeros(V).index_fill(0, torch.tensor([PAD, MASK]), -torch.inf)

    def plain(logits: Tensor) -> Tensor:
        allowed = logits + forbidden
        allowed.detach().argmax(dim=-1)
        return F.cross_entropy(allowed, targets, reduction="sum")

    def ours(logits: Tensor) -> Tensor:
        return token_loss(logits, targets, mask_id=MASK, pad_id=PAD).nll_M.sum()

    losses: dict[str, Callable[[Tensor], Tensor]] = {"ours": ours, "plain": plain}
    fastest = dict.fromkeys(losses, float("inf"))
    for _ in range(ROUNDS):
        for key, loss in losses.items():
            hidden.grad = table.grad = None
            start = time.process_time()
            loss(F.linear(hidden, table)).backward()
            fastest[key] = min(fastest[key], time.process_time() - start)
    value, peer = fastest["ours"] * 1e3, fastest["plain"] * 1e3
    return {
        "name": f"cross_entropy.{name}",
        "value": value,
        "unit": "ms",
        "peer": "F.cross_entropy",
        "peer_value": peer,
        "ratio": peer / value,
        "note": f"{M} positions, dim {dim}, vocabulary {V}, forward and backward, with the product by the table",
    }
