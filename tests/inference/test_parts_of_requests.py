"""Parts of requests that a scripted model does not notice by itself: sizes that are asked for, precision, zeros."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.inference.choices import text_config
from mm_ldlm.inference.edge import Edge
from mm_ldlm.sampling.config import SearchConfig
from scripted import MASK, SHAPE, Scripted, Shift, Words, engine

from mm_ldlm.families.classification import requests as classifying
from mm_ldlm.inference import inverting
from mm_ldlm.inference.writing import Writer
from mm_ldlm.sampling.registry import text_sampler


@pytest.mark.parametrize("count", [1, 4096, 4100])
def test_probabilities_of_lengths_are_asked_for_as_many_rows_as_there_are(count: int) -> None:
    """Given latents, those of each part; without them one row, which all texts share."""

    class Watched(Scripted):
        rows: list[tuple[int | None, int]]

        def length_log_probs(self, latents_Bd: Any, *, rows: int) -> torch.Tensor:
            self.rows.append((None if latents_Bd is None else len(latents_Bd), rows))
            return super().length_log_probs(latents_Bd, rows=rows)

    model: Any = Watched()
    model.rows = []
    writer = Writer(model, batch_tokens=9)
    latents_nd = torch.stack([torch.arange(count) % 4 + 1.0, torch.zeros(count)], dim=1)
    found = writer.length_log_probs(latents_nd, rows=count)
    parts = [4096, count - 4096] if count > 4096 else [count]
    assert model.rows == [(part, part) for part in parts]
    assert (found.argmax(1) == torch.arange(count) % 4).all()
    model.rows.clear()
    assert writer.length_log_probs(None, rows=count).shape == (count, 4)
    assert model.rows == [(None, 1)]


def test_a_sampler_by_name_takes_from_the_default_what_it_has() -> None:
    """An autoregressive model has a temperature and no number of steps."""
    default = text_sampler("autoregressive", temperature=0.25, top_k=3)
    for kind in ("confidence", "ancestral", "threshold"):
        assert text_config(kind, None, default=default) == text_sampler(kind, temperature=0.25)
        assert text_config(kind, 5, default=default) == text_sampler(kind, temperature=0.25, steps=5)
    other = text_sampler("confidence", steps=5, temperature=0.5, top_k=3)
    assert text_config("autoregressive", None, default=other) == text_sampler("autoregressive", temperature=0.5)


def test_probabilities_of_classes_have_double_precision() -> None:
    """In float32 a class of the probability 1e-9 has seven digits, and the sum of all is off by 1e-7."""

    class Sharp(Scripted):
        def class_logits(self, *_: Any, **__: Any) -> torch.Tensor:
            return torch.tensor([[0.1, -20.3, 1.7], [0.3, 0.7, -0.9]])

    model: Any = Sharp()
    expected = torch.tensor([[0.1, -20.3, 1.7], [0.3, 0.7, -0.9]]).double().exp()
    expected = (expected / expected.sum(1, keepdim=True)).numpy()
    for found in (
        classifying.classify_tokens(model, [[1], [2]], second=None, batch_tokens=9),
        classifying.classify_latents(model, torch.zeros(2, 2)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_cosines_are_computed_in_double_precision_and_a_vector_of_zeros_has_none() -> None:
    vectors = np.array([[1.0, 1e-5], [0.0, 0.0], [3.0, 4.0]], np.float32)
    words: Any = Words()
    encoder: Any = SimpleNamespace(dim=2, encode=lambda texts: vectors)
    shape: Any = SHAPE
    edge = Edge(shape, torch.device("cpu"), words, Shift(), encoder=encoder, load_encoder=None)
    targets = np.array([[1.0, -1e-5], [1.0, 2.0], [0.0, 0.0]], np.float32)
    found = edge.cosines_of(["a", "b", "c"], targets)
    assert found.dtype == np.float64
    small = float(np.float32(1e-5))
    np.testing.assert_allclose(found, [(1 - small**2) / (1 + small**2), 0.0, 0.0], rtol=1e-14)
    assert vectors[0].tolist() == [1.0, np.float32(1e-5)], "the vectors of the encoder are not changed"
    assert targets[0].tolist() == [1.0, -np.float32(1e-5)]


def test_a_search_draws_its_other_candidates_at_its_own_temperature() -> None:
    """The first candidate is written by the sampler of the request, which is greedy here."""
    made = engine(batch_tokens=100)
    raw = np.array([[3.0, 1.0], [5.0, 2.0]], np.float32)
    sampler = text_sampler("margin", steps=5, temperature=0.125)
    inverting.invert(
        made, raw, sampler=sampler, steps=None, length=3, reembed=False, seed=0,
        search=SearchConfig(candidates=3, rounds=2, temperature=0.875, good_enough=2.0),
    )  # fmt: skip
    used = [asked[2] for asked in made.model.asked]  # type: ignore[attr-defined]
    assert used == [sampler, *[sampler.override(temperature=0.875)] * (2 + 2 * 3)]


@pytest.mark.parametrize("lengths", [3, 4, 9])
def test_a_search_has_at_most_as_many_lengths_as_the_model(lengths: int) -> None:
    """The scripted model has learned four; candidates are divided among them in turn."""
    writer = Writer(Scripted(), batch_tokens=100)  # type: ignore[arg-type]
    found = writer.starting_canvases(
        torch.tensor([[2.0, 0.0], [4.0, 0.0]]), first=[2, 1], config=SearchConfig(candidates=9, lengths=lengths)
    )
    for row, first in enumerate((2, 1)):
        sizes = [len(canvas) for canvas in found[row]]
        assert sizes[0] == first
        assert set(sizes[: min(lengths, 4)]) <= {1, 2, 3, 4}
        assert len(set(sizes)) == min(lengths, 4)
        assert sizes == [sizes[k % min(lengths, 4)] for k in range(9)]
        assert {token for canvas in found[row] for token in canvas} == {MASK}


def test_the_likeliest_lengths_are_no_more_than_the_model_has() -> None:
    class Few(Scripted):
        """Texts have at most four tokens, for each of which there is a probability."""

        shape = SimpleNamespace(**{**vars(SHAPE), "max_length": 4})

    model: Any = Few()
    writer = Writer(model, batch_tokens=100)
    found = writer.write_likeliest_length(
        lengths=9, latents_nd=torch.tensor([[3.0, 0.0]]), rows=1, sampler=text_sampler("random"), seed=0
    )
    assert found.model_calls.tolist() == [10 * (1 + 2 + 3 + 4)], "every length once"
