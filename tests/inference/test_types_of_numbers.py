"""Types of numbers: sums in double precision, models in bfloat16, and columns of one type whatever was computed."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.inference.edge import Edge
from mm_ldlm.inference.latents import LatentWriter
from mm_ldlm.sampling.config import SearchConfig
from scripted import MASK, SHAPE, Scripted, Shift, Words

from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.images.requests import ImageWriter
from mm_ldlm.inference.results import Classes, Embeddings, Images, Interpolations, Scores, Texts
from mm_ldlm.inference.scoring import score_tokens
from mm_ldlm.inference.writing import Writer
from mm_ldlm.objectives.generation import Likelihood
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.gaussian import LatentSample
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

LARGE = 2.0**24
"""float32 has no odd numbers above it, so that LARGE + 1 in float32 is LARGE"""
SAMPLER = text_sampler("confidence")


class Unlikely(Scripted):
    """The first token of a text has the log-probability −2²⁴, each other one −1."""

    def write(self, canvas_BL: Any, open_BL: Any, **named: Any) -> TextSample:
        found = super().write(canvas_BL, open_BL, **named)
        log_probs_BL = torch.where(torch.arange(canvas_BL.shape[1]) == 0, -LARGE, -1.0).expand(canvas_BL.shape)
        return TextSample(found.tokens, log_probs_BL.masked_fill(~open_BL, 0.0), found.steps, found.calls_per_row, 1)


def test_log_probabilities_are_summed_in_double_precision() -> None:
    model: Any = Unlikely()
    writer, sum_of_two = Writer(model, batch_tokens=100), -LARGE - 1
    latents_nd = torch.tensor([[2.0, 0.0]])
    found = writer.write([[MASK, MASK]], latents_nd=None, sampler=SAMPLER, seed=0)
    assert found.log_probs.tolist() == [sum_of_two]
    together, _ = LatentWriter(model, batch_tokens=100)._together([2], None, None, 0)
    assert together.log_probs.tolist() == [sum_of_two]
    searched = writer.search(
        [[[MASK, MASK]]], latents_nd=latents_nd, cosines=lambda tokens, rows: [0.5] * len(rows), sampler=SAMPLER,
        config=SearchConfig(), seed=0,
    )  # fmt: skip
    assert searched.log_probs.tolist() == [sum_of_two]


def test_the_probability_of_a_length_counts_beside_that_of_a_text_however_small_it_is() -> None:
    """log p(length) is −0.1 for two tokens and −0.2 for one; beside −2²⁴ both are lost in float32."""

    class Even(Scripted):
        """Every text has the log-probability −2²⁴ in all."""

        def length_log_probs(self, latents_Bd: Any, *, rows: int) -> torch.Tensor:
            return torch.tensor([[-0.2, -0.1, -9.0, -9.0]]).expand(rows, -1)

        def write(self, canvas_BL: Any, open_BL: Any, **named: Any) -> TextSample:
            found = super().write(canvas_BL, open_BL, **named)
            log_probs_BL = (-LARGE / open_BL.sum(1, keepdim=True)).expand(canvas_BL.shape)
            return TextSample(found.tokens, log_probs_BL, found.steps, found.calls_per_row, 1)

    model: Any = Even()
    found = Writer(model, batch_tokens=100).write_likeliest_length(
        lengths=2, latents_nd=None, rows=1, sampler=SAMPLER, seed=0
    )
    assert [len(tokens) for tokens in found.tokens] == [2]
    model.length_log_probs = lambda latents_Bd, *, rows: torch.tensor([[-0.1, -0.2, -9.0, -9.0]]).expand(rows, -1)
    found = Writer(model, batch_tokens=100).write_likeliest_length(
        lengths=2, latents_nd=None, rows=1, sampler=SAMPLER, seed=0
    )
    assert [len(tokens) for tokens in found.tokens] == [1]


def test_scores_have_double_precision() -> None:
    class Costly(Scripted):
        def likelihood(self, tokens_BL: Any, *, latents_Bd: Any, draws: int, generator: Any) -> Likelihood:
            each = torch.tensor([[LARGE], [LARGE + 1], [LARGE + 5]], dtype=torch.float64)
            return Likelihood(each, *[each.float()] * 4)

    writer = Writer(Costly(), batch_tokens=100)  # type: ignore[arg-type]
    found = score_tokens(writer, [[1, 2]], ["a"], latents_nd=None, likelihood="bound", draws=3, seed=0)
    assert found.draw_nll.tolist() == [[LARGE], [LARGE + 1], [LARGE + 5]]
    assert found.token_nll.tolist() == [LARGE + 2]
    assert found.standard_errors.tolist() == pytest.approx([(7.0 / 3) ** 0.5], rel=1e-9)
    assert [each.dtype for each in (found.draw_nll, found.token_nll, found.length_nll, found.nll)] == [np.float64] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_latents_of_any_type_become_raw_vectors_and_pixels_in_float32(dtype: torch.dtype) -> None:
    z = torch.tensor([[0.5, -0.25], [1.5, 2.0]], dtype=dtype)
    shape, words = SHAPE, Words()
    made = Edge(shape, torch.device("cpu"), words, Shift(), encoder=None, load_encoder=None)  # type: ignore[arg-type]
    raw = made.raw(z)
    assert (raw.dtype, raw.tolist()) == (np.float32, [[1.5, 0.75], [2.5, 3.0]])
    model: Any = Scripted()
    model.shape = SimpleNamespace(**{**vars(SHAPE), "image_size": (1, 2, 1)})
    normaliser = Normaliser("one_scale", np.full(2, 0.5), np.full(2, 0.25), False)
    pictures = ImageWriter(model, SimpleNamespace(), words, normaliser, batch_tokens=100)  # type: ignore[arg-type]
    pixels = pictures._pixels(z)
    assert (pixels.dtype, pixels.shape) == (np.float32, (2, 1, 2, 1))
    assert pixels.ravel().tolist() == [0.625, 0.4375, 0.875, 1.0]


def test_latents_are_drawn_as_float32() -> None:
    class Half(Scripted):
        def latents_given_texts(self, *given: Any, **named: Any) -> LatentSample:
            found = super().latents_given_texts(*given, **named)
            return LatentSample(found.latents.bfloat16(), found.draws.bfloat16(), found.model_calls)

    writer = LatentWriter(Half(), batch_tokens=9)  # type: ignore[arg-type]
    drawn = writer.given_texts([[1], [1, 2, 3]], config=latent_sampler("ddim", draws=3), seed=0)
    assert (drawn.draws.dtype, drawn.mean.dtype) == (torch.float32, torch.float32)
    assert drawn.mean.tolist() == [[1.0, 11.0], [3.0, 13.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_decoder_in_half_precision_writes_texts_with_float32_log_probabilities(dtype: torch.dtype) -> None:
    logits_V = torch.linspace(-2, 2, 6).to(dtype)

    class Decoder:
        begin_id, end_id, pad_id = 5, 5, 4

        def start(self) -> Any:
            return SimpleNamespace(keep=lambda mask: None)

        def step(self, cache: Any, token_B: Any) -> Any:
            return logits_V.expand(len(token_B), -1).clone()

    found = text_sampler("autoregressive").sample(
        Decoder(), torch.full((3, 4), MASK), process=None, generator=RowGenerator(0, torch.arange(3))
    )
    expected = logits_V.float().log_softmax(0)
    written = found.steps >= 0
    assert found.log_probs.dtype == torch.float32
    torch.testing.assert_close(found.log_probs[written], expected[found.tokens[written]], atol=1e-6, rtol=0)


# -- tables ------------------------------------------------------------------------------------------------------------


def types(frame: Any) -> dict[str, str]:
    """The type of each column of numbers; of a column of lists that of the lists."""
    first = {str(name): column.iloc[0] for name, column in frame.items()}
    return {name: str(value.dtype) for name, value in first.items() if hasattr(value, "dtype")}


@pytest.mark.parametrize("ints", [np.int32, np.uint8, np.int64])
@pytest.mark.parametrize("floats", [np.float16, np.float32, np.float64])
def test_the_columns_of_a_table_have_one_type_whatever_was_computed(ints: Any, floats: Any) -> None:
    """Tables of several tasks are joined, and a column of a file has one type."""
    n, f = np.arange(2).astype(ints), (np.arange(2) / 4).astype(floats)
    vectors = (np.arange(4).reshape(2, 2) / 8).astype(floats)
    texts = Texts(("a", "b"), ((1,), (2, 3)), f, n, n, ("s", "t"), f, vectors, f, f)
    common = {
        "length": "int64", "log_prob": "float64", "model_calls": "int64", "encoder_calls": "int64", "cosine": "float64",
        "latent": "float32", "latent_norm": "float64", "unknown": "float64",
    }  # fmt: skip
    assert types(texts.to_frame()) == common
    between = Interpolations(n, f, texts).to_frame()
    assert types(between) == {"pair": "int64", "fraction": "float64", **common}
    assert between["fraction"].tolist() == [0.0, 0.25]
    embedded = Embeddings(("a", "b"), vectors, vectors[None], n).to_frame()
    assert types(embedded) == {"latent": "float32", "model_calls": "int64"}
    pictures = Images(np.zeros((2, 1, 2, 1), np.float32), ("a", "b"), n).to_frame()
    assert types(pictures) == {"image": "float32", "model_calls": "int64"}


def test_the_short_form_of_a_result_has_its_texts_names_and_costs() -> None:
    """The other fields would fill pages of a notebook."""
    shown = {made: {each.name for each in dataclasses.fields(made) if each.repr}
             for made in (Texts, Images, Embeddings, Scores, Classes)}  # fmt: skip
    assert shown == {
        Texts: {"texts", "model_calls", "encoder_calls", "sources", "cosines", "rows", "samples", "best"},
        Images: {"captions", "model_calls"},
        Embeddings: {"sources", "model_calls"},
        Scores: {"texts", "tokens", "likelihood", "length_nll", "token_nll", "standard_errors"},
        Classes: {"sources", "names"},
    }
