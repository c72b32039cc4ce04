"""Scores of STS against scipy, published conventions, and a model that embeds worse than its encoder."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from tests.evaluation.report.test_figures import interval, same, shown
from tests.evaluation.test_bootstrap import repeats

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.extras.sts import suite
from mm_ldlm.extras.sts.config import StsConfig
from mm_ldlm.extras.sts.correlations import pearson_of_counts, spearman_of_counts
from mm_ldlm.extras.sts.pipeline import score_sts
from mm_ldlm.extras.sts.sets import StsSet, StsSource, from_pairs
from mm_ldlm.extras.sts.suite import (
    Sts,
    correlate,
    embedder,
    ratio_to,
    score_encoder,
    similarities,
    sts_scores,
    tokenised,
)
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.sampling.gaussian import DdimConfig

FEW = Bootstrap(60)
DRAW = np.random.default_rng(0)
VECTORS = {f"text {i}": DRAW.normal(size=6) for i in range(60)}


def encode(texts: Sequence[str], noise: float = 0.0) -> np.ndarray:
    found = np.stack([VECTORS[text] for text in texts])
    return found + noise * np.random.default_rng(1).normal(size=found.shape)


def sts_set(*, subsets: Sequence[str] | None = None) -> StsSet:
    a, b = encode(list(VECTORS))[:40], encode(list(VECTORS))[20:]
    alike = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    gold = np.round(2.5 + 2 * alike + DRAW.normal(0, 0.5, 40), 1)
    return from_pairs("set", [(f"text {i}", f"text {i + 20}", gold[i]) for i in range(40)], subsets=subsets)


def cosines(pairs: StsSet) -> np.ndarray:
    return similarities(encode(pairs.first), encode(pairs.second))["cosine"]


def test_the_scores_are_scipys_correlations_of_the_cosine() -> None:
    pairs = sts_set()
    found = score_encoder(pairs, encode, bootstrap=FEW)
    cosine_N = cosines(pairs)
    assert found.numbers["spearman"]["value"] == pytest.approx(100 * spearmanr(cosine_N, pairs.gold_N).statistic)
    assert found.numbers["pearson"]["value"] == pytest.approx(100 * pearsonr(cosine_N, pairs.gold_N).statistic)
    assert (similarities(*[encode(pairs.first)] * 2)["cosine"] == 1).all(), "ties, not an order by the last bit"
    assert found.numbers["spearman"]["low"] < found.numbers["spearman"]["value"] < found.numbers["spearman"]["high"]


def test_the_means_over_subsets_are_sentevals() -> None:
    pairs = sts_set(subsets=["one"] * 10 + ["two"] * 30)
    score = score_encoder(pairs, encode, bootstrap=FEW)
    parts = [spearmanr(cosines(pairs)[rows], pairs.gold_N[rows]).statistic for rows in (slice(10), slice(10, 40))]
    assert score.numbers["subset_spearman"] == pytest.approx({"one": 100 * parts[0], "two": 100 * parts[1]})
    assert score.numbers["mean_spearman"] == pytest.approx(50 * sum(parts))
    assert score.numbers["weighted_mean_spearman"] == pytest.approx(25 * parts[0] + 75 * parts[1])
    assert "mean_spearman" not in score_encoder(sts_set(), encode, bootstrap=FEW).numbers


def test_the_ratio_to_the_encoder_is_paired() -> None:
    pairs = sts_set()
    encoder = score_encoder(pairs, encode, bootstrap=FEW)
    worse = score_encoder(pairs, lambda texts: encode(texts, 0.5), bootstrap=FEW)
    assert ratio_to(encoder, encoder, FEW) == {"value": 1.0, "low": 1.0, "high": 1.0, "level": 0.95}
    assert (
        ratio_to(encoder, worse, FEW)["value"]
        == worse.numbers["spearman"]["value"] / encoder.numbers["spearman"]["value"]
        < 1
    )


def test_pitfall_13_failures_of_an_encoder_are_no_score(refuses: Callable[..., Any]) -> None:
    pairs = sts_set()
    with pytest.raises(ZeroDivisionError):
        score_encoder(pairs, lambda texts: 1 / 0)
    for broken in (lambda t: encode(t) * np.nan, lambda t: 0 * encode(t)):
        with refuses(EvaluationError, "40"):
            score_encoder(pairs, broken)
    with refuses(EvaluationError, "collapsed"):
        correlate(np.ones(5), np.arange(5.0))


def test_long_sentences_are_cut_as_encoders_do() -> None:
    seen: list[Any] = []
    model: Any = SimpleNamespace(
        max_length=3,
        tokenizer=SimpleNamespace(unk_id=9, encode=lambda texts: [[9] * (text == "text 3") + [1, 2, 3, 4] for text in texts]),
        embed=lambda texts, *, ids, **_: SimpleNamespace(latents=seen.extend(ids) or encode(texts)),
    )  # fmt: skip
    assert embedder(model, "one_step", seed=0)(["text 1", "text 2"]).shape == (2, 6)
    assert seen == [[1, 2, 3]] * 2
    assert tokenised(sts_set(), model) == {"too_long": 60, "unknown": 1 / 60}


def test_every_set_is_scored_with_the_seed_the_sampler_and_the_resamples_of_the_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the sentences have unknown words, which is not too many."""
    asked: list[Any] = []
    monkeypatch.setattr(suite, "load_sts", lambda source, *, seed=0: asked.append((source.name, seed)) or sts_set())
    published = StsSource(format="stsb", name="first", published={"other": 10.0, "mini": 80.0})
    config = StsConfig(sets=(published,), files={"second": "f"}, sampler=DdimConfig(steps=3))
    model = SimpleNamespace(
        max_length=3, no_encoder=None, capabilities=Capabilities(uses=frozenset({"t2l"}), fields=("latents",), trained_as=""),
        tokenizer=SimpleNamespace(unk_id=9, encode=lambda texts: [[9 * (int(text[5:]) % 2)] for text in texts]),
        encode=encode, encoder=SimpleNamespace(spec=SimpleNamespace(name="mini")),
        embed=lambda texts, *, ids, sampler, seed: SimpleNamespace(latents=asked.append((sampler, seed)) or encode(texts)),
    )  # fmt: skip
    given: Any = SimpleNamespace(model=model, seed=7, bootstrap=Bootstrap(60, 0.5), config=SimpleNamespace(sts=config))
    found, _ = Sts().evaluate(given)
    calls = [(config.sampler, 7), ("one_step", 7)]
    assert asked == [("first", 7), *calls, ("second", 7), *calls]
    assert (found["sets"]["first"]["published"], found["left_out"]) == (80.0, [])
    assert found["sets"]["second"]["scores"]["model"]["spearman"]["level"] == 0.5
    assert [each.key for each in Sts().headlines(Sts().numbers(found))] == ["sts.first.spearman", "sts.second.spearman"]
    untrained = list(Sts().untrained({"evaluation": given.config}, seed=8))
    assert (untrained, asked[-1]) == (["first", "second"], ("second", 8))
    model.capabilities = Capabilities(uses=frozenset(), trained_as="objective none")
    assert "objective none" in str(Sts().skip_reason(given)), "an encoder without latents is not asked"


def test_the_pipeline_tells_the_scores_and_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = {"scores": {"model": {"spearman": {"value": 80.0}}}, "pairs": 1000, "published": 81.0, "unknown": 0.25}
    metrics, none = {"sets": {"a": entry}, "left_out": ["the reason"]}, SimpleNamespace(sts=None)
    monkeypatch.setattr("mm_ldlm.evaluation.suites.base.score", lambda suite, given: (metrics, None))
    with caplog.at_level("INFO"):
        score_sts(none, none, none, 0)  # type: ignore[arg-type]
    assert "model 80.00, published 81.00; 1,000 pairs, 25% of its sentences" in caplog.messages[0]
    assert "the reason" in caplog.messages[1]


def test_sts_shows_each_source_of_each_set() -> None:
    sets = {"one": {"scores": {"encoder": {"spearman": interval()}}},
            "two": {"scores": {name: {"spearman": interval()} for name in ("encoder", "model", "one_step")}}}  # fmt: skip
    found = {trace.name: trace for trace in sts_scores(sets).data}
    assert set(found) == {"encoder", "model", "one-step regression"}
    same(shown(found["encoder"], "x"), [sets["one"]["scores"]["encoder"]["spearman"], sets["two"]["scores"]["encoder"]["spearman"]])  # fmt: skip
    assert list(found["model"].y) == ["two"]


@given(rank=st.booleans(), items=st.integers(5, 40), seed=st.integers(0, 50))
def test_a_correlation_of_counts_is_that_of_the_repeated_items(rank: bool, items: int, seed: int) -> None:
    statistic, definition = (spearman_of_counts, spearmanr) if rank else (pearson_of_counts, pearsonr)
    repeats(statistic, lambda x, y: definition(x, y).statistic, items, seed)
