"""Each draw of a likelihood bound comes with its noise level, and with the numbers of scored positions, of correct
predictions and of nats at just these positions, for every process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_traits import CASES, IDS, STORES
from torch import Tensor

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.process import NelboDraws, stratified
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES

TEXTS, LENGTH, DRAWS = 12, 9, 4
LENGTHS = torch.arange(TEXTS) % LENGTH + 1
VALID = torch.arange(LENGTH) < LENGTHS[:, None]
TOKENS = torch.randint(1, 5, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(0)).masked_fill(~VALID, 0)
LOGITS = torch.randn(LENGTH, 6, generator=torch.Generator().manual_seed(1))
"""Those of each position, whatever stands there"""


def process_of(kind: str, options: dict[str, Any]) -> Any:
    config = parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")
    return config.build(**IDS, **{name: STORES[name] for name in config.stores})


def drawn(process: Any) -> tuple[NelboDraws, list[tuple[Tensor, Tensor, Tensor]]]:
    """The draws, and what the model was asked in each of them."""
    asked: list[tuple[Tensor, Tensor, Tensor]] = []

    def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
        asked.append((noisy_BL, t_B, scored_BL))
        return LOGITS[scored_BL.nonzero()[:, 1]].clone()

    found = process.nelbo(predict, TOKENS, VALID, draws=DRAWS, generator=RowGenerator(3, torch.arange(TEXTS)))
    return found, asked[:DRAWS]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_the_numbers_of_a_draw_are_those_of_the_positions_that_it_scored(kind: str, options: dict[str, Any]) -> None:
    process = process_of(kind, options)
    found, asked = drawn(process)
    for number, (noisy_BL, t_B, scored_BL) in enumerate(asked):
        assert torch.equal(scored_BL, process.scored(noisy_BL, VALID))
        assert torch.equal(found.scored_KB[number], scored_BL.sum(1).double())
        rows_M, places_M = scored_BL.nonzero().T
        targets_M, noisy_M = TOKENS[scored_BL], noisy_BL[scored_BL]
        loss = process.token_losses(LOGITS[places_M].clone(), targets_M, noisy_M, t_B[rows_M])
        if process.predicts_scores:
            nll_M, best_M = loss.nll_M, loss.best_M
        else:
            log_x0_MV = process.log_x0(LOGITS[places_M].clone(), noisy_M)
            nll_M, best_M = -log_x0_MV.gather(1, targets_M[:, None])[:, 0], log_x0_MV.argmax(1)
            torch.testing.assert_close(nll_M, loss.nll_M)
        for row in range(TEXTS):
            here = rows_M == row
            assert found.correct_KB[number, row] == (best_M == targets_M)[here].sum()
            assert float(found.cross_entropy_KB[number, row]) == pytest.approx(float(nll_M[here].sum()), rel=1e-5)
    assert found.correct_KB.sum() not in (0, found.scored_KB.sum())


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_the_noise_level_of_a_draw_is_a_time_or_the_fraction_of_replaced_tokens(
    kind: str, options: dict[str, Any]
) -> None:
    process = process_of(kind, options)
    found, asked = drawn(process)
    times_KB = torch.stack([t_B for _, t_B, _ in asked]).double()
    assert bool(((found.noise_KB > 0) & (found.noise_KB <= 1)).all())
    if kind in ("absorbing", "d3pm", "sedd"):
        reached_KB = torch.where(times_KB < 1, process.schedule.mask_probability(times_KB), found.noise_KB)
        torch.testing.assert_close(reached_KB, found.noise_KB, atol=1e-6, rtol=1e-5)
    else:
        torch.testing.assert_close(times_KB, found.noise_KB, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_draw_is_its_integrand_over_the_noise_level(kind: str, options: dict[str, Any]) -> None:
    """−log p of one text from its own positions: nothing of it depends on the texts beside it."""
    process = process_of(kind, options)
    found, _ = drawn(process)
    for row in (0, 7):
        tokens, valid = TOKENS[row : row + 1], VALID[row : row + 1]
        alone = process.nelbo(
            lambda noisy, t, scored: LOGITS[scored.nonzero()[:, 1]].clone(), tokens, valid, draws=DRAWS,
            generator=RowGenerator(3, torch.tensor([row])),
        )  # fmt: skip
        for name in ("nll_KB", "noise_KB", "scored_KB", "correct_KB", "cross_entropy_KB"):
            torch.testing.assert_close(getattr(alone, name)[:, 0], getattr(found, name)[:, row])


@pytest.mark.parametrize("draws", [1, 3, 8])
def test_each_text_has_levels_of_its_own_one_in_each_of_as_many_cells_as_draws(draws: int) -> None:
    levels_KB = torch.stack(stratified(draws, RowGenerator(0, torch.arange(200))))
    assert bool(((levels_KB > 0) & (levels_KB <= 1)).all())
    cells_KB = (levels_KB * draws).ceil().long()
    assert torch.equal(cells_KB.sort(dim=0).values, torch.arange(1, draws + 1)[:, None].expand(-1, 200))
    assert len(set(levels_KB[0].tolist())) == 200
    assert abs(float(levels_KB[0].mean()) - 0.5) < 0.1
