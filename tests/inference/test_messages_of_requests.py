"""Warnings and refusals in full, and small inputs at their edges: the right rows and texts are named, three at most."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.inference.edge import FARTHEST, Edge, refuse_huge
from mm_ldlm.inference.finite import check_finite, check_words
from scripted import ABLE, MASK, PAD, SHAPE, Scripted, Words, engine

from mm_ldlm.core.errors import CheckpointError, FingerprintError, SamplingError
from mm_ldlm.inference import MMLDLM, editing, inputs, loading

# -- rows and texts that are named -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("far", "rows"), [((3,), "3"), ((1, 4), "1, 4"), ((0, 2, 3, 5), "0, 2, 3")])
def test_a_warning_of_unlike_latents_names_the_first_three_with_their_norms(
    far: tuple[int, ...], rows: str, caplog: Any
) -> None:
    normaliser: Any = SimpleNamespace(standardise=lambda raw: np.asarray(raw, np.float64), typical=(0.5, 1.5))
    edge = Edge(SHAPE, torch.device("cpu"), Words(), normaliser, encoder=None, load_encoder=None)  # type: ignore[arg-type]
    raw = np.ones((6, 2))
    for row in far:
        raw[row] = 2.0 + row
    edge.standardised(raw)
    norms = ", ".join(f"{2.0 + row:.2f}" for row in far[:3])
    assert caplog.messages == [
        f"{len(far)} of 6 latents are unlike those that the run was trained on, so results for them mean little: "
        f"expected norms from 0.50 to 1.50 in standardised space, found {norms} (rows {rows})"
    ]


@pytest.mark.parametrize(
    ("unknown", "named"), [((2,), "'t2'"), ((1, 3), "'t1', 't3'"), ((0, 2, 3, 4), "'t0', 't2', 't3'")]
)
def test_a_warning_of_unknown_words_names_the_first_three_texts(
    unknown: tuple[int, ...], named: str, caplog: Any
) -> None:
    ids = [[1, 22, 3] if row in unknown else [1, 2] for row in range(5)]
    inputs.warn_of_unknown(ids, [f"t{row}" for row in range(5)], unk_id=22, effect="they are lost")
    assert caplog.messages == [
        f"{len(unknown)} of 5 texts contain words outside this model's vocabulary; they are lost: {named}"
    ]


@pytest.mark.parametrize(
    ("bad", "count", "rows"),
    [([4], 6, "4"), (range(8), 9, "0, 1, 2, 3, 4, 5, 6, 7"), (range(1, 10), 12, "1, 2, 3, 4, 5, 6, 7, 8, …")],
)
def test_numbers_that_are_not_finite_are_named_by_their_rows(bad: Any, count: int, rows: str) -> None:
    values = np.zeros((count, 2))
    values[list(bad), 1] = np.nan
    with pytest.raises(SamplingError) as error:
        check_finite(SimpleNamespace(), values, what="numbers")  # type: ignore[arg-type]
    assert str(error.value) == (
        f"the model returned numbers that are not finite for {len(bad)} of {count} inputs (rows {rows}); its weights "
        "are finite. Check these inputs (the size of their latents) and the sampler (guidance, t_max)."
    )


@pytest.mark.parametrize(
    ("tokens", "words"),
    [([3, MASK, 22], "21 ([MASK])"), ([PAD, 22], "20 ([PAD])"), ([MASK, PAD, 1], "20 ([PAD])"), ([1, 25, 24], "25")],
)
def test_the_id_that_is_no_word_is_named(tokens: list[int], words: str) -> None:
    with pytest.raises(SamplingError) as error:
        check_words(Scripted(), [[1, 22], tokens])  # type: ignore[arg-type]
    assert str(error.value) == (
        f"row 1 of the request: expected a text of words, but the sampler wrote the id {words}. "
        "Choose another sampler, or more steps."
    )


@pytest.mark.parametrize(("largest", "found"), [([1.0, 2e6, 3e6], "2 of 3 .*row 1: 2e\\+06"), ([math.nan], "1 of 1")])
def test_latents_that_are_too_far_are_counted_and_the_first_is_named(largest: list[float], found: str) -> None:
    with pytest.raises(SamplingError, match=rf"found {found}"):
        refuse_huge(np.array(largest))
    refuse_huge(np.array([FARTHEST, 0.0]))


# -- texts and ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", "b", " "], r"sources\[2\] is empty\. Remove it, or add words\."),
        (["a", "b\ud800"], r"sources\[1\] .* contains an unpaired surrogate"),
        (["a", "b", "c", 4], r"sources\[3\]: expected a text, found int 4\."),
        ([], r"sources: expected at least one text, found none\."),
        (3, r"sources: expected a text or a list of texts, found int\."),
    ],
)
def test_the_text_that_is_refused_is_named_by_its_number(texts: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=f"^{message}"):
        inputs.check_texts(texts, what="sources")


def test_the_lines_of_a_file_are_texts_without_the_spaces_around_them(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("  w1 w2\t\n\n \nÉmile  w3 \r\nw4", encoding="utf-8")
    assert inputs.read_texts(path) == inputs.read_texts(str(path)) == ["w1 w2", "Émile  w3", "w4"]


@pytest.mark.parametrize(
    "ids", [[[1, 2], [3, 4]], ((1, 2), (3, 4)), np.array([[1, 2], [3, 4]]), [np.array([1, 2]), np.array([3, 4])]]
)
@pytest.mark.parametrize("texts", [["a", "b"], ("a", "b"), np.array(["a", "b"])])
def test_ids_and_texts_are_lists_of_any_kind(ids: Any, texts: Any) -> None:
    inputs.check_tokens(ids, texts, shape=SHAPE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "texts", "message"),
    [
        (np.array(3), ["a"], "ids: expected a list with one entry for each text, found"),
        ("ab", ["a", "b"], "ids: expected a list with one entry for each text, found 'ab'"),
        ([[1]], "a", "texts: expected a list with one entry for each text, found 'a'"),
        ([[1], [2]], ["a", 3], "texts: expected a list of texts, found 3 among them"),
        ([[1], 2], ["a", "b"], r"ids\[1\]: expected a list of ids, found 2"),
        ([[1], "2"], ["a", "b"], r"ids\[1\]: expected a list of ids, found '2'"),
        ([[1], []], ["a", "b"], r"texts\[1\] 'b' has no token in this model's vocabulary"),
        ([[1], [1, -1]], ["a", "b"], r"ids\[1\]: expected ids in 0\.\.22, found -1"),
    ],
)
def test_the_row_of_ids_that_is_refused_is_named(ids: Any, texts: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        inputs.check_tokens(ids, texts, shape=SHAPE)  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", [range(3), b"w1", {"a": 1}, [], [["w1"]]])
def test_targets_are_texts_a_file_or_vectors(targets: Any) -> None:
    with pytest.raises(SamplingError, match="latents: expected"):
        engine().edge.targets(targets)


def test_targets_in_a_file_are_read_by_either_kind_of_path(tmp_path: Path) -> None:
    """A text that does not end in .npy is a text, and a Path is a file whatever its name is."""
    raw = np.array([[3.0, 1.0], [5.0, 2.0]], np.float32)
    np.save(tmp_path / "a.npy", raw)
    (tmp_path / "a.npy").rename(tmp_path / "vectors")
    np.save(tmp_path / "b.npy", raw)
    edge = engine().edge
    for path in (tmp_path / "vectors", tmp_path / "b.npy", str(tmp_path / "b.npy")):
        sources, found = edge.targets(path)
        assert (sources, found.tolist()) == ([None, None], raw.tolist())
    assert edge.targets("w1 zebra.npz")[0] == ["w1 zebra.npz"]
    (tmp_path / "c.npy").write_text("w1")
    for path, message in ((tmp_path / "c.npy", r"is not a \.npy file"), ("absent.npy", "does not exist")):
        with pytest.raises(SamplingError, match=message):
            edge.targets(path)


# -- neighbours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, -1, 4])
def test_the_number_of_neighbours_lies_within_the_store(k: int) -> None:
    with pytest.raises(SamplingError, match=f"k must lie between 1 and the store's 3 rows, found {k}"):
        editing.neighbours(np.ones((1, 2)), np.ones((3, 2)), k=k)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint16, np.int64])
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_neighbours_among_numbers_of_any_type_and_among_vectors_of_no_length(dtype: Any, chunk: int) -> None:
    """A vector of zeros has the cosine 0 to every other one."""
    store = np.array([[0, 0], [3, 4], [5, 0], [0, 7]], dtype)
    found = editing.neighbours(np.array([[0.0, 2.0], [0.0, 0.0]]), store, k=4, chunk=chunk)
    assert found.rows.tolist() == [[3, 1, 0, 2], [0, 1, 2, 3]]
    np.testing.assert_allclose(found.cosines, [[1, 0.8, 0, 0], [0, 0, 0, 0]], atol=1e-12)
    assert found.ids == (("3", "1", "0", "2"), ("0", "1", "2", "3"))


# -- the model and its run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", [SimpleNamespace(dim=2), SimpleNamespace(encode=len), "minilm"])
def test_an_encoder_has_a_dimension_and_a_method_to_encode(encoder: Any) -> None:
    with pytest.raises(SamplingError, match=r"encoder: expected an encoder \(dim, encode\), found"):
        MMLDLM(Scripted(), ABLE, Words(), None, encoder)  # type: ignore[arg-type]


def test_a_single_text_is_encoded_as_one(model: MMLDLM) -> None:
    np.testing.assert_array_equal(model.encode("w1 w2"), model.encode(["w1 w2"]))
    assert model.encode("w1 w2").shape == (1, 6)
    with pytest.raises(SamplingError, match=r"texts\[1\] is empty"):
        model.encode(["w1", " "])


def test_a_run_is_named_with_its_step_its_parameters_and_its_uses(run_folder: Path) -> None:
    made = MMLDLM.from_run(run_folder)
    count = sum(parameter.numel() for parameter in made.model.model.parameters())
    able = "l2t, t2l, unconditional, infill, infill_given_latent, edit, interpolate, search, score, score_given_latent"
    trained = made.capabilities.trained_as
    assert repr(made) == f"MMLDLM(run-1, step 3, {count:,} parameters, {trained}; can {able})"
    made.capabilities = type(made.capabilities)(uses=frozenset(), trained_as="nothing at all")
    assert repr(made).endswith(f"{count:,} parameters, nothing at all; can nothing)")


@pytest.mark.parametrize(
    ("name", "what"), [("tokenizer", "vocabulary"), ("encoder", "encoder"), ("label_names", "classes")]
)
def test_a_run_of_other_data_is_named_with_both_fingerprints(name: str, what: str) -> None:
    parts: Any = SimpleNamespace(fingerprints={name: "abcdefghijklmnop"}, checkpoint="runs/a/checkpoints/step-1")
    with pytest.raises(FingerprintError) as error:
        loading.refuse_other_data(parts, {name: "0123456789abcdef"})
    assert str(error.value) == (
        f"runs/a/checkpoints/step-1: expected a run with the {what} of the dataset (0123456789ab), found one with "
        f"another {what} (abcdefghijkl). Name the environment or the data folder that the run was trained on "
        "(`--env=NAME`, `--params data=FOLDER`), or choose a run of this dataset."
    )


@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        ("vocab_size", None, False), ("pad_id", [1], False), ("mask_id", 2.0, False), ("max_length", "9", False),
        ("latent_dim", None, True), ("image_size", None, True), ("latent_dim", "6", False), ("latent_dim", 6, True),
    ],
)  # fmt: skip
def test_a_shape_has_numbers_and_only_some_of_them_may_be_missing(
    key: str, value: Any, fits: bool, run_folder: Path
) -> None:
    config = json.loads((run_folder / "config.json").read_text())
    path = run_folder / "other.json"
    path.write_text(json.dumps({**config, "shape": {**config["shape"], key: value}}))
    if fits:
        assert getattr(loading._read_config(path)["shape"], key) == value
        return
    with pytest.raises(CheckpointError, match=r"expected the numbers vocab_size, .* under 'shape', found"):
        loading._read_config(path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"checkpoint": -1}, "checkpoint must be at least 0, found -1"),
        ({"checkpoint": True}, "checkpoint: expected an integer, found True"),
        ({"checkpoint": 2.0}, r"checkpoint: expected an integer, found 2\.0"),
        ({"use_ema": 1}, "use_ema: expected True or False, found 1"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1, found 0"),
    ],
)
def test_an_argument_of_a_run_that_is_no_number_of_a_step_is_refused(how: Any, message: str, run_folder: Path) -> None:
    with pytest.raises(SamplingError, match=message):
        MMLDLM.from_run(run_folder, **how)
    assert MMLDLM.from_run(run_folder, checkpoint=3, use_ema=False, batch_tokens=1).parts is not None


@pytest.mark.parametrize(
    ("reason", "found"),
    [(None, "this model was built without one."), ("its latents were given.", "its latents were given.")],
)
def test_the_reason_why_there_is_no_encoder_is_in_the_refusal(reason: str | None, found: str) -> None:
    edge = Edge(
        SHAPE, torch.device("cpu"), Words(), None, encoder=None, load_encoder=None, no_encoder=reason  # type: ignore[arg-type]
    )  # fmt: skip
    assert edge.no_encoder == found
    with pytest.raises(SamplingError) as error:
        _ = edge.encoder
    assert str(error.value) == (
        f"expected the encoder that made the latents, but {found} In Python, pass encoder=load_encoder(...), or give "
        "latents instead of texts."
    )


@pytest.mark.parametrize("reembed", [0, 1, "yes", None])
def test_a_flag_is_true_or_false(reembed: Any, model: MMLDLM) -> None:
    latents = np.eye(1, 6, dtype=np.float32)
    for ask in (
        lambda: model.invert(latents, reembed=reembed),
        lambda: model.edit("w1 w2", targets=latents, reembed=reembed),
        lambda: model.interpolate(latents, latents, reembed=reembed),
    ):
        with pytest.raises(SamplingError, match="reembed: expected True or False, found"):
            ask()
