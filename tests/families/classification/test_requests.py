"""Requests for classes: batching changes nothing, pairs are antisymmetric, and impossible requests are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.families.classification.builds import ANSWERS, CASES, NAMES, root_of
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm import MMLDLM
from mm_ldlm.core import SamplingError, parse_kind
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.inference.loading import Parts
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES

TEXTS = ("w1 w2 w3", "w4", "w5 w6", "w1 w1 w1 w1 w1 w1")
LATENTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
DIM = 5


def loaded(case: str, **options: Any) -> MMLDLM:
    """A classifier with random weights, of texts of the words w0 … w9."""
    base = Tokenizer(models.WordLevel({f"w{i}": i for i in range(10)} | {"[UNK]": 10}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = TextTokenizer(base, max_length=6)
    ids = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id, "mask_id": tokenizer.mask_id}
    shape = DataShape(**ids, max_length=6, fields={"latents": (DIM,)})
    model, objective = CASES[case]
    labels = ANSWERS if case == "pairs" else NAMES
    root = root_of(model, objective, labels=labels, spread=0.5, shape=shape)
    config = parse_kind(OBJECTIVES, {"kind": "classification", **objective}, at="objective")
    able = config.capabilities(parse_kind(MODELS, model, at="model"))
    normaliser = Normaliser("standard", np.zeros(DIM), np.full(DIM, 2.0), False, rows=9)
    parts = Parts(root.objective.generative_model(root.model), able, tokenizer, {"normaliser": normaliser})
    return MMLDLM(parts, **options)


def classify(model: MMLDLM, case: str, rows: slice = slice(None)) -> Any:
    if case == "latents":
        return model.classify(LATENTS[rows])
    return model.classify(TEXTS[rows], second=TEXTS[::-1][rows] if case == "pairs" else None)


@pytest.mark.parametrize("case", ["dit", "mmdit", "pairs", "latents"])
def test_the_classes_of_an_example_do_not_depend_on_the_others(case: str) -> None:
    together = classify(loaded(case), case)
    np.testing.assert_allclose(together.probabilities.sum(axis=1), 1)
    assert together.labels == tuple(together.names[i] for i in together.probabilities.argmax(axis=1))
    assert float(together.probabilities.std(axis=0).min()) > 1e-3, "the classes depend on the example"
    small = loaded(case, batch_tokens=1)
    for row in range(4):
        alone = classify(small, case, slice(row, row + 1))
        np.testing.assert_allclose(alone.probabilities[0], together.probabilities[row], atol=1e-5)
    table = together.to_frame()
    assert list(table["label"]) == list(together.labels)
    assert len(table) == len(together) == 4


def test_latents_are_standardised_and_their_norms_reported() -> None:
    model = loaded("latents")
    found = model.classify(LATENTS)
    logits = model.model.class_logits(torch.from_numpy(LATENTS / 2))
    np.testing.assert_allclose(found.probabilities, logits.softmax(1).detach(), rtol=1e-5)
    np.testing.assert_allclose(found.latent_norms, np.sqrt((LATENTS**2).mean(axis=1)) / 2, rtol=1e-5)
    assert model.classify_latents(LATENTS, ["a", None, "b", None]).sources == ("a", None, "b", None)


def test_exchanging_two_texts_exchanges_their_probabilities_and_unknown_words_are_counted() -> None:
    model = loaded("pairs")
    there, back = model.classify(TEXTS, second=TEXTS[::-1]), model.classify(TEXTS[::-1], second=TEXTS)
    np.testing.assert_allclose(there.probabilities, back.probabilities[:, [1, 0, 2]], atol=1e-5)
    assert model.classify("w1 zebra", second="w2").unknown.tolist() == [0.5]


@pytest.mark.parametrize(
    ("case", "ask", "named"),
    [
        ("dit", lambda m: m.classify(TEXTS, second=TEXTS), "second texts"),
        ("latents", lambda m: m.classify(LATENTS, second=TEXTS), "second texts"),
        ("pairs", lambda m: m.classify(TEXTS), "second text"),
        ("pairs", lambda m: m.classify(TEXTS, second="w1"), 4),
        ("pairs", lambda m: m.classify_tokens([[1]], ["w1"], second=[[1] * 7]), 7),
        ("dit", lambda m: m.classify("w1 " * 7), 7),
        ("dit", lambda m: m.classify(TEXTS, too_long="trunc"), "trunc"),
        ("dit", lambda m: m.classify_tokens([[99]], ["w1"]), 99),
        ("latents", lambda m: m.classify(LATENTS[:, :3]), 3),
        ("latents", lambda m: m.classify_latents(LATENTS, ["a"]), 4),
        ("dit", lambda m: m.generate(2), "classify"),
        ("dit", lambda m: m.score("w1"), "classify"),
    ],
)
def test_impossible_requests_are_refused(case: str, ask: Any, named: Any, refuses: Callable[..., Any]) -> None:
    with refuses(SamplingError, named):
        ask(loaded(case))


@pytest.mark.parametrize("case", ["dit", "latents"])
def test_pitfall_33_classes_that_are_not_finite_are_refused(case: str, refuses: Callable[..., Any]) -> None:
    model = loaded(case)
    with torch.no_grad():
        model.model.objective.head.linear.weight[0, 0] = torch.nan
    with refuses(SamplingError):
        classify(model, case)
