"""STS scores: equal to sentence-transformers' evaluator, on complete sets, seeded, with errors for bad vectors."""

import numpy as np
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import sts
from mm_ldlm.evaluation.adapters import EncoderAdapter
from mm_ldlm.evaluation.sts_sets import from_pairs


def synthetic(count=200, width=16, seed=0, subsets=None):
    generator = np.random.default_rng(seed)
    vectors = {f"sentence {side} {i}": generator.normal(size=width) for i in range(count) for side in "ab"}
    gold = generator.integers(0, 6, size=count).astype(float)
    for i in range(count):
        vectors[f"sentence b {i}"] += gold[i] * vectors[f"sentence a {i}"]
    pairs = from_pairs(
        "synthetic", [(f"sentence a {i}", f"sentence b {i}", gold[i]) for i in range(count)], subsets=subsets
    )
    return pairs, lambda sentences: np.array([vectors[s] for s in sentences], dtype=np.float32)


def test_equals_sentence_transformers_evaluator():
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    pairs, encode = synthetic()
    ours = sts.score_encoder(pairs, encode, replicates=50)
    evaluator = EmbeddingSimilarityEvaluator(
        list(pairs.first),
        list(pairs.second),
        pairs.gold_N.tolist(),
        show_progress_bar=False,
        similarity_fn_names=["cosine", "dot", "manhattan", "euclidean"],
        write_csv=False,
    )
    theirs = evaluator(EncoderAdapter(encode))
    for kind in ("cosine", "dot", "manhattan", "euclidean"):
        assert ours.spearman[kind] == pytest.approx(100 * theirs[f"spearman_{kind}"], abs=1e-4)
        assert ours.pearson[kind] == pytest.approx(100 * theirs[f"pearson_{kind}"], abs=1e-3)


def test_all_mean_and_weighted_mean_differ_as_defined():
    pairs, encode = synthetic(subsets=["x"] * 150 + ["y"] * 50)
    score = sts.score_encoder(pairs, encode, replicates=50)
    by_subset = score.subset_spearman
    assert score.mean_spearman == pytest.approx((by_subset["x"] + by_subset["y"]) / 2)
    assert score.weighted_mean_spearman == pytest.approx(0.75 * by_subset["x"] + 0.25 * by_subset["y"])
    x, y = score.subset_pearson["x"], score.subset_pearson["y"]
    assert (score.mean_pearson, score.weighted_mean_pearson) == (
        pytest.approx((x + y) / 2),
        pytest.approx(0.75 * x + 0.25 * y),
    )
    assert x != by_subset["x"]
    assert score.mean_interval.low <= score.mean_spearman <= score.mean_interval.high


def test_ratio_of_an_encoder_to_itself_is_exactly_one():
    pairs, encode = synthetic()
    encoder, copy = (sts.score_encoder(pairs, encode, replicates=50) for _ in range(2))
    ratio = sts.ratio_to(encoder, copy)
    assert ratio.low == ratio.high == 1
    assert encoder.spearman == copy.spearman


def test_pitfall_13_an_exception_of_the_encoder_is_not_a_score():
    pairs, _ = synthetic()

    def broken(sentences):
        raise RuntimeError("no such model")

    with pytest.raises(RuntimeError, match="no such model"):
        sts.score_encoder(pairs, broken)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_pitfall_13_non_finite_embeddings_are_refused(poison):
    pairs, encode = synthetic()

    def poisoned(sentences):
        vectors = encode(sentences)
        vectors[7, 3] = poison
        return vectors

    with pytest.raises(EvaluationError, match="not finite"):
        sts.score_encoder(pairs, poisoned)


def test_pitfall_13_zero_and_collapsed_vectors_are_refused():
    pairs, _ = synthetic()
    with pytest.raises(EvaluationError, match="zero vectors"):
        sts.score_encoder(pairs, lambda s: np.zeros((len(s), 4)))
    with pytest.raises(EvaluationError, match="collapsed"):
        sts.score_encoder(pairs, lambda s: np.ones((len(s), 4)))


def test_pitfall_13_the_whole_set_is_scored():
    pairs, encode = synthetic()
    with pytest.raises(EvaluationError, match="expected one vector for each of"):
        sts.score_vectors(pairs, encode(pairs.first[:20]), encode(pairs.second[:20]))
    assert sts.score_encoder(pairs, encode, replicates=10).pairs == len(pairs)


def test_pitfall_13_seeded_and_with_an_interval():
    pairs, encode = synthetic()
    one, two = (sts.score_encoder(pairs, encode, replicates=100, seed=5) for _ in range(2))
    assert one.spearman_interval == two.spearman_interval
    assert one.spearman_interval.low < one.spearman["cosine"] < one.spearman_interval.high
    assert one.spearman_interval != sts.score_encoder(pairs, encode, replicates=100, seed=6).spearman_interval


def test_the_subsets_of_a_mean_are_resampled_independently():
    """The interval of a mean of two equal subsets is √2 narrower than that of one, and not as wide."""
    pairs, encode = synthetic()
    half = slice(0, len(pairs) // 2)
    lines = [*zip(pairs.first[half], pairs.second[half], pairs.gold_N[half].tolist(), strict=True)]
    width = {}
    for name, some, subsets in (
        ("one", lines, None),
        ("two", [*lines, *lines], ["x"] * len(lines) + ["y"] * len(lines)),
    ):
        score = sts.score_encoder(from_pairs(name, some, subsets=subsets), encode, replicates=1000, level=0.8)
        found = score.spearman_interval if subsets is None else score.mean_interval
        assert found.level == 0.8
        width[name] = found.high - found.low
    assert width["two"] / width["one"] == pytest.approx(0.5**0.5, abs=0.08)
