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
from mm_ldlm.config import parse_kind
from mm_ldlm.data import commit
from mm_ldlm.data.labels import Labels, write_label_names, write_labels, write_pair_tokens
from mm_ldlm.errors import SamplingError
from mm_ldlm.evaluation.config import BootstrapConfig, ClassificationEvalConfig
from mm_ldlm.evaluation.suites import classification as suite
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
