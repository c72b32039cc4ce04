"""Tables and texts of results: the order and types of the columns, and a short form without matrices."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scripted import MASK, Scripted, engine

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import embedding, inverting
from mm_ldlm.inference.results import Classes, Embeddings, Images, Interpolations, Neighbours, Scores, Texts
from mm_ldlm.inference.writing import Writer
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.registry import text_sampler

N = np.arange(2)
F = N / 4
ROWS = np.arange(4).reshape(2, 2)
TEXTS = Texts(("a", "b"), ((1,), (2, 3)), F, N, N + 3, ("s", None), F, ROWS / 8, F + 1, F + 2, N, N, N == 1)
BARE = Texts(("a", "b"), ((1,), (2, 3)), F, N, N + 3, ("s", None))
COLUMNS: list[tuple[Any, list[str]]] = [
    (TEXTS, ["source", "text", "length", "log_prob", "model_calls", "encoder_calls", "cosine", "latent", "latent_norm",
             "unknown", "row", "sample", "best"]),
    (BARE, ["source", "text", "length", "log_prob", "model_calls", "encoder_calls"]),
    (Images(np.zeros((2, 2, 2, 1), np.float32), ("a", "b"), N), ["text", "image", "model_calls"]),
    (Embeddings(("a", "b"), ROWS, ROWS[None], N), ["source", "latent", "model_calls"]),
    (Interpolations(N, F, BARE),
     ["pair", "fraction", "source", "text", "length", "log_prob", "model_calls", "encoder_calls"]),
    (Scores(("a", "b"), N, "exact", F, F, F, F[None]),
     ["text", "tokens", "length_nll", "token_nll", "nll", "standard_error"]),
    (Classes(("a", "b"), ("x", "y"), ROWS / 4), ["source", "label", "p(x)", "p(y)"]),
    (Neighbours(ROWS, (("a", "b"), ("c", "d")), ROWS / 8), ["query", "rank", "row", "id", "cosine"]),
]  # fmt: skip


@pytest.mark.parametrize(("result", "columns"), COLUMNS, ids=[type(result).__name__ for result, _ in COLUMNS])
def test_the_columns_of_a_table_have_their_order(result: Any, columns: list[str]) -> None:
    frame = result.to_frame()
    assert list(frame.columns) == columns
    assert len(frame) == (4 if isinstance(result, Neighbours) else 2)
    for name in {"length", "model_calls", "encoder_calls", "pair", "row"} & set(columns):
        assert frame[name].dtype == np.int64, name
    for name in {"log_prob", "cosine", "latent_norm", "unknown", "fraction", "nll"} & set(columns):
        assert frame[name].dtype == np.float64, name


@pytest.mark.parametrize("result", [TEXTS, BARE, *(result for result, _ in COLUMNS[2:4]), COLUMNS[6][0]])
def test_a_result_has_as_many_entries_as_texts(result: Any) -> None:
    assert len(result) == 2
    one = Texts(("a",), ((1,),), F[:1], N[:1], N[:1], (None,))
    assert (len(one), len(TEXTS.take(np.array([1, 1, 0])))) == (1, 3)


@pytest.mark.parametrize("result", [result for result, _ in COLUMNS], ids=lambda result: type(result).__name__)
def test_the_short_form_of_a_result_has_no_matrices_and_no_tokens(result: Any) -> None:
    """A result of a notebook is shown with its texts and costs; latents, pixels and draws would fill pages."""
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        is_table = isinstance(value, np.ndarray) and value.ndim > 1 and not isinstance(result, Neighbours)
        if is_table or (field.name in ("tokens", "log_probs") and isinstance(result, Texts)):
            assert not field.repr, field.name
    if isinstance(result, Texts):
        assert "texts=('a', 'b')" in repr(result)
        assert "sources=('s', None)" in repr(result)


def test_calls_are_whole_numbers_and_probabilities_have_double_precision() -> None:
    made = engine(batch_tokens=100)
    raw = np.array([[3.0, 1.0], [5.0, 2.0]])
    options: dict[str, Any] = {"sampler": None, "steps": None, "seed": 0, "search": None}
    for length in (2, "top-2"):
        found = inverting.invert(made, raw, length=length, reembed=True, **options)
        assert (found.model_calls.dtype, found.encoder_calls.dtype) == (np.int64, np.int64)
        assert found.log_probs.dtype == found.cosines.dtype == found.latent_norms.dtype == np.float64
        assert found.latents.dtype == np.float32
    found = inverting.invert(made, raw, length=2, reembed=False, **{**options, "search": {"candidates": 2}})
    assert (found.model_calls.dtype, found.encoder_calls.dtype) == (np.int64, np.int64)
    drawn = embedding.embed(made, [[1]], ["a"], sampler="ddim", steps=2, draws=2, seed=0)
    assert (drawn.model_calls.dtype, drawn.latents.dtype, drawn.draws.dtype) == (np.int64, np.float32, np.float32)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda made: made.log_probs.__setitem__((1, 0), np.nan), r"log-probabilities that are not finite for 1 of 2"),
        (lambda made: made.tokens.__setitem__((1, 0), MASK), r"row 0 of the request: .* wrote the id 21"),
    ],
)
def test_what_is_written_is_checked(spoil: Any, message: str) -> None:
    class Spoiling(Scripted):
        def write(self, *given: Any, **named: Any) -> TextSample:
            made = super().write(*given, **named)
            spoil(made)
            return made

    writer, canvases = Writer(Spoiling(), batch_tokens=100), [[MASK], [MASK, MASK]]  # type: ignore[arg-type]
    with pytest.raises(SamplingError, match=message):
        writer.write(canvases, latents_nd=None, sampler=text_sampler("random"), seed=0)
