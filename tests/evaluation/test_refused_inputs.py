"""What has no number is refused with what was found: shapes, counts, directions and files of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, EvaluationError
from mm_ldlm.evaluation import bootstrap, generative, retrieval, run_result, sts
from mm_ldlm.evaluation import inversion as inv
from mm_ldlm.evaluation import samples as sampled
from mm_ldlm.evaluation.baselines import BagOfWords, nearest_training_rows
from mm_ldlm.evaluation.config import InversionConfig, StsConfig
from mm_ldlm.evaluation.sts_sets import StsSet, from_pairs, read_semeval, read_sick, read_stsb

GOOD = np.random.default_rng(0).normal(size=(6, 3))
ZERO = np.concatenate([GOOD[:5], np.zeros((1, 3))])
PAIRS = from_pairs("mine", [("a", "b", 1.0), ("c", "a", 2.0)])


def sts_set(*, first: Any = ("a", "b"), second: Any = ("c", "d"), gold: Any = (1.0, 2.0)) -> StsSet:
    return StsSet("mine", first, second, np.array(gold), ("",) * 2)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: retrieval.cosine(GOOD[0], GOOD), r"generated latents of shape \(n, d\), found \(3,\)"),
    (lambda: retrieval.cosine(GOOD, GOOD[:0]), r"real latents of shape \(n, d\), found \(0, 3\)"),
    (lambda: retrieval.cosine(GOOD, GOOD[:, :2]), r"one dimension, found 3 \(generated\) and 2 \(real\)"),
    (lambda: retrieval.cosine(ZERO, GOOD), "with a direction, found 1 zero vectors"),
    (lambda: retrieval.cosine(GOOD, ZERO), "with a direction, found 1 zero vectors"),
    (lambda: retrieval.cosine(GOOD, GOOD[:5]), "one target per generated latent, found 6 latents and 5 targets"),
    (lambda: retrieval.retrieval(GOOD[:5], GOOD), "one target per generated latent, found 5 latents and 6 targets"),
    (lambda: retrieval.retrieval(GOOD, GOOD, distractors_Md=ZERO), "found 1 zero vectors"),
    (lambda: retrieval.neighbourhoods(GOOD[:2], GOOD[:2]), "at least three texts on both sides, found 2 and 2"),
    (lambda: retrieval.neighbourhoods(GOOD[:5], GOOD), "at least three texts on both sides, found 5 and 6"),
    (lambda: retrieval.neighbourhoods(np.ones((6, 3)), GOOD), "equally near to all others"),
    (lambda: retrieval.neighbourhoods(GOOD, np.ones((6, 3))), "equally near to all others"),
    (lambda: retrieval.frechet_distance(GOOD[:1], GOOD), "at least two latents on each side"),
    (lambda: retrieval.frechet_distance(GOOD, GOOD[:1]), "at least two latents on each side"),
    (lambda: retrieval.calibration(GOOD[None], GOOD), r"samples, found \(1, 6, 3\)"),
    (lambda: retrieval.calibration(GOOD, GOOD), r"samples, found \(6, 3\)"),
    (lambda: retrieval.calibration(np.stack([GOOD, GOOD]), GOOD), "equals the target exactly"),
    (lambda: nearest_training_rows(GOOD, GOOD[:0]), "needs training latents, found none"),
    (lambda: BagOfWords.fit(GOOD, [[1]] * 5), "found 6 latents and 5 texts"),
    (lambda: BagOfWords.fit(GOOD[:0], []), "found 0 latents and 0 texts"),
    (lambda: next(bootstrap.count_blocks(0, replicates=3, seed=0)), "at least one item, found none"),
    (lambda: bootstrap.ratio_interval(GOOD[:, 0], np.zeros(6)), "a positive denominator, found 0"),
    (lambda: bootstrap.mean_interval(np.array([1.0, np.nan, np.inf])), "found 2 of 3 that are not finite, .* row 1"),
    (lambda: inv.score_rows([], [], reference_ids=[], hypothesis_ids=[]), "sentences to score, found none"),
    (lambda: generative.diversity([[1, 2]]), "found 1 texts, 0 of them empty"),
    (lambda: generative.diversity([[1, 2], [], [3]]), "found 3 texts, 1 of them empty"),
    (lambda: sampled.of_samples(pd.DataFrame({"id": [None], "text": ["a"]}), dataset=None), "found none with an id"),
    (lambda: sampled.required_vectors(pd.DataFrame({"id": ["a"]})), r"column 'latent', found the columns \['id'\]"),
    (lambda: sts.similarities(GOOD, GOOD[:5]), r"two equal \(n, d\) arrays, found \(6, 3\) and \(5, 3\)"),
    (lambda: sts.similarities(GOOD[0], GOOD[0]), r"two equal \(n, d\) arrays"),
    (lambda: sts.similarities(GOOD, ZERO), "1 embeddings of the second side are zero vectors"),
    (lambda: sts.score_vectors(PAIRS, GOOD, GOOD), "one vector for each of 2 pairs, found 6"),
    (lambda: sts.embed_pairs(PAIRS, lambda texts: GOOD), "one vector for each of 3 sentences, found 6"),
    (lambda: sts_set(first=("a", "b", "c")), r"unequal lengths \[2, 3\]"),
    (lambda: StsSet("one", ("a",), ("b",), np.ones(1), ("",)), "1 pairs; a correlation needs at least two"),
    (lambda: sts_set(gold=(1.0, np.nan)), "some gold scores are not finite"),
    (lambda: sts_set(gold=(2.0, 2.0)), "every gold score is 2.0"),
    (lambda: sts_set(second=("c", " ")), "pair 1 has an empty sentence"),
    (lambda: sts_set(first=("", "b")), "pair 0 has an empty sentence"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_has_no_number_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        call()


def test_the_smallest_inputs_that_have_a_number_are_accepted() -> None:
    assert retrieval.neighbourhoods(GOOD[:3], GOOD[:3]).overlap_at == {1: 1.0}
    assert retrieval.frechet_distance(GOOD[:2], GOOD[:2]) == pytest.approx(0, abs=1e-9)
    assert retrieval.calibration(np.stack([GOOD, GOOD + 1]), GOOD).samples == 2
    assert retrieval.squared_error(ZERO, GOOD)[5] == pytest.approx((GOOD[5] ** 2).mean()), "a direction is not needed"
    assert bootstrap.mean_interval(np.ones(1), replicates=20).value == 1
    assert inv.token_set_f1("", " ") == 1.0
    assert len(sts_set()) == 2
    assert sampled.vectors(pd.DataFrame({"latent": [[1.0, 2.0], None]})) is None
    assert sampled.vectors(pd.DataFrame({"latent": []})) is None


@pytest.mark.parametrize(
    ("read", "name", "text", "message"),
    [
        (read_stsb, "a.tsv", "sentence1\tsentence2\tgold\na\tb\t1\n", "names no score column"),
        (read_stsb, "a.csv", "a,b,1\n\nc,d\n", r"a.csv:3: expected at least 3 columns, found 2"),
        (read_sick, "SICK.txt", "sentence_A\tsentence_B\n", r"columns \['relatedness_score'\] are missing"),
        (read_sick, "SICK.txt", "sentence_A\tsentence_B\trelatedness_score\na\tb\t2\nc\td\n",
         "SICK.txt:3: 2 columns, the header has 3"),
        (read_sick, "SICK.txt", "sentence_A\tsentence_B\trelatedness_score\tSemEval_set\na\tb\t2\tTRAIN\n",
         r"no pairs of split 'test' \(splits found: \['train'\]\)"),
    ],
)  # fmt: skip
def test_a_file_of_sts_is_refused_with_its_place(read: Any, name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EvaluationError, match=message):
        read(tmp_path / name)


def test_a_line_of_semeval_without_a_tab_is_refused_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "STS.input.a.txt").write_text("a\tb\nno tab\nc d\n")
    (tmp_path / "STS.gs.a.txt").write_text("1\n2\n\n")
    with pytest.raises(EvaluationError, match=r"STS\.input\.a\.txt:2: expected two sentences .* found 'no tab'"):
        read_semeval(tmp_path, name="x")
    (tmp_path / "STS.gs.a.txt").unlink()
    with pytest.raises(EvaluationError, match=r"its scores STS\.gs\.a\.txt are missing beside it"):
        read_semeval(tmp_path, name="x")


@pytest.mark.parametrize("place", ["metrics.json", "evaluation/metrics.json"])
@pytest.mark.parametrize(
    ("text", "message"), [("{", "cannot be read as JSON"), ("[1]", r"mapping of numbers .* \[1\]")]
)
def test_a_result_that_is_no_mapping_is_refused_with_its_file(
    text: str, message: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / "evaluation").mkdir()
    (tmp_path / place).write_text(text)
    with pytest.raises(EvaluationError, match=message) as caught:
        run_result.load_result(str(tmp_path))
    assert str(tmp_path / place) in str(caught.value)


COSTS = pd.DataFrame({"id": ["a", "b"], "tokens": [3, 4], "nll": [1.5, 2.0]})


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (COSTS.drop(columns="id"), "has no column id"),
        (COSTS.drop(columns=["tokens", "nll"]), "has no column tokens, nll"),
        (COSTS.assign(nll="cheap"), "has no numbers in its column nll"),
        (pd.concat([COSTS, COSTS]), "has the id 'a' more than once"),
        (b"PAR1", r"cannot be read \(.+\)"),
        (None, "is a folder"),
    ],
)
def test_a_table_that_cannot_be_compared_is_refused_with_its_file(table: Any, fault: str, tmp_path: Path) -> None:
    run_result.keep(run_result.Result("x", {}, None, table if isinstance(table, pd.DataFrame) else None), tmp_path)
    path = tmp_path / "evaluation" / "likelihood_rows.parquet"
    if isinstance(table, bytes):
        path.write_bytes(table)
    elif table is None:
        path.mkdir()
    message = rf"^Expected a table .* found that {path} {fault}\. Evaluate that run again, or remove it from "
    with pytest.raises(EvaluationError, match=message):
        run_result.load_result(str(tmp_path))


@pytest.mark.parametrize("key", ["l2t.exact_match", "l2t.bleu.low", "nll.exact"])
def test_a_headline_that_is_no_number_is_refused_with_its_key(key: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(f'{{"{key}": "<b>"}}')
    with pytest.raises(EvaluationError, match=f"a number for '{key}' in .*metrics.json, found '<b>'"):
        run_result.load_result(str(tmp_path))


@pytest.mark.parametrize("reference", ["x" * 5000, "a\0b"], ids=["long", "nul"])
def test_a_reference_that_cannot_be_a_path_is_no_result(reference: str) -> None:
    with pytest.raises(EvaluationError, match=r"expected the result of a run at .*found no metrics\.json"):
        run_result.load_result(reference, from_tracking=lambda _: None)


def test_a_result_is_read_from_its_folder_its_run_its_file_or_the_tracking(tmp_path: Path) -> None:
    run = tmp_path / "run-a"
    rows = pd.DataFrame({"id": ["a"], "tokens": [3], "nll": [1.5]})
    run_result.keep(run_result.Result("x", {"nll.exact": 1.0}, None, rows), run)
    for reference in (run, run / "evaluation", run / "evaluation" / "metrics.json"):
        found = run_result.load_result(str(reference), from_tracking=lambda _: {"nll.exact": 9.0})
        assert (found.name, found.metrics, found.inversion_rows) == ("run-a", {"nll.exact": 1.0}, None)
        pd.testing.assert_frame_equal(found.likelihood_rows, rows)
    (tmp_path / "empty").mkdir()
    for reference, metrics in ((str(tmp_path / "empty"), {"nll.exact": 9.0}), ("0123456789", None), ("0123456789", {})):
        with pytest.raises(EvaluationError, match=r"found no metrics\.json at .*metrics\.json") as caught:
            run_result.load_result(reference, from_tracking=lambda _, given=metrics: given)
        assert ("no MLflow run of that id" in str(caught.value)) == (reference == "0123456789")
    found = run_result.load_result("0123456789", from_tracking=lambda _: {"perplexity": 2.0})
    assert (found.name, found.metrics, found.likelihood_rows) == ("01234567", {"perplexity": 2.0}, None)


def test_points_of_a_sweep_have_different_labels() -> None:
    point = {"label": "a", "sampler": {"kind": "confidence", "steps": 1}}
    with pytest.raises(ConfigurationError, match=r"sweep points with different labels, found \['a', 'a'\]"):
        parse(InversionConfig, {"sweep": [point, point]}, at="evaluation.inversion")


def test_a_set_and_a_file_of_one_name_are_refused() -> None:
    sets = [{"format": "stsb", "name": "mine", "path": "a"}]
    with pytest.raises(ConfigurationError, match=r"different names, found \['mine', 'mine'\]"):
        parse(StsConfig, {"sets": sets, "files": {"mine": "b"}}, at="sts")
    assert len(parse(StsConfig, {"sets": sets, "files": {"other": "b"}}, at="sts").sources) == 2
