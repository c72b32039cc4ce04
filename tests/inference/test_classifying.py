"""Classes of texts, pairs and latents: the whole result, and every refusal."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from scripted import ABLE, LONGEST, Scripted, Sized, engine

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.families.classification import requests as classifying
from mm_ldlm.inference.engine import Engine


def classifier(classifies: Any, *, model: Any = None) -> Engine:
    return engine(batch_tokens=100, model=model, capabilities=dataclasses.replace(ABLE, classifies=classifies))


def softmax(*logits: float) -> Any:
    parts = np.exp(logits)
    return parts / parts.sum()


def test_classes_of_texts() -> None:
    found = classifying.classify(classifier("texts"), ["w1 w2 zebra w3", "w4"], second=None, too_long="refuse")
    assert (found.sources, found.names, found.labels) == (("w1 w2 zebra w3", "w4"), ("x", "y", "z"), ("x", "x"))
    np.testing.assert_allclose(found.probabilities, [softmax(4, 0, 0), softmax(1, 0, 0)])
    assert (found.latent_norms, found.unknown.tolist()) == (None, [0.25, 0])
    assert found.probabilities.dtype == np.float64


def test_classes_of_pairs() -> None:
    found = classifying.classify(classifier("pairs"), ["w1", "w2"], second=["w3 w4", "w5"], too_long="refuse")
    np.testing.assert_allclose(found.probabilities, [softmax(1, 2, 0), softmax(1, 1, 0)])
    assert (found.sources, found.labels) == (("w1", "w2"), ("y", "x"))


def test_classes_of_latents_have_the_texts_that_were_embedded_and_the_norms_of_the_latents(caplog: Any) -> None:
    """The encoder reads every word, so that none of them is unknown to it."""
    texts, raw = ["w1 zebra w3", "w4 w5"], np.array([[3.0, 1.0], [2.0, 1.0]])
    made = classifier("latents")
    for items, sources in ((texts, tuple(texts)), (raw, (None, None))):
        found = classifying.classify(made, items, second=None, too_long="refuse")
        assert found.sources == sources
        np.testing.assert_allclose(found.probabilities, [softmax(2, 0, 0), softmax(1, 0, 0)])
        np.testing.assert_allclose(found.latent_norms, [math.sqrt(4 / 2), math.sqrt(1 / 2)])
        assert found.unknown is None
    named = classifying.latents(made, raw, [None, "second"])
    assert named.sources == (None, "second")
    assert not caplog.records


def test_the_batches_of_pairs_count_both_texts() -> None:
    """Long second texts are in batches of their own size, not of that of the first texts."""
    model: Any = Sized()
    ids, second = [[1], [2] * 3, [3], [4] * 2], [[5] * 4, [6], [7], [8] * 4]
    found = classifying.classify_tokens(model, ids, second=second, batch_tokens=8)
    np.testing.assert_allclose(found, [softmax(1, 4, 0), softmax(3, 1, 0), softmax(1, 1, 0), softmax(2, 4, 0)])
    assert sorted(model.sizes) == [1 + 4, 2 + 4, 2 * (3 + 1)]


@pytest.mark.parametrize("too_long", ["trunc", None, True])
@pytest.mark.parametrize("classifies", ["texts", "pairs", "latents"])
def test_the_treatment_of_long_texts_is_checked_before_anything_else(classifies: str, too_long: Any) -> None:
    second = ["w2"] if classifies == "pairs" else None
    with pytest.raises(SamplingError, match="too_long must be one of refuse, truncate, found"):
        classifying.classify(classifier(classifies), ["w1"], second=second, too_long=too_long)


@pytest.mark.parametrize(
    ("classifies", "second", "message"),
    [
        ("texts", ["w2"], "classifies texts: expected items without second texts, found second texts"),
        ("latents", ["w2"], "classifies latents: expected items without second texts, found second texts"),
        ("pairs", None, "classifies pairs: expected a second text for each item, found none"),
    ],
)
def test_second_texts_are_given_where_pairs_are_compared_and_only_there(
    classifies: str, second: Any, message: str
) -> None:
    made = classifier(classifies)
    with pytest.raises(SamplingError, match=message):
        classifying.classify(made, ["w1"], second=second, too_long="refuse")
    with pytest.raises(SamplingError, match=message):
        classifying.tokens(made, [[1]], ["w1"], second=None if second is None else [[2]])


@pytest.mark.parametrize(
    ("ids", "second", "message"),
    [
        ([[1], [23]], [[1], [2]], r"ids\[1\]: expected ids in 0\.\.22, found 23"),
        ([[1], [2]], [[1], [23]], r"ids\[1\]: expected ids in 0\.\.22, found 23"),
        ([[1], [2]], [[1]], "one row of ids for each of 2 texts, found 1 rows"),
        ([[1], [2]], [[1], [2] * (LONGEST + 1)], f"has {LONGEST + 1} tokens, but the model reads at most {LONGEST}"),
    ],
)
def test_both_texts_of_a_pair_are_checked(ids: Any, second: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        classifying.tokens(classifier("pairs"), ids, ["a", "b"], second=second)


@pytest.mark.parametrize("use", ["classify", "tokens", "latents"])
def test_a_run_without_classes_refuses_every_way_to_ask_for_them(use: str) -> None:
    made = engine(capabilities=dataclasses.replace(ABLE, uses=frozenset({"score"}), classifies="texts"))
    asked = {
        "classify": lambda: classifying.classify(made, ["w1"], second=None, too_long="refuse"),
        "tokens": lambda: classifying.tokens(made, [[1]], ["w1"], second=None),
        "latents": lambda: classifying.latents(made, np.ones((1, 2)), None),
    }
    with pytest.raises(SamplingError) as error:
        asked[use]()
    assert str(error.value) == made.capabilities.refusal("classify")


class Broken(Scripted):
    """A classifier whose second answer is not a number."""

    def class_logits(self, *given: Any, **named: Any) -> torch.Tensor:
        found: torch.Tensor = super().class_logits(*given, **named).clone()
        found[1:, 2] = torch.nan
        return found


@pytest.mark.parametrize(
    "asked",
    [
        lambda: classifying.tokens(classifier("texts", model=Broken()), [[1], [2]], ["a", "b"], second=None),
        lambda: classifying.latents(classifier("latents", model=Broken()), np.ones((2, 2)), None),
    ],
)
def test_classes_that_are_no_numbers_are_refused_with_their_row(asked: Any) -> None:
    with pytest.raises(SamplingError, match=r"probabilities of classes that are not finite for 1 of 2 .* \(rows 1\)"):
        asked()
