"""Recognise vectors: from this encoder, altered, from another encoder, or random.

An encoder hardly uses some directions of its space. Along its axes of least variance the vectors of texts of every kind
have a small part of the energy of random vectors, and some coordinates can be exactly 0 (three of MiniLM's). Noise,
another encoder and another order of the coordinates fill these axes. n vectors, d dimensions, k axes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Kind = Literal["own", "noised", "quantised", "scaled", "truncated", "shuffled", "foreign", "random"]
KNOWN = Path(__file__).with_name("encoders.safetensors")
"""Signatures of encoders, each of 2,000 to 5,000 sentences (Tatoeba, Simple Wikipedia, dialogues, novels)"""
AXES = 32
ROWS = 2_000
"""Largest number of vectors that a verdict about a set reads"""
EMPTY = 1e-6
"""Energy of an axis that the encoder does not use at all; a random vector has 1"""
RANDOM = 0.7
"""Energy from which on a vector is like a random one for the encoder: its own stay below for texts of other kinds"""
NOISE = 0.02
"""Smallest reported length of noise, relative to the length of the vector"""
_NOTHING = np.log(EMPTY) + 1e-3  # of a profile
_CHI = 0.4549364231195724  # median of the square of a unit normal


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """Statistics that distinguish the vectors of an encoder from others.

    Attributes:
        mean_d: (d,) mean of the vectors at length 1.
        axes_kd: (k, d) orthonormal axes of least variance.
        energies_k: (k,) energy of other vectors of the encoder along them, relative to random vectors.
        profile_d: (d,) logarithm of the median square of each coordinate.
        length: median length of a vector; 1 for an encoder whose vectors are normalised.
    """

    mean_d: Matrix
    axes_kd: Matrix
    energies_k: Matrix
    profile_d: Matrix
    length: float

    @property
    def dim(self) -> int:
        return len(self.mean_d)

    @property
    def empty_k(self) -> npt.NDArray[np.bool_]:
        """Axes (k,) that the encoder does not use"""
        return self.energies_k < EMPTY

    @classmethod
    def of(cls, fitted_nd: npt.NDArray[Any], held_nd: npt.NDArray[Any]) -> Signature:
        """Measure the axes on vectors of an encoder, and the energies on others of it."""
        unit_nd, length = unit(fitted_nd), float(np.median(np.linalg.norm(held_nd, axis=1)))
        mean_d = unit_nd.mean(axis=0)
        axes_kd = np.linalg.eigh(np.cov(unit_nd.T))[1][:, : max(1, min(AXES, len(mean_d) // 8))].T
        found = cls(mean_d, axes_kd, np.zeros(len(axes_kd)), profile(unit(held_nd)), length)
        return dataclasses.replace(found, energies_k=_typical(found.energies(unit(held_nd))))

    def energies(self, unit_nd: Matrix) -> Matrix:
        """Compute the energies (n, k) of vectors of length 1 along the axes, about 1 for random vectors."""
        return np.square((unit_nd - self.mean_d) @ self.axes_kd.T) * self.dim

    def level(self, unit_nd: Matrix) -> float:
        """Estimate the length of the noise in vectors of length 1, relative to the vectors without it.

        Axes that the encoder does not use show it exactly. Without one, texts of another kind look like noise, so that
        only strong noise is reported.
        """
        energies_nk, empty_k = self.energies(unit_nd), self.empty_k
        part = typical = float(_typical(energies_nk).mean())
        if empty_k.any():
            part = min(float(_typical(energies_nk[:, empty_k].ravel())), typical)
        else:
            part = 0.0 if typical < RANDOM / 2 else typical - float(self.energies_k.mean())
        part = min(max(part, 0.0), 0.99)
        return float(np.sqrt(part / (1 - part)))

    def unlike(self, unit_nd: Matrix) -> npt.NDArray[np.bool_]:
        """Return which vectors (n,) of length 1 are like random ones for this encoder."""
        energies_nk, empty_k = self.energies(unit_nd), self.empty_k
        far_n = energies_nk.mean(axis=1) > RANDOM
        return far_n & (energies_nk[:, empty_k] > NOISE**2).any(axis=1) if empty_k.any() else far_n

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the numbers as the arrays of a file, from which `Signature.read` makes it again."""
        small = {"axes_kd": np.float16, "length": np.float64}
        return {
            field.name: np.ascontiguousarray(getattr(self, field.name), small.get(field.name, np.float32))
            for field in dataclasses.fields(self)
        }

    @classmethod
    def read(cls, arrays: Mapping[str, npt.NDArray[Any]], prefix: str = "") -> Signature:
        """Make a signature of the arrays of a file; KeyError, TypeError or ValueError for others."""
        names = [field.name for field in dataclasses.fields(cls)]
        wide: dict[str, Any] = {name: np.asarray(arrays[f"{prefix}{name}"], np.float64) for name in names}
        return cls(**{**wide, "length": float(wide["length"].item())})


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The kind of a set of vectors."""

    kind: Kind
    level: float = 0.0
    """Estimated length of noise or of rounding, relative to the vectors"""
    form: str = ""
    """Numbers that quantised vectors consist of: float16, bfloat16, or N levels"""
    scale: float = 1.0
    """Median length, relative to the encoder's vectors"""
    encoder: str = ""
    """Name of the encoder, where its signature is known"""
    unlike: npt.NDArray[np.bool_] | Sequence[bool] = ()
    """Which vectors (n,) are like random ones for the encoder, if most are not"""

    @property
    def usable(self) -> bool:
        """Whether the texts of the vectors can be written without a correction of the vectors"""
        return self.kind in ("own", "noised", "quantised")

    def __str__(self) -> str:
        own = "the encoder's vectors"
        return {
            "own": own,
            "noised": f"{own} with noise of about {self.level:.2g} of their length",
            "quantised": f"{own}, quantised ({self.form}), with errors of about {self.level:.2g} of their length",
            "scaled": f"{own}, multiplied by about {self.scale:.3g}",
            "truncated": f"the leading coordinates of {own}",
            "shuffled": f"{own} with their coordinates in another order",
            "foreign": f"vectors of another encoder{self.encoder and ': '}{self.encoder}",
            "random": "random vectors, without any preferred direction",
        }[self.kind]

    @property
    def remedy(self) -> str:
        """What makes unusable vectors usable"""
        return {
            "scaled": "Divide them by this factor (by their lengths, if the encoder's vectors have length 1).",
            "truncated": "Give all coordinates.",
            "shuffled": "Restore the order.",
            "foreign": "Choose a run of that encoder, or fit an adapter to this run (`mm-ldlm align`).",
        }.get(self.kind, "Check the file.")


@functools.cache
def known_encoders() -> dict[str, Signature]:
    """Read the signatures of known encoders by name."""
    from safetensors.numpy import load_file

    arrays = load_file(KNOWN)
    names = dict.fromkeys(key.rpartition(".")[0] for key in arrays)
    return {name: Signature.read(arrays, f"{name}.") for name in names}


def named(raw_nd: npt.NDArray[Any]) -> str:
    """Return the name of the known encoder whose vectors these are, or an empty text."""
    unit_nd = unit(_sample(raw_nd))
    fitting = {
        name: float(each.energies(unit_nd).mean() / each.energies_k.mean())
        for name, each in known_encoders().items()
        if each.dim == unit_nd.shape[1]
        and _typical(each.energies(unit_nd)).mean() < RANDOM / 2  # for every kind of text
    }
    return min(fitting, key=lambda name: fitting[name]) if fitting else ""


def recognise(raw_nd: npt.NDArray[Any], own: Signature) -> Verdict:
    """Judge a set of vectors (n, d) of any dimension by the signature of the encoder that should have made them.

    A few vectors are enough for all kinds but "shuffled", and often "truncated", which need 100; fewer are "foreign".
    """
    if not len(raw_nd):
        return Verdict("own")
    sample_nd = _sample(raw_nd)
    unit_nd, scale = unit(sample_nd), float(np.median(np.linalg.norm(sample_nd, axis=1))) / own.length
    if unit_nd.shape[1] != own.dim:
        return Verdict("truncated") if _is_cut(unit_nd, own) else Verdict("foreign", encoder=named(raw_nd))
    if own.unlike(unit_nd).mean() >= 0.5:
        return _other(unit_nd, own)
    level = own.level(unit_nd)
    excess = float(_typical(own.energies(unit_nd)).mean()) - level**2 / (1 + level**2)
    if level > NOISE and excess > RANDOM / 2:  # uneven over the axes, as noise never is
        return _other(unit_nd, own)
    form, error = numbers_of(sample_nd)
    about: dict[str, Any] = {"form": form, "scale": scale, "level": max(level, error) if form or level > NOISE else 0.0}
    if not 2 / 3 < scale < 1.5 * np.sqrt(1 + level**2):  # noise makes vectors longer
        return Verdict("scaled", **about)
    if (unit_nd[:, -8:] == 0).all(axis=1).mean() > 0.9 and own.profile_d[-8:].min() > _NOTHING:
        return Verdict("truncated", **about)  # and padded with zeros
    kind: Kind = "quantised" if form and level < 3 * error + NOISE else "noised" if level > NOISE else "own"
    return Verdict(kind, **about, unlike=own.unlike(unit(raw_nd)))


def _other(unit_nd: Matrix, own: Signature) -> Verdict:
    """Judge vectors that are not the encoder's."""
    if name := named(unit_nd):
        return Verdict("foreign", encoder=name)
    if len(unit_nd) >= 100 and _distance(np.sort(profile(unit_nd)), np.sort(own.profile_d)) < 0.12:
        return Verdict("shuffled")
    gram_nn = unit_nd[:500] @ unit_nd[:500].T
    cosines = gram_nn[np.triu_indices(len(gram_nn), 1)]
    # Random vectors of d dimensions have cosines of mean 0 and mean square 1/d.
    spread = 1 + 4 * np.sqrt(2 / max(len(cosines), 1))
    isotropic = len(cosines) >= 28 and own.dim * float(np.square(cosines).mean()) < spread
    return Verdict("random" if isotropic else "foreign")


def described(raw_nd: npt.NDArray[Any]) -> str:
    """Describe vectors of a known encoder, complete ones or their leading coordinates; an empty text for others."""
    if not raw_nd.size or not np.isfinite(raw_nd).all():
        return ""
    if name := named(raw_nd):
        return f"vectors of {name}"
    cut = (name for name, each in known_encoders().items() if _is_cut(unit(_sample(raw_nd)), each))
    return next((f"the leading coordinates of vectors of {name}" for name in cut), "")


def _is_cut(unit_nd: Matrix, own: Signature) -> bool:
    """Return whether vectors of length 1 are like the leading coordinates of the encoder's.

    Coordinates that are always 0 decide; without them 100 vectors are needed.
    """
    if unit_nd.shape[1] >= own.dim:
        return False
    found_d, expected_d = profile(unit_nd), own.profile_d[: unit_nd.shape[1]]
    if (empty_d := expected_d < _NOTHING).any():
        return bool((found_d[empty_d] < _NOTHING).all())
    return len(unit_nd) >= 100 and 2 * _distance(found_d, expected_d) < _distance(found_d, np.roll(expected_d, 1))


def numbers_of(raw_nd: npt.NDArray[Any]) -> tuple[str, float]:
    """Recognise the numbers that vectors consist of, and their relative rounding error; ("", 0) for float32.

    Steps of one size are found for each vector, for all vectors, and for each coordinate (of at least 100 vectors).
    """
    raw_nd = np.asarray(raw_nd, np.float32)
    length = float(np.median(np.linalg.norm(raw_nd.astype(np.float64), axis=1))) or 1.0
    columns = raw_nd.T[np.linspace(0, raw_nd.shape[1] - 1, 24).astype(int)] if len(raw_nd) >= 100 else raw_nd[:0]
    for lines in (raw_nd[np.linspace(0, len(raw_nd) - 1, min(len(raw_nd), 24)).astype(int)], columns):
        steps = [step for step in map(_step, lines) if step is not None]
        if steps and all(levels for _, levels in steps):
            size = float(np.median([step for step, _ in steps]))
            levels = max(levels for _, levels in steps)
            return f"{levels} levels", size / 12**0.5 * raw_nd.shape[1] ** 0.5 / length
    with np.errstate(over="ignore"):
        half = raw_nd.astype(np.float16).astype(np.float32)
    if np.array_equal(half, raw_nd):
        return "float16", 2.0**-11 / 3**0.5
    return ("bfloat16", 2.0**-8 / 3**0.5) if not (raw_nd.view(np.uint32) & 0xFFFF).any() else ("", 0.0)


def _step(line: npt.NDArray[Any]) -> tuple[float, int] | None:
    """Return the step of numbers on a grid and the count of its levels, 0 if there is none; None for a constant."""
    values = np.unique(line.astype(np.float64))
    gaps = np.diff(values)
    gaps = gaps[gaps > 1e-6 * max(float(np.abs(values).max()), 1e-30)]
    if not gaps.size:
        return None
    steps = (values - values[0]) / gaps.min()
    count = round(float(steps[-1])) + 1
    on_grid = count <= 1024 and bool(np.abs(steps - np.round(steps)).max() < 0.02)
    return float(gaps.min()), count if on_grid else 0


def profile(unit_nd: Matrix) -> Matrix:
    """Compute the logarithm (d,) of the median square of each coordinate, relative to random vectors."""
    return np.asarray(np.log(np.maximum(_typical(np.square(unit_nd)) * unit_nd.shape[1], EMPTY)))


def _typical(squares: Matrix) -> Any:
    """Compute the mean of squares of normal numbers over the first axis, without the influence of a few large ones."""
    return squares.mean(axis=0) if len(squares) < 5 else np.median(squares, axis=0) / _CHI


def _distance(found_d: Matrix, expected_d: Matrix) -> float:
    return float(np.abs(found_d - expected_d).mean())


def _sample(raw_nd: npt.NDArray[Any]) -> Matrix:
    """Take an even sample of at most `ROWS` vectors, each once, in float64."""
    some_nd = raw_nd[np.linspace(0, len(raw_nd) - 1, min(len(raw_nd), ROWS)).astype(int)].astype(np.float64)
    return some_nd[np.sort(np.unique(some_nd, axis=0, return_index=True)[1])]


def unit(raw_nd: npt.NDArray[Any]) -> Matrix:
    """Scale vectors to length 1; a vector of zeros stays one."""
    wide_nd = raw_nd.astype(np.float64)
    return np.asarray(wide_nd / np.maximum(np.linalg.norm(wide_nd, axis=1, keepdims=True), 1e-12))


def cosines_of(a_nd: npt.NDArray[Any], b_nd: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Compute the cosine (n,) of each vector to the one of the same row, in float64; 0 for a zero vector."""
    return np.einsum("nd,nd->n", unit(a_nd), unit(b_nd))
