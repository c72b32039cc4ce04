"""Information of a noised state about its token, against the mutual information in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from mm_ldlm.data.token_identity import Classifier, identity_bits

CODE = np.array([[-1.0, 0.0], [1.0, 0.0]])


def states(count: int, seed: int, *, spread: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Two equally frequent tokens with states ±1 and a further dimension that has nothing to do with them."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, 2, count)
    return CODE[ids] + spread * draw.standard_normal((count, 2)), ids


def information(signal: float, variance: float) -> float:
    """I(X; ±signal + √variance·ε) in bits, by quadrature."""
    x = np.linspace(-12, 12, 20_001) * np.sqrt(variance)
    p = np.exp(-((x - signal) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    other = np.exp(-((x + signal) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    keep = p > 0
    return float(np.trapezoid(p[keep] * np.log2(2 * p[keep] / (p[keep] + other[keep])), x[keep]))


@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.05), (0.8, 0.6), (0.6, 0.8), (0.3, 0.954), (0.0, 1.0)])
def test_the_bits_are_the_mutual_information(signal: float, noise: float) -> None:
    classifier = Classifier(*states(4000, 0), vocab_size=2)
    held, ids = states(20_000, 1)
    found = identity_bits(classifier, held, ids, signal=signal, noise=noise)
    want = information(signal, (signal * 0.1) ** 2 + noise**2)
    assert found.bits == pytest.approx(want, abs=0.02)
    assert found.bits < want + 0.01, "it is a lower bound, up to the sample"
    assert found.entropy_bits == pytest.approx(1.0, abs=0.01)


def test_the_likelihood_of_a_noised_state_is_gaussian() -> None:
    """Means of unequal norm and a covariance with a large and a small axis, both of which the noise changes."""
    draw, code = np.random.default_rng(0), np.array([[2.0, 0.0], [-0.5, 1.0], [0.2, -0.4]])
    spread = np.array([[1.5, 0.6], [0.0, 0.2]])
    ids = draw.integers(0, 3, 6000)
    classifier = Classifier(code[ids] + draw.standard_normal((6000, 2)) @ spread, ids, vocab_size=3)
    axes = classifier.axes_dd
    covariance = axes @ np.diag(classifier.variance_d) @ axes.T
    assert covariance == pytest.approx(spread.T @ spread, abs=0.1)
    assert classifier.mean_Vd @ axes.T == pytest.approx(code, abs=0.1)

    signal, noise = 0.6, 0.3
    noised = draw.standard_normal((20, 2)) * 2
    off = noised[:, None] - signal * classifier.mean_Vd @ axes.T
    precision = np.linalg.inv(signal**2 * covariance + noise**2 * np.eye(2))
    want = -0.5 * np.einsum("nvi,ij,nvj->nv", off, precision, off)
    found = classifier.log_likelihood(noised, signal=signal, noise=noise)
    assert found - found[:, :1] == pytest.approx(want - want[:, :1], abs=1e-9)


def test_a_classifier_that_is_too_sure_is_made_less_so() -> None:
    """Twenty copies of one dimension, fitted as if they were independent: without the sharpness CE is far above H."""
    draw = np.random.default_rng(0)
    fit, ids = states(60, 0, spread=2.0)
    classifier = Classifier(np.concatenate([fit, draw.standard_normal((60, 40))], 1), ids, vocab_size=2)
    held, wanted = states(4000, 1, spread=2.0)
    found = identity_bits(
        classifier, np.concatenate([held, draw.standard_normal((4000, 40))], 1), wanted, signal=1.0, noise=0.01
    )
    assert -0.01 < found.bits < information(1.0, 4.0)


def test_tokens_that_were_not_fitted_count() -> None:
    classifier = Classifier(*states(400, 0), vocab_size=3)
    held, ids = states(400, 1)
    ids[:20] = 2
    found = identity_bits(classifier, held, ids, signal=1.0, noise=0.1)
    assert np.isfinite([found.bits, found.entropy_bits]).all()
