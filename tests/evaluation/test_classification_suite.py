"""The classification suite on a small dataset: the model, the baseline, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm import MMLDLM
from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.data import commit
from mm_ldlm.data.sentences import sample_rows
from mm_ldlm.evaluation.config import BootstrapConfig, ClassificationEvalConfig
from mm_ldlm.families.classification import suite
from mm_ldlm.families.classification.labels import Labels, write_label_names, write_labels, write_pair_tokens
from mm_ldlm.models.base import init_weights
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.registry import OBJECTIVES

NAMES = ("first", "second", "similar")
OPTIONS: dict[str, Any] = {"bootstrap": BootstrapConfig(replicates=20), "seed": 0}
TRUNK = {"kind": "dit", "dim": 8, "depth": 1, "heads": 2}


@pytest.fixture
def dataset(tmp_path: Path, write_dataset: Callable[..., Any]) -> Any:
    """90 texts of three classes, which the signs of two coordinates of their latents determine."""
    draw = np.random.default_rng(0)
    number_n = np.arange(90) % 3
    latents = draw.normal(size=(90, 4)) * 0.2 + np.eye(4)[number_n] * 2
    texts = [f"w{i % 10} w{i // 10} w{10 + i % 7}" for i in range(90)]
    splits = ["test" if i % 5 == 0 else "validation" if i % 5 == 1 else "train" for i in range(90)]
    plain = write_dataset(tmp_path, texts, splits, latents=latents)
    labels = Labels(NAMES, number_n, {})
    write_labels(plain.records, plain.index, labels, tmp_path / "labels", key="label")
    write_label_names(labels, tmp_path / "label_names")
    write_pair_tokens(plain.records, plain.tokenizer, tmp_path / "pair_tokens")
    names = (*plain.names, "labels", "label_names", "pair_tokens")
    return commit(tmp_path / "dataset", stores={name: tmp_path / name for name in names})


def loaded(dataset: Any, model: dict[str, Any], objective: dict[str, Any], names: tuple[str, ...] = NAMES) -> MMLDLM:
    model_config = parse_kind(MODELS, model, at="model")
    config = parse_kind(OBJECTIVES, objective, at="objective")
    generator = torch.Generator().manual_seed(0)
    built = model_config.build(dataset.shape, generator=generator)
    bytes_of = [list(name.encode().ljust(7, b"\0")) for name in names]
    made = config.build(dataset.shape, label_names=torch.tensor(bytes_of, dtype=torch.uint8))
    made.attach(built)
    init_weights(made, generator)
    for p in made.parameters():
        torch.nn.init.normal_(p, generator=generator)
    return MMLDLM(
        made.generative_model(built), config.capabilities(model_config), dataset.tokenizer, dataset.normaliser
    )  # fmt: skip


def test_the_model_and_the_baseline_are_measured_on_the_same_examples(dataset: Any) -> None:
    model = loaded(dataset, {"kind": "latent_mlp", "depth": 0}, {"kind": "classification"})
    found = suite.evaluate(model, dataset, config=ClassificationEvalConfig(), **OPTIONS)
    assert found["model"]["examples"] == found["logistic_regression"]["examples"] == 18
    assert found["logistic_regression"]["accuracy"]["value"] == 1.0
    assert found["logistic_regression"]["trained_on"] == 54
    assert found["model"]["classes"] == list(NAMES)
    latents = dataset.latents.take(dataset.rows("test"))
    expected = model.classify(latents)
    hits = [NAMES.index(label) == row % 3 for label, row in zip(expected.labels, dataset.rows("test"), strict=True)]
    assert found["model"]["accuracy"]["value"] == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("validation", [True, False])
def test_the_strength_of_the_baseline_is_the_best_on_validation_examples(
    validation: bool, dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second and the third strength are right on every example; the first of them is chosen."""
    asked: list[Any] = []

    class Recorded:
        classes_ = np.array([2, 0])

        def __init__(self, **options: Any) -> None:
            self.options = options

        def fit(self, found: Any, classes: Any) -> Recorded:
            asked.append(("fit", self.options, found, classes))
            return self

        def predict(self, found: Any) -> Any:
            asked.append(("predict", self.options, found))
            return found.argmax(1) * (self.options["C"] > 0.1)

        def predict_proba(self, found: Any) -> Any:
            asked.append(("chosen", self.options, found))
            return np.tile([0.75, 0.25], (len(found), 1))

    monkeypatch.setattr("sklearn.linear_model.LogisticRegression", Recorded)
    options = []
    monkeypatch.setattr(suite, "measure", lambda true_n, found_nK, **how: options.append((found_nK, how)) or {})
    rows_of = dataset.rows
    if not validation:
        monkeypatch.setattr(
            type(dataset), "rows", lambda self, split: rows_of(split)[: 0 if split == "validation" else None]
        )
    config = ClassificationEvalConfig(
        split="test", examples=7, bins=4, baseline_rows=30, baseline_grid=(0.1, 0.5, 2.0), baseline_iterations=77
    )
    model = loaded(dataset, {"kind": "latent_mlp", "depth": 0}, {"kind": "classification"})
    bootstrap = BootstrapConfig(replicates=33, level=0.75)
    found = suite.evaluate(model, dataset, config=config, bootstrap=bootstrap, seed=5)

    def standardised(split: str, count: int) -> tuple[Any, Any]:
        rows = sample_rows(rows_of(split), count, seed=5)
        return dataset.normaliser.standardise(dataset.latents.take(rows)), rows % 3

    fits, predictions = ([each for each in asked if each[0] == kind] for kind in ("fit", "predict"))
    strengths = [0.1, 0.5, 2.0] if validation else [0.1]
    assert [each[1] for each in fits] == [{"C": strength, "max_iter": 77} for strength in strengths]
    for _, _, vectors, classes in fits:
        np.testing.assert_allclose(vectors, standardised("train", 30)[0], rtol=1e-6)
        assert classes.tolist() == standardised("train", 30)[1].tolist()
    assert len(predictions) == (3 if validation else 0)
    for _, _, vectors in predictions:
        np.testing.assert_allclose(vectors, standardised("validation", 7)[0], rtol=1e-6)
    (_, chosen, vectors) = asked[-1]
    np.testing.assert_allclose(vectors, standardised("test", 7)[0], rtol=1e-6)
    best = 0.5 if validation else 0.1
    about = found["logistic_regression"]
    assert (chosen["C"], about["inverse_regularisation"], about["trained_on"]) == (best, best, 30)
    (_, how), (probability_nK, same) = options
    assert probability_nK.tolist() == [[0.25, 0, 0.75]] * 7, "in the order of the classes, also without one of them"
    assert how == same == {"names": list(NAMES), "bins": 4, "replicates": 33, "seed": 5, "level": 0.75}


def test_classes_are_compared_by_name(dataset: Any) -> None:
    """A run whose classes are in another order, as after another validation, is scored by their names."""
    assert suite.labels_of(dataset, np.array([0, 1, 2]), ["similar", "first", "second"]).tolist() == [1, 2, 0]


def test_the_baseline_can_be_left_out(dataset: Any) -> None:
    model = loaded(dataset, {"kind": "latent_mlp", "depth": 0}, {"kind": "classification"})
    found = suite.evaluate(model, dataset, config=ClassificationEvalConfig(baseline_rows=0, examples=5), **OPTIONS)
    assert "logistic_regression" not in found
    assert found["model"]["examples"] == 5


def test_texts_and_pairs_are_classified_by_their_tokens(dataset: Any) -> None:
    texts = ["w1 w2 w3", "w4 w5", "w1"]
    model = loaded(dataset, TRUNK, {"kind": "classification", "features": "trunk"})
    one = model.classify(texts)
    np.testing.assert_allclose(one.probabilities[1], model.classify(texts[1]).probabilities[0], atol=1e-5)
    assert list(one.to_frame()["label"]) == list(one.labels)
    pairs = loaded(dataset, TRUNK, {"kind": "pairwise_classification"})
    there = pairs.classify(texts, second=texts[::-1]).probabilities
    back = pairs.classify(texts[::-1], second=texts).probabilities
    np.testing.assert_allclose(there, back[:, [1, 0, 2]], atol=1e-5)
    with pytest.raises(SamplingError, match="expected a second text for each item, found none"):
        pairs.classify(texts)
    with pytest.raises(SamplingError, match="expected items without second texts"):
        model.classify(texts, second=texts)
    with pytest.raises(SamplingError, match="one second text for each of 3, found 1"):
        pairs.classify(texts, second="w1")


def test_other_uses_of_a_classifier_and_classes_of_other_runs_are_refused(dataset: Any) -> None:
    model = loaded(dataset, TRUNK, {"kind": "classification", "features": "trunk"})
    with pytest.raises(SamplingError, match=r"cannot generate texts from noise .* It can: classify"):
        model.generate(2)
    scorer = SimpleNamespace(capabilities=Capabilities(uses=frozenset({"score"}), trained_as="a test"))
    found = suite.evaluate(scorer, dataset, config=ClassificationEvalConfig(), **OPTIONS)
    assert "cannot assign texts, latents or pairs of texts to classes" in found["skipped"]
