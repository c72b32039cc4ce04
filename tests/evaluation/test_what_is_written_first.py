"""Results that are kept, sets larger than a block, resamples without a token, and whole messages of refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, EvaluationError
from mm_ldlm.evaluation import bootstrap, compare, retrieval, run_result, samples, sts
from mm_ldlm.evaluation.config import BootstrapConfig, ClassificationEvalConfig, LikelihoodConfig
from mm_ldlm.evaluation.inversion import BLEU_COLUMNS
from mm_ldlm.evaluation.sts_sets import from_pairs
from mm_ldlm.evaluation.suites import generation
from mm_ldlm.families.classification import metrics as classification
from mm_ldlm.families.images import suite as images

ROWS = pd.DataFrame({"id": ["c", "a", "b"], "tokens": [3, 1, 2], "nll": [0.5, 1.5, 2.5]}, index=[7, 3, 9])
REBUILT = ROWS.assign(
    **{name: [place, 1, 0] for place, name in enumerate(("exact", "matches", "positions", *BLEU_COLUMNS))}
)


def test_a_kept_table_is_numbered_from_zero_in_its_own_order(tmp_path: Path) -> None:
    run_result.keep(run_result.Result("x", {"a": 1.0}, REBUILT, ROWS[::-1]), tmp_path)
    found = run_result.load_result(str(tmp_path))
    for table, expected in ((found.inversion_rows, REBUILT), (found.likelihood_rows, ROWS[::-1])):
        assert table is not None
        pd.testing.assert_frame_equal(table, expected.reset_index(drop=True))
    run_result.keep(run_result.Result("y", {"b": 2.0}, None, ROWS[:1]), tmp_path)
    again = run_result.load_result(str(tmp_path))
    assert (again.metrics, again.likelihood_rows is not None and len(again.likelihood_rows)) == ({"b": 2.0}, 1)


def test_the_metrics_are_written_after_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with metrics.json is a whole result."""
    written: list[str] = []
    monkeypatch.setattr(run_result, "write_bytes", lambda path, content: written.append(path.name))
    monkeypatch.setattr(run_result, "write_json", lambda path, content: written.append(path.name))
    run_result.keep(run_result.Result("x", {}, ROWS, ROWS), tmp_path)
    assert written == ["inversion_rows.parquet", "likelihood_rows.parquet", "metrics.json"]


def test_tables_without_rows_are_not_compared() -> None:
    """A run that cannot invert or score keeps an empty table."""
    options: dict[str, Any] = {"bootstrap": BootstrapConfig(replicates=20), "seed": 0}
    empty = run_result.Result("x", {}, ROWS[:0], ROWS[:0])
    for theirs, ours in (([empty], [empty]), ([empty, empty], [empty, run_result.Result("y", {}, ROWS, ROWS)])):
        assert compare.paired_differences(theirs, ours, **options) == {}
        assert compare.paired_differences(ours, theirs, **options) == {}
    costs = run_result.Result("y", {"nll.exact": 1.0}, ROWS[:0], ROWS)
    assert set(compare.paired_differences([costs], [costs], **options)) == {"likelihood"}


@pytest.mark.parametrize("block", [1, 5, 12])
def test_a_set_that_is_larger_than_a_block_is_drawn_row_by_row(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate([*bootstrap.count_blocks(13, replicates=4, seed=1)])
    monkeypatch.setattr(bootstrap, "_BLOCK", block)
    blocks = [*bootstrap.count_blocks(13, replicates=4, seed=1)]
    assert [part.shape for part in blocks] == [(1, 13)] * 4
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def test_a_resample_without_any_token_has_the_rate_zero() -> None:
    """Of three texts two are empty, so that eight of 27 resamples have no token."""
    found = bootstrap.ratio_interval(np.array([0.0, 0.0, 3.0]), np.array([0.0, 0.0, 6.0]), replicates=200)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 0.5)


def test_a_classifier_of_no_bins_and_of_too_many_is_refused() -> None:
    for kind, key in ((LikelihoodConfig, "buckets"), (ClassificationEvalConfig, "bins")):
        for fits in (1, 1000):
            assert getattr(parse(kind, {key: fits}, at="x"), key) == fits
        for wrong in (0, 1001):
            with pytest.raises(ConfigurationError, match=rf"x\.{key}"):
                parse(kind, {key: wrong}, at="x")


def test_vectors_of_samples_have_single_precision() -> None:
    found = samples.vectors(pd.DataFrame({"latent": [[1.0, 2.0], [3.0, 4.5]]}))
    assert found is not None
    assert (found.dtype, found.tolist()) == (np.float32, [[1.0, 2.0], [3.0, 4.5]])
    tokens = samples.token_rows(pd.DataFrame({"tokens": [np.array([1, 2], np.int32)], "text": ["x"]}), None)
    assert (tokens, type(tokens[0][0])) == ([[1, 2]], int)


# -- whole messages ----------------------------------------------------------------------------------------------------

PAIRS = from_pairs("mine", [("a", "b", 1.0), ("c", "d", 2.0), ("e", "f", 3.0), ("g", "h", 5.0)],
                   subsets=["x", "x", "y", "y"])  # fmt: skip
GOOD = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [2.0, 1.0]])


def broken(value: float, *places: int) -> Any:
    made = GOOD.copy()
    made[list(places)] = value
    return made


@pytest.mark.parametrize(("a", "b", "message"), [
    (broken(np.nan, 1, 3), GOOD, "STS set 'mine': 2 of 4 embeddings of the first side are not finite."),
    (GOOD, broken(np.inf, 0), "STS set 'mine': 1 of 4 embeddings of the second side are not finite."),
    (broken(0.0, 0, 2, 3), GOOD,
     "STS set 'mine': 3 embeddings of the first side are zero vectors, whose cosine is undefined."),
    (GOOD, GOOD[:, :1], "STS set 'mine': expected two equal (n, d) arrays, found (4, 2) and (4, 1)."),
    (GOOD[:3], GOOD, "STS set 'mine': expected one vector for each of 4 pairs, found 3."),
    (GOOD, GOOD * 2, "STS set 'mine': all 4 similarities equal 1; the embeddings have collapsed."),
    (GOOD, np.array([[1.0, 0], [1, 1], [3, 1], [1, 0]]),
     "subset 'x': all 2 similarities equal 1; the embeddings have collapsed."),
])  # fmt: skip
def test_a_set_that_cannot_be_scored_is_named_with_its_side(a: Any, b: Any, message: str) -> None:
    with pytest.raises(EvaluationError) as refused:
        sts.score_vectors(PAIRS, a, b, replicates=20)
    assert str(refused.value) == message


@pytest.mark.parametrize(("given", "message"), [
    ((GOOD[0], GOOD), "Expected generated latents of shape (n, d), found (2,)."),
    ((GOOD, GOOD[:0]), "Expected real latents of shape (n, d), found (0, 2)."),
    ((broken(np.nan, 1, 2), GOOD), "Expected finite generated latents, but 2 of 4 rows are not finite."),
    ((GOOD, broken(np.inf, 1)), "Expected finite real latents, but 1 of 4 rows are not finite."),
    ((GOOD, GOOD[:, :1]), "Expected latents of one dimension, found 2 (generated) and 1 (real)."),
    ((broken(0.0, 1, 2, 3), GOOD), "Expected latents with a direction, found 3 zero vectors."),
    ((GOOD[:2], GOOD), "Expected one target per generated latent, found 2 latents and 4 targets."),
])  # fmt: skip
def test_latents_that_cannot_be_compared_are_counted(given: Any, message: str) -> None:
    for measure in (retrieval.cosine, retrieval.retrieval):
        with pytest.raises(EvaluationError) as refused:
            measure(*given)  # type: ignore[operator]
        assert str(refused.value) == message


@pytest.mark.parametrize(("true", "shown"), [
    ([9, 2, 9, 1, 0], "0 to 2, found 5 examples, classes [0, 1, 2, 9]."),
    ([7, -1, 5, 5, 4, 3, 2, 1, 0], "0 to 2, found 9 examples, classes [-1, 0, 1, 2, 3]."),
    ([], "0 to 2, found 0 examples, classes []."),
])  # fmt: skip
def test_the_first_classes_outside_the_names_are_shown_each_once(true: list[int], shown: str) -> None:
    options: dict[str, Any] = {"names": list("abc"), "bins": 2, "replicates": 20, "seed": 0, "level": 0.9}
    with pytest.raises(EvaluationError) as refused:
        classification.measure(np.array(true, np.int64), np.full((len(true), 3), 1 / 3), **options)
    assert str(refused.value) == (
        f"expected examples with classes {shown} Validate the data with this objective again."
    )


def test_a_class_that_is_never_predicted_right_counts_as_zero_in_the_mean() -> None:
    """F1 of the first class is 2 · 1 ÷ (1 + 3), that of the second is 0, and the third one does not occur."""
    f1 = classification.macro_f1(np.array([0, 1, 1]), np.array([0, 0, 0]), 3)
    assert f1(np.ones((1, 3))).tolist() == [0.25]
    assert f1(np.array([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0]])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("caption", "label"), [
    ("a seven", None), ("an even one", "even"), ("Kind \t 0  drawn", "kind 0"), ("kind 00", None), ("kind 0", "kind 0"),
    ("the unkind 0", None), ("EVEN and kind 0", None), ("", None),
])  # fmt: skip
def test_a_label_is_a_whole_word_of_the_caption(caption: str, label: str | None) -> None:
    assert images.label_in(caption, ["even", "kind 0"]) == label


@pytest.mark.parametrize("refused", [None, "caption_to_image", "image_to_caption", "image_text"])
def test_a_run_without_images_names_the_first_task_that_it_cannot_do(refused: str | None) -> None:
    def refusal(use: str) -> str | None:
        return f"cannot {use}" if refused is not None and use >= refused else None

    tasks = ["caption_to_image", "image_to_caption", "image_text"]
    first = next((f"cannot {task}" for task in tasks if refusal(task) is not None), None)
    model = SimpleNamespace(capabilities=SimpleNamespace(refusal=refusal))
    assert images.skip_reason(model, [pd.DataFrame()] * 3) == (
        first
        or "sampling was configured without the tasks caption_to_image, image_to_caption, image_text (sampling.tasks)"
    )
    assert images.skip_reason(model, [[], [], [1]]) is None


def test_too_few_unconditional_samples_are_counted_with_the_parameter() -> None:
    model = SimpleNamespace(capabilities=SimpleNamespace(refusal=lambda use: None))
    assert generation.skip_reason(model, ["a", " ", ""]) == (
        "expected at least two unconditional samples that are not empty, found 3 samples. Set "
        "sampling.unconditional.count and run the sampling pipeline"
    )
    other = SimpleNamespace(capabilities=SimpleNamespace(refusal=lambda use: f"cannot {use}"))
    assert generation.skip_reason(other, ["a", "b"]) == "cannot unconditional"
