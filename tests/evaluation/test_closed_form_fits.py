"""Baselines, spectra and intervals against expressions of their own: ridge regression, Wilson, evenly spaced texts."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import baselines, bootstrap, generative, inversion, likelihood, retrieval, sts
from mm_ldlm.evaluation.config import GenerationConfig, LikelihoodConfig
from mm_ldlm.evaluation.overlap import attested_bigrams
from mm_ldlm.evaluation.sts_sets import from_pairs
from mm_ldlm.families.classification import metrics as classification

# -- the bag of words --------------------------------------------------------------------------------------------------

TOKENS = [[4, 9, 2], [9], [2, 2, 4, 7], [7, 9], [4, 2, 9, 7, 4], [9, 4]]
LATENTS = np.random.default_rng(0).normal(size=(6, 3)) * [1.0, 5.0, 0.2] + [3.0, -2.0, 1.0]


@pytest.mark.parametrize("ridge", [1e-3, 0.5])
def test_the_bag_of_words_is_ridge_regression_with_a_free_intercept(ridge: float) -> None:
    """Augmented least squares: √λ rows of zeros, where λ is relative to the mean eigenvalue of the scatter."""
    bag = baselines.BagOfWords.fit(LATENTS, TOKENS, ridge=ridge)
    assert bag.token_V.tolist() == [2, 4, 7, 9]
    target = np.array([[float(token in row) for token in (2, 4, 7, 9)] + [len(row)] for row in TOKENS])
    centered = LATENTS - LATENTS.mean(0)
    penalty = ridge * (centered**2).sum() / 3
    design = np.concatenate([centered, math.sqrt(penalty) * np.eye(3)])
    weight = np.linalg.lstsq(design, np.concatenate([target - target.mean(0), np.zeros((3, 5))]), rcond=None)[0]
    bias = target.mean(0) - LATENTS.mean(0) @ weight
    np.testing.assert_allclose(bag.weight_dV, weight[:, :4], atol=1e-9)
    np.testing.assert_allclose(bag.length_weight_d, weight[:, 4], atol=1e-9)
    np.testing.assert_allclose([*bag.bias_V, bag.length_bias], bias, atol=1e-9)


def test_the_place_of_a_token_is_its_mean_relative_position() -> None:
    """0 is the first place of a text and 1 the last one; the only token of a text is at 0."""
    bag = baselines.BagOfWords.fit(LATENTS, TOKENS)
    expected = {
        2: [1, 0, 1 / 3, 1 / 4], 4: [0, 2 / 3, 0, 1, 1], 7: [1, 0, 3 / 4], 9: [1 / 2, 0, 1, 2 / 4, 0],
    }  # fmt: skip
    assert bag.place_V == pytest.approx([np.mean(expected[token]) for token in (2, 4, 7, 9)])


@pytest.mark.parametrize(
    ("length", "tokens"),
    [(-3.0, [7]), (0.4, [7]), (1.4, [7]), (1.6, [9, 7]), (2.5, [9, 7]), (3.4, [9, 5, 7]), (3.6, [9, 5, 3, 7]),
     (99.0, [9, 5, 3, 7])],
)  # fmt: skip
def test_as_many_tokens_as_the_length_in_the_order_of_their_places(length: float, tokens: list[int]) -> None:
    """The scores choose 7, 9, 5 and 3 in this order; the places order them 9, 5, 3, 7."""
    bag = baselines.BagOfWords(
        weight_dV=np.array([[-1.0, 0.5, 2.0, 1.0]]), bias_V=np.array([0.0, 0.0, 1.0, 1.0]),
        length_weight_d=np.array([1.0]), length_bias=length - 1.0, place_V=np.array([0.6, 0.5, 0.9, 0.1]),
        token_V=np.array([3, 5, 7, 9]),
    )  # fmt: skip
    assert bag.predict(np.array([[1.0]])) == [tokens]


# -- intervals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.8, 0.99])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_the_interval_of_all_or_none_is_wilsons_at_its_level(level: float, count: int) -> None:
    z2 = norm.ppf((1 + level) / 2) ** 2
    none, every = (bootstrap.proportion_interval(np.full(count, value), level=level) for value in (0.0, 1.0))
    assert (none.value, none.low, none.high, none.level) == pytest.approx((0, 0, z2 / (count + z2), level))
    assert (every.value, every.low, every.high, every.level) == pytest.approx((1, count / (count + z2), 1, level))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_or_a_part_of_a_ratio_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(EvaluationError, match=r"found the value (nan|inf) and 0 of 3 replicates"):
        bootstrap.interval(value, np.ones(3))
    good = np.array([1.0, 2.0])
    for parts, what in (((good, [value, 1]), "denominators"), (([value, 1], good), "numerators")):
        with pytest.raises(EvaluationError, match=f"Expected finite {what}, found 1 of 2"):
            bootstrap.ratio_interval(np.array(parts[0]), np.array(parts[1]))
    with pytest.raises(EvaluationError, match="Expected finite hits"):
        bootstrap.proportion_interval(np.array([0.5, value]))


def test_the_draws_of_sets_of_two_sizes_are_not_the_same_stream() -> None:
    """From one stream, half of the first draws would hit the same items."""
    few, more = (next(bootstrap.count_blocks(n, replicates=1, seed=1))[0] for n in (1000, 1001))
    assert abs(np.corrcoef(few, more[:1000])[0, 1]) < 0.2


def test_every_interval_has_the_same_defaults() -> None:
    """A thousand resamples with seed 0 and an interval of 95 %, unless the caller says otherwise."""
    usual = {"replicates": 1000, "seed": 0, "level": 0.95}
    found = 0
    for module in (bootstrap, sts, inversion):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__:
                continue
            for key, parameter in inspect.signature(function).parameters.items():
                if key in usual and parameter.default is not inspect.Parameter.empty:
                    assert parameter.default == usual[key], (name, key)
                    found += 1
    assert found > 25
    assert bootstrap.Interval(1.0, 0.0, 2.0).level == 0.95


def test_the_mean_of_one_sentence_has_no_standard_error() -> None:
    one = likelihood.mean(np.array([3.5]))
    assert (one.value, math.isnan(one.standard_error)) == (3.5, True)
    assert likelihood.per_token(np.array([3.0]), np.array([2])).standard_error == 0.0


# -- spectra and neighborhoods -----------------------------------------------------------------------------------------


def test_latents_of_one_dimension_have_a_spectrum_and_a_distance() -> None:
    a, b = np.array([[1.0], [2.0], [6.0]]), np.array([[0.0], [4.0], [5.0]])
    assert retrieval.spectrum(a) == pytest.approx([7.0])
    expected = (3 - 3) ** 2 + (math.sqrt(7) - math.sqrt(7)) ** 2
    assert retrieval.frechet_distance(a, b) == pytest.approx(expected, abs=1e-9)
    assert retrieval.frechet_distance(a, 3 * b) == pytest.approx((3 - 9) ** 2 + (math.sqrt(7) - 3 * math.sqrt(7)) ** 2)


def test_rounding_errors_below_zero_are_no_part_of_the_effective_rank() -> None:
    assert retrieval.effective_rank(np.array([2.0, 2.0, -1.0])) == pytest.approx(2.0)
    assert retrieval.effective_rank(np.array([3.0, 1.0])) == pytest.approx(math.exp(0.75 * math.log(4 / 3) +
                                                                                    0.25 * math.log(4)))  # fmt: skip


@pytest.mark.parametrize(("count", "limit", "places"), [(9, 3, [0, 4, 8]), (10, 4, [0, 3, 6, 9]), (4, 9, [0, 1, 2, 3])])
def test_the_texts_of_the_neighborhoods_are_evenly_spaced(count: int, limit: int, places: list[int]) -> None:
    draw = np.random.default_rng(1)
    a, b = draw.normal(size=(2, count, 3))
    found = retrieval.neighbourhoods(a, b, ks=(1, 2), limit=limit)
    expected = retrieval.neighbourhoods(a[places], b[places], ks=(1, 2))
    np.testing.assert_allclose(found.rank_correlation_N, expected.rank_correlation_N)
    assert found.overlap_at == expected.overlap_at


# -- texts -------------------------------------------------------------------------------------------------------------


def test_self_bleu_of_short_texts_uses_the_orders_that_they_have_and_the_nearest_length() -> None:
    """Texts of one to three words beside longer ones; of two lengths that are equally near the shorter one counts."""
    from sacrebleu.metrics import BLEU

    texts = ["a b c", "a b c d e", "a b", "a b c d", "e", "b c d e f g"]
    rows = [text.split() for text in texts]
    scorer = BLEU(tokenize="none", effective_order=True)
    for chosen in (range(6), (0, 1, 3), (2, 3, 0), (3, 1, 5)):
        some = [texts[i] for i in chosen]
        expected = np.mean([scorer.sentence_score(t, some[:i] + some[i + 1 :]).score for i, t in enumerate(some)])
        assert generative.self_bleu([rows[i] for i in chosen]) == pytest.approx(expected)


def test_marks_are_words_of_their_own_in_the_pairs_of_neighbors() -> None:
    assert attested_bigrams(["a dog, a cat."], ["a dog , a cat ."]).tolist() == [1.0]
    assert attested_bigrams(["it's"], ["its"]).tolist() == [0.0]


def test_rouge_does_not_reduce_words_to_their_stems_and_rows_are_numbered_from_zero() -> None:
    assert inversion.rouge_l(["cats running home"], ["cat runs home"]) == pytest.approx([1 / 3])
    rows = inversion.score_rows(["a", "b"], ["a", "c"], reference_ids=[[1], [2]], hypothesis_ids=[[1], [3]])
    assert rows["id"].tolist() == ["0", "1"]


@pytest.mark.parametrize("short", ["hypotheses", "reference_ids", "hypothesis_ids", "cosine", "written"])
def test_every_part_of_a_table_has_one_entry_for_each_reference(short: str) -> None:
    parts: dict[str, Any] = {"hypotheses": ["a", "b"], "reference_ids": [[1], [2]], "hypothesis_ids": [[1], [2]],
                             "cosine": np.ones(2), "written": ["a", "b"]}  # fmt: skip
    parts[short] = parts[short][:1]
    with pytest.raises(EvaluationError, match=rf"expected 2 entries, one per reference, found {{'{short}': 1}}"):
        inversion.score_rows(["a", "b"], parts.pop("hypotheses"), **parts)


# -- scores of pairs ---------------------------------------------------------------------------------------------------


def test_pairs_of_a_sentence_with_itself_are_ties() -> None:
    """Their cosines differ by their last bit, which would order them."""
    vectors = np.random.default_rng(3).normal(size=(200, 7))
    similar = sts.similarities(vectors, vectors * np.linspace(0.1, 9, 200)[:, None])
    assert set(similar["cosine"].tolist()) == {1.0}


def test_scores_of_sets_of_two_sizes_have_no_ratio() -> None:
    draw = np.random.default_rng(4)
    small, large = (
        sts.score_vectors(
            from_pairs("mine", [(f"a{i}", f"b{i}", float(i % 5)) for i in range(n)]), *draw.normal(size=(2, n, 3)),
            replicates=20,
        )
        for n in (9, 10)
    )  # fmt: skip
    with pytest.raises(EvaluationError, match="two scores of one STS set"):
        sts.ratio_to(small, large)


# -- classes -----------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"replicates": 60, "seed": 7, "level": 0.8}


@pytest.mark.parametrize("true", [[], [0, -1], [-1], [0, 2]])
def test_examples_without_a_class_of_the_names_are_refused(true: list[int]) -> None:
    probability = np.full((len(true), 2), 0.5)
    with pytest.raises(EvaluationError, match=rf"classes 0 to 1, found {len(true)} examples"):
        classification.measure(np.array(true, np.int64), probability, names=["a", "b"], bins=3, **OPTIONS)


def test_a_true_class_of_probability_zero_has_a_large_finite_cost() -> None:
    probability = np.array([[1.0, 0.0], [0.5, 0.5], [0.25, 0.75]])
    found = classification.measure(np.array([1, 1, 0]), probability, names=["a", "b"], bins=3, **OPTIONS)
    assert found["nll"]["value"] == pytest.approx((-math.log(1e-300) + math.log(2) + math.log(4)) / 3)


def test_a_confidence_of_zero_is_in_the_first_bin() -> None:
    assert classification.bin_of(np.array([0.0, 1e-9, 0.5, 0.500001, 1.0]), 2).tolist() == [0, 0, 0, 1, 1]


def test_every_bin_has_its_own_confidence_and_its_interval_at_the_level() -> None:
    confidence, correct = np.array([0.55, 0.6, 0.65, 0.9, 0.95, 1.0, 0.8]), np.array([1.0, 0, 1, 1, 1, 0, 1])
    found = classification.reliability(confidence, correct, 4, **OPTIONS)
    parts = [(confidence <= 0.75, 3), (confidence > 0.75, 4)]
    assert [entry["examples"] for entry in found] == [count for _, count in parts]
    for entry, (inside, _) in zip(found, parts, strict=True):
        assert entry["confidence"] == pytest.approx(confidence[inside].mean())
        assert entry["accuracy"] == bootstrap.proportion_interval(correct[inside], **OPTIONS).as_dict()


def test_the_intervals_of_the_confusions_are_of_the_given_resamples() -> None:
    draw = np.random.default_rng(5)
    true, probability = draw.integers(0, 2, 30), draw.dirichlet([1, 1], 30)
    found = classification.measure(true, probability, names=["a", "b"], bins=3, **OPTIONS)["confusion"]
    (counts,) = bootstrap.count_blocks(30, replicates=60, seed=7)
    predicted = probability.argmax(1)
    for i in range(2):
        for j in range(2):
            drawn = counts[:, (true == i) & (predicted == j)].sum(1)
            assert [found["low"][i][j], found["high"][i][j]] == pytest.approx(np.quantile(drawn, [0.1, 0.9]).tolist())


# -- defaults ----------------------------------------------------------------------------------------------------------


def test_functions_have_the_defaults_of_the_parameters() -> None:
    generation, costs = GenerationConfig(), LikelihoodConfig()
    for function in (generative.diversity, generative.generative_score):
        defaults = {key: each.default for key, each in inspect.signature(function).parameters.items()}
        assert defaults["self_bleu_texts"] == generation.self_bleu_texts
        assert defaults.get("batch_size", generation.batch_size) == generation.batch_size
    assert inspect.signature(likelihood.by_mask_ratio).parameters["buckets"].default == costs.buckets


def test_neighborhoods_of_one_five_and_ten_among_at_most_a_thousand_texts() -> None:
    draw = np.random.default_rng(2)
    a, b = draw.normal(size=(2, 1001, 2))
    found = retrieval.neighbourhoods(a, b)
    assert (list(found.overlap_at), len(found.rank_correlation_N)) == ([1, 5, 10], 1000)
    assert list(retrieval.neighbourhoods(a[:11], b[:11]).overlap_at) == [1, 5, 10]
    assert list(retrieval.neighbourhoods(a[:10], b[:10]).overlap_at) == [1, 5], "nine others"


def test_the_ridge_is_a_thousandth_of_the_mean_eigenvalue() -> None:
    usual, given = baselines.BagOfWords.fit(LATENTS, TOKENS), baselines.BagOfWords.fit(LATENTS, TOKENS, ridge=1e-3)
    np.testing.assert_array_equal(usual.weight_dV, given.weight_dV)
