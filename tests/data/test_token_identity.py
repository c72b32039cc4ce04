"""Information of a noised state about its token, against the mutual information in closed form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.families.ccdd import token_identity as module
from mm_ldlm.families.ccdd.token_identity import Classifier, identity_bits

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


def test_the_even_tokens_choose_the_sharpness_for_the_odd_ones() -> None:
    """The odd states say nothing about their tokens: a sharpness chosen by the even ones is too high for them."""
    classifier = Classifier(*states(4000, 0), vocab_size=2)
    held, ids = states(4000, 1)
    ids[1::2] = np.random.default_rng(2).integers(0, 2, 2000)
    found = identity_bits(classifier, held, ids, signal=1.0, noise=0.05)
    assert found.bits < -1
    assert found.accuracy == pytest.approx(0.5, abs=0.05)


def test_the_entropy_is_that_of_the_tokens_that_are_measured() -> None:
    """Three of four tokens of the fit are 0, all that choose the sharpness are 0, and all that are measured are 1."""
    draw = np.random.default_rng(0)
    classifier = Classifier(draw.standard_normal((4000, 2)), np.arange(4000) % 4 // 3, vocab_size=2)
    found = identity_bits(classifier, draw.standard_normal((600, 2)), np.arange(600) % 2, signal=1.0, noise=1.0)
    assert found.entropy_bits == pytest.approx(2.0, abs=0.01)
    assert found.accuracy == 0.0


def test_the_classifier_is_fitted_on_training_texts_and_measured_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token j of record i has the state 10 · i + j, and the normaliser halves it."""
    lengths = np.array([2, 3, 1, 4, 2, 3, 2, 1])
    rows = {"train": np.array([0, 3, 5]), "validation": np.array([1, 2, 6]), "test": np.array([4, 7])}
    whole = np.concatenate([10 * i + np.arange(n) for i, n in enumerate(lengths)])

    def read(name: str) -> Any:
        if name == "state_normaliser":
            return SimpleNamespace(standardise=lambda x: x / 2)
        assert name == "token_states"
        return SimpleNamespace(
            fixed=lambda column: {"state": SimpleNamespace(take=lambda at: whole[at][:, None])}[column]
        )

    def tokens(records: Any) -> Any:
        return np.concatenate([100 * i + np.arange(lengths[i]) for i in records]), None

    data: Any = SimpleNamespace(
        rows=rows.__getitem__, require=read, tokenizer=SimpleNamespace(vocab_size=800),
        tokens=SimpleNamespace(
            ints=lambda name: SimpleNamespace(take=lambda _: {"length": lengths}[name]),
            lists=lambda name: SimpleNamespace(take={"input_ids": tokens}[name]),
        ),
    )  # fmt: skip
    schedule: Any = SimpleNamespace(signal=lambda t: 1 - t, noise=lambda t: t / 2)
    fitted: list[Any] = []
    seen: list[Any] = []
    monkeypatch.setattr(module, "Classifier", lambda *given, vocab_size: fitted.append((*given, vocab_size)))
    monkeypatch.setattr(module, "identity_bits", lambda _, *given, **more: seen.append((*given, more)) or len(seen))
    found = module.measure(data, schedule=schedule, times=(0.0, 0.5), tokens=100, split="test", seed=3)
    assert found == {0.0: 1, 0.5: 2}

    def of(split: str) -> Any:
        return np.concatenate([10 * i + np.arange(lengths[i]) for i in rows[split]])

    ((states, ids, vocab_size),) = fitted
    assert (states[:, 0].tolist(), vocab_size) == ((of("train") / 2).tolist(), 800)
    assert ids.tolist() == [10 * (state - state % 10) + state % 10 for state in of("train").tolist()]
    assert [more for *_, more in seen] == [
        {"signal": 1.0, "noise": 0.0, "seed": 3}, {"signal": 0.5, "noise": 0.25, "seed": 3}
    ]  # fmt: skip
    assert seen[0][0][:, 0].tolist() == (of("test") / 2).tolist()
    module.measure(data, schedule=schedule, times=(0.0,), tokens=2)
    assert {int(state * 2) // 10 for state in seen[-1][0][:, 0]} <= set(rows["validation"].tolist())
    counts = {len(module._draw(data, "train", count, 0)[1]) for count in (1, 5, 100)}
    assert max(counts) == 9, "all of them"
    assert min(counts) < 9, "whole records up to the number that is asked for"
    assert len({tuple(module._draw(data, "train", 2, seed)[1]) for seed in range(9)}) > 1


def test_tokens_that_were_not_fitted_count() -> None:
    classifier = Classifier(*states(400, 0), vocab_size=3)
    held, ids = states(400, 1)
    ids[:20] = 2
    found = identity_bits(classifier, held, ids, signal=1.0, noise=0.1)
    assert np.isfinite([found.bits, found.entropy_bits]).all()


def test_the_covariance_is_that_within_the_tokens_with_a_least_variance() -> None:
    """Four states of two tokens leave two degrees of freedom; a dimension that hardly varies has 1e-4."""
    states_nd = np.array([[0.0, 5.0], [2.0, 5.0], [10.0, 7.0], [14.0, 7.0]])
    found = Classifier(states_nd, np.array([0, 0, 1, 1]), vocab_size=2)
    assert sorted(found.variance_d) == pytest.approx([1e-4, (1 + 1 + 4 + 4) / 2])
    single = Classifier(states_nd[:1], np.array([0]), vocab_size=2)
    assert single.variance_d == pytest.approx([1e-4, 1e-4])


def test_twice_as_many_tokens_are_fitted_as_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int, int]] = []

    def draw(dataset: Any, split: str, count: int, seed: int) -> Any:
        drawn.append((split, count, seed))
        return states(40, 0)

    monkeypatch.setattr(module, "_draw", draw)
    schedule: Any = SimpleNamespace(signal=lambda t: 1 - t, noise=lambda t: t)
    data: Any = SimpleNamespace(tokenizer=SimpleNamespace(vocab_size=2))
    found = module.measure(data, schedule=schedule, seed=5)
    assert drawn == [("train", 40_000, 5), ("validation", 20_000, 5)]
    assert list(found) == [0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0]


def test_tokens_are_measured_in_pieces_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier(*states(400, 0), vocab_size=2)
    seen: list[int] = []
    real = Classifier.log_likelihood

    def counted(self: Any, noised_nd: Any, **levels: float) -> Any:
        seen.append(len(noised_nd))
        return real(self, noised_nd, **levels)

    monkeypatch.setattr(Classifier, "log_likelihood", counted)
    whole = identity_bits(classifier, *states(5000, 1), signal=0.8, noise=0.6)
    assert seen == [2048, 2048, 904]
    monkeypatch.setattr(module, "_ROWS", 10**6)
    assert identity_bits(classifier, *states(5000, 1), signal=0.8, noise=0.6) == whole
