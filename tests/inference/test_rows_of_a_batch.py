"""Texts of several lengths in one request: every number of a batch belongs to its own row of the request."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.inference.latents import LatentWriter
from mm_ldlm.sampling.config import SearchConfig
from scripted import LONGEST, MASK, PAD, Scripted, Sized, engine

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import editing
from mm_ldlm.inference.writing import Writer
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.gaussian import LatentSample
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

SAMPLER = text_sampler("confidence", steps=2)
BATCHES = pytest.mark.parametrize("batch_tokens", [1, 8, 100])


@BATCHES
def test_texts_and_latents_that_are_drawn_together(batch_tokens: int) -> None:
    """The scripted model writes the number of masks, and draws the latent (masks, −masks)."""
    model: Any = Scripted()
    written, latents = LatentWriter(model, batch_tokens=batch_tokens)._together([2, 4, 1, 3], None, None, 5)
    assert written.tokens == ((2, 2), (4,) * 4, (1,), (3,) * 3)
    assert written.log_probs.tolist() == [-0.5, -1.0, -0.25, -0.75]
    assert written.model_calls.tolist() == [17] * 4
    assert written.encoder_calls.tolist() == [0] * 4
    assert latents.tolist() == [[2, -2], [4, -4], [1, -1], [3, -3]]
    rows = [row for asked in model.asked if len(asked) == 4 and asked[1] is None for row in asked[3].rows.tolist()]
    assert set(rows) == {0, 1, 2, 3}
    assert {asked[3].seed for asked in model.asked} == {5}


class Spoilt(Scripted):
    """Draws texts and latents together, of which one number or word of the second longest text is spoilt."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def both(self, canvas_BL: Any, **named: Any) -> Any:
        found = super().both(canvas_BL, **named)
        values = {"text": found.text.log_probs, "words": found.text.tokens, "latent": found.latent.latents}
        if self.what in values:
            values[self.what][1, 1] = MASK if self.what == "words" else torch.nan
        return found


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", None),
        ("text", r"texts or latents that are not finite for 1 of 3 inputs \(rows 2\)"),
        ("latent", r"texts or latents that are not finite for 1 of 3 inputs \(rows 2\)"),
        ("words", r"row 2 of the request: .* wrote the id 21 \(\[MASK\]\)"),
    ],
)
def test_what_is_drawn_together_is_checked_on_both_sides(what: str, message: str | None) -> None:
    model: Any = Spoilt(what)
    refused = contextlib.nullcontext() if message is None else pytest.raises(SamplingError, match=message)
    with refused:
        assert len(LatentWriter(model, batch_tokens=100)._together([1, 4, 3], None, None, 0)[0].tokens) == 3


class Drawing(Scripted):
    """Draws latents, of which one number is spoilt: that of draw 1 of the longest text of its batch."""

    def latents_given_texts(self, tokens_BL: Any, *, sampler: Any, generator: Any) -> LatentSample:
        found = super().latents_given_texts(tokens_BL, sampler=sampler, generator=generator)
        found.draws[1, 0, 1] = torch.inf
        return found


def test_a_latent_is_checked_in_every_draw_and_dimension() -> None:
    model: Any = Drawing()
    with pytest.raises(SamplingError, match=r"latents that are not finite for 1 of 3 inputs \(rows 1\)"):
        LatentWriter(model, batch_tokens=100).given_texts(
            [[1], [1, 2, 3], [1, 2]], config=latent_sampler("ddim", draws=2), seed=0
        )


# -- search ------------------------------------------------------------------------------------------------------------

LATENTS = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
STARTS = [[[MASK] * 2, [MASK] * 2], [[MASK] * 5, [MASK] * 5], [[MASK], [MASK]], [[MASK] * 3, [MASK] * 3]]


def searched(model: Any, *, batch_tokens: int, starts: Any = STARTS, **config: Any) -> Any:
    asked: list[tuple[list[int], int]] = []

    def cosines(tokens: list[list[int]], rows: list[int]) -> list[float]:
        asked.extend(zip(tokens, rows, strict=True))
        return [row / 8 for row in rows]

    found = Writer(model, batch_tokens=batch_tokens).search(
        starts, latents_nd=LATENTS, cosines=cosines, sampler=SAMPLER, seed=5,
        config=SearchConfig(**{"candidates": 2, "good_enough": 0.3, **config}),
    )  # fmt: skip
    return found, asked


@BATCHES
def test_each_target_of_a_search_has_its_own_text_cosine_and_costs(batch_tokens: int) -> None:
    """The cosine of row r is r/8, so that the last row is good enough with its first candidate."""
    found, asked = searched(Scripted(), batch_tokens=batch_tokens)
    assert found.tokens == ((3, 3), (7,) * 5, (4,), (7,) * 3), "as many masks, and the latent of the row"
    assert found.log_probs.tolist() == [-0.25 * 2 * 2, -0.25 * 3 * 5, -0.25 * 4, -0.25 * 5 * 3]
    assert found.cosines.tolist() == [0, 0.125, 0.25, 0.375]
    assert found.model_calls.tolist() == [2 * 20, 2 * 50, 2 * 10, 30], "two candidates, or one that is good enough"
    assert found.encoder_calls.tolist() == [1, 1, 1, 1], "the second candidate is the same text"
    assert sorted(asked) == sorted((list(tokens), row) for row, tokens in enumerate(found.tokens))


def test_the_batches_of_a_search_hold_the_longest_canvas_of_each_target() -> None:
    sizes: list[int] = []

    class Measured(Scripted):
        def write(self, canvas_BL: Any, *given: Any, **named: Any) -> TextSample:
            sizes.append(canvas_BL.numel())
            return super().write(canvas_BL, *given, **named)

    starts = [[[MASK] * 2, [MASK] * 5]] * 4
    found, _ = searched(Measured(), batch_tokens=10, starts=starts, good_enough=2.0)
    assert max(sizes) == 10
    assert len(found.tokens) == 4


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda sample: sample.log_probs.__setitem__((1, 0), torch.nan),
            r"log-probabilities that are not finite for 1",
        ),
        (lambda sample: sample.tokens.__setitem__((1, 0), MASK), r"row 3 of the request: .* wrote the id 21"),
    ],
)
def test_what_a_search_finds_is_checked(spoil: Any, message: str) -> None:
    class Spoiling(Scripted):
        def write(self, *given: Any, **named: Any) -> TextSample:
            found = super().write(*given, **named)
            spoil(found)
            return found

    with pytest.raises(SamplingError, match=message):
        searched(Spoiling(), batch_tokens=100, candidates=1, rounds=0)


# -- pieces ------------------------------------------------------------------------------------------------------------


def test_columns_of_padding_are_left_out_of_the_call_and_put_back() -> None:
    model: Any = Scripted()
    canvas = torch.tensor([[MASK, MASK, PAD, PAD, PAD], [5, MASK, MASK, PAD, PAD]])
    found = Writer(model, batch_tokens=9)._sample(canvas, None, SAMPLER, SimpleNamespace())  # type: ignore[arg-type]
    assert model.asked[0][0].shape == (2, 3)
    assert found.tokens.tolist() == [[2, 2, PAD, PAD, PAD], [5, 2, 2, PAD, PAD]]
    assert found.log_probs.tolist() == [[-0.25, -0.25, 0, 0, 0], [0, -0.25, -0.25, 0, 0]]
    assert found.steps.tolist() == [[0, 0, 0, -1, -1]] * 2
    assert found.calls_per_row.tolist() == [20, 20]


@pytest.mark.parametrize("has_length", [True, False])
def test_a_text_that_ends_itself_has_no_padding(has_length: bool) -> None:
    """A canvas of the maximum length is written; the model ends the text after as many words as the latent has."""

    class Ending(Scripted):
        def write(self, canvas_BL: Any, open_BL: Any, **named: Any) -> TextSample:
            made = super().write(canvas_BL, open_BL, **named)
            end_B1 = named["latents_Bd"][:, :1]
            tokens = torch.where(torch.arange(canvas_BL.shape[1]) < end_B1, made.tokens, PAD)
            return TextSample(tokens if not has_length else made.tokens, made.log_probs, made.steps, made.calls_per_row,
                              made.model_calls)  # fmt: skip

    writer = Writer(Ending(has_length=has_length), batch_tokens=100)  # type: ignore[arg-type]
    latents = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 0.0]])
    lengths = writer.lengths(4 if has_length else "sample", latents, rows=3, seed=0)
    assert lengths == ([4] * 3 if has_length else [LONGEST] * 3)
    found = writer.write([[MASK] * length for length in lengths], latents_nd=latents, sampler=SAMPLER, seed=0)
    assert [len(row) for row in found.tokens] == ([4, 4, 4] if has_length else [2, 4, 0])


def test_what_an_edit_masks_and_what_it_writes_have_noise_of_their_own() -> None:
    made = engine(batch_tokens=100, model=Sized())
    editing.edit(
        made, ["w1 w2 w3", "w4 w5"], targets=[[3.0, 1.0]], strength=0.5, which="least_likely", sampler=SAMPLER,
        steps=None, reembed=False, seed=5,
    )  # fmt: skip
    (chosen,), (_, _, _, written) = made.model.asked  # type: ignore[attr-defined]
    assert (chosen.seed, written.seed) == (5, 5)
    assert not {*chosen.uniform(4).flatten().tolist()} & {*written.uniform(4).flatten().tolist()}
