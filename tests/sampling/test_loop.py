"""The denoising loop with policies of its own, and every statistic of its predictions in closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.denoising import Query, State, TextDenoiser, _predict, denoising_loop, open_positions
from mm_ldlm.sampling.guidance import guide_log_probs
from mm_ldlm.sampling.logit_filters import Draw

MASK, PAD, INF = 3, 4, float("inf")
P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.05, 0.85], [0.34, 0.36, 0.3], [0.25, 0.5, 0.25]], dtype=torch.float64)
OTHER = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)


def logits_of(table: Tensor) -> Any:
    """Logits of a distribution for each position; [MASK] and [PAD] have the highest."""

    def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
        whole = torch.cat([table.log().float(), torch.full((len(table), 2), 9.0)], dim=1)
        return whole.expand(len(tokens_AL), -1, -1)[asked_AL]

    return logits


def denoiser() -> TextDenoiser:
    return TextDenoiser(
        logits=logits_of(P), unconditional=logits_of(OTHER.expand(4, -1)), mask_id=MASK, pad_id=PAD, vocab_size=5,
        importance=lambda tokens, t: t[:, None] * torch.arange(4.0),
    )  # fmt: skip


EVALUATED = torch.tensor([[True, True, False, True], [False, False, True, False]])
STATISTICS = ("margin", "entropy", "variance", "best", "importance")


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_every_statistic_is_that_of_the_models_distribution_at_its_own_position(guidance: float) -> None:
    """Before temperature and filters, and after guidance; a value that is never chosen where nothing is evaluated."""
    tokens, u = torch.full((2, 4), MASK), torch.full((2, 4), 0.9, dtype=torch.float64)
    draw = Draw(temperature=0.5, top_k=2, guidance=guidance)
    drawn, found = _predict(
        denoiser(), tokens, torch.tensor([0.25, 0.75]), torch.tensor([4, 7]), EVALUATED, u, draw, STATISTICS
    )
    p = guide_log_probs(P.log(), OTHER.expand(4, -1).log(), scale=guidance).exp()
    second, best = p.sort(dim=1).values[:, 1], p.amax(dim=1)
    token = torch.where(EVALUATED, drawn, 0)
    expected: dict[str, tuple[Tensor, float]] = {
        "margin": (best - second, -INF), "entropy": (torch.special.entr(p).sum(1), INF),
        "variance": (1 - p.square().sum(1), INF), "best": (best, -INF),
    }  # fmt: skip
    for name, (values, fill) in expected.items():
        wanted = torch.where(EVALUATED, values.expand(2, -1), fill).float()
        torch.testing.assert_close(getattr(found, name), wanted, atol=1e-5, rtol=0, msg=name)
    chosen = p.log()[torch.arange(4), token]
    torch.testing.assert_close(found.log_prob, torch.where(EVALUATED, chosen, -INF).float(), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.importance, torch.tensor([[0.25], [0.75]]) * torch.arange(4.0))
    assert torch.equal(found.evaluated, EVALUATED)
    assert found.rows.tolist() == [4, 7]
    assert (drawn[~EVALUATED] == MASK).all()
    # at u = 0.9 of the two most probable words, sharpened, the one with the larger id unless it is too rare
    for row, place in EVALUATED.nonzero().tolist():
        powers = p[place].square()
        powers = torch.where(p[place] >= second[place], powers, 0.0)
        assert int(drawn[row, place]) == int((powers.cumsum(0) / powers.sum() < 0.9).sum())


@pytest.mark.parametrize("wanted", [*STATISTICS, None])
def test_a_statistic_is_computed_where_it_is_asked_for(wanted: str | None) -> None:
    tokens, u = torch.full((2, 4), MASK), torch.full((2, 4), 0.5, dtype=torch.float64)
    names = () if wanted is None else (wanted,)
    _, found = _predict(
        denoiser(), tokens, torch.tensor([0.25, 0.75]), torch.arange(2), EVALUATED, u, Draw(), names
    )  # fmt: skip
    assert [name for name in STATISTICS if getattr(found, name) is not None] == list(names)


def looped(*, steps: int = 4, open_BL: Tensor | None = None, **policies: Any) -> Any:
    tokens = torch.tensor([[MASK, MASK, 2, MASK], [0, MASK, PAD, PAD], [1, 1, 1, 1]])
    given = {"timestep": lambda state: torch.ones(3), "query": lambda state: Query.where_needed(state.masked)}
    found = denoising_loop(
        denoiser(), tokens, steps=steps, generator=RowGenerator(0, torch.arange(3)), draw=Draw(), open_BL=open_BL,
        **{**given, **policies},
    )  # fmt: skip
    return tokens, found


def test_what_the_last_step_has_written_is_never_masked_again() -> None:
    """The policy would mask every written token in every step; it is not asked in the last one."""
    asked: list[tuple[int, list[list[bool]]]] = []

    def remask(state: State) -> Tensor:
        asked.append((state.step, state.written.tolist()))
        return state.written

    tokens, found = looped(remask=remask)
    written = (tokens == MASK).tolist()
    nothing = [[False] * 4] * 3
    assert asked == [(0, nothing), (1, written), (2, nothing)]
    assert (found.tokens != MASK).all()
    assert torch.equal(found.tokens[tokens != MASK], tokens[tokens != MASK])
    assert found.steps.tolist() == [[2, 2, -1, 2], [-1, 2, -1, -1], [-1] * 4]
    assert found.calls_per_row.tolist() == [2, 2, 0], "in the steps 0 and 2; in step 1 nothing was masked"
    assert found.model_calls == 2


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_loop_ends_where_nothing_is_left_to_write(steps: int) -> None:
    tokens, found = looped(steps=steps)
    assert found.steps.tolist() == [[0, 0, -1, 0], [-1, 0, -1, -1], [-1] * 4]
    assert (found.calls_per_row.tolist(), found.model_calls) == ([1, 1, 0], 1)
    expected = P.log()[torch.arange(4), torch.where(tokens == MASK, found.tokens, 0)]
    torch.testing.assert_close(found.log_probs, torch.where(tokens == MASK, expected, 0.0).float(), atol=1e-5, rtol=0)


def test_only_what_a_policy_keeps_is_written_and_only_where_it_was_asked() -> None:
    """The policy keeps everything, also where it was not asked; the query asks for one position more in each step."""
    states: list[State] = []

    def query(state: State) -> Query:
        states.append(state)
        return Query.where_needed(state.masked & (torch.arange(4) <= state.step))

    _, found = looped(query=query, keep=lambda state, prediction: torch.ones_like(prediction.evaluated))
    assert found.steps.tolist() == [[0, 1, -1, 3], [-1, 1, -1, -1], [-1] * 4]
    assert (found.calls_per_row.tolist(), found.model_calls) == ([3, 1, 0], 3), "nothing is asked for in step 2"
    assert [(state.step, state.steps, state.last) for state in states] == [(n, 4, n == 3) for n in range(4)]
    assert states[2].masked.tolist() == [[False, False, False, True], [False] * 4, [False] * 4]
    assert states[2].written.tolist() == [[True, True, False, False], [False, True, False, False], [False] * 4]
    assert torch.equal(states[2].tokens == MASK, states[2].masked)


def test_masks_that_are_not_open_stay_closed() -> None:
    open_BL = torch.tensor([[True, False, True, True], [True] * 4, [True] * 4])
    tokens, found = looped(open_BL=open_BL)
    assert found.tokens[0, 1] == MASK
    assert found.steps.tolist() == [[0, -1, -1, 0], [-1, 0, -1, -1], [-1] * 4]
    assert open_positions(denoiser(), tokens, open_BL).tolist() == [
        [True, False, False, True], [False, True, False, False], [False] * 4
    ]  # fmt: skip
    assert torch.equal(open_positions(denoiser(), tokens, None), tokens == MASK)
