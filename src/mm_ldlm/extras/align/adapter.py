"""Adapters: affine maps from the vectors of another encoder (m dimensions) to those that a run reads (d), and back.

An exported run with a folder `adapter` reads and returns the vectors of the other encoder.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.files import InputFile, json_document, write_bytes, write_json
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.latents.recognition import Matrix, Signature, unit

if TYPE_CHECKING:
    from mm_ldlm.inference.loading import Parts

ADAPTER = "adapter"
"""Folder of an exported run"""
ARRAYS = ("mean_m", "bias_d", "matrix_md", "back_dm")
"""Arrays of `adapter.safetensors`, besides the arrays of the signature, whose names begin with `PREFIX`"""
PREFIX = "signature."


@json_document
class About:
    """The file `adapter.json`.

    Attributes:
        kind: how the map was fitted.
        encoder: name of the other encoder.
        pairs: number of pairs that it was fitted on.
        cosine: mean cosine of mapped vectors to the vectors of the run's encoder, on pairs that were held out.
        unit_norms: whether the vectors of the other encoder, and of the run's, have norm 1.
        typical: lowest and highest norm of mapped vectors in standardised space.
    """

    kind: str
    encoder: str
    pairs: int
    cosine: float
    unit_norms: tuple[bool, bool]
    typical: tuple[float, float]
    format_version: Literal[1] = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Adapter:
    """Map y = bias + (x - mean) M from the vectors x of another encoder, and its approximate inverse.

    Attributes:
        signature: signature of the other encoder; None if the pairs were too few.
    """

    about: About
    mean_m: Matrix
    bias_d: Matrix
    matrix_md: Matrix
    back_dm: Matrix
    signature: Signature | None = None

    def to_own(self, x_nm: npt.NDArray[Any]) -> Matrix:
        """Map vectors (n, m) of the other encoder to vectors (n, d) of the run's."""
        y_nd = self.bias_d + (x_nm - self.mean_m) @ self.matrix_md
        return unit(y_nd) if self.about.unit_norms[1] else y_nd

    def to_other(self, y_nd: npt.NDArray[Any]) -> Matrix:
        """Map vectors (n, d) of the run's encoder to vectors (n, m) of the other."""
        x_nm = self.mean_m + (y_nd - self.bias_d) @ self.back_dm
        return unit(x_nm) if self.about.unit_norms[0] else x_nm

    def save(self, directory: Path) -> None:
        """Write `adapter.safetensors` (float32), then `adapter.json`."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(getattr(self, name), np.float32) for name in ARRAYS}
        if self.signature is not None:
            arrays |= {f"{PREFIX}{name}": array for name, array in self.signature.arrays().items()}
        write_bytes(directory / "adapter.safetensors", save(arrays))
        write_json(directory / "adapter.json", dataclasses.asdict(self.about))

    @classmethod
    def load(cls, directory: Path) -> Adapter:
        """Read what `save` wrote; StoreError if it is damaged."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        file = InputFile(directory / "adapter.json", remedy="Fit the adapter again (`mm-ldlm align`).")
        raw = dataclasses.replace(file, path=directory / "adapter.safetensors").read()
        with file.parsing("an adapter", KeyError, TypeError, ValueError, SafetensorError):
            arrays = load(raw)
            signature = Signature.read(arrays, PREFIX) if f"{PREFIX}mean_d" in arrays else None
            return cls(
                about=file.json(About), signature=signature,
                **{name: arrays[name].astype(np.float64) for name in ARRAYS},
            )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Adapted:
    """The normaliser of a run with an adapter in front of it: between vectors of the other encoder and model space."""

    adapter: Adapter
    normaliser: Normaliser

    @property
    def dim(self) -> int:
        """Dimension m of the vectors."""
        return len(self.adapter.mean_m)

    @property
    def typical(self) -> tuple[float, float]:
        return self.adapter.about.typical

    @property
    def unit_norm(self) -> bool:
        return self.adapter.about.unit_norms[0]

    @property
    def signature(self) -> Signature | None:
        return self.adapter.signature

    def standardise(self, x_nm: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Map vectors (n, m) to model space (n, d)."""
        return self.normaliser.standardise(self.adapter.to_own(x_nm))

    def invert(self, z_nd: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Map vectors (n, d) of model space to vectors (n, m)."""
        return self.adapter.to_other(self.normaliser.invert(z_nd))


def adapted(parts: Parts, folder: Path) -> Parts:
    """Return the parts of a run that reads the latents of the adapter's encoder."""
    adapter = Adapter.load(folder)
    return dataclasses.replace(
        parts,
        normalisers={**parts.normalisers, "normaliser": Adapted(adapter, parts.normalisers["normaliser"])},
        encoder=adapter.about.encoder,
        load_encoder=None,
        load_own=parts.load_encoder,
        no_encoder=f"its latents are the vectors of {adapter.about.encoder or 'another encoder'}, read through an "
        "adapter.",
    )
