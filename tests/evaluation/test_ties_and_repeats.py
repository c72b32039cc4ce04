"""Numbers that change only with ties, zeros, repeated texts or values that are not finite in several ways."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.data.sentences import Sentences
from mm_ldlm.evaluation import bootstrap, compare, generative, likelihood, retrieval, run_result, samples
from mm_ldlm.evaluation import inversion as inv
from mm_ldlm.evaluation.config import BootstrapConfig, GenerationConfig, LatentsConfig, TextFile
from mm_ldlm.evaluation.headline import most_important
from mm_ldlm.evaluation.overlap import attested_bigrams, memorised
from mm_ldlm.evaluation.suites import generation, latents
from mm_ldlm.evaluation.suites.likelihood import read_lines
from mm_ldlm.families.images import suite as images

BOOTSTRAP = BootstrapConfig(replicates=20)

# -- latents -----------------------------------------------------------------------------------------------------------


def latents_of(real: Any, generated: Any, *, others: Any) -> dict[str, Any]:
    count = len(real)
    held = Sentences(tuple("abcdefgh"[:count]), tuple("abcdefgh"[:count]), ((1,),) * count, real)
    model = SimpleNamespace(embed=lambda texts, **_: SimpleNamespace(latents=generated))
    return latents.evaluate(
        model, held, generated, distractors_md=others, unconditional_nd=None, sampler=None,
        config=LatentsConfig(calibration_sentences=0), bootstrap=BOOTSTRAP, seed=0,
    )  # fmt: skip


def test_three_texts_have_neighborhoods_and_a_tie_counts_half() -> None:
    """The distractor lies in the direction of the first target: its rank is 1.5, which is not among the first."""
    real = np.array([[1.0, 0.1], [0.1, 1.0], [1.0, 1.3]])
    found = latents_of(real, real * 2, others=np.array([[4.0, 0.4], [-3.0, -1.0]]))["samplers"]["model"]
    assert found["neighbourhoods"]["rank_correlation"]["value"] == pytest.approx(1.0)
    assert found["retrieval"]["candidates"] == 5
    assert found["retrieval"]["at_1"]["value"] == pytest.approx(2 / 3)
    assert found["retrieval"]["at_5"]["value"] == 1.0
    assert found["retrieval"]["mean_reciprocal_rank"]["value"] == pytest.approx((1 / 1.5 + 1 + 1) / 3)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_eigenvalues_keep_four_digits_at_any_scale(scale: float) -> None:
    real = np.random.default_rng(0).normal(size=(8, 2)) * [1.0, 3.0] * scale
    found = latents_of(real, real * 1.5, others=real[:2])["spectrum"]["real"]["eigenvalues"]
    expected = np.sort(np.linalg.eigvalsh(np.cov(real.T)))[::-1]
    np.testing.assert_allclose(found, expected, rtol=5e-4)
    assert [len(re.sub(r"e.*|\.|^0\.0*", "", f"{value!r}").strip("0")) for value in found] <= [4, 4]


def test_the_cosine_and_the_ranks_of_several_texts_are_means_over_them() -> None:
    draw = np.random.default_rng(1)
    drawn, real = draw.normal(size=(3, 5, 2)) + 1, draw.normal(size=(5, 2))
    found = retrieval.calibration(drawn, real)

    def cosine(a: Any, b: Any) -> float:
        return float(a @ b / math.sqrt((a @ a) * (b @ b)))

    center = drawn.mean(0)
    assert found.cosine_mean == pytest.approx(np.mean([cosine(a, b) for a, b in zip(center, real, strict=True)]))
    single = [cosine(sample[i], real[i]) for sample in drawn for i in range(5)]
    assert found.cosine_single == pytest.approx(np.mean(single))
    spread = np.mean([drawn[:, i, j].var(ddof=1) for i in range(5) for j in range(2)]) * (1 + 1 / 3)
    assert found.spread_to_error == pytest.approx(math.sqrt(spread / np.mean((center - real) ** 2)))
    below = [sum(sample[i, j] < real[i, j] for sample in drawn) for i in range(5) for j in range(2)]
    assert found.rank_fraction == pytest.approx([below.count(rank) / 10 for rank in range(4)])


@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1.0, 1e9])
def test_the_effective_rank_does_not_depend_on_the_scale(scale: float) -> None:
    """exp of the entropy of 1/2, 1/4, 1/8, 1/8: 1.75 bits."""
    assert retrieval.effective_rank(np.array([4.0, 2, 1, 1, 0]) * scale) == pytest.approx(2**1.75)
    assert retrieval.effective_rank(np.array([1.0, 1e-4]) * scale) == pytest.approx(
        math.exp(math.log(1.0001) - 1e-4 / 1.0001 * math.log(1e-4))
    )


def test_no_distance_is_below_zero() -> None:
    """The distance of a set to itself is 0 but for rounding errors of either sign."""
    draw = np.random.default_rng(2)
    sets = [draw.normal(size=(12, 8)) * scale for scale in (1.0, 1e3, 1e6) for _ in range(10)]
    assert all(0 <= retrieval.frechet_distance(one, one) < 1e-9 * (one**2).sum() for one in sets)


def test_one_text_that_is_equally_near_to_all_others_is_refused() -> None:
    """The first of four is orthogonal to the others, whose own neighborhoods differ."""
    one = np.array([[0.0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 2, 0]])
    other = np.random.default_rng(0).normal(size=(4, 3))
    for a, b in ((one, other), (other, one)):
        with pytest.raises(EvaluationError, match="a text is equally near to all others in one of the spaces"):
            retrieval.neighbourhoods(a, b)


# -- texts -------------------------------------------------------------------------------------------------------------


def test_repeated_pairs_and_texts_count_as_often_as_they_occur() -> None:
    """Of (start a) (a a) (a a) (a b) (b end) the training text has the first three."""
    assert attested_bigrams(["a a a b"], ["a a"]).tolist() == [3 / 5]
    assert attested_bigrams(["a b", "c", "b c"], ["a b", "b d", "c"]).tolist() == pytest.approx([1.0, 1.0, 2 / 3])
    found = generation.evaluate(
        ["a b", "a b", "c d"], [[1, 2], [1, 2], [3, 4]], real_texts=["c d", "e f"], real_tokens=[[3, 4], [5, 6]],
        training_texts=lambda: ["a b"], config=GenerationConfig(), bootstrap=BOOTSTRAP,
    )  # fmt: skip
    assert (found["memorised"], found["generated"]["unique"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found["generated"]["distinct"]["1"] == pytest.approx(4 / 6)


def test_texts_are_compared_in_the_folded_case_of_every_script() -> None:
    assert memorised(["STRASSE", "ΟΔΟΣ"], ["straße", "οδος"]).tolist() == [True, True]
    assert attested_bigrams(["STRASSE"], ["straße"]).tolist() == [1.0]


@pytest.mark.parametrize(("a", "b", "f1"), [("", "a", 0.0), ("a", "", 0.0), ("", "", 1.0), ("a b b", "b c", 0.5)])
def test_an_empty_text_shares_no_word_with_another(a: str, b: str, f1: float) -> None:
    assert inv.token_set_f1(a, b) == f1


@pytest.mark.parametrize("long", ["hypotheses", "reference_ids", "hypothesis_ids", "cosine", "written"])
def test_a_part_with_too_many_entries_is_refused(long: str) -> None:
    parts: dict[str, Any] = {"hypotheses": ["a", "b"], "reference_ids": [[1], [2]], "hypothesis_ids": [[1], [2]],
                             "cosine": np.ones(2), "written": ["a", "a"]}  # fmt: skip
    parts[long] = np.ones(3) if long == "cosine" else [*parts[long], parts[long][0]]
    with pytest.raises(
        EvaluationError, match=re.escape(f"expected 2 entries, one per reference, found {{'{long}': 3}}")
    ):
        inv.score_rows(["a", "b"], parts.pop("hypotheses"), **parts)
    with pytest.raises(EvaluationError, match=re.escape("found {'hypotheses': 1, 'hypothesis_ids': 3}. Every source")):
        inv.score_rows(["a", "b"], ["a"], reference_ids=[[1], [2]], hypothesis_ids=[[1]] * 3)


def test_lines_of_spaces_are_no_texts(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\n   \n\t\ntwo \n\n", encoding="utf-8")
    assert read_lines(TextFile(name="x", path=str(tmp_path / "lines.txt"))) == ["one", "two "]
    gone = TextFile(name="x", path=str(tmp_path / "gone.txt"))
    with pytest.raises(EvaluationError) as refused:
        read_lines(gone)
    assert str(refused.value) == (
        f"The text 'x' of evaluation.likelihood.other_texts: {gone.path} does not exist. Correct its path, or remove "
        "the entry."
    )


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("count", [3, 5])
def test_the_diversity_of_texts_draws_those_of_its_self_bleu_with_the_seed(seed: int, count: int) -> None:
    rows = np.random.default_rng(6).integers(0, 3, (12, 6)).tolist()
    expected = {other: generative.self_bleu(rows, texts=count, seed=other) for other in (0, 3)}
    assert expected[0] != expected[3]
    assert generative.diversity(rows, self_bleu_texts=count, seed=seed).self_bleu == expected[seed]


def test_a_classifier_of_images_separates_a_ring_from_its_center() -> None:
    """No straight line does."""
    turn = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    ring = np.stack([np.cos(turn), np.sin(turn)], axis=1).astype(np.float32)
    pixels = np.concatenate([ring, ring * 0.2])
    labels = ["ring"] * 24 + ["center"] * 24
    classifier = images.Classifier(pixels, labels)
    assert classifier.predict(pixels) == labels
    assert classifier.hits(pixels[:3], ["ring", None, "center"]).tolist() == [True, False]


# -- intervals and refusals --------------------------------------------------------------------------------------------


def test_the_draws_of_the_runs_are_those_of_the_seed() -> None:
    """Each run has one number for every sentence, so that the runs alone make the replicates."""
    runs = [lambda counts, value=value: np.full(len(counts), value) for value in (1.0, 10.0, 100.0)]
    found = {seed: bootstrap.replicates_of_runs(runs, 7, replicates=50, seed=seed) for seed in (1, 2)}
    assert (found[1] != found[2]).any()
    assert {round(3 * value) for value in found[1]} <= {
        a + b + c for a in (1, 10, 100) for b in (1, 10, 100) for c in (1, 10, 100)
    }
    assert len(set(found[1].tolist())) > 4


def test_every_value_that_is_not_finite_is_counted() -> None:
    bad = np.array([1.0, np.nan, np.inf, -np.inf, 2.0])
    for call, words in (
        (lambda: bootstrap.interval(0.5, bad), "found the value 0.5 and 3 of 5 replicates that are not finite"),
        (lambda: bootstrap.mean_interval(bad), "found 3 of 5 that are not finite, the first at row 1."),
        (lambda: likelihood.per_token(bad, np.ones(5)), "of every sentence, found 3 of 5 that are not finite."),
        (lambda: inv.score_rows(["a"] * 5, ["a"] * 5, reference_ids=[[1]] * 5, hypothesis_ids=[[1]] * 5, cosine=bad),
         "Inversion: 3 re-embedding cosines are not finite."),
        (lambda: retrieval.squared_error(np.stack([bad, np.ones(5)], 1), np.ones((5, 2))), "but 3 of 5 rows are not"),
    ):  # fmt: skip
        with pytest.raises(EvaluationError, match=re.escape(words)):
            call()


def scored(texts: tuple[str, ...], nll: Any) -> Any:
    return SimpleNamespace(texts=texts, nll=np.array(nll), tokens=np.array([2, 5, 3]))


def test_bits_are_of_the_same_sentences_with_the_error_of_their_differences() -> None:
    one, two = scored(("a", "b", "c"), [4.0, 9.0, 7.0]), scored(("a", "b", "c"), [1.0, 4.0, 6.5])
    found = likelihood.latent_bits(unconditional=one, given_latent=two)
    bits = np.array([3.0, 5.0, 0.5]) / math.log(2)
    rate = bits.sum() / 10
    error = math.sqrt(3 / 2 * ((bits - rate * np.array([2, 5, 3])) ** 2).sum()) / 10
    assert (found["per_token"].value, found["per_token"].standard_error) == pytest.approx((rate, error))
    assert found["per_sentence"].value == pytest.approx(bits.mean())
    assert found["per_sentence"].standard_error == pytest.approx(bits.std(ddof=1) / math.sqrt(3))
    for texts, counts in ((("b", "a", "c"), "3 and 3"), (("a", "b"), "3 and 2")):
        with pytest.raises(EvaluationError, match=rf"same order, found different sentences \({counts}\)\."):
            likelihood.latent_bits(unconditional=one, given_latent=scored(texts, [1.0, 4.0, 6.5]))


def test_samples_that_occur_again_are_counted_and_those_without_an_id_are_not_all() -> None:
    table = pd.DataFrame({"id": ["a", "b", "a", "a", None], "text": list("vwxyz")})
    with pytest.raises(EvaluationError, match=r"one sample per held-out sentence, found 2 sampled twice\. Run the"):
        samples.of_samples(table, dataset=None)  # type: ignore[arg-type]
    assert samples.without_truth(table) is None
    assert samples.without_truth(table[4:]) is not None


# -- runs beside each other --------------------------------------------------------------------------------------------


def test_every_place_where_a_result_was_looked_for_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for exists in (False, True):
        with pytest.raises(EvaluationError) as refused:
            run_result.load_result(str(run))
        assert str(refused.value) == (
            f"reporting.compare: expected the result of a run at '{run}', found no metrics.json at "
            f"{run / 'metrics.json'}, {run / 'evaluation' / 'metrics.json'}"
            f"{'' if exists else ', and no MLflow run of that id with metrics'}. Evaluate that run first "
            "(`kedro run --pipelines=evaluation,reporting`)."
        )
        run.mkdir(exist_ok=True)


def test_runs_of_one_name_keep_their_own_differences() -> None:
    def run(nats: float) -> run_result.Result:
        rows = pd.DataFrame({"id": [f"i{i}" for i in range(31)], "tokens": 2, "nll": 2 * nats})
        return run_result.Result("same", {}, None, rows)

    found = compare.compare(run(1.0), [run(1.5), run(4.0)], bootstrap=BOOTSTRAP, seed=0)
    values = {name: entry["likelihood"]["differences"]["nats_per_token"]["difference"]["value"]
              for name, entry in found["paired"].items()}  # fmt: skip
    assert found["runs"] == ["same", "same (2)", "same (3)"]
    assert values == {"same (2)": -0.5, "same (3)": -3.0}


@pytest.mark.parametrize(("names", "shown"), [
    (["a", "a (2)", "a"], ["a", "a (2)", "a (3)"]), (["a", "a", "a (2)"], ["a", "a (2)", "a (2) (2)"]),
    (["b", "a", "b", "b", "a"], ["b", "a", "b (2)", "b (3)", "a (2)"]), ([], []),
])  # fmt: skip
def test_no_two_runs_of_a_comparison_have_one_name(names: list[str], shown: list[str]) -> None:
    results = [run_result.Result(name, {}) for name in names]
    assert compare.side_by_side(results)["runs"] == shown


def test_the_most_important_numbers_are_in_a_fixed_order_with_one_of_the_sets() -> None:
    order = ["l2t.exact_match", "l2t.bleu", "l2t.cosine", "perplexity", "perplexity.given_latent", "t2l.cosine",
             "classification.accuracy", "classification.macro_f1", "caption_to_image.accuracy",
             "image_to_caption.accuracy", "unconditional.perplexity"]  # fmt: skip
    metrics = dict.fromkeys(sorted(order), 0.5) | {"sts.b.spearman": 3.0, "sts.a.spearman": 2.0, "other": 1.0}
    assert most_important(metrics, count=99) == [*order, "sts.a.spearman"]
    assert most_important(metrics, count=4) == [*order[:3], "sts.a.spearman"]
    assert most_important(metrics, count=1) == ["sts.a.spearman"]
