"""Latent normaliser: standardises an encoder's vectors to the scale of unit Gaussian noise.

It is fitted on the training split in one streaming pass with float64 accumulators, saved as a
separate artifact, and inverted after sampling. Shapes: n rows, d dimensions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import StoreError, config
from mm_ldlm.core.files import InputFile, json_document, write_bytes, write_json
from mm_ldlm.data.latents.recognition import Signature
from mm_ldlm.data.store.shards import FixedColumn

if TYPE_CHECKING:
    import torch


Kind = Literal["standard", "whitening", "one_scale"]
Vectors = TypeVar("Vectors", npt.NDArray[Any], "torch.Tensor")
Matrix = npt.NDArray[np.float64]
log = logging.getLogger(__name__)
ENOUGH = 10
"""Rows for each dimension from which on "whitening" uses their covariance as it is"""
TYPICAL_QUANTILES = (0.001, 0.999)
TYPICAL_MARGIN = 1.15
TYPICAL_ROWS = 100
"""Quantiles of the norms of the validation split, the factor by which the range is wider on both sides, and the rows
that a range needs: outside of one of fewer rows are many latents of the same kind"""
_SIGNATURE = "signature.safetensors"
_READ_ROWS = 16_384


@config
class NormaliserConfig:
    """Parameters of the standardisation of latents.

    Attributes:
        kind: "standard" (mean and standard deviation per dimension), "whitening" (mean, and the full covariance turned
            into the identity; with fewer than 10 rows for each dimension, a mixture with one scale) or "one_scale"
            (mean per dimension, and for all dimensions the root mean square of their standard deviations), for
            dimensions that hardly vary and that the others would scale up to noise.
        path: folder of the normaliser of a checkpoint or an export, used instead of fitting one; the weights of a model
            belong to its normaliser.
    """

    kind: Kind = "standard"
    path: str | None = None


@json_document
class Document:
    """The file `normaliser.json`: the fields of a `Normaliser` that are not arrays."""

    format_version: Literal[1]
    kind: str
    unit_norm: bool
    rows: int
    dim: int
    constant: tuple[int, ...]
    fingerprint: str
    typical: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Normaliser:
    """Normaliser z = (x - mean) / scale, or z = (x - mean) W for whitening; `invert` is the inverse.

    Attributes:
        kind: "standard", "whitening" or "one_scale".
        mean_d: (d,) float64.
        scale_d: (d,) float64, positive; ones for "whitening".
        unit_norm: the encoder's vectors have norm 1, so inverted vectors are scaled to norm 1.
        rows: number of rows that it was fitted on.
        matrix_dd: (d, d) float64 W, for "whitening".
        inverse_dd: (d, d) float64, its inverse.
        constant: dimensions without variation; they are standardised to 0 and inverted to their value.
        typical: lowest and highest `norms` of latents like the training data (`calibrated`); None if not calibrated.
        signature: signature of the encoder, measured on these latents; None if there were too few, or no encoder made
            them. Like `typical` it serves to recognise other latents, and is not part of the fingerprint.
    """

    kind: str
    mean_d: Matrix
    scale_d: Matrix
    unit_norm: bool
    rows: int = 0
    matrix_dd: Matrix | None = None
    inverse_dd: Matrix | None = None
    constant: tuple[int, ...] = ()
    typical: tuple[float, float] | None = None
    signature: Signature | None = None

    @property
    def dim(self) -> int:
        """Dimension d of the vectors."""
        return len(self.mean_d)

    @property
    def fingerprint(self) -> str:
        """Digest of all numbers of the normaliser."""
        digest = hashlib.sha256(json.dumps(self._about(), sort_keys=True).encode())
        for _, array in sorted(self._arrays().items()):
            digest.update(np.ascontiguousarray(array, "<f8").tobytes())
        return digest.hexdigest()[:32]

    def standardise(self, x: Vectors) -> Vectors:
        """Map encoder vectors (..., d) to model space, in float64 for numpy and in the tensor's dtype for torch."""
        z = (self._exact(x) - _like(x, self.mean_d)) / _like(x, self.scale_d)
        return _rounded(x, z if self.matrix_dd is None else z @ _like(x, self.matrix_dd))

    def invert(self, z: Vectors) -> Vectors:
        """Map vectors (..., d) of model space back to encoder vectors; with norm 1 if `unit_norm`."""
        y = self._exact(z)
        y = y if self.inverse_dd is None else y @ _like(z, self.inverse_dd)
        x = y * _like(z, self.scale_d) + _like(z, self.mean_d)
        if self.unit_norm:
            norm = np.linalg.norm(x, axis=-1) if isinstance(x, np.ndarray) else x.norm(dim=-1)
            x = x / norm[..., None].clip(min=1e-12)
        return _rounded(z, x)

    # -- on disk ------------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write `signature.safetensors` if there is one, `normaliser.safetensors` (float64), then `normaliser.json`."""
        from safetensors.numpy import save

        directory = Path(directory)
        if self.signature is not None:
            write_bytes(directory / _SIGNATURE, save(self.signature.arrays()))
        write_bytes(directory / "normaliser.safetensors", save(self._arrays()))
        about = {"format_version": 1, **self._about(), "typical": self.typical, "fingerprint": self.fingerprint}
        write_json(directory / "normaliser.json", about)

    @classmethod
    def load(cls, directory: str | Path) -> Normaliser:
        """Read a normaliser written by `save`.

        Raises:
            StoreError: It is missing, damaged or of another format.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        file = InputFile(Path(directory) / "normaliser.json", remedy="Run the validation pipeline.")
        about: Document = file.json(Document)
        arrays = dataclasses.replace(file, path=Path(directory) / "normaliser.safetensors").read()
        kept = dataclasses.replace(file, path=Path(directory) / _SIGNATURE)
        with file.parsing("a normaliser", ValueError, KeyError, TypeError, AttributeError, SafetensorError):
            signature = Signature.read(load(kept.read())) if Path(kept.path).is_file() else None
            found = cls(
                kind=about.kind, unit_norm=about.unit_norm, rows=about.rows, constant=about.constant,
                typical=about.typical, signature=signature, **load(arrays),
            )  # fmt: skip
            mark = found.fingerprint
        if mark != about.fingerprint:
            file.refuse(
                f"the fingerprint {mark} of its numbers", f"{about.fingerprint}: they changed after they were saved"
            )
        return found

    def _arrays(self) -> dict[str, Matrix]:
        found = {"mean_d": self.mean_d, "scale_d": self.scale_d}
        if self.matrix_dd is not None and self.inverse_dd is not None:
            found |= {"matrix_dd": self.matrix_dd, "inverse_dd": self.inverse_dd}
        return {name: np.ascontiguousarray(array, np.float64) for name, array in found.items()}

    def _about(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "unit_norm": self.unit_norm,
            "rows": self.rows,
            "dim": self.dim,
            "constant": list(self.constant),
        }

    def _exact(self, x: Any) -> Any:
        """Return vectors (..., d) in the type of the computation; StoreError if they have another dimension."""
        if x.shape[-1:] != (self.dim,):
            raise StoreError(
                f"expected vectors with {self.dim} dimensions, on which the normaliser was fitted, found shape "
                f"{tuple(x.shape)}. Use the normaliser of this encoder."
            )
        return x.astype(np.float64) if isinstance(x, np.ndarray) else x


def _like(x: Any, array: Matrix) -> Any:
    """Return numbers of a normaliser for the computation with `x`."""
    if isinstance(x, np.ndarray):
        return array
    import torch

    return torch.as_tensor(array, dtype=x.dtype, device=x.device)


def _rounded(like: Any, value: Any) -> Any:
    """Return a numpy result in the floating-point type of the input; torch computes in it already."""
    return value.astype(like.dtype) if isinstance(value, np.ndarray) and like.dtype.kind == "f" else value


def norms(standard_nd: npt.NDArray[Any]) -> Matrix:
    """Compute the root mean square (n,) of the coordinates of standardised latents; about 1 for training data."""
    return np.asarray(np.sqrt(np.square(standard_nd.astype(np.float64)).mean(axis=1)))


def typical_of(norms_n: Matrix) -> tuple[float, float]:
    """Return the range of the norms of latents like the training data."""
    low, high = np.quantile(norms_n, TYPICAL_QUANTILES)
    return float(low / TYPICAL_MARGIN), float(high * TYPICAL_MARGIN)


# -- fitting -----------------------------------------------------------------------------------------------------------


def fit(column: FixedColumn, *, rows: npt.NDArray[np.int64], config: NormaliserConfig, unit_norm: bool) -> Normaliser:
    """Fit a normaliser on these rows of a column of vectors (the training split).

    The numbers do not depend on the number of threads, which changes the order of the sums in a product of matrices.

    Raises:
        StoreError: A number is not finite, or the normaliser of `config.path` is missing or of another dimension.
    """
    from threadpoolctl import threadpool_limits

    if config.path is not None:
        given = Normaliser.load(config.path)
        if given.dim != column.dim:
            raise StoreError(
                f"parameter 'normaliser.path': expected a normaliser of {column.dim} dimensions, found one of "
                f"{given.dim} in {config.path}. Name the folder of one that was fitted to vectors of the same encoder."
            )
        return given
    count = len(rows)
    with threadpool_limits(limits=1):
        mean_d, squares = moments(_pieces(column, rows), full=config.kind == "whitening")
        variance = squares / max(count - 1, 1)
        if config.kind == "whitening":
            return _whitening(mean_d, variance, rows=count, unit_norm=unit_norm)
    std_d = np.sqrt(variance)
    if config.kind == "one_scale":  # the variance of a dimension is 1 on average; without any variation nothing changes
        scale_d = np.full_like(mean_d, float(np.sqrt(np.square(std_d).mean())) or 1.0)
        return Normaliser(config.kind, mean_d, scale_d, unit_norm, count)
    # Below this threshold a dimension contains only float32 rounding errors, which scaling would turn into noise.
    constant = std_d <= 1e-6 * max(float(std_d.max()), 1e-300)
    return Normaliser(
        config.kind, mean_d, np.where(constant, 1.0, std_d), unit_norm, count,
        constant=tuple(np.flatnonzero(constant).tolist()),
    )  # fmt: skip


def calibrated(
    normaliser: Normaliser,
    column: FixedColumn,
    *,
    rows: npt.NDArray[np.int64],
    fitted: npt.NDArray[np.int64] | None = None,
) -> Normaliser:
    """Copy a normaliser with the range of norms of these rows (the validation split), if there are enough.

    Args:
        fitted: rows that it was fitted on, of vectors of an encoder, whose signature is then measured as well.
    """
    from threadpoolctl import threadpool_limits

    if len(rows) < TYPICAL_ROWS:
        return normaliser
    found = np.concatenate([norms(normaliser.standardise(piece)) for piece in _pieces(column, rows)])
    made = dataclasses.replace(normaliser, typical=typical_of(found))
    if fitted is None or len(fitted) < 2 * normaliser.dim:
        return made
    train_nd, held_nd = (
        np.concatenate([*_pieces(column, each[np.linspace(0, len(each) - 1, min(len(each), most)).astype(int)])])
        for each, most in ((fitted, _READ_ROWS), (rows, _READ_ROWS // 4))
    )
    with threadpool_limits(limits=1):
        return dataclasses.replace(made, signature=Signature.of(train_nd, held_nd))


def spectrum(vectors_nd: npt.NDArray[Any]) -> tuple[Matrix, float]:
    """Compute the eigenvalues (d,) of the covariance of at least two vectors, largest first, and the effective rank.

    The effective rank is exp of the entropy of the spectrum (Roy & Vetterli 2007).
    """
    covariance_dd = np.atleast_2d(np.cov(np.asarray(vectors_nd, np.float64), rowvar=False))
    values_d = np.linalg.eigvalsh(covariance_dd)[::-1].clip(min=0)
    fraction = values_d[values_d > 0] / values_d.sum()
    return values_d, float(np.exp(-(fraction * np.log(fraction)).sum()))


def _pieces(column: FixedColumn, rows: npt.NDArray[np.int64]) -> Iterator[Matrix]:
    for start in range(0, len(rows), _READ_ROWS):
        piece = column.take(rows[start : start + _READ_ROWS]).astype(np.float64)
        if not np.isfinite(piece).all():
            bad = rows[start + int(np.flatnonzero(~np.isfinite(piece).all(1))[0])]
            raise StoreError(
                f"{column.store.directory}: row {bad} contains a non-finite number. Run the validation before the fit."
            )
        yield piece


def moments(pieces: Iterator[Matrix], *, full: bool) -> tuple[Matrix, Matrix]:
    """Compute mean and sum of squared deviations (or of their outer products) in one pass (Chan et al. 1983)."""
    count = 0
    mean_d: Matrix = np.zeros(1)
    moments: Matrix = np.zeros(1)
    for piece in pieces:
        own_mean = piece.mean(0)
        centred = piece - own_mean
        own = centred.T @ centred if full else np.einsum("nd,nd->d", centred, centred)
        delta = own_mean - mean_d
        total = count + len(piece)
        between = np.outer(delta, delta) if full else delta * delta
        moments = moments + own + between * (count * len(piece) / total)
        mean_d = mean_d + delta * (len(piece) / total)
        count = total
    return mean_d, moments


def _whitening(mean_d: Matrix, covariance_dd: Matrix, *, rows: int, unit_norm: bool) -> Normaliser:
    """Compute W = V diag(1/√λ'): principal axes with unit variance. Axes without variance keep their scale.

    With about as many rows as dimensions, their covariance has axes of almost no variance that only this sample has.
    Whitening by it gives other texts standard deviations of 10 to 100 there. With few rows, λ' is therefore a mixture
    of the variances λ and of their mean, scaled so that the variance after it is still 1 on average: only the mean up
    to a row for each dimension, only λ from `ENOUGH` rows on.
    """
    values, axes = np.linalg.eigh(covariance_dd)
    values, axes = np.maximum(values[::-1], 0), axes[:, ::-1]
    part = float(np.clip((ENOUGH * len(values) / max(rows, 1) - 1) / (ENOUGH - 1), 0, 1))
    if part > 0 and values.max() > 0:
        log.info(
            "%s training vectors are few to whiten %s dimensions: the normaliser is a mixture of %.0f %% one scale for "
            "all dimensions and %.0f %% whitening; with %s vectors or more it is only whitening",
            f"{rows:,}", f"{len(values):,}", 100 * part, 100 * (1 - part), f"{ENOUGH * len(values):,}",
        )  # fmt: skip
        mixed = (1 - part) * values + part * values.mean()
        values = mixed * (values / mixed).mean()
    flat = values <= 1e-10 * max(float(values.max()), 1e-300)
    std = np.sqrt(np.where(flat, 1.0, values))
    return Normaliser(
        "whitening", mean_d, np.ones_like(mean_d), unit_norm, rows,
        matrix_dd=axes / std, inverse_dd=(axes * std).T.copy(),
    )  # fmt: skip
