"""Evaluation of a classifier: model and baseline on the same examples, classes compared by name, the chosen strength."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.families.classification.builds import ANSWERS, CASES, root_of

from mm_ldlm import MMLDLM
from mm_ldlm.core import parse, parse_kind
from mm_ldlm.data.dataset import commit
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.sentences import sample_rows
from mm_ldlm.data.store import ShardStore
from mm_ldlm.evaluation.config import EvaluationConfig
from mm_ldlm.evaluation.suites.base import Evaluation
from mm_ldlm.families.classification.labels import LabelNames, Labels
from mm_ldlm.families.classification.suite import Classification, ClassificationSection, labels_of
from mm_ldlm.inference.loading import Parts
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES

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
    names = (*plain.names, *made)
    return commit(tmp_path / "dataset", stores={name: tmp_path / name for name in names})


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
    assert set(suite.figures(found)) == {"plot_confusion", "plot_reliability"}


def test_texts_are_classified_by_their_tokens_and_the_baseline_can_be_left_out(dataset: Any) -> None:
    found, _ = Classification().evaluate(given(dataset, "dit", baseline_rows=0, examples=5))
    assert "logistic_regression" not in found
    assert found["model"]["examples"] == 5


def test_the_strength_of_the_baseline_is_the_best_on_validation_examples(dataset: Any) -> None:
    """The weakest regularisation separates the classes; the strongest one predicts the most frequent class."""
    found, _ = Classification().evaluate(given(dataset, baseline_grid=[1e-6, 10.0], baseline_rows=20))
    assert found["logistic_regression"]["inverse_regularisation"] == 10.0
    assert found["logistic_regression"]["trained_on"] == 20


def test_classes_are_compared_by_name(dataset: Any) -> None:
    rows = sample_rows(dataset.rows("test"), 9, seed=0)
    one, other = (labels_of(dataset, rows, list(names)) for names in (ANSWERS, ANSWERS[::-1]))
    assert one.tolist() == (2 - other).tolist() == (rows % 3).tolist()
