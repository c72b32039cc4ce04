"""Metrics of inversion against the libraries that define them."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from tests.inference.runs import make

from mm_ldlm.data.held_out import read_sentences, rows_of_ids, sample_rows
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.suites.base import Evaluation
from mm_ldlm.evaluation.suites.inversion import (
    Inversion,
    bag_of_words,
    bleu_of_counts,
    by_length,
    exact_ratio,
    memorisation,
    reembedding_cosine,
    score_rows,
    scores_of_part,
    summarise,
    sweep,
    token_set_f1,
)

WORDS = ["the", "cat", "sat", "on", "a", "mat", ".", "Dog's", "ran", "fast"]
TOKENIZER: Any = SimpleNamespace(decode_batch=lambda rows: [" ".join(WORDS[i] for i in row) for row in rows])
FEW = Bootstrap(50)
rows = st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=9)
pairs = st.lists(st.tuples(rows, rows), min_size=2, max_size=12)


def table(pairs: list[tuple[list[int], list[int]]], **more: Any) -> pd.DataFrame:
    return score_rows(
        TOKENIZER, [a for a, _ in pairs], [b for _, b in pairs], ids=[str(i) for i in range(len(pairs))], **more
    )


@settings(max_examples=20)
@given(pairs)
def test_the_metrics_are_those_of_sacrebleu_and_rouge_score(pairs: list[tuple[list[int], list[int]]]) -> None:
    scored = table(pairs)
    truth, made = scored["reference"].tolist(), scored["hypothesis"].tolist()
    found = {name: value["value"] for name, value in summarise(scored, FEW).items()}
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(made, [truth]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(made, [truth]).score)
    sentences = [
        sacrebleu.sentence_bleu(m, [t], use_effective_order=False).score for m, t in zip(made, truth, strict=True)
    ]
    assert found["sentence_bleu"] == pytest.approx(np.mean(sentences))
    scorer = RougeScorer(["rougeL"])
    rouge = [scorer.score(t, m)["rougeL"].fmeasure for t, m in zip(truth, made, strict=True)]
    assert found["rouge_l"] == pytest.approx(np.mean(rouge))
    assert found["exact_match"] == pytest.approx(np.mean([a == b for a, b in pairs]))
    part, same = scores_of_part(scored, FEW), ("token_accuracy", "bleu", "chrf", "rouge_l")
    assert [part[name] for name in same] == pytest.approx([found[name] for name in same])


@settings(max_examples=20)
@given(pairs)
def test_a_missing_or_surplus_token_is_an_error(pairs: list[tuple[list[int], list[int]]]) -> None:
    right = sum(x == y for a, b in pairs for x, y in zip(a, b, strict=False))
    found = summarise(table(pairs), FEW)["token_accuracy"]["value"]
    assert found == pytest.approx(right / sum(max(len(a), len(b)) for a, b in pairs))


@settings(max_examples=20)
@given(pairs, st.integers(0, 20))
def test_resampled_bleu_is_the_bleu_of_the_repeated_sentences(
    pairs: list[tuple[list[int], list[int]]], seed: int
) -> None:
    scored = table(pairs)
    counts = next(Bootstrap(3, seed=seed).count_blocks(len(pairs)))
    for row, found in zip(counts.astype(int), bleu_of_counts(scored)(counts), strict=True):
        repeated = scored.loc[np.repeat(scored.index, row)]
        expected = sacrebleu.corpus_bleu(repeated["hypothesis"].tolist(), [repeated["reference"].tolist()]).score
        assert found == pytest.approx(expected)


@given(st.lists(st.sampled_from(WORDS)), st.lists(st.sampled_from(WORDS)))
def test_token_f1_compares_sets_symmetrically(a: list[str], b: list[str]) -> None:
    found = token_set_f1(" ".join(a), " ".join(b))
    assert 0 <= found <= 1
    assert found == token_set_f1(" ".join(b), " ".join(a)) == token_set_f1(" ".join(a + a), " ".join(reversed(b)))
    assert found == 1 or set(a) != set(b)


def test_what_the_tokenizer_discards_counts_as_written_only() -> None:
    same = [([0, 1, 2, 3, 4], [0, 1, 2, 3, 4]), ([4, 1], [4, 1]), ([4, 1], [4, 1])]
    written = ["The cat sat on a", "a cat", "a word unknown to it"]
    found = summarise(table(same, written=written, cosine=np.array([0.5, 1.0, 0.75])), FEW)
    kinds = ("exact_match", "exact_match_as_written", "exact_match_up_to_case")
    assert [found[kind]["value"] for kind in kinds] == pytest.approx([1, 1 / 3, 2 / 3])
    assert found["token_set_f1_as_written"]["value"] < found["token_set_f1"]["value"] == 1
    assert found["bleu_as_written"]["value"] < found["bleu"]["value"]
    assert found["cosine"]["value"] == 0.75
    assert "cosine" not in summarise(table(same), FEW)


@settings(max_examples=20)
@given(st.lists(rows | rows.map(lambda row: 5 * row), min_size=1, max_size=20))
def test_every_sentence_is_in_one_bucket_of_length(texts: list[list[int]]) -> None:
    lines = by_length(table([(text, text) for text in texts]), FEW)
    assert sum(line["rows"] for line in lines) == len(texts)
    assert all(line["exact_match"]["value"] == line["token_accuracy"] == 1 for line in lines)
    ends = [(int(line["tokens"].split("–")[0]), int(line["tokens"].split("–")[-1])) for line in lines]
    assert all(a < b for (_, a), (b, _) in pairwise(ends))
    assert [line["rows"] for line in lines] == [sum(low <= len(text) <= high for text in texts) for low, high in ends]


def test_the_numbers_are_those_of_the_sentences_that_the_seed_draws(evaluation: Evaluation) -> None:
    given, model, dataset = evaluation, evaluation.model, evaluation.dataset
    found, rows = Inversion().evaluate(given)
    best = given.samples["l2t"][given.samples["l2t"]["best"]].dropna(subset="id")
    assert rows["id"].tolist() == best["id"].tolist()
    held = read_sentences(dataset, rows_of_ids(dataset, best["id"].tolist()))
    assert rows["cosine"].tolist() == pytest.approx((model.encode(best["text"].tolist()) * held.latents).sum(axis=1))
    part = held.some(5, seed=3)
    for line, point in zip(found["sweep"], given.config.inversion.sweep, strict=True):
        made = model.invert(part.latents, sampler=point.sampler, length=point.length, search=point.search, seed=3)
        assert (line["model_calls"], line["encoder_calls"]) == (made.model_calls.mean(), made.encoder_calls.mean())
        assert line["cosine"]["value"] == pytest.approx((model.encode(made.texts) * part.latents).sum(axis=1).mean())
        assert line["reference"] == "search"
    train = dataset.values("latents")[sample_rows(dataset.rows("train"), 7, seed=3)]
    nearest = (held.latents @ train.T).max(axis=1).mean()
    assert Inversion().numbers(found)["baseline.nearest_training_sentence.cosine"] == pytest.approx(nearest)
    assert found["baselines"]["bag_of_words"]["training_sentences"] == 7
    assert [(each["source"], each["rows"]) for each in found["by_source"]] == sorted(Counter(held.sources).items())
    own = given.samples["l2t"][given.samples["l2t"]["id"].isna()]
    assert "held-out" in (Inversion().skip_reason(replace(given, samples={"l2t": own})) or "")
    alone = replace(given, model=make(encoder=None))
    assert [(line["label"], line["reference"]) for line in sweep(part, alone)] == [
        ("random", "ancestral"), ("ancestral", "ancestral")
    ]  # fmt: skip
    first = replace(given.config, inversion=replace(given.config.inversion, reference="random"))
    assert {line["reference"] for line in sweep(part, replace(given, config=first))} == {"random"}


def test_few_exact_matches_have_no_ratio_and_wrong_outputs_are_memorised_by_themselves() -> None:
    hits = pd.DataFrame({"exact": [True] * 7 + [False] * 3})
    assert exact_ratio(hits, hits, FEW) is None
    assert exact_ratio(hits, hits.assign(exact=True), FEW)["value"] == pytest.approx(0.7)
    found = memorisation(["A", "b", "c"], ["a", "x", "c"], ["B", "c"])
    assert found == pytest.approx({"outputs": 2 / 3, "wrong_outputs": 1, "wrong": 1, "references": 1 / 3})


def test_an_empty_output_has_no_cosine() -> None:
    model = SimpleNamespace(
        no_encoder=None, encode=lambda texts, *, too_long: np.eye(3)[["abc".index(text) for text in texts]]
    )
    assert reembedding_cosine(model, ["", "b", "b", "c"], np.eye(3)[[0, 1, 0, 2]]).tolist() == [0, 1, 0, 1]


def test_the_bag_of_words_recovers_words_that_the_latent_contains_linearly() -> None:
    draw = np.random.default_rng(0)
    tokens = [sorted(draw.choice(30, size=draw.integers(2, 6), replace=False).tolist()) for _ in range(400)]
    present = np.array([[float(word in row) for word in range(30)] for row in tokens])
    latents = present @ draw.normal(size=(30, 64))
    found = bag_of_words(latents[350:], latents[:350], tokens[:350])
    assert [sorted(row) for row in found] == tokens[350:]
    right_order = sum(a < b for row in found for a, b in pairwise(row))  # small numbers come first in training
    assert right_order > 0.8 * sum(len(row) - 1 for row in found)
