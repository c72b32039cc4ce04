"""Requests on a model whose answers are known: every number arrives at its own text, and every field in its column."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.inference.edge import FARTHEST, Edge, fraction_of, refuse_huge
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.finite import check_words
from mm_ldlm.inference.latents import LatentWriter
from mm_ldlm.sampling.config import SearchConfig
from scripted import LONGEST, MASK, PAD, SHAPE, Scripted, Sized, Words, engine

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.classification import requests as classifying
from mm_ldlm.inference import batching, editing, embedding, inputs, inverting, memory, scoring
from mm_ldlm.inference.results import Classes, Embeddings, Images, Interpolations, Neighbours, Scores, Texts
from mm_ldlm.inference.writing import Writer, Written
from mm_ldlm.sampling.registry import latent_sampler, text_sampler


@pytest.mark.parametrize("batch_tokens", [1, 6, 100])
def test_each_text_has_its_own_canvas_latent_cost_and_calls(batch_tokens: int) -> None:
    writer = Writer(Scripted(), batch_tokens=batch_tokens)  # type: ignore[arg-type]
    canvases = [[MASK] * 3, [7, MASK], [MASK] * 5, [MASK, 8, MASK, 9]]
    latents_nd = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    found = writer.write(canvases, latents_nd=latents_nd, sampler="sampler", seed=3)
    assert found.tokens == ((4, 4, 4), (7, 3), (8,) * 5, (6, 8, 6, 9))
    assert found.log_probs.tolist() == [-0.25 * 2 * 3, -0.25 * 3, -0.25 * 4 * 5, -0.25 * 5 * 2]
    assert found.model_calls.tolist() == [30, 10, 50, 20]
    assert found.encoder_calls.tolist() == [0] * 4
    assert found.cosines is None
    alone = writer.write(canvases, latents_nd=None, sampler="sampler", seed=3)
    assert alone.tokens == ((3, 3, 3), (7, 1), (5,) * 5, (2, 8, 2, 9))


@pytest.mark.parametrize(("length", "expected"), [(4, [4, 4]), ("argmax", [2, 4]), ("top-2", [2, 4])])
def test_lengths_given_latents(length: Any, expected: list[int]) -> None:
    writer = Writer(Scripted(), batch_tokens=9)  # type: ignore[arg-type]
    latents_nd = torch.tensor([[2.0, 0.0], [4.0, 0.0]])
    assert writer.lengths(length, latents_nd, rows=2, seed=0) == expected
    assert writer.lengths("argmax", None, rows=3, seed=0) == [3, 3, 3]
    ends_itself = Writer(Scripted(has_length=False), batch_tokens=9)  # type: ignore[arg-type]
    assert ends_itself.lengths("argmax", latents_nd, rows=2, seed=0) == [LONGEST] * 2
    assert ends_itself.lengths(4, latents_nd, rows=2, seed=0) == [4, 4]


def test_a_large_request_is_answered_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities of lengths are computed for 4,096 latents at a time, and classes for `LATENTS_PER_BATCH`."""
    model: Any = Scripted()
    latents_nd = torch.stack([torch.arange(4100) % 4 + 1.0, torch.arange(4100) % 7 * 1.0], dim=1)
    writer = Writer(model, batch_tokens=100)
    whole = model.length_log_probs(latents_nd, rows=4100)
    torch.testing.assert_close(writer.length_log_probs(latents_nd, rows=4100), whole)
    assert writer.length_log_probs(None, rows=5).shape == (5, 4)
    monkeypatch.setattr(classifying, "LATENTS_PER_BATCH", 1000)
    expected = torch.softmax(model.class_logits(latents_Bd=latents_nd).double(), dim=1)
    np.testing.assert_allclose(classifying.classify_latents(model, latents_nd), expected.numpy())


def test_drawn_lengths_have_their_probabilities() -> None:
    writer = Writer(Scripted(), batch_tokens=9)  # type: ignore[arg-type]
    drawn = np.array(writer.lengths("sample", None, rows=20_000, seed=1))
    expected = Scripted().length_log_probs(None, rows=1)[0].exp().numpy()
    np.testing.assert_allclose(np.bincount(drawn, minlength=5)[1:] / 20_000, expected, atol=0.015)
    assert writer.lengths("sample", None, rows=9, seed=2) == writer.lengths("sample", None, rows=9, seed=2)
    assert writer.lengths("sample", None, rows=30, seed=2) != writer.lengths("sample", None, rows=30, seed=3)


def test_the_likeliest_length_counts_its_own_probability_and_all_calls() -> None:
    """log p(length) + Σ log p(token): of costly tokens, the shorter text is more probable than its length costs."""
    model = Scripted()
    writer = Writer(model, batch_tokens=100)  # type: ignore[arg-type]
    latents_nd = torch.tensor([[3.0, 0.0], [3.0, 7.0]])
    found = writer.write_likeliest_length(lengths=2, latents_nd=latents_nd, rows=2, sampler="s", seed=0)
    lengths = model.length_log_probs(latents_nd, rows=2)
    for row, given in enumerate((0.0, 7.0)):
        totals = {n: float(lengths[row, n - 1]) - 0.25 * (1 + given) * n for n in (2, 3)}
        best = max(totals, key=lambda n: totals[n])
        assert len(found.tokens[row]) == best
        assert found.log_probs[row] == pytest.approx(-0.25 * (1 + given) * best)
    assert [len(row) for row in found.tokens] == [3, 2]
    assert found.model_calls.tolist() == [50, 50], "of both tries"


def test_starting_canvases_share_the_likeliest_lengths() -> None:
    writer = Writer(Scripted(), batch_tokens=100)  # type: ignore[arg-type]
    latents_nd = torch.tensor([[3.0, 0.0]])
    found = writer.starting_canvases(latents_nd, first=[4], config=SearchConfig(candidates=5, lengths=3))
    assert [len(canvas) for canvas in found[0]] == [4, 3, 2, 4, 3]
    for first, lengths in ((1, [1, 3, 2]), (2, [2, 3, 4]), (3, [3, 2, 4])):
        found = writer.starting_canvases(latents_nd, first=[first], config=SearchConfig(candidates=3, lengths=3))
        assert sorted(len(canvas) for canvas in found[0]) == sorted(lengths)
        assert len(found[0][0]) == first
    found = writer.starting_canvases(latents_nd, first=[4], config=SearchConfig(candidates=2))
    assert found == [[[MASK] * 4] * 2]


@pytest.mark.parametrize("batch_tokens", [1, 100])
def test_each_score_is_that_of_its_own_text(batch_tokens: int) -> None:
    ids, texts = [[1, 2, 3], [4], [5, 6]], ["a", "b", "c"]
    made = engine(batch_tokens=batch_tokens)
    found = scoring.score(made, ids, texts, latents=np.ones((3, 2)) * [[3, 1], [2, 1], [5, 1]], draws=3, seed=1)
    cost = np.array([3 + 1 / 64, 1 + 4 / 64, 2 + 5 / 64])
    np.testing.assert_allclose(found.draw_nll, cost * [[1], [2], [3]])
    np.testing.assert_allclose(found.token_nll, 2 * cost)
    np.testing.assert_allclose(found.standard_errors, cost / math.sqrt(3))
    for scale, name in ((0.01, "draw_mask_ratio"), (2, "draw_masked"), (3, "draw_correct"), (4, "draw_cross_entropy")):
        np.testing.assert_allclose(getattr(found, name), scale * found.draw_nll, rtol=1e-6)
    lengths = made.model.length_log_probs(torch.tensor([[2.0, 0.0], [1.0, 0.0], [4.0, 0.0]]), rows=3)
    np.testing.assert_allclose(found.length_nll, [-lengths[0, 2], -lengths[1, 0], -lengths[2, 1]], rtol=1e-6)
    np.testing.assert_allclose(found.nll, found.length_nll + found.token_nll)
    assert (found.texts, found.tokens.tolist(), found.likelihood) == (("a", "b", "c"), [3, 1, 2], "bound")
    assert scoring.score(made, [[22, 1], [1, 2]], ["a", "b"], latents=None, draws=1, seed=0).unknown.tolist() == [
        0.5,
        0,
    ]


@pytest.mark.parametrize("batch_tokens", [1, 100])
def test_each_text_has_its_own_classes(batch_tokens: int) -> None:
    ids, second = [[1, 2, 3], [4], [5, 6]], [[7], [7, 8, 9, 1], [7, 8]]

    def softmax(first: float, other: float) -> Any:
        parts = np.exp([first, other, 0.0])
        return parts / parts.sum()

    model: Any = Scripted()
    found = classifying.classify_tokens(model, ids, second=second, batch_tokens=batch_tokens)
    np.testing.assert_allclose(found, [softmax(3, 1), softmax(1, 4), softmax(2, 2)])
    found = classifying.classify_tokens(model, ids, second=None, batch_tokens=batch_tokens)
    np.testing.assert_allclose(found, [softmax(3, 0), softmax(1, 0), softmax(2, 0)])
    found = classifying.classify_latents(model, torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    np.testing.assert_allclose(found, [softmax(1, 2), softmax(3, 0)])


@pytest.mark.parametrize("batch_tokens", [1, 100])
def test_each_latent_is_that_of_its_own_text(batch_tokens: int) -> None:
    made = engine(batch_tokens=batch_tokens)
    config = latent_sampler("ddim", steps=4, draws=3)
    found = embedding.embed(made, [[1, 2, 3], [4]], ["a", "b"], sampler=config, steps=None, draws=None, seed=0)
    np.testing.assert_allclose(found.draws, [[[4, 4], [2, 2]], [[4, 14], [2, 12]], [[4, 24], [2, 22]]])
    np.testing.assert_allclose(found.latents, [[4, 14], [2, 12]], err_msg="the mean of the draws, in raw units")
    assert (found.sources, found.model_calls.tolist()) == (("a", "b"), [20, 20])
    writer = LatentWriter(Scripted(), batch_tokens=batch_tokens)  # type: ignore[arg-type]
    drawn = writer.given_lengths([3, 1], config=config, seed=0)
    assert drawn.draws[0].tolist() == [[4, 4], [2, 2]]
    assert drawn.model_calls.tolist() == [22, 22]


def test_texts_and_latents_in_every_order() -> None:
    model = Scripted()
    writer, latents = Writer(model, batch_tokens=100), LatentWriter(model, batch_tokens=100)  # type: ignore[arg-type]
    text, latent = text_sampler("confidence", steps=2), latent_sampler("ddim", steps=4, draws=1)

    written, found = latents.generate(2, "text_first", writer, text, latent, 3, 5)
    assert written.tokens == ((3, 3, 3),) * 2
    assert found.tolist() == [[3, 3]] * 2
    assert written.model_calls.tolist() == [30 + 20] * 2
    assert [asked[-2] for asked in model.asked] == [text, latent]

    model.asked.clear()
    written, found = latents.generate(2, "latent_first", writer, text, latent, "argmax", 5)
    assert found.tolist() == [[2, 2]] * 2, "a canvas of one mask, and unknown"
    assert [len(row) for row in written.tokens] == [2, 2], "the length given the latent"
    assert written.tokens == ((4, 4),) * 2, "given the latent"
    assert written.model_calls.tolist() == [20 + 22] * 2

    model.asked.clear()
    written, found = latents.generate(2, "together", writer, text, latent, 3, 5)
    assert (written.tokens, written.model_calls.tolist()) == (((3, 3, 3),) * 2, [17, 17])
    assert found.tolist() == [[3, -3]] * 2
    assert written.log_probs.tolist() == [-0.75] * 2
    assert model.asked[0][1:3] == (text, latent)
    model.latents_need_lengths = True  # type: ignore[misc]
    written, found = latents.generate(2, "latent_first", writer, text, latent, "argmax", 5)
    assert found.tolist() == [[4, 4]] * 2, "a canvas of the most probable length"
    assert [len(row) for row in written.tokens] == [3, 3]


# -- results of requests ---------------------------------------------------------------------------------------------


def test_the_cosine_of_a_text_is_to_its_own_latent() -> None:
    made = engine()
    raw = np.array([[4.0, 3.0], [3.0, 1.0]], np.float32)
    written = Written(((1, 2, 3), (4,)), np.array([-1.0, -2.0]), np.array([5, 6]), np.array([1, 0]))
    found = made.texts(written, ["s", None], raw, reembed=True)
    cosine = [(3 * 4 + 3) / math.sqrt(10 * 25), (3 + 1) / math.sqrt(2 * 10)]
    np.testing.assert_allclose(found.cosines, cosine)
    assert found.encoder_calls.tolist() == [2, 1], "one more of each"
    assert (found.texts, found.tokens, found.sources) == (("w1 w2 w3", "w4"), written.tokens, ("s", None))
    assert (found.log_probs.tolist(), found.model_calls.tolist()) == ([-1.0, -2.0], [5, 6])
    assert found.latents is raw
    np.testing.assert_allclose(found.latent_norms, [math.sqrt((9 + 4) / 2), math.sqrt((4 + 0) / 2)])
    assert found.unknown.tolist()[0] == 1.0
    assert np.isnan(found.unknown[1])
    known = dataclasses.replace(written, cosines=np.array([0.5, 0.25]))
    found = made.texts(known, ["s", None], raw, reembed=True)
    assert (found.cosines.tolist(), found.encoder_calls.tolist()) == ([0.5, 0.25], [1, 0]), "the search measured them"
    found = made.texts(written, [None, None], None, reembed=True)
    assert (found.cosines, found.latents, found.latent_norms, found.unknown) == (None, None, None, None)


def texts_of(count: int) -> Texts:
    """Texts in which every field of every row differs."""
    numbers = np.arange(count)
    return Texts(
        texts=tuple(f"text {i}" for i in numbers), tokens=tuple((i,) * (i + 1) for i in numbers),
        log_probs=-1.5 - numbers, model_calls=100 + numbers, encoder_calls=200 + numbers,
        sources=tuple(f"source {i}" for i in numbers), cosines=0.5 + numbers / 64, latents=np.stack([numbers] * 2, 1),
        latent_norms=3.0 + numbers, unknown=numbers / 8, rows=300 + numbers, samples=400 + numbers,
        best=numbers % 2 == 0,
    )  # fmt: skip


def test_every_field_of_texts_is_taken_and_shown() -> None:
    whole = texts_of(4)
    assert all(getattr(whole, field.name) is not None for field in dataclasses.fields(whole)), (
        "a new field needs a value"
    )
    taken = whole.take(np.array([2, 0]))
    for field in dataclasses.fields(whole):
        before, after = getattr(whole, field.name), getattr(taken, field.name)
        assert [str(item) for item in after] == [str(before[2]), str(before[0])], field.name
    frame = taken.to_frame()
    columns = {
        "source": "sources", "text": "texts", "log_prob": "log_probs", "model_calls": "model_calls",
        "encoder_calls": "encoder_calls", "cosine": "cosines", "latent_norm": "latent_norms", "unknown": "unknown",
        "row": "rows", "sample": "samples", "best": "best",
    }  # fmt: skip
    assert set(frame.columns) == {*columns, "length", "latent"}
    for column, field in columns.items():
        assert frame[column].tolist() == list(getattr(taken, field)), column
    assert frame["length"].tolist() == [3, 1]
    assert np.stack(frame["latent"]).tolist() == [[2, 2], [0, 0]]


def test_every_field_of_the_other_results_is_shown() -> None:
    images = Images(np.arange(8, dtype=np.float32).reshape(2, 2, 2, 1), ("a", "b"), np.array([3, 4]))
    frame = images.to_frame()
    assert (frame["text"].tolist(), frame["model_calls"].tolist()) == (["a", "b"], [3, 4])
    assert np.stack(frame["image"]).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    frame = Embeddings(("a", "b"), np.eye(2), np.zeros((3, 2, 2)), np.array([5, 6])).to_frame()
    assert (frame["source"].tolist(), frame["model_calls"].tolist()) == (["a", "b"], [5, 6])
    assert np.stack(frame["latent"]).tolist() == [[1, 0], [0, 1]]
    frame = Interpolations(np.array([0, 1]), np.array([0.25, 0.75]), texts_of(2)).to_frame()
    assert (frame["pair"].tolist(), frame["fraction"].tolist()) == ([0, 1], [0.25, 0.75])
    numbers = [np.array([float(i), i + 0.5]) for i in range(5)]
    scores = Scores(
        texts=("a", "b"), tokens=np.array([3, 4]), likelihood="bound", length_nll=numbers[1], token_nll=numbers[2],
        standard_errors=numbers[3], draw_nll=numbers[4],
    )  # fmt: skip
    frame = scores.to_frame()
    assert frame["nll"].tolist() == [3.0, 4.0]
    assert frame.drop(columns="nll").to_dict(orient="list") == {
        "text": ["a", "b"], "tokens": [3, 4], "length_nll": [1.0, 1.5], "token_nll": [2.0, 2.5],
        "standard_error": [3.0, 3.5],
    }  # fmt: skip
    classes = Classes(("s", "t"), ("x", "y"), np.array([[0.25, 0.75], [0.5, 0.5]]))
    assert classes.to_frame().to_dict(orient="list") == {
        "source": ["s", "t"], "label": ["y", "x"], "p(x)": [0.25, 0.5], "p(y)": [0.75, 0.5]
    }  # fmt: skip
    near = Neighbours(np.array([[7, 8], [5, 6]]), (("a", "b"), ("c", "d")), np.array([[0.9, 0.8], [0.7, 0.6]]))
    assert near.to_frame().to_dict(orient="list") == {
        "query": [0, 0, 1, 1], "rank": [1, 2, 1, 2], "row": [7, 8, 5, 6], "id": ["a", "b", "c", "d"],
        "cosine": [0.9, 0.8, 0.7, 0.6],
    }  # fmt: skip


@pytest.mark.parametrize("cosines", [True, False])
def test_the_best_of_several_texts(cosines: bool) -> None:
    """Two latents, three samples: best are sample 2 of the first and 0 of the second, by cosine; 1 and 2 otherwise."""
    made = dataclasses.replace(
        texts_of(6), rows=None, samples=None, best=None,
        cosines=np.array([0.1, 0.9, 0.2, 0.3, 0.7, 0.4]) if cosines else None,
        log_probs=np.array([-5.0, -9.0, -1.0, -8.0, -3.0, -2.0]),
    )  # fmt: skip
    best = [2, 0] if cosines else [1, 2]
    kept = inverting._several(made, 2, 3, "best")
    assert kept.texts == tuple(f"text {2 * sample + row}" for row, sample in enumerate(best))
    assert (kept.rows.tolist(), kept.samples.tolist(), kept.best.all()) == ([0, 1], best, True)
    assert kept.model_calls.tolist() == [100 + 102 + 104, 101 + 103 + 105], "those of all samples"
    assert kept.encoder_calls.tolist() == [200 + 202 + 204, 201 + 203 + 205]
    every = inverting._several(made, 2, 3, "all")
    assert every.texts == tuple(f"text {i}" for i in (0, 2, 4, 1, 3, 5)), "latent by latent"
    assert (every.rows.tolist(), every.samples.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2])
    assert [i for i, chosen in enumerate(every.best) if chosen] == [best[0], 3 + best[1]]
    assert every.model_calls.tolist() == [100, 102, 104, 101, 103, 105]


def test_an_inversion_hands_on_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(batch_tokens=100)
    raw = np.array([[3.0, 1.0], [5.0, 2.0]], np.float32)
    sampler = text_sampler("margin", steps=5)
    options: dict[str, Any] = {"sampler": sampler, "steps": 6, "search": None, "reembed": False, "seed": 4}
    found = inverting.invert(made, raw, length="argmax", **options)
    canvas, latents, used, _ = made.model.asked[-1]
    assert used == sampler.override(steps=6)
    assert latents.tolist() == [[4, 1], [2, 0]], "the longest first"
    assert (canvas == MASK).sum(1).tolist() == [4, 2]
    assert found.latents.tolist() == raw.tolist()
    assert found.tokens == ((2, 2), (5, 5, 5, 5))
    assert [len(row) for row in inverting.invert(made, raw, length=3, **options).tokens] == [3, 3]
    assert inverting.invert(made, ["w1 w2"], length=1, **options).sources == ("w1 w2",)
    several = inverting.invert(made, raw, length="argmax", samples=2, keep="all", **options)
    assert (several.rows.tolist(), several.samples.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert several.latents.tolist() == raw[[0, 0, 1, 1]].tolist()
    sizes: list[int] = []
    monkeypatch.setattr(made, "refuse_size", lambda count, **_: sizes.append(count))
    with_search = {**options, "search": {"candidates": 3, "beam": 2}}
    inverting.invert(made, raw, length=2, samples=5, **options)
    inverting.invert(made, raw, length=2, **with_search)
    assert sizes == [2 * 5, 2 * 2 * (3 + 2)], "every candidate is in memory"


def test_a_path_has_its_ends_fractions_and_pairs() -> None:
    made = engine(batch_tokens=100)
    starts, ends = np.array([[3.0, 1.0], [5.0, 1.0]]), np.array([[5.0, 5.0], [2.0, 1.0]])
    for path, between in (("lerp", editing.lerp), ("slerp", editing.slerp)):
        found = inverting.interpolate(
            made, starts, ends, steps=3, path=path, sampler=None, length=2, reembed=True, seed=0
        )
        assert (found.pairs.tolist(), found.fractions.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 0.5, 1] * 2)
        expected = [between(starts[p : p + 1], ends[p : p + 1], f)[0] for p in (0, 1) for f in (0, 0.5, 1)]
        np.testing.assert_allclose(found.written.latents, expected, rtol=1e-6)
        assert found.written.cosines is not None
    texts = inverting.interpolate(
        made, ["w1", "w2 w3"], ["w4 w5 w6", "w7"], steps=3, path="lerp", sampler=None, length=2, reembed=False, seed=0
    )
    assert texts.written.sources == ("w1", None, "w4 w5 w6", "w2 w3", None, "w7")
    assert (editing.lerp(starts, ends, 0.25) == 0.75 * starts + 0.25 * ends).all()


@pytest.mark.parametrize(
    ("texts", "warned"), [("ababab", True), ("abacad", False), ("abcbdb", False), ("abcdef", False)]
)
def test_equal_texts_are_named_where_all_latents_have_them(texts: str, warned: bool, caplog: Any) -> None:
    """Two latents, three samples of each, sample by sample."""
    inverting._several(dataclasses.replace(texts_of(6), texts=tuple(texts)), 2, 3, "best")
    assert caplog.messages == ["the 3 texts of each latent are equal: set its sampler's temperature above 0, or the "
                               "length to 'sample'"] * warned  # fmt: skip


@pytest.mark.parametrize(("sampler", "length", "drawn"), [
    (text_sampler("confidence", steps=2, temperature=0.0), 2, False),
    (text_sampler("confidence", steps=2, temperature=0.0), "argmax", False),
    (text_sampler("confidence", steps=2, temperature=0.0), "sample", True),
    (text_sampler("confidence", steps=2, temperature=0.7), 2, True),
    (text_sampler("blocks", block_length=2, inner={"kind": "confidence", "temperature": 0.0}), 2, False),
    (text_sampler("blocks", block_length=2, inner={"kind": "confidence", "temperature": 0.5}), 2, True),
])  # fmt: skip
def test_equal_texts_that_were_drawn_at_random_are_not_put_down_to_the_temperature(
    sampler: Any, length: Any, drawn: bool, monkeypatch: Any
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(inverting, "_several", lambda *_, **given: seen.append(given))
    inverting.invert(
        engine(), ["w1 w2"], sampler=sampler, steps=None, length=length, search=None, reembed=False, seed=0, samples=2
    )
    assert seen == [{"drawn": drawn}]


def test_equal_texts_of_a_certain_model_advise_a_higher_temperature(caplog: Any) -> None:
    inverting._several(dataclasses.replace(texts_of(4), texts=tuple("abab")), 2, 2, "best", drawn=True)
    advice = "the model is certain of them; a higher temperature of its sampler varies them"
    assert caplog.messages == [f"the 2 texts of each latent are equal: {advice}"]


@pytest.mark.parametrize("far", [0, 1])
def test_both_ends_of_a_path_are_like_the_training_data(far: int) -> None:
    """An end that is too far is refused before its path is computed, which may overflow."""
    ends = [np.array([[3.0, 1.0]]), np.array([[3.0, 1.0]])]
    ends[far] = ends[far] * 1e7
    written: list[Any] = []
    made = engine()
    made.writer.write = lambda *given, **named: written.append(given)  # type: ignore[method-assign]
    with pytest.raises(SamplingError, match=r"found 1 of 1 that are more than 1e\+06 standard deviations"):
        inverting.interpolate(made, *ends, steps=3, path="lerp", sampler=None, length=2, reembed=False, seed=0)
    assert not written


@pytest.mark.parametrize("sampler", [None, "ancestral"])
def test_text_and_latent_that_are_denoised_together_have_as_many_steps(sampler: str | None, monkeypatch: Any) -> None:
    made, seen = engine(), []
    written = Written(((1,),), np.zeros(1), np.zeros(1), np.zeros(1))
    monkeypatch.setattr(made.latents, "generate", lambda *given: seen.append(given) or (written, torch.zeros(1, 2)))
    options: dict[str, Any] = {"order": "together", "sampler": sampler, "length": 4, "seed": 6}
    inverting.generate(made, 1, latent_sampler=latent_sampler("ddim", steps=11, draws=1), steps=None, **options)
    inverting.generate(made, 1, latent_sampler="ddim", steps=13, **options)
    for given, steps in zip(seen, (11, 13), strict=True):
        n, order, writer, text, latent, length, seed = given
        assert (n, order, writer, length, seed) == (1, "together", made.writer, 4, 6)
        assert (text.kind, text.steps, latent.steps) == ("ancestral", steps, steps)


# -- batches ---------------------------------------------------------------------------------------------------------

IDS = [[1] * length for length in (3, 1, 4, 2, 4, 1, 3, 2)]
DDIM = latent_sampler("ddim", draws=1)


BATCHED: dict[str, Callable[..., Any]] = {
    "write": lambda m, seed: m.writer.write(IDS, latents_nd=None, sampler=None, seed=seed),
    "score": lambda m, seed: scoring.score(m, IDS, ["x"] * 8, latents=None, draws=1, seed=seed),
    "classify": lambda m, _: classifying.classify_tokens(m.model, IDS, second=None, batch_tokens=m.batch_tokens),
    "classify pairs": lambda m, _: classifying.classify_tokens(
        m.model, [[1]] * 8, second=[[2] * 3] * 8, batch_tokens=m.batch_tokens
    ),
    "embed": lambda m, seed: embedding.embed(m, IDS, ["x"] * 8, sampler=DDIM, steps=None, draws=None, seed=seed),
    "embed unknown texts": lambda m, seed: m.latents.given_lengths([len(row) for row in IDS], config=DDIM, seed=seed),
    "both": lambda m, seed: m.latents.generate(8, "together", m.writer, None, DDIM, 3, seed),
    "edit": lambda m, seed: editing.remask(
        m.writer, IDS, latents_nd=torch.zeros(8, 2), strength=0.5, which="least_likely", seed=seed
    ),
}


@pytest.mark.parametrize("use", BATCHED)
def test_no_call_of_the_model_has_more_tokens_than_a_batch(use: str) -> None:
    made = engine(batch_tokens=12, model=Sized())
    BATCHED[use](made, 0)
    sizes = made.model.sizes
    assert max(sizes) == 12, "a batch is full, and no fuller"
    assert len(sizes) <= 3


def searched(made: Engine, seed: int) -> Any:
    return inverting.invert(
        made, np.ones((8, 2)) * [[4, 1]], sampler=None, steps=None, length=3, reembed=False, seed=seed,
        search=SearchConfig(candidates=2, rounds=1),
    )  # fmt: skip


@pytest.mark.parametrize("use", [*sorted(BATCHED.keys() - {"classify", "classify pairs"}), "search"])
def test_the_noise_of_a_text_is_that_of_its_row_and_of_the_seed(use: str) -> None:
    def noise(batch_tokens: int, seed: int) -> list[float]:
        made = engine(batch_tokens=batch_tokens, model=Sized())
        (searched if use == "search" else BATCHED[use])(made, seed)
        generators = [given for asked in made.model.asked for given in asked if isinstance(given, RowGenerator)]
        return sorted(value for generator in generators for value in generator.uniform().flatten().tolist())

    together = noise(1000, 3)
    assert len(set(together)) == len(together) >= 8, "every row has noise of its own"
    assert noise(12, 3) == noise(1, 3) == together, "whatever its batch"
    assert not {*together} & {*noise(1000, 4)}


ASKED = ("write", "likelihood", "class_logits", "latents_given_texts", "latents_given_lengths", "token_log_probs",
         "length_log_probs", "both")  # fmt: skip


class Guarded(Sized):
    """A model that answers only while it is evaluated, so without dropout and without gradients."""

    inside = answers = 0

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:  # type: ignore[override]
        self.inside += 1
        yield
        self.inside -= 1


def guarded(name: str) -> Any:
    def answer(self: Any, *given: Any, **named: Any) -> Any:
        assert self.inside, f"{name} is asked for outside of evaluating()"
        self.answers += 1
        return getattr(Sized, name)(self, *given, **named)

    return answer


for _name in ASKED:
    setattr(Guarded, _name, guarded(_name))


@pytest.mark.parametrize(
    "use",
    [
        *BATCHED.values(),
        lambda m, seed: scoring.score(m, IDS, ["x"] * 8, latents=np.ones((8, 2)) * [[5, 1]], draws=1, seed=seed),
        lambda m, seed: m.latents.generate(8, "text_first", m.writer, None, DDIM, "sample", seed),
        lambda m, seed: m.latents.generate(8, "latent_first", m.writer, None, DDIM, "argmax", seed),
        lambda m, _: classifying.classify_latents(m.model, torch.zeros(3, 2)),
        lambda m, seed: inverting.invert(
            m, np.ones((2, 2)) * [[4, 1]], sampler=None, steps=None, length="top-2", search=None, reembed=False,
            seed=seed,
        ),
        searched,
    ],
)  # fmt: skip
def test_the_model_is_asked_while_it_is_evaluated(use: Any) -> None:
    model = Guarded()
    use(engine(batch_tokens=12, model=model), 0)
    assert model.answers > 0
    assert model.inside == 0


# -- edges of the inputs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("largest", "refused"), [(FARTHEST, False), (FARTHEST * 1.001, True), (math.nan, True)])
def test_the_farthest_latent(largest: float, refused: bool) -> None:
    with pytest.raises(SamplingError, match=r"row 1") if refused else contextlib.nullcontext():
        refuse_huge(np.array([1.0, largest]))


@pytest.mark.parametrize(
    ("check", "fits", "refused"),
    [
        (lambda v: inputs.check_integer(v, name="x", minimum=2, maximum=5), [2, 5, np.int64(3)],
         [1, 6, True, 2.0, "3"]),
        (lambda v: inputs.check_optional(v, name="x", maximum=5), [1, 5, None], [0, 6, False]),
        (lambda v: inputs.check_seed(v), [0, 2**63 - 1], [-1, 2**63, 0.0]),
        (lambda v: inputs.check_fraction(v, name="x"), [0, 1, 0.5, np.float32(1)], [-1e-9, 1 + 1e-9, math.nan, True]),
        (lambda v: inputs.check_flag(v, name="x"), [True, np.bool_(False)], [0, 1, "yes", None]),
        (lambda v: inputs.check_texts(v), ["\ud7ff", "\ue000", ["a", "b"], ("a",)],
         ["\ud800", "\udbff", "\udc00", "\udfff", "", " \n", [], b"a", {"a": 1}, {"a"}, [1], 3, ["a", " "]]),
        (lambda v: inputs.check_lengths([3, v], ["a", "b"], max_length=9), [1, 9], [0, 10]),
        (lambda v: inputs.check_tokens([[0], [1, v]], ["a", "b"], shape=SHAPE),  # type: ignore[arg-type]
         [0, 19, 22, np.int32(5)], [-1, 23, PAD, MASK, 1.0, True]),
        (lambda v: inputs.check_tokens([[1] * v], ["a"], shape=SHAPE), [1, LONGEST], [0, LONGEST + 1]),  # type: ignore[arg-type]
        (lambda v: inputs.check_latents(v, dim=2),
         [[1.0, 2.0], [[1, 2]] * 3, torch.ones(1, 2, requires_grad=True), torch.ones(2, 2, dtype=torch.bfloat16)],
         [[1.0], np.ones((1, 3)), np.ones((1, 1, 2)), np.ones((0, 2)), [[1.0, math.nan]], [[1e39, 0.0]], [["a", "b"]],
          [[True, False]], [[1j, 0]], [[1.0, 2.0], [3.0]]]),
    ],
)  # fmt: skip
def test_arguments_at_their_bounds(check: Any, fits: list[Any], refused: list[Any]) -> None:
    for value in fits:
        check(value)
    for value in refused:
        with pytest.raises(SamplingError):
            check(value)


def test_fractions_of_unknown_words() -> None:
    assert fraction_of(22, [22, 1, 22, 3]) == 0.5
    assert fraction_of(22, []) == 0.0


@pytest.mark.parametrize("far", [-2 * FARTHEST, 2 * FARTHEST])
def test_a_coordinate_is_far_on_either_side(far: float) -> None:
    with pytest.raises(SamplingError, match=r"found 1 of 2 .*\(row 1: 2e\+06\)"):
        engine().edge.standardised(np.array([[1.0, 2.0], [3.0, far]]))


@pytest.mark.parametrize(("norm", "warned"), [(0.49, True), (0.5, False), (1.5, False), (1.51, True)])
def test_norms_on_both_sides_of_the_typical_range(norm: float, warned: bool, caplog: Any) -> None:
    normaliser: Any = SimpleNamespace(standardise=lambda raw: np.asarray(raw, np.float64), typical=(0.5, 1.5))
    edge = Edge(SHAPE, torch.device("cpu"), Words(), normaliser, encoder=None, load_encoder=None)  # type: ignore[arg-type]
    edge.standardised(np.array([[1.0, 1.0], [norm, norm]], np.float64))
    assert bool(caplog.records) == warned
    if warned:
        assert "1 of 2 latents are unlike those" in caplog.text
        assert f"norms from 0.50 to 1.50 in standardised space, found {norm} (rows 1)" in caplog.text


@pytest.mark.parametrize(
    ("tokens", "bad"),
    [([1, 19], None), ([1, PAD], PAD), ([MASK], MASK), ([22], None), ([23], 23), ([], None)],
)
def test_words_of_the_vocabulary(tokens: list[int], bad: int | None) -> None:
    with pytest.raises(SamplingError, match=f"row 1 .* wrote the id {bad}") if bad else contextlib.nullcontext():
        check_words(Scripted(), [[1], tokens])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("vocabulary", "tokens"), [(1, 8192), (5_859, 8192), (48_000, 1000), (187_500, 256), (10**7, 256)]
)
def test_batches_hold_a_number_of_logits(vocabulary: int, tokens: int) -> None:
    assert batching.default_batch_tokens(vocabulary, torch.device("cuda")) == tokens
    assert batching.default_batch_tokens(vocabulary, torch.device("cpu")) == min(tokens, 1024)


def test_estimates_of_memory_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The free memory is exactly what is needed, and then one byte less."""
    needs = {
        "texts": (lambda: memory.refuse_texts(7, tokens=11, numbers=13, what="x"), 7 * (1_000 + 11 * 160 + 4 * 13)),
        "numbers": (lambda: memory.refuse_numbers(7, what="x"), 56),
        "batch": (lambda: memory.refuse_batch(7, vocab_size=11), 7 * 11 * 12),
    }
    for name, (ask, needed) in needs.items():
        monkeypatch.setattr(memory, "free_bytes", lambda needed=needed: float(needed))
        ask()
        monkeypatch.setattr(memory, "free_bytes", lambda needed=needed: float(needed - 1))
        with pytest.raises(SamplingError, match="GB of free memory"):
            ask()
        assert name
