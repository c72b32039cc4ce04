"""The interfaces of encoders, `encode(sentences) -> (n, d) float32`, and `locate_encoder` and `load_encoder`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.side import SideStore
    from mm_ldlm.data.latents.config import ExtractConfig
    from mm_ldlm.data.store import Manifest, ShardStore


class LocatedEncoder(Protocol):
    """An encoder that was found and identified, but not loaded."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int | None:
        """Dimension of the vectors, where it is known."""
        ...

    @property
    def normalised(self) -> bool:
        """Whether the vectors have unit length."""
        ...

    @property
    def dtype(self) -> str:
        """Data type of the computation, which decides how closely vectors can be reproduced."""
        ...

    @property
    def fingerprint(self) -> str: ...

    def describe(self) -> dict[str, Any]:
        """Describe the encoder for manifests and reports, as plain JSON without paths and addresses."""
        ...


class Encoder(Protocol):
    """A loaded encoder.

    `encode` is `run(prepare(sentences))`. The two are separate so that a caller can tokenise the next rows while the
    current ones are computed.
    """

    @property
    def dim(self) -> int:
        """Dimension d of the vectors."""
        ...

    @property
    def fingerprint(self) -> str: ...

    def prepare(self, sentences: Sequence[str]) -> Any:
        """Tokenise and batch the sentences on the host; needs no device and may run on another thread."""
        ...

    def run(self, prepared: Any) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences; a local encoder repeats its bits for equal input."""
        ...

    def encode(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences."""
        ...

    def verify(self) -> None:
        """Check that the encoder is still the one that was located. The extraction calls it before it writes a shard.

        Raises:
            EncoderError: it has changed.
        """
        ...


class EncoderConfig(Protocol):
    """Configuration of an encoder; `encoders.registry.ENCODERS` lists the kinds."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str | None:
        """A torch device name, "auto", or None for an encoder that computes elsewhere."""
        ...

    @property
    def batching(self) -> dict[str, int]:
        """Limits of the batches, which may influence the last bits of the vectors."""
        ...

    def portable(self) -> dict[str, Any]:
        """Return the parameters as plain JSON without those of one machine (paths, addresses, devices)."""
        ...

    def missing(self) -> str | None:
        """Return an error message if this machine lacks what the encoder needs, else None; reads and loads nothing."""
        ...

    def locate(self, *, expected: str | None) -> LocatedEncoder:
        """Find the encoder and compute its fingerprint.

        An encoder whose vectors are not reproducible to the last bit compares itself with the fingerprint `expected`
        and adopts it if it is the same encoder.

        Raises:
            EncoderError: it cannot be found or reached, is not the one that the parameters name, or has changed since
                the fingerprint `expected` was made.
        """
        ...

    def load(self, located: Any, *, device: str | None) -> Encoder:
        """Load the encoder that `locate` of this configuration returned."""
        ...


@runtime_checkable
class GivenVectors(Protocol):
    """An encoder configuration whose vectors the sources contain; nothing is embedded."""

    @property
    def name(self) -> str: ...

    @property
    def given_dim(self) -> int:
        """Dimension of the vectors in the sources."""
        ...

    def vector_store(self, folder: Path) -> SideStore:
        """Return the store that ingestion fills with the vectors of the sources, in a folder of its own."""
        ...

    @property
    def for_new_texts(self) -> EncoderConfig | None:
        """An encoder that can embed texts without a vector, or None."""
        ...

    def take_over(self, records: ShardStore, *, config: ExtractConfig, workspace: Path) -> Manifest:
        """Fill the latent store of the records with their vectors and commit it."""
        ...


def given_dim(config: EncoderConfig) -> int | None:
    """Return the dimension of the vectors that the sources contain; None for an encoder that computes them."""
    return config.given_dim if isinstance(config, GivenVectors) else None


def side_store(config: EncoderConfig, records: Path) -> SideStore | None:
    """Return the store of given vectors, below the folder of the records; None for an encoder that computes them."""
    return config.vector_store(records / "vectors") if isinstance(config, GivenVectors) else None


def no_encoder(config: EncoderConfig) -> str | None:
    """Explain why texts without a vector cannot be embedded; None if they can."""
    if not isinstance(config, GivenVectors) or config.for_new_texts is not None:
        return None
    return (
        f"the vectors of the encoder '{config.name}' come from the sources, and no encoder is named that can embed "
        "other texts. Set encoder.for_new_texts (for example {kind: local, name: minilm}) if there is one."
    )


def locate_encoder(config: EncoderConfig, *, expected: str | None = None) -> LocatedEncoder:
    """Find the encoder that the parameters name, without loading it; `expected` as in `EncoderConfig.locate`.

    Raises:
        EncoderError: It is missing, or is not the one that the parameters name.
    """
    return config.locate(expected=expected)


def load_encoder(
    config: EncoderConfig,
    *,
    device: str | None = None,
    located: LocatedEncoder | None = None,
    expected: str | None = None,
) -> Encoder:
    """Load the encoder that the parameters name; `device` overrides theirs (for a worker with its own GPU).

    Raises:
        EncoderError: It cannot be found or loaded, or its dimension differs from its spec.
    """
    return config.load(located or locate_encoder(config, expected=expected), device=device)
