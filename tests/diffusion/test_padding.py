"""The NELBO of a text does not depend on the length to which its batch is padded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES

IDS = {"vocab_size": 6, "pad_id": 0, "mask_id": 5}
STORES = {"token_clusters": torch.tensor([[-1], [0], [1], [0], [1], [-1]])}
ENDS = {"schedule": {"name": "log_linear", "epsilon": 0.3}}  # α_1 > 0, so that a term belongs to the prior
START = {"schedule": {"name": "geometric", "sigma_min": 0.2}}  # α_0 < 1, so that a term belongs to the start
CASES: list[tuple[str, dict[str, Any]]] = [
    ("absorbing", {}), ("absorbing", ENDS), ("d3pm", {}), ("uniform", {}), ("uniform", ENDS), ("uniform", START),
    ("gidd", {"p_uniform": 0.2}), ("hdlm", {}), ("sedd", {"graph": "absorbing"}), ("sedd", {"graph": "uniform"}),
]  # fmt: skip


def test_no_process_is_left_out() -> None:
    assert {kind for kind, _ in CASES} == set(TEXT_PROCESSES.known)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_padding_costs_nothing(kind: str, options: dict[str, Any]) -> None:
    config = parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")
    process = config.build(**IDS, **{name: STORES[name] for name in config.stores})
    short = torch.tensor([[1, 2, 3], [4, 4, 1]])
    logits = torch.tensor([0.1, 0.5, -0.3, 0.7, 0.2, -0.1])

    def predict(noisy_BL: torch.Tensor, t_B: torch.Tensor, scored_BL: torch.Tensor) -> torch.Tensor:
        return logits.expand(int(scored_BL.sum()), -1).clone()

    def nelbo(padded: int) -> torch.Tensor:
        tokens = torch.nn.functional.pad(short, (0, padded), value=IDS["pad_id"])
        valid = torch.arange(tokens.shape[1]).expand_as(tokens) < 3
        found = process.nelbo(predict, tokens, valid, draws=16, generator=RowGenerator(0, torch.arange(2)))
        return torch.as_tensor(found.nll_KB)

    torch.testing.assert_close(nelbo(0), nelbo(3))
    assert bool((nelbo(0).mean(0) > 0).all())
