"""Classes on request, and their evaluation: batching changes nothing, pairs are antisymmetric, and one baseline is beside them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.families.classification.builds import ANSWERS, CASES, NAMES, root_of
from tests.inference.runs import tokenizer

from mm_ldlm import MMLDLM
from mm_ldlm.core import SamplingError, parse, parse_kind
from mm_ldlm.data.dataset_manifest import commit
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.held_out import sample_rows
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.store import ShardStore
from mm_ldlm.evaluation.config import EvaluationConfig
from mm_ldlm.evaluation.suites.base import Evaluation
from mm_ldlm.families.classification.labels import LabelNames, Labels
from mm_ldlm.families.classification.suite import (
    Classification,
    ClassificationEvalConfig,
    ClassificationSection,
    labels_of,
    logistic_regression,
)
from mm_ldlm.inference.loading import Parts
from mm_ldlm.models.base import MODELS, DataShape
from mm_ldlm.objectives.base import OBJECTIVES

TEXTS = ("w1 w2 w3", "w4", "w5 w6", "w1 w1 w1 w1 w1 w1")
LATENTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
DIM = 5


def loaded(case: str, **options: Any) -> MMLDLM:
    """A classifier with random weights, of texts of the words w0 … w9."""
    words = tokenizer(10, 6)
    ids = {"vocab_size": words.vocab_size, "pad_id": words.pad_id, "mask_id": words.mask_id}
    shape = DataShape(**ids, max_length=6, fields={"latents": (DIM,)})
    model, objective = CASES[case]
    labels = ANSWERS if case == "pairs" else NAMES
    root = root_of(model, objective, labels=labels, spread=0.5, shape=shape)
    config = parse_kind(OBJECTIVES, {"kind": "classification", **objective}, at="objective")
    able = config.capabilities(parse_kind(MODELS, model, at="model"))
    normaliser = Normaliser("standard", np.zeros(DIM), np.full(DIM, 2.0), False, rows=9)
    parts = Parts(root.objective.generative_model(root.model), able, words, {"normaliser": normaliser})
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
    vars(model)["targets"] = lambda items, *, too_long, **_: ((too_long,) * 4, LATENTS)
    assert set(model.classify(LATENTS, too_long="truncate").sources) == {"truncate"}


def test_unknown_words_of_the_first_text_are_counted_and_both_texts_can_be_truncated() -> None:
    model = loaded("pairs")
    assert model.classify("w1 zebra", second="w2").unknown.tolist() == [0.5]
    long, cut = (model.classify(text, second=text, too_long="truncate") for text in ("w1 " * 7, "w1 " * 6))
    assert (long.probabilities == cut.probabilities).all()


@pytest.mark.parametrize(
    ("case", "ask", "named"),
    [
        ("dit", lambda m: m.classify(TEXTS, second=TEXTS), "second texts"),
        ("latents", lambda m: m.classify(LATENTS, second=TEXTS), "second texts"),
        ("pairs", lambda m: m.classify(TEXTS), "second text"),
        ("pairs", lambda m: m.classify(TEXTS, second="w1"), 4),
        ("dit", lambda m: m.classify("w1 " * 7), 7),
        ("dit", lambda m: m.classify(TEXTS, too_long="trunc"), "trunc"),
        ("latents", lambda m: m.classify(LATENTS[:, :3]), 3),
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


# -- evaluation of a classifier ----------------------------------------------------------------------------------------


LABEL = f"{__name__}:answer"


def answer(text: str) -> str:
    """The class of a text: its first word modulo 3."""
    return ANSWERS[int(text.split()[0][1:]) % 3]


@pytest.fixture
def dataset(tmp_path: Path, write_dataset: Callable[..., Any]) -> Any:
    """90 texts of three classes, which the largest coordinate of their latents shows."""
    number_n = np.arange(90) % 9
    latents = np.random.default_rng(0).normal(size=(90, 4)) * 0.2 + np.eye(4)[number_n % 3] * 2
    texts = [f"w{number} w{i // 9} w{10 + i % 7}" for i, number in enumerate(number_n)]
    plain = write_dataset(tmp_path, texts, [("test", "validation", "train", "train", "train")[i % 5] for i in range(90)],
                          latents=latents)  # fmt: skip
    config = parse_kind(OBJECTIVES, {"kind": "classification", "label": LABEL}, at="objective")
    made: dict[str, Any] = {}
    for feature in (Labels(config), LabelNames(config)):
        feature.make(Inputs(plain.records, plain.tokens, plain.tokenizer, made), tmp_path / feature.name)
        made[feature.name] = ShardStore.open(tmp_path / feature.name)
    return commit(tmp_path / "dataset", stores={name: tmp_path / name for name in (*plain.names, *made)})


def given(dataset: Any, case: str = "linear", **section: Any) -> Evaluation:
    model, objective = CASES[case]
    root = root_of(model, objective, labels=ANSWERS, spread=0.7, shape=dataset.shape)
    able = parse_kind(OBJECTIVES, {"kind": "classification", **objective}, at="objective").capabilities(
        parse_kind(MODELS, model, at="model")
    )
    normalisers = {"normaliser": dataset.normaliser("latents")}
    loaded = MMLDLM(Parts(root.objective.generative_model(root.model), able, dataset.tokenizer, normalisers))
    config = parse(EvaluationConfig, {"bootstrap": {"replicates": 20}}, at="evaluation")
    own = parse(ClassificationSection, {"evaluation": section}, at="classification")
    return Evaluation(loaded, dataset, {}, config, 0, {"classification": own})


def test_the_model_and_the_baseline_are_measured_on_the_same_examples(dataset: Any) -> None:
    asked, suite = given(dataset), Classification()
    found, rows = suite.evaluate(asked)
    assert rows is None
    assert found["model"]["examples"] == found["logistic_regression"]["examples"] == 18
    assert found["logistic_regression"]["accuracy"]["value"] == 1.0
    assert found["logistic_regression"]["trained_on"] == 54
    expected = asked.model.classify(dataset.field("latents").column.take(dataset.rows("test")))
    hits = [ANSWERS.index(label) == row % 3 for label, row in zip(expected.labels, dataset.rows("test"), strict=True)]
    assert found["model"]["accuracy"]["value"] == pytest.approx(np.mean(hits))
    numbers = suite.numbers(found)
    assert {headline.key for headline in suite.headlines({})} <= numbers.keys()
    assert set(figures := suite.figures(found)) == {"plot_confusion", "plot_reliability"}
    bins = [len(found[name]["reliability"]) for name in ("model", "logistic_regression")]
    assert [len(line.x) for line in figures["plot_reliability"].data[1:]] == bins != bins[::-1]


def test_texts_are_classified_by_their_tokens_and_the_baseline_can_be_left_out(dataset: Any) -> None:
    found, _ = Classification().evaluate(replace(given(dataset, "dit", baseline_rows=0, examples=5), seed=3))
    assert "logistic_regression" not in found
    drawn_K = np.bincount(sample_rows(dataset.rows("test"), 5, seed=3) % 3, minlength=3)
    assert np.sum(found["model"]["confusion"]["counts"], axis=1).tolist() == drawn_K.tolist() != [0, 0, 0]


@pytest.mark.parametrize(("shift", "best"), [(0, 10.0), (1, 1e-6)])
def test_the_strength_of_the_baseline_is_the_best_on_validation_examples(
    shift: int, best: float, dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weakest regularisation separates the classes, also where validation examples have other ones; the strongest
    one predicts the most frequent class."""
    monkeypatch.setattr("mm_ldlm.families.classification.suite.labels_of", lambda dataset, rows, names: (
        labels_of(dataset, rows, names) + shift * np.isin(rows, dataset.rows("validation"))
    ) % 3)  # fmt: skip
    monkeypatch.setattr("mm_ldlm.families.classification.suite.STRENGTHS", (1e-6, 10.0))
    found, _ = Classification().evaluate(given(dataset, baseline_rows=20))
    assert found["logistic_regression"]["inverse_regularisation"] == best
    assert found["logistic_regression"]["trained_on"] == 20


def test_classes_are_compared_by_name(dataset: Any) -> None:
    rows = sample_rows(dataset.rows("test"), 9, seed=0)
    one, other = (labels_of(dataset, rows, list(names)) for names in (ANSWERS, ANSWERS[::-1]))
    assert one.tolist() == (2 - other).tolist() == (rows % 3).tolist()
    assert labels_of(dataset, rows, list(ANSWERS[:2])).tolist() == np.where(rows % 3 == 2, -1, rows % 3).tolist()
    names, train = ["absent", *ANSWERS], sample_rows(dataset.rows("train"), 54, seed=0)
    found, _ = logistic_regression(dataset, train, rows, names=names, config=ClassificationEvalConfig(), seed=0)
    assert found.argmax(axis=1).tolist() == (one + 1).tolist(), "a class without training examples shifts no other"
