"""Costs of texts: rates, intervals, bits, noise levels and files of other texts."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import EvaluationError
from mm_ldlm.data.held_out import held_out
from mm_ldlm.evaluation.config import TextFile
from mm_ldlm.evaluation.suites import flat_metrics
from mm_ldlm.evaluation.suites.base import Evaluation
from mm_ldlm.evaluation.suites.likelihood import (
    Likelihood,
    _zero_shot,
    by_noise_level,
    latent_bits,
    mean,
    per_token,
    perplexity,
    read_lines,
)
from mm_ldlm.inference.results import Scores


def scores(*, draws: int = 3, count: int = 40, seed: int = 0, noisy: bool = True) -> Scores:
    draw = np.random.default_rng(seed)
    tokens = draw.integers(2, 9, count)
    scored = draw.integers(0, 9, (draws, count))
    return Scores(
        likelihood="bound", standard_errors=np.zeros(count), texts=tuple(f"t{i}" for i in range(count)), tokens=tokens, length_nll=draw.uniform(0, 2, count),
        token_nll=draw.uniform(1, 20, count), draw_nll=draw.uniform(0, 20, (draws, count)),
        draw_mask_ratio=draw.uniform(0.001, 1, (draws, count)) if noisy else None,
        draw_masked=scored if noisy else None, draw_correct=scored // 2 if noisy else None,
        draw_cross_entropy=2.0 * scored if noisy else None,
    )  # fmt: skip


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 30)), min_size=1, max_size=30))
def test_the_rate_weighs_sentences_by_their_tokens(sentences: list[tuple[float, int]]) -> None:
    nll, length = zip(*sentences, strict=True)
    found = per_token(nll, length)
    assert found["value"] == pytest.approx(sum(nll) / sum(length))
    assert found["low"] <= found["value"] <= found["high"]
    repeated = per_token(nll * 4, length * 4)
    assert repeated["value"] == pytest.approx(found["value"])
    assert repeated["standard_error"] <= found["standard_error"] + 1e-9 or len(nll) == 1
    if len(nll) > 1:  # of the ratio estimator
        error = np.std(np.array(nll) - found["value"] * np.array(length), ddof=1) * len(nll) ** 0.5 / sum(length)
        assert found["standard_error"] == pytest.approx(error, abs=1e-9)
        assert found["high"] - found["value"] == pytest.approx(1.96 * error, rel=1e-4, abs=1e-9)
        assert mean(nll) == pytest.approx(per_token(nll, [1] * len(nll)))
    json.dumps([found, mean(nll)], allow_nan=False)


def test_perplexity_is_the_exponential_or_absent() -> None:
    rate = per_token([10.0, 12], [5, 6])
    assert perplexity(rate) == pytest.approx({name: np.exp(rate[name]) for name in ("value", "low", "high")})
    assert perplexity(per_token([1e6], [1])) is None


def test_bits_are_differences_sentence_by_sentence() -> None:
    one = scores()
    two = Scores(**{**vars(one), "token_nll": one.token_nll - one.tokens * np.log(2)})
    found = latent_bits(unconditional=one, given_latent=two)
    assert found["per_token"]["value"] == pytest.approx(1)
    assert found["per_token"]["standard_error"] == pytest.approx(0, abs=1e-6)  # although the costs differ widely
    assert found["per_sentence"]["value"] == pytest.approx(one.tokens.mean())


@pytest.mark.parametrize("buckets", [1, 4, 10])
def test_the_contributions_of_all_noise_levels_sum_to_the_nelbo(buckets: int) -> None:
    one = scores()
    lines = by_noise_level(one, buckets=buckets)
    assert sum(line["nats_per_token"] for line in lines) == pytest.approx(one.draw_nll.mean(0).sum() / one.tokens.sum())
    assert sum(line["draws"] for line in lines) == one.draw_nll.size
    assert {line["cross_entropy"] for line in lines if line["masked_tokens"]} == {2.0}
    assert by_noise_level(scores(noisy=False)) is None


@given(st.floats(0.001, 1))
def test_a_draw_belongs_to_the_bucket_of_its_noise_level(level: float) -> None:
    one = scores(draws=1, count=1)
    lines = by_noise_level(Scores(**{**vars(one), "draw_mask_ratio": np.array([[level]])}))
    (line,) = [line for line in lines or [] if line["draws"]]
    assert line["low"] - 1e-12 < level <= line["high"] + 1e-12


def test_a_cost_that_is_not_finite_is_refused(refuses: Callable[..., Any]) -> None:
    with refuses(EvaluationError, "1 of 2"):
        per_token([1.0, np.inf], [2, 3])


def test_other_texts_are_scored_up_to_the_length_that_the_model_reads(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a\na ?\na b c\n? ?\n")
    source, asked = TextFile(name="other", path=str(tmp_path / "texts.txt")), list[Any]()
    ids_of = lambda lines: [[int(word != "?") for word in line.split()] for line in lines]  # noqa: E731
    words: Any = SimpleNamespace(encode=ids_of, unk_id=0)

    def cost(texts: list[str], *, ids: Any, latents: Any) -> Scores:
        assert ids == ids_of(texts)
        asked.append((texts, latents))
        return scores(count=len(texts))

    model = SimpleNamespace(tokenizer=words, max_length=2, no_encoder="no encoder")  # nothing embeds these texts
    found = _zero_shot(model, source, cost, both := ["unconditional", "given_latent"], None)
    assert "given_latent" not in found
    assert (asked, found["sentences"], found["outside_length"]) == ([(["a", "a ?", "? ?"], None)], 3, 1)
    assert found["unknown_fraction"] == 3 / 5
    bits = scores(count=3).nll.sum() / np.log(2) / len("aa ?? ?")
    assert found["unconditional"]["bits_per_character"]["value"] == pytest.approx(bits)
    first = TextFile(name="other", path=str(tmp_path / "texts.txt"), limit=2, detokeniser="lm1b")
    model.no_encoder, model.encode = None, lambda texts, *, too_long: (texts, too_long)
    found = _zero_shot(model, first, cost, both, None)
    assert (found["sentences"], found["outside_length"]) == (2, 1)
    assert asked[1:] == [(["a", "a?"], None), (["a", "a?"], (["a", "a?"], "truncate"))]


def test_the_costs_are_those_of_the_sentences_that_the_seed_draws(evaluation: Evaluation) -> None:
    metrics, rows = Likelihood().evaluate(evaluation)
    error = per_token(rows["nll"], rows["tokens"])["standard_error"]
    assert flat_metrics({"likelihood": metrics}, {})["nll.per_token.standard_error"] == pytest.approx(error)
    held = held_out(evaluation.dataset, count=4, seed=3, split="test")
    assert rows["id"].tolist() == [*held.ids]
    for column, latents in (("nll", None), ("nll_given_latent", held.latents)):
        again = evaluation.model.score(held.texts, ids=held.tokens, latents=latents, draws=2, seed=3)
        assert rows[column].tolist() == pytest.approx(again.nll)


@pytest.mark.parametrize("name", ["texts.txt", "texts.txt.gz"])
def test_other_texts_are_lines_of_a_file(name: str, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    raw = "first\r\n\n  \nsecond \u2028 still second\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    source = TextFile(name="other", path=str(tmp_path / name))
    assert read_lines(source) == ["first", "second \u2028 still second"]
    (tmp_path / name).write_bytes(raw[:-5] if name.endswith("gz") else b"\xff\xfe")
    with refuses(EvaluationError, "other", name):
        read_lines(source)
