"""Refusals of requests word for word: what was expected, which text, row or number was found, and what to do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from mm_ldlm.inference.edge import Edge, refuse_huge
from mm_ldlm.inference.finite import check_finite
from scripted import ABLE, MASK, Scripted, Shift, Words, engine

from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.families.classification import requests as classifying
from mm_ldlm.inference import MMLDLM, editing, inputs, inverting
from mm_ldlm.inference.writing import Writer
from mm_ldlm.models.base import DataShape
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

RAW = np.array([[3.0, 1.0], [5.0, 2.0]], np.float32)
HOW: dict[str, Any] = {"sampler": None, "steps": None, "seed": 0}
SHAPE = DataShape(vocab_size=23, pad_id=20, mask_id=MASK, max_length=9, latent_dim=2)
FLAT = DataShape(vocab_size=23, pad_id=20, mask_id=MASK, max_length=9)


def edge(vectors: Any = None, *, dim: int = 2, shape: DataShape = SHAPE) -> Edge:
    """A converter whose encoder returns these vectors, whatever the texts are."""
    encoder: Any = SimpleNamespace(dim=dim, encode=lambda texts: np.asarray(vectors))
    words: Any = Words()
    return Edge(shape, torch.device("cpu"), words, Shift(), encoder=encoder, load_encoder=None)


def classify(classifies: Any, second: Any) -> Any:
    made = engine(capabilities=dataclasses.replace(ABLE, classifies=classifies))
    return classifying.classify(made, ["w1"], second=second, too_long="refuse")


def infill(texts: Any, mask: Any = "[MASK]") -> Any:
    return editing.infill(engine(), texts, latents=None, mask=mask, **HOW)


def edit(sources: Any, targets: Any, *, which: str = "random", strength: Any = 0.5) -> Any:
    return editing.edit(
        engine(), sources, targets=targets, strength=strength, which=which, reembed=False, **HOW
    )  # fmt: skip


def invert(*, length: Any = 3, **more: Any) -> Any:
    return inverting.invert(engine(), RAW, length=length, **{"search": None, "reembed": False, **HOW, **more})


def interpolate(b: Any = RAW, **more: Any) -> Any:
    given = {"steps": 3, "path": "lerp", "sampler": None, "length": 3, "reembed": False, "seed": 0, **more}
    return inverting.interpolate(engine(), RAW, b, **given)


def generate(n: Any = 2, **more: Any) -> Any:
    given = {"order": "text_first", "latent_sampler": "ddim", "length": 3, **HOW, **more}
    return inverting.generate(engine(), n, **given)


def store(*rows: tuple[float, ...]) -> Any:
    return np.array(rows)


REFUSALS: list[tuple[Any, str]] = [
    # classes
    (lambda: classify("texts", ["w2"]),
     "classify: this run classifies texts: expected items without second texts, found second texts."),
    (lambda: classify("latents", ["w2"]),
     "classify: this run classifies latents: expected items without second texts, found second texts."),
    (lambda: classify("pairs", None),
     "classify: this run classifies pairs: expected a second text for each item, found none."),
    (lambda: classify("pairs", ["w2", "w3"]), "classify: expected one second text for each of 1, found 2."),
    (lambda: classify("pairs", ["w2", " "]), "second[1] is empty. Remove it, or add words."),
    (lambda: classifying.latents(engine(), RAW, ["a"]),
     "sources: expected a text or None for each of 2 latents, found another list."),
    (lambda: classifying.latents(engine(), RAW, ["a", 3]),
     "sources: expected a text or None for each of 2 latents, found another list."),
    # latents and the encoder
    (lambda: refuse_huge(np.array([1.0, 2e6, 3e7])),
     "latents: expected vectors like those that the encoder makes, found 2 of 3 that are more than 1e+06 standard "
     "deviations away from them (row 1: 2e+06). Check their scale."),
    (lambda: edge(shape=FLAT).dim,
     "this run has no latents: its objective reads none. Choose a run whose objective reads latents (docs/models.md), "
     "such as one of base."),
    (lambda: edge(dim=3).encoder,
     "expected an encoder of dimension 2, found one of dimension 3. Pass the encoder that made the latents."),
    (lambda: edge(RAW).encoded(["a", "b", "c"]), "expected a vector for each of 3 texts, the encoder made 2."),
    (lambda: edge([[1.0, 2.0], [np.nan, 1.0]]).encoded(["a", "b"]),
     "encoder: expected finite float32 numbers, found NaN, infinity or numbers beyond float32 in 1 of 2 vectors (rows "
     "[1]). Remove these vectors."),
    (lambda: edge(np.ones((2, 3))).encoded(["a", "b"]),
     "encoder: expected vectors of dim 2, found shape (2, 3). Use vectors of the encoder that the model was trained "
     "on."),
    (lambda: edge().given(RAW, rows=3), "expected one latent for each of 3 texts, found 2 latents."),
    (lambda: edge().raw(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, torch.inf], [torch.nan, 1.0]])),
     "row 2 of the request: the model drew a latent that exceeds float32. Lower the guidance."),
    # infill, edit and neighbours
    (lambda: infill("w1", mask=3), "infill: mask must be a text that marks the gaps, found 3."),
    (lambda: infill("w1", mask=""), "infill: mask must be a text that marks the gaps, found ''."),
    (lambda: infill(["w1 ___", "w2", "w3"], mask="___"),
     "infill: expected at least one '___' in each text, found none in 'w2'."),
    (lambda: infill(["[MASK]", "w1 [MASK] " * 5]),
     "texts[1] has 10 tokens, but the model reads at most 9 (tokenizer.max_length): "
     "'w1 [MASK] w1 [MASK] w1 [MASK] w1 [MASK] w1 [MASK] '. Shorten or split it."),
    (lambda: edit(["w1"] * 3, RAW), "edit: expected one target, or one for each of 3 sources, found 2 targets."),
    (lambda: edit(["w1", ""], RAW), "sources[1] is empty. Remove it, or add words."),
    (lambda: edit("w1", RAW[:1], strength=1.5), "strength must lie between 0 and 1, found 1.5."),
    (lambda: edit("w1", RAW[:1], which="least-likely"),
     "which must be one of least_likely, random, found 'least-likely'. Did you mean 'least_likely'?"),
    (lambda: editing.neighbours(RAW, store((1, 2, 3)), k=1),
     "neighbours: expected latents of dimension 3, as in the store, found 2."),
    (lambda: editing.neighbours(RAW, store((1, 2), (3, 4), (5, np.inf), (np.nan, 6)), k=1, chunk=2),
     "neighbours: row 2 of the store contains a number that is not finite."),
    (lambda: editing.neighbours(RAW, store((1, 2), (3, 4)), k=3),
     "neighbours: k must lie between 1 and the store's 2 rows, found 3."),
    (lambda: editing.neighbours(RAW, np.ones(4), k=1),
     "neighbours: expected an array of real numbers (m, d), found shape (4,), dtype dtype('float64')."),
    (lambda: editing.neighbours(RAW, np.ones((2, 2), bool), k=1),
     "neighbours: expected an array of real numbers (m, d), found shape (2, 2), dtype dtype('bool')."),
    (lambda: editing.neighbours(RAW, [[1.0, 2.0]], k=1),
     "neighbours: expected a latent store or an array (m, d), found [[1.0, 2.0]]."),
    # lengths, search and orders
    (lambda: invert(length="top-10"),
     "length: expected at most 'top-9', the number of lengths that this run has learned, found 'top-10'."),
    (lambda: invert(search={"lengths": 11}),
     "search.lengths: expected at most 9, the number of lengths that this run has learned, found 11."),
    (lambda: invert(samples=1001), "samples must be at most 1,000, found 1001."),
    (lambda: invert(samples=0), "samples must be at least 1, found 0."),
    (lambda: invert(keep="bset"), "keep must be one of best, all, found 'bset'. Did you mean 'best'?"),
    (lambda: invert(length=10),
     "expected a text of at most 9 tokens, the model's maximum length; found a request for 10. Request a shorter "
     "text."),
    (lambda: Writer(Scripted(), batch_tokens=9).write(  # type: ignore[arg-type]
        [[MASK], [MASK] * 12, [MASK] * 10], latents_nd=None, sampler=text_sampler("random"), seed=0),
     "expected a text of at most 9 tokens, the model's maximum length; found a request for 12. Request a shorter "
     "text."),
    (lambda: interpolate(RAW[:1]), "interpolate: expected an end for each of 2 starts, found 1."),
    (lambda: interpolate(steps=10_001), "interpolate: steps (with the two ends) must be at most 10,000, found 10001."),
    (lambda: interpolate(path="slurp"), "path must be one of slerp, lerp, found 'slurp'. Did you mean 'slerp'?"),
    (lambda: generate(order="text-first"),
     "order must be one of together, latent_first, text_first, found 'text-first'. Did you mean 'text_first'?"),
    (lambda: generate(length="top-2"),
     "length 'top-2' ranks texts instead of drawing them; use 'sample' or 'argmax'."),
    (lambda: generate(order="latent_first", latent_sampler=latent_sampler("ddim", draws=4)),
     "latent.draws is 4, but in the order 'latent_first' each draw is the latent of a different sentence, and their "
     "mean is the latent of no sentence: set draws to 1."),
    (lambda: generate(order="together", sampler="margin"),
     "the order 'together' takes ancestral steps in the text and as many DDIM steps in the latent, without guidance: "
     "expected text.kind 'ancestral', found 'margin'."),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "message"), REFUSALS, ids=[message[:40] for _, message in REFUSALS])
def test_a_refusal_has_every_part_of_its_message(ask: Any, message: str) -> None:
    with pytest.raises(SamplingError) as error:
        ask()
    assert str(error.value) == message


def test_the_settings_of_a_search_are_named_as_such() -> None:
    with pytest.raises(ConfigurationError, match=r"'search\.candidates'"):
        invert(search={"candidates": 0})


def test_the_tensor_that_is_not_finite_stands_after_the_rows_that_it_spoiled() -> None:
    module = torch.nn.Linear(2, 2)
    module.weight.data[:] = torch.nan
    values = np.array([[1.0, np.inf], [2.0, 3.0], [np.nan, 4.0]])
    model: Any = SimpleNamespace(model=module)
    with pytest.raises(SamplingError) as error:
        check_finite(model, values, what="numbers")
    assert str(error.value) == (
        "the model returned numbers that are not finite for 2 of 3 inputs (rows 0, 2): the tensor 'weight' of this run "
        "contains 4 numbers that are not finite. Choose another checkpoint."
    )


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [pd.DataFrame({"text": ["a"]}), pa.table({"text": ["a"]}), np.array([["a"]])],
    ids=["pandas", "arrow", "numpy"],
)
def test_a_table_is_refused_whose_items_would_be_the_names_of_its_columns(table: Any) -> None:
    with pytest.raises(SamplingError) as error:
        inputs.check_texts(table)
    found = type(table).__name__
    assert str(error.value) == f"texts: expected a text or a list of texts, found {found}. Give one column."


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["a", "b c"], index=[4, 2]),
        pa.array(["a", "b c"]),
        pa.chunked_array([["a"], ["b c"]]),
        np.array(["a", "b c"]),
    ],
    ids=["pandas", "arrow", "chunks of arrow", "numpy"],
)
def test_a_column_is_a_list_of_texts(column: Any) -> None:
    assert inputs.check_texts(column) == ["a", "b c"]


@pytest.mark.parametrize(
    "column",
    [
        ["w1", "w2"],
        pd.Series(["w1", "w2"], index=[4, 2]),
        pa.array(["w1", "w2"]),
        pa.chunked_array([["w1"], ["w2"]]),
        np.array(["w1", "w2"]),
        iter(["w1", "w2"]),
    ],
    ids=["list", "pandas", "arrow", "chunks of arrow", "numpy", "iterator"],
)
def test_a_column_of_texts_is_a_column_of_targets(column: Any) -> None:
    assert edge(RAW).targets(column)[0] == ["w1", "w2"]


@pytest.mark.parametrize(
    "column",
    [RAW, iter(RAW), pd.Series(list(RAW)), pd.Series(RAW.tolist()), pa.array(RAW.tolist())],
    ids=["array", "iterator", "pandas of arrays", "pandas of lists", "arrow"],
)
def test_a_column_of_vectors_is_a_column_of_targets(column: Any) -> None:
    sources, raw_nd = edge().targets(column)
    assert sources == [None, None]
    np.testing.assert_array_equal(raw_nd, RAW)


def test_an_iterator_of_targets_that_fails_is_refused() -> None:
    with pytest.raises(SamplingError) as error:
        edge().targets(int(text) for text in ["a"])
    assert str(error.value) == (
        'expected texts or vectors, found an iterator that cannot be read ("invalid literal for int() with base 10: '
        "'a'\")."
    )


def test_a_column_of_vectors_of_unequal_length_is_refused() -> None:
    with pytest.raises(SamplingError) as error:
        edge().targets(pd.Series([[1.0, 2.0], [3.0]]))
    assert str(error.value) == "latents: expected vectors, found rows of unequal length."


# -- arguments ---------------------------------------------------------------------------------------------------------

NONE = "expected at least one"
NUMBERS = "Give an array of numbers or one column of vectors."
ARGUMENTS: list[tuple[Any, str]] = [
    (lambda: inputs.check_texts(3, what="x"), "x: expected a text or a list of texts, found int."),  # type: ignore[arg-type]
    (lambda: inputs.check_texts({"a": "b"}), "texts: expected a text or a list of texts, found dict."),  # type: ignore[arg-type]
    (lambda: inputs.check_texts([], what="x"), f"x: {NONE} text, found none."),
    (lambda: inputs.check_texts(["a", 3]), "texts[1]: expected a text, found int 3."),  # type: ignore[list-item]
    (lambda: inputs.check_texts(["a", "b\ud800c"]),
     r"texts[1] 'b\ud800c' contains an unpaired surrogate, which is not valid Unicode."),
    (lambda: inputs.check_texts(["a", "\t"], what="x"), "x[1] is empty. Remove it, or add words."),
    (lambda: inputs.check_lengths([2, 0, 0], ["a", "b", "c"], max_length=9, what="x"),
     "x[1] 'b' has no token in this model's vocabulary. Remove it."),
    (lambda: inputs.check_lengths([2, 11, 12], ["a", "b", "c"], max_length=9, what="x"),
     "x[1] has 11 tokens, but the model reads at most 9 (tokenizer.max_length): 'b'. Shorten or split it."),
    (lambda: inputs.check_tokens([[1], [2], [3]], ["a", "b"], shape=SHAPE),
     "expected one row of ids for each of 2 texts, found 3 rows."),
    (lambda: inputs.check_tokens([], [], shape=SHAPE), f"ids: {NONE} row, found none."),
    (lambda: inputs.check_tokens(5, ["a"], shape=SHAPE), "ids: expected a list with one entry for each text, found 5."),
    (lambda: inputs.check_tokens([[1]], 5, shape=SHAPE),
     "texts: expected a list with one entry for each text, found 5."),
    (lambda: inputs.check_tokens([[1], [2]], [4, "b"], shape=SHAPE),
     "texts: expected a list of texts, found 4 among them."),
    (lambda: inputs.check_tokens([[1], 2], ["a", "b"], shape=SHAPE), "ids[1]: expected a list of ids, found 2."),
    (lambda: inputs.check_tokens([[1], [2, 23]], ["a", "b"], shape=SHAPE), "ids[1]: expected ids in 0..22, found 23."),
    (lambda: inputs.check_tokens([[1], [2, 20]], ["a", "b"], shape=SHAPE),
     "ids[1]: expected ids of words, found 20, which is [PAD]. Remove it."),
    (lambda: inputs.check_tokens([[1], [2, 21]], ["a", "b"], shape=SHAPE),
     "ids[1]: expected ids of words, found 21, which is [MASK]. Remove it."),
    (lambda: inputs.check_integer(2.5, name="x"), "x: expected an integer, found 2.5."),
    (lambda: inputs.check_integer(1, name="x", minimum=2), "x must be at least 2, found 1."),
    (lambda: inputs.check_integer(34_567, name="x", maximum=12_345), "x must be at most 12,345, found 34567."),
    (lambda: inputs.check_optional(0, name="x", maximum=5), "x must be at least 1, found 0."),
    (lambda: inputs.check_optional(6, name="x", maximum=5), "x must be at most 5, found 6."),
    (lambda: inputs.check_seed(-1), "seed must be at least 0, found -1."),
    (lambda: inputs.check_seed(2**63), "seed must be at most 9,223,372,036,854,775,807, found 9223372036854775808."),
    (lambda: inputs.check_flag(1, name="x"), "x: expected True or False, found 1."),
    (lambda: inputs.check_fraction(2, name="x"), "x must lie between 0 and 1, found 2."),
    (lambda: inputs.check_path(3), "expected a path, found 3."),
    (lambda: inputs.check_length(0), "length must be at least 1 token, found 0."),
    (lambda: inputs.check_length("all"),
     "length must be 'argmax', 'sample', 'top-n' (as in 'top-3') or a number, found 'all'."),
    (lambda: inputs.check_choice("bset", ("best", "all"), name="x"),
     "x must be one of best, all, found 'bset'. Did you mean 'best'?"),
    (lambda: inputs.check_choice(3, ("best", "all"), name="x"), "x must be one of best, all, found 3."),
    (lambda: inputs.check_array([[1, 2], [3]], what="x"), "x: expected vectors, found rows of unequal length."),
    (lambda: inputs.check_array(["a"], what="x"),
     "x: expected real numbers, found list with values of dtype <U1. " + NUMBERS),
    (lambda: inputs.check_array(pd.DataFrame({"id": [1], "vector": [[1.0]]}), what="x"),
     "x: expected real numbers, found DataFrame with values of dtype object. " + NUMBERS),
    (lambda: inputs.check_latents(np.ones((2, 3)), dim=4, what="x"),
     "x: expected vectors of dim 4, found shape (2, 3). Use vectors of the encoder that the model was trained on."),
    (lambda: inputs.check_latents(np.ones((0, 4)), dim=4, what="x"), f"x: {NONE} vector, found none."),
    (lambda: inputs.check_latents([[np.nan]] * 9 + [[1]], dim=1, what="x"),
     "x: expected finite float32 numbers, found NaN, infinity or numbers beyond float32 in 9 of 10 vectors (rows [0, "
     "1, 2, 3, 4, 5, 6, 7]). Remove these vectors."),
]  # fmt: skip


@pytest.mark.parametrize(("check", "message"), ARGUMENTS, ids=[message[:40] for _, message in ARGUMENTS])
def test_a_check_of_an_argument_has_every_part_of_its_message(check: Any, message: str) -> None:
    with pytest.raises(SamplingError) as error:
        check()
    assert str(error.value) == message


def test_an_array_that_cannot_be_read_is_refused_with_a_reason_on_one_line() -> None:
    """The reason comes from outside: it may be long, of several lines, and contain a credential."""

    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("gone\n" + "x" * 500)

    with pytest.raises(SamplingError) as error:
        inputs.check_array(Broken(), what="x")
    assert str(error.value).startswith(r"x: expected an array, found Broken ('gone\nxxx")
    assert len(str(error.value)) < 200


def test_a_file_is_named_by_its_whole_path(tmp_path: Path) -> None:
    """Files of one name are in several folders."""
    lines, absent, short = tmp_path / "a" / "texts.txt", tmp_path / "b" / "texts.txt", tmp_path / "c.npy"
    lines.parent.mkdir()
    lines.write_text("\n")
    np.save(short, np.ones((2, 3)))
    for ask, message in (
        (lambda: inputs.read_texts(absent), f"'{absent}' does not exist. Give a UTF-8 file with one text per line."),
        (lambda: inputs.read_texts(lines), f"{lines}: expected at least one text, found none."),
        (lambda: inputs.read_texts(3), "expected a path, found 3."),  # type: ignore[arg-type]
        (lambda: inputs.read_npy(tmp_path / "d.npy", dim=2),
         f"'{tmp_path / 'd.npy'}' does not exist. Give a .npy file of vectors."),
        (lambda: inputs.read_npy(short, dim=2),
         f"{short}: expected vectors of dim 2, found shape (2, 3). Use vectors of the encoder that the model was "
         "trained on."),
    ):  # fmt: skip
        with pytest.raises(SamplingError) as error:
            ask()
        assert str(error.value) == message


def test_a_run_without_images_names_its_objective() -> None:
    made: Any = MMLDLM(Scripted(), ABLE, Words(), Shift())  # type: ignore[arg-type]
    with pytest.raises(SamplingError) as error:
        _ = made.images
    assert str(error.value) == (
        "this run has no images: it was trained with everything. Train an objective that reads images "
        "(kedro run --env=digits)."
    )


def test_an_encoder_that_is_none_is_shown() -> None:
    with pytest.raises(SamplingError) as error:
        MMLDLM(Scripted(), ABLE, Words(), Shift(), 3)  # type: ignore[arg-type]
    assert str(error.value) == "encoder: expected an encoder (dim, encode), found 3."
