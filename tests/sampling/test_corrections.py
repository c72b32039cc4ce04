"""Self-correction token by token: what is proposed, in which order texts are corrected, and when they are finished."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mm_ldlm.sampling.uncertainty import Draft, resized
from torch import Tensor

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.families.uniform.self_correction import _proposal
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.registry import text_sampler

MASK, PAD, V = 8, 9, 10


def test_the_most_probable_of_the_drawn_tokens_that_differ_is_proposed() -> None:
    """Of the words 1, 0 and 2, the last two differ from the first text, 1, 3 and 3; the second text is its own draw."""
    p = torch.tensor([[0.3, 0.6, 0.1, 0], [0.2, 0.5, 0.3, 0], [0.1, 0.5, 0.3, 0.1], [0.7, 0.1, 0.1, 0.1]])
    canvas = torch.tensor([[1, 3, 3], [0, 2, 2]])
    asked = torch.tensor([[True, True, True], [True, False, False]])
    u = torch.tensor([[0.5, 0.1, 0.8], [0.5, 0.0, 0.0]], dtype=torch.float64)
    write, drawn, log_prob = _proposal(p.log(), canvas, asked, u, Draw())
    assert drawn.tolist() == [[1, 0, 2], [0, 2, 2]]
    assert write.tolist() == [[False, False, True], [False] * 3], "0.3 is more than 0.2, although 0.6 is the largest"
    torch.testing.assert_close(log_prob[asked].exp(), torch.tensor([0.6, 0.2, 0.3, 0.7]))
    assert torch.isneginf(log_prob[~asked]).all()


RIGHT = torch.tensor([5, 2, 7, 0])
CERTAIN = torch.tensor([0.7, 0.9, 0.6, 0.8])


def corrected(lengths: list[int], times: list[Any] | None = None, **settings: Any) -> Any:
    """A model that writes the word 3 everywhere, and that afterwards prefers the right words, some more than others."""

    def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
        if times is not None:
            times.append((float(t_A[0]), rows_A.tolist()))
        L = tokens_AL.shape[1]
        right = torch.full((L, V), 1e-9).scatter(1, RIGHT[:L, None], CERTAIN[:L, None])
        right[torch.arange(L), (RIGHT[:L] + 1) % 8] = 1 - CERTAIN[:L]
        wrong = torch.full((L, V), 1e-9)
        wrong[:, 3] = 1.0
        return (wrong if float(t_A[0]) > 0.5 else right).log().expand(len(tokens_AL), -1, -1)[asked_AL].clone()

    tokens = torch.full((len(lengths), 4), PAD)
    for row, length in enumerate(lengths):
        tokens[row, :length] = MASK
    process = parse_kind(TEXT_PROCESSES, {"kind": "uniform"}, at="p").build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    denoise = TextDenoiser(logits=logits, mask_id=MASK, pad_id=PAD, vocab_size=V)
    given = {"steps": 1, "temperature": 0.0, "correction_temperature": 0.0, "correction_time": 0.25, **settings}
    return text_sampler("self_correction", **given).sample(
        denoise, tokens, process=process, generator=RowGenerator(0, torch.arange(len(lengths)))
    )


@pytest.mark.parametrize("patience", [1, 32])
def test_a_text_is_corrected_token_by_token_the_most_certain_first(patience: int) -> None:
    """Each correction makes one more token agree with the model, which is a rise; the last one finds nothing."""
    times: list[Any] = []
    found = corrected([4, 2, 0], times, patience=patience)
    assert found.tokens.tolist() == [RIGHT.tolist(), [5, 2, PAD, PAD], [PAD] * 4]
    assert found.steps.tolist() == [[3, 1, 4, 2], [2, 1, -1, -1], [-1] * 4]
    expected = torch.tensor([CERTAIN.tolist(), [0.7, 0.9, 1, 1], [1.0] * 4])
    torch.testing.assert_close(found.log_probs.exp(), expected, atol=1e-5, rtol=0)
    assert (found.calls_per_row.tolist(), found.model_calls) == ([1 + 5, 1 + 3, 0], 6)
    assert times == [(1.0, [0, 1]), *[(0.25, [0, 1])] * 3, *[(0.25, [0])] * 2], "a finished text is left out"


@pytest.mark.parametrize("corrections", [1, 2, 3])
def test_corrections_end_at_their_number(corrections: int) -> None:
    found = corrected([4], corrections=corrections)
    order = [1, 3, 0, 2]
    expected = [int(RIGHT[place]) if order.index(place) < corrections else 3 for place in range(4)]
    assert found.tokens.tolist() == [expected]
    assert (found.calls_per_row.tolist(), found.model_calls) == ([1 + corrections], 1 + corrections)
    assert [step for step in found.steps[0].tolist() if step > 0] == [
        1 + order.index(place) for place in range(4) if order.index(place) < corrections
    ]


def test_whether_and_where_a_text_is_resized_are_drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, plain = list[int](), RowGenerator._next_key
    monkeypatch.setattr(RowGenerator, "_next_key", lambda self: keys.append(plain(self)) or keys[-1])
    tokens = torch.tensor([[1, 2, PAD]])
    draft = Draft(tokens, torch.zeros(1, 3), tokens != PAD)
    resized(
        draft, fraction=0.5, noise=1.0, mask_id=MASK, pad_id=PAD, generator=RowGenerator(0, torch.arange(1))
    )  # fmt: skip
    assert len(set(keys)) == len(keys) == 2
