"""Inputs unlike the training data: results carry their norms and their unknown words, and a warning names the rows."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from mm_ldlm.data.latents.normaliser import Normaliser, norms
from mm_ldlm.data.latents.normaliser_fit import TYPICAL_MARGIN, TYPICAL_QUANTILES
from mm_ldlm.inference import MMLDLM


@pytest.fixture(scope="module")
def vectors(parts):
    """Vectors of the encoder for 1,500 sentences."""
    words = np.random.default_rng(0).integers(0, 20, size=(1500, 6))
    return parts.BagEncoder().encode([" ".join(f"w{i}" for i in row) for row in words])


@pytest.fixture(scope="module")
def calibrated(parts, vectors):
    """A run whose normaliser is fitted on 500 of the vectors and calibrated on 500 others."""
    fitted = Normaliser("standard", vectors[:500].mean(0), vectors[:500].std(0), True, rows=500)
    low, high = np.quantile(norms(fitted.standardise(vectors[500:1000])), TYPICAL_QUANTILES)
    normaliser = Normaliser(
        "standard", fitted.mean_d, fitted.scale_d, True, 500, typical=(low / TYPICAL_MARGIN, high * TYPICAL_MARGIN)
    )
    model = parts.make()
    return MMLDLM(model.model, model.capabilities, model.tokenizer, normaliser, parts.BagEncoder())


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "unlike those" in record.getMessage()]


def test_latents_like_those_of_training_do_not_warn(calibrated, vectors, caplog):
    with caplog.at_level(logging.WARNING):
        made = calibrated.invert(vectors[1000:], steps=1, length=2)
    assert not warnings_of(caplog)
    assert made.latent_norms.shape == (500,)
    assert made.latent_norms.mean() == pytest.approx(1.0, abs=0.05)
    assert made.to_frame()["latent_norm"].tolist() == made.latent_norms.tolist()


@pytest.mark.parametrize("scale", [7.0, 0.0])
def test_scaled_latents_warn_with_their_rows(scale, calibrated, vectors, caplog):
    given = vectors[1000:1010].copy()
    given[[2, 5]] *= scale
    calls = [
        lambda: calibrated.invert(given, steps=1, length=2),
        lambda: calibrated.infill(["w1 [MASK]"] * 10, latents=given, steps=1),
        lambda: calibrated.score(["w1"] * 10, latents=given, draws=1),
        lambda: calibrated.edit(["w1 w2"] * 10, targets=given, which="random", steps=1),
    ]
    for call in calls:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            call()
        assert len(warnings_of(caplog)) == 1
        assert "2 of 10 latents are unlike those that the run was trained on" in warnings_of(caplog)[0]
        assert warnings_of(caplog)[0].endswith("(rows 2, 5)")


def test_a_normaliser_without_a_range_does_not_warn_and_still_measures(model, unit_latents, caplog):
    with caplog.at_level(logging.WARNING):
        made = model.invert(7 * unit_latents(2), steps=1, length=2)
    assert not warnings_of(caplog)
    assert made.latent_norms.tolist() == pytest.approx([7 * 2 / 6**0.5] * 2), "the normaliser of the test doubles"


def test_texts_carry_the_fraction_of_their_words_that_the_run_does_not_know(model, parts, caplog):
    texts = ["w1 w2", "w1 news", "all of it news"]
    expected = [0.0, 0.5, 1.0]
    with caplog.at_level(logging.WARNING):
        assert model.embed(texts, steps=1).unknown.tolist() == expected
        assert model.score(texts, draws=1).unknown.tolist() == expected
        assert model.edit(texts, targets=np.ones((1, 6)), which="random", steps=1).unknown.tolist() == expected
        assert parts.make_classifier(pairs=False).classify(texts).unknown.tolist() == expected
    assert "2 of 3 texts contain words outside this model's vocabulary" in caplog.text
    assert model.generate(2, steps=1).unknown is None
    canvases = ["w1 [MASK]", "news ___ w1 w2"]
    assert model.infill(canvases[:1], steps=1).unknown.tolist() == [0.0], "the mark of a gap is no unknown word"
    assert model.infill(canvases[1:], mask="___", steps=1).unknown.tolist() == [0.25]
