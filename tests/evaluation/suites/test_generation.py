"""Diversity of texts, and their cost under another model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluation.suites.conftest import Run
from tests.inference.runs import EXACT, WORD_TABLE, write_run

from mm_ldlm.core import EvaluationError
from mm_ldlm.data.held_out import held_out, texts_of_split
from mm_ldlm.evaluation.config import GenerationConfig
from mm_ldlm.evaluation.suites import flat_metrics, suites
from mm_ldlm.evaluation.suites.base import Evaluation, score
from mm_ldlm.evaluation.suites.generation import (
    CausalModel,
    Generation,
    attested_bigrams,
    diversity,
    judge_of,
    memorised,
    self_bleu,
)
from mm_ldlm.training.checkpoints.provenance import MADE_BY

rows = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=2, max_size=7)


@settings(max_examples=40)
@given(rows)
def test_diversity_of_equal_texts_is_least(texts: list[list[int]]) -> None:
    found, same = diversity(texts), diversity([texts[0]] * len(texts))
    assert same["unique"] == 1 / len(texts) <= found["unique"]
    assert same["entropy_corpus"] == pytest.approx(same["entropy_sample"])
    assert found["entropy_corpus"] >= found["entropy_sample"] - 1e-9 or len({len(row) for row in texts}) > 1
    assert all(0 <= value <= 1 for value in found["distinct"].values())
    assert found["distinct"][1] == len({t for row in texts for t in row}) / sum(map(len, texts))


def test_equal_texts_have_a_self_bleu_of_100_and_disjoint_ones_none() -> None:
    assert self_bleu([[1, 2, 3, 4, 5]] * 3) == pytest.approx(100)
    assert diversity([[1, 2, 3, 4], [5, 6, 7, 8]])["entropy_sample"] == pytest.approx(np.log(4))
    assert self_bleu([[i * 9 + j for j in range(6)] for i in range(9)]) < 15
    many = [[i % 3, i % 5, i % 7, i] for i in range(60)]
    assert self_bleu(many, texts=20, seed=1) == self_bleu(many, texts=20, seed=1) != self_bleu(many, texts=20, seed=2)


@pytest.fixture(scope="module")
def causal_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small GPT-2 of random weights, whose tokenizer knows six words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("causal")
    base = Tokenizer(models.WordLevel({word: i for i, word in enumerate("abcdef<")}, unk_token="f"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=base, bos_token="<").save_pretrained(folder)
    size = GPT2Config(vocab_size=7, n_positions=64, n_embd=8, n_layer=1, n_head=1)
    GPT2LMHeadModel(size).save_pretrained(folder)
    return folder


def test_a_causal_model_scores_every_token_whatever_the_batch(causal_model: Path, refuses: Callable[..., Any]) -> None:
    model = CausalModel(str(causal_model))
    texts = ["a b c", "d", "e a d b c a", "b b"]
    nll, count = model.nll(texts, batch_size=2)
    assert count.tolist() == [3, 1, 6, 2]
    for text, total in zip(texts, nll, strict=True):
        ids = torch.tensor([[6, *("abcdef".index(word) for word in text.split())]])
        with torch.no_grad():
            loss = model.model(input_ids=ids, labels=ids).loss
        assert total == pytest.approx(float(loss) * (ids.shape[1] - 1), rel=1e-4)
    assert model.nll(texts, batch_size=1)[0] == pytest.approx(nll, rel=1e-4)
    with refuses(EvaluationError, "64", "65"):
        model.nll(["a " * 64])


def test_pitfall_26_generative_perplexity_comes_with_the_diversity_of_the_same_texts(
    run: Run, causal_model: Path
) -> None:
    config = replace(run.given.config, generation=GenerationConfig(causal_model=str(causal_model)))
    metrics, _ = score(suites()["generation"], replace(run.of("generation"), config=config, seed=5))
    assert metrics[MADE_BY]["seed"] == 5
    numbers = flat_metrics({"generation": metrics}, {})
    for side in ("unconditional", "real"):
        names = ("perplexity", "entropy_sample", "distinct_2", "self_bleu")
        assert {f"{side}.{name}" for name in names} <= numbers.keys()


@pytest.mark.parametrize(("count", "held"), [(24, 20), (12, 12)])
def test_texts_that_are_not_empty_are_compared_with_as_many_held_out_ones_as_there_are(
    count: int, held: int, evaluation: Evaluation
) -> None:
    table = evaluation.samples["unconditional"][-count:]
    found, _ = Generation().evaluate(replace(evaluation, samples={"unconditional": table}))
    real = held_out(evaluation.dataset, count=count, seed=3, split="test")
    assert (found["texts"], found["empty"], len(real)) == (count, pytest.approx(1 / count), held)
    for side, texts, rows in (
        ("generated", table["text"][:-1], table["tokens"][:-1]), ("real", real.texts, real.tokens),
    ):  # fmt: skip
        attested = attested_bigrams([texts], texts_of_split(evaluation.dataset, "train"))[0]
        assert found[side].pop("attested_bigrams")["value"] == pytest.approx(attested.mean())
        assert found[side] == diversity([*rows], seed=3)


def test_a_run_scores_texts_up_to_the_length_that_it_reads(tmp_path: Path) -> None:
    judge = judge_of(
        GenerationConfig(causal_model=str(write_run(tmp_path / "run", model=WORD_TABLE, objective=EXACT))), device="cpu"
    )
    nll, count = judge.nll(["w1 w2", "w3 " * 40])
    assert nll == pytest.approx(judge.model.score(["w1 w2", "w3 " * 12]).nll)
    assert count.tolist() == [2, 12]
    with pytest.raises(EvaluationError, match="exact likelihoods"):
        judge_of(GenerationConfig(causal_model=str(write_run(tmp_path / "other"))), device="cpu")


def test_a_causal_model_that_is_not_here_is_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    with refuses(EvaluationError, tmp_path):
        CausalModel(str(tmp_path))


# -- overlap with the training texts -----------------------------------------------------------------------------------

sentences = st.lists(st.text("abBÄ .,", min_size=1, max_size=8), max_size=6)


@given(sentences, sentences)
def test_memorised_texts_are_training_texts_up_to_case_and_spaces(outputs: list[str], training: list[str]) -> None:
    plain = {" ".join(text.casefold().split()) for text in training}
    assert memorised(outputs, iter(training)).tolist() == [" ".join(o.casefold().split()) in plain for o in outputs]


@given(sentences, sentences)
def test_all_word_pairs_of_training_texts_are_attested(outputs: list[str], training: list[str]) -> None:
    mine, theirs = attested_bigrams([training, outputs], iter(training))
    assert (mine == 1).all()
    assert ((theirs >= 0) & (theirs <= 1)).all()


def test_pairs_are_counted_with_the_edges_of_the_text() -> None:
    ((found,),) = attested_bigrams([["the dog sat"]], ["the dog ran", "a cat sat"])
    assert found == 3 / 4  # edge-the, the-dog, sat-edge; not dog-sat
