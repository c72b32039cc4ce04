"""The interfaces of encoders, `encode(sentences) -> (n, d) float32`, and the registry of their kinds."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import StringConstraints

from mm_ldlm.core import FingerprintError, Kinds, parse_kind

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.cleaning import SideStore
    from mm_ldlm.data.latents.config import ExtractConfig
    from mm_ldlm.data.store import Manifest, ShardStore


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""A name that is not empty"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocatedEncoder:
    """An encoder that was found and identified, but not loaded.

    Attributes:
        name: its name in the parameters.
        dim: dimension of the vectors, where it is known.
        normalised: whether the vectors have unit length.
        fingerprint: digest of everything that decides the vectors.
        about: what else describes it, as plain JSON without paths and addresses.
        dtype: data type of the computation, which decides how closely vectors can be reproduced.
    """

    name: str
    dim: int | None
    normalised: bool
    fingerprint: str
    about: Mapping[str, Any]
    dtype: str = "unknown"

    def describe(self) -> dict[str, Any]:
        """Describe the encoder for manifests and reports."""
        names = ("name", "dim", "normalised", "dtype", "fingerprint")
        return {**self.about, **{name: getattr(self, name) for name in names}}


class Encoder(abc.ABC):
    """A loaded encoder.

    `encode` is `run(prepare(sentences))`, and may divide many sentences; an extraction batches an entire shard.
    """

    dim: int
    """Dimension d of the vectors"""
    lanes: int = 1
    """Number of batches that `run` computes at a time, which changes no vector"""
    threads: int = 1
    """Number of threads of each, which influences the last bits"""
    max_length: int | None = None
    """Largest number of tokens, special ones included, that it reads of a sentence; None if that is unknown"""

    def __init__(self, located: LocatedEncoder) -> None:
        self.located = located

    @property
    def fingerprint(self) -> str:
        return self.located.fingerprint

    def prepare(self, sentences: Sequence[str]) -> Any:
        """Tokenise and batch the sentences."""
        return list(sentences)

    @abc.abstractmethod
    def run(self, prepared: Any) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences; a local encoder repeats its bits for equal input."""

    def encode(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences."""
        return self.run(self.prepare(sentences))

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """Count the tokens of each sentence before it is truncated to `max_length`."""
        raise NotImplementedError

    def verify(self) -> None:
        """Check that the encoder is still the one that was located; the extraction calls it before it writes a shard.

        Weights that were read once do not change.

        Raises:
            EncoderError: it has changed.
        """
        return


class EncoderConfig(Protocol):
    """Configuration of an encoder; `ENCODERS` lists the kinds."""

    @property
    def kind(self) -> str:
        """Name of the kind."""

    @property
    def name(self) -> str:
        """Name of the encoder."""

    @property
    def device(self) -> str | None:
        """A torch device name, "auto", or None for an encoder that computes elsewhere."""

    @property
    def batching(self) -> dict[str, int]:
        """Limits of the batches, which may influence the last bits of the vectors."""

    def portable(self) -> dict[str, Any]:
        """Return the parameters as plain JSON without the ones of this machine (paths, addresses, devices)."""

    def missing(self) -> str | None:
        """Return an error message if this machine lacks what the encoder needs, else None; reads and loads nothing."""

    def locate(self, *, expected: str | None = None) -> LocatedEncoder:
        """Find the encoder and compute its fingerprint.

        An encoder whose vectors are not reproducible to the last bit compares itself with the fingerprint `expected`
        and adopts it if it is the same encoder.

        Raises:
            EncoderError: it cannot be found or reached, is not the one that the parameters name, or has changed since
                the fingerprint `expected` was made.
        """

    def load(self, located: Any, *, device: str | None = None) -> Encoder:
        """Load the encoder that `locate` of this configuration returned; `device` overrides the parameter.

        Raises:
            EncoderError: it cannot be loaded, or its dimension differs from its spec.
        """


@runtime_checkable
class SourceVectors(Protocol):
    """Configuration of an encoder whose vectors the sources contain; nothing is embedded."""

    @property
    def for_new_texts(self) -> EncoderConfig | None:
        """An encoder that can embed texts without a vector, or None."""

    def vector_store(self, folder: Path) -> SideStore:
        """Return the store that ingestion fills with the vectors of the sources, in a separate folder."""

    def take_over(self, records: ShardStore, *, config: ExtractConfig, workspace: Path) -> Manifest:
        """Fill the latent store of the records with their vectors and commit it."""


ENCODERS = Kinds(
    what="encoder",
    core={
        "local": "mm_ldlm.data.encoders.local:LocalEncoderConfig",
    },
    group="encoders",
    interface=EncoderConfig,
)
"""Encoders that the section `encoder` of the parameters can choose."""


def parse_encoder(value: Any) -> EncoderConfig:
    """Build the configuration of an encoder from its parameters.

    A mapping without `kind` has the kind `local`: run folders contain such mappings if they were written before there
    were several kinds.

    Raises:
        ConfigurationError: the kind is not known, or a key is unknown, missing or invalid for it.
    """
    given = {"kind": "local", **value} if isinstance(value, Mapping) else value
    return cast(EncoderConfig, parse_kind(ENCODERS, given, at="encoder"))


def side_folder(records: Path) -> Path:
    """Return the folder of the sources' vectors, below the records."""
    return records / "vectors"


def side_store(config: EncoderConfig, records: Path) -> SideStore | None:
    """Return the store of the sources' vectors, below the folder of the records; None if they are computed."""
    return config.vector_store(side_folder(records)) if isinstance(config, SourceVectors) else None


def no_encoder(config: EncoderConfig) -> str | None:
    """Explain why texts without a vector cannot be embedded; None if they can."""
    if not isinstance(config, SourceVectors) or config.for_new_texts is not None:
        return None
    return (
        f"the vectors of the encoder '{config.name}' come from the sources, and no encoder is named that can embed "
        "other texts. Set encoder.for_new_texts (for example {kind: local, name: minilm}) if there is one."
    )


def load_encoder(config: EncoderConfig, *, device: str | None = None, expected: str | None = None) -> Encoder:
    """Find and load the encoder that the parameters name; see `EncoderConfig.locate` and `EncoderConfig.load`.

    Raises:
        FingerprintError: its fingerprint is not the one `expected`.
    """
    located = config.locate(expected=expected)
    if expected not in (None, located.fingerprint):
        raise FingerprintError(
            f"encoder '{config.name}': expected the fingerprint {expected}, as when the latents were made, "
            f"found {located.fingerprint}. Its files or settings changed, or differ between hosts: restore them, or "
            "pass the original encoder as encoder=load_encoder(...)."
        )
    return config.load(located, device=device)
