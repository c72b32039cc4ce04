"""Recognition of vectors: the encoder's own, altered ones, those of other encoders and random ones; from one on."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from mm_ldlm.data.encoders import LocalEncoderConfig, load_encoder
from mm_ldlm.data.latents.recognition import Signature, Verdict, described, known_encoders, named, recognise, unit

DIM = 256


class Space:
    """Vectors of norm 1 like those of an encoder: a mean, few directions, and two coordinates that are always 0."""

    def __init__(self, seed: int, *, empty: bool = True, spread: float = 0.5) -> None:
        self.fixed = np.random.default_rng(seed)
        self.mean = self.fixed.normal(size=DIM) / 8
        self.axes = np.linalg.qr(self.fixed.normal(size=(DIM, DIM)))[0] * np.geomspace(1, 0.02, DIM)[:, None]
        self.scales = np.exp(self.fixed.normal(size=DIM) * spread)
        if empty:
            self.scales[self.fixed.permutation(DIM - 8)[:2]] = 0

    def draw(self, count: int, *, seed: int = 1, topic: float = 0.0) -> Any:
        """Draw vectors (count, dim); those of another `topic` have another mean and other variances."""
        random = np.random.default_rng(seed)
        numbers = random.normal(size=(count, len(self.mean))) * np.exp(topic * self.fixed.normal(size=len(self.mean)))
        raw = (self.mean + topic * self.axes[0] + numbers @ self.axes) * self.scales
        return unit(raw).astype(np.float32)


def signature(space: Space) -> Signature:
    return Signature.of(space.draw(4000, seed=8), space.draw(1000, seed=9))


SPACE = Space(0)
OWN = signature(SPACE)


def noise_of(x: Any, level: float) -> Any:
    return np.random.default_rng(3).normal(size=x.shape) * level / x.shape[1] ** 0.5


def noised(x: Any, level: float) -> Any:
    return unit(x + noise_of(x, level)).astype(np.float32)


def rounded(x: Any, levels: int) -> Any:
    step = 2 * np.abs(x).max(axis=1, keepdims=True) / (levels - 1)
    return (np.round(x / step) * step).astype(np.float32)


ALTERED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "as it is": ("own", lambda x: x),
    "two vectors again and again": ("own", lambda x: x[np.arange(len(x)) % 2]),
    "another topic": ("own", lambda x: SPACE.draw(len(x), topic=0.3)),
    "noise": ("noised", lambda x: noised(x, 0.2)),
    "noise that was added": ("noised", lambda x: x + noise_of(x, 1.2)),
    "float16": ("quantised", lambda x: x.astype(np.float16)),
    "bfloat16": ("quantised", lambda x: (x.view(np.uint32) & 0xFFFF0000).view(np.float32)),
    "eight bits": ("quantised", lambda x: rounded(x, 255)),
    "three levels": ("quantised", lambda x: rounded(x, 3)),
    "signs": ("quantised", lambda x: np.where(x < 0, -1, 1) / DIM**0.5),
    "bytes": ("scaled", lambda x: np.round(x * 127 / np.abs(x).max()).astype(np.int8)),
    "another length": ("scaled", lambda x: x * 9),
    "padded": ("truncated", lambda x: x * (np.arange(DIM) < DIM // 2)),
    "another encoder": ("foreign", lambda x: Space(5, spread=0.2).draw(len(x))),
    "another encoder that uses every axis": ("foreign", lambda x: Space(5, empty=False).draw(len(x))),
}
MANY = {
    "the leading coordinates": ("truncated", lambda x: x[:, : DIM // 2]),
    "another order": ("shuffled", lambda x: x[:, np.random.default_rng(0).permutation(DIM)]),
    "random": ("random", lambda x: unit(np.random.default_rng(0).normal(size=x.shape))),
}
"""Alterations that few vectors do not show"""


@pytest.mark.parametrize("count", [10, 1000])
@pytest.mark.parametrize("name", [*ALTERED, *MANY])
def test_alterations_are_recognised(name: str, count: int) -> None:
    expected, alter = {**ALTERED, **MANY}[name]
    found = recognise(alter(SPACE.draw(count)), OWN)
    if count < 100 and name in MANY:
        assert not found.usable
    else:
        assert found.kind == expected, str(found)


@settings(max_examples=50)
@given(st.integers(0, 500))
def test_a_vector_by_itself_is_told_from_a_random_one(row: int) -> None:
    assert recognise(SPACE.draw(1, seed=row), OWN).usable
    assert recognise(unit(np.random.default_rng(row).normal(size=(1, DIM))), OWN).kind != "own"


@settings(max_examples=25)
@given(st.floats(0.05, 1), st.sampled_from([100, 1000]))
def test_the_level_of_noise_is_estimated(level: float, count: int) -> None:
    assert recognise(noised(SPACE.draw(count), level), OWN).level == pytest.approx(level, rel=0.35)


def test_a_few_random_vectors_among_many_are_named_by_their_rows() -> None:
    """Nearly all of them: one in about twenty uses the encoder's axes of least variance as little as its own do."""
    x, rows = SPACE.draw(2_400), {*range(0, 2_400, 20)}
    x[[*rows]] = unit(np.random.default_rng(0).normal(size=(len(rows), DIM)))
    found = recognise(x, OWN)
    assert found.kind == "own"
    flagged = {*np.flatnonzero(found.unlike).tolist()}
    assert flagged <= rows
    assert len(flagged) >= 0.8 * len(rows)
    random_nd = unit(np.random.default_rng(1).normal(size=(2_600, DIM)))
    assert not recognise(np.concatenate([SPACE.draw(2_000), random_nd]), OWN).usable, "the last ones count as well"
    odd = unit(SPACE.draw(50) + 2 * OWN.axes_kd[~OWN.empty_k][0])  # which leave the empty axes empty
    assert OWN.energies(odd).mean() > 1
    assert not OWN.unlike(odd).any()


def test_without_an_empty_axis_foreign_vectors_are_recognised_and_another_topic_is_not_foreign() -> None:
    space = Space(2, empty=False)
    own = signature(space)
    assert not own.empty_k.any()
    assert recognise(space.draw(300, topic=0.3), own).kind == "own"
    assert recognise(Space(5, empty=False).draw(300), own).kind == "foreign"


def test_a_signature_survives_its_file() -> None:
    again = Signature.read(load(save(OWN.arrays())))
    for name, (expected, alter) in ALTERED.items():
        assert recognise(alter(SPACE.draw(300)), again).kind == expected, name
    with pytest.raises((KeyError, TypeError)):
        Signature.read({"mean_d": np.zeros(3)})
    assert recognise(np.zeros((0, DIM)), OWN) == Verdict("own")
    few = Signature.of(5 * SPACE.draw(300, seed=8), 5 * SPACE.draw(1000, seed=9))
    assert recognise(5 * SPACE.draw(300), few).kind == "own"
    assert few.energies(SPACE.draw(1000)).mean() == pytest.approx(few.energies_k.mean(), rel=0.2)


# --- real encoders ----------------------------------------------------------------------------------------------------


@functools.cache
def minilm(count: int) -> Any:
    verbs, nouns = ("saw", "left", "painted", "missed", "sold"), ("the boat", "a letter", "his keys", "this town")
    texts = [f"{who} {verb} {what} {when}." for who in ("She", "A man", "Nobody") for verb in verbs for what in nouns
             for when in ("yesterday", "in the morning", "again")]  # fmt: skip
    return load_encoder(LocalEncoderConfig(name="minilm", device="cpu")).encode(texts[:count])


@pytest.mark.parametrize("count", [1, 12, 180])
def test_the_default_encoder_is_known_by_its_vectors(count: int) -> None:
    assert named(minilm(count)) == "minilm"
    assert recognise(minilm(count), known_encoders()["minilm"]).kind == "own"
    assert recognise(minilm(count) * 3, known_encoders()["minilm"]).kind == "scaled"
    assert named(unit(np.random.default_rng(0).normal(size=(count, 384)))) == ""
    assert "minilm" in described(minilm(count)[:, :256])
    assert described(np.full((count, 384), np.nan)) == ""
