"""Vectors that were computed elsewhere and come with the texts: the encoder is declared.

A source contains a vector for each text (`corpus.sources`), and the vectors are used as they are. Nothing is embedded,
unless the parameters name an encoder for new texts: search, re-embedding, STS and the spot check of validation use it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from mm_ldlm.core import EncoderError, Size, config, refuse_if, to_dict
from mm_ldlm.data.encoders.base import (
    ENCODERS,
    Encoder,
    LocatedEncoder,
    Name,
    SourceVectors,
    load_encoder,
    no_encoder,
    side_folder,
)
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.own_vectors.store import VectorStore


@config
class PrecomputedEncoderConfig:
    """The declaration of an encoder whose vectors the sources contain.

    Attributes:
        name: name of the encoder, for reports and messages.
        dim: dimension of the vectors; rows with other vectors go to quarantine.
        normalised: whether the vectors have length 1; validation checks it.
        for_new_texts: the same encoder in a form that can embed texts without a vector, or null for none.
    """

    kind: str = "precomputed"
    name: Name
    dim: Size
    normalised: bool
    for_new_texts: Annotated[Any, ENCODERS] | None = None

    device: ClassVar[None] = None

    def __post_init__(self) -> None:
        given: Any = self.for_new_texts
        refuse_if(
            isinstance(given, SourceVectors),
            "expected an encoder that computes vectors (local or http), found one whose vectors are given",
            "for_new_texts",
        )
        refuse_if(
            (other := getattr(given, "dim", None)) not in (None, self.dim),
            f"expected an encoder of dimension {self.dim}, as the given vectors have, found dimension {other}",
            "for_new_texts",
            "dim",
        )

    def vector_store(self, folder: Path) -> VectorStore:
        """Return the store that ingestion fills with the vectors of the sources."""
        return VectorStore(self.dim, folder)

    def take_over(self, records: ShardStore, *, config: ExtractConfig, workspace: Path) -> Manifest:
        """Make the latents of the vectors that the sources contained (`own_vectors.latents.take_over`)."""
        from mm_ldlm.extras.own_vectors.latents import take_over

        return take_over(records, side_folder(records.directory), encoder=self, config=config, workspace=workspace)

    @property
    def batching(self) -> dict[str, int]:
        """No limits, because nothing is batched."""
        return {}

    def portable(self) -> dict[str, Any]:
        """Return the declaration without the encoder for new texts, which has no influence on the vectors."""
        return {key: value for key, value in to_dict(self).items() if key != "for_new_texts"}

    def missing(self) -> str | None:
        """Return what the encoder for new texts lacks on this machine, or None."""
        found: str | None = None if self.for_new_texts is None else self.for_new_texts.missing()
        return found and found.replace("'encoder.", "'encoder.for_new_texts.")

    def locate(self, *, expected: str | None = None) -> LocatedEncoder:
        """Return the declaration; its fingerprint depends only on name, dimension and normalisation."""
        mark = fingerprint({"precomputed": self.name, "dim": self.dim, "normalised": self.normalised})
        return LocatedEncoder(
            name=self.name, dim=self.dim, normalised=self.normalised, fingerprint=mark, about={"kind": self.kind}
        )

    def load(self, located: LocatedEncoder, *, device: str | None = None) -> Encoder:
        """Load the encoder for new texts, under the fingerprint of the declared one.

        Raises:
            EncoderError: there is none, or its vectors have another dimension.
        """
        if self.for_new_texts is None:
            raise EncoderError(str(no_encoder(self)))
        encoder = load_encoder(self.for_new_texts, device=device)
        if encoder.dim != self.dim:
            raise EncoderError(
                f"expected vectors of dimension {self.dim} from the encoder for new texts, like the vectors of "
                f"'{self.name}', found dimension {encoder.dim}. Correct encoder.for_new_texts."
            )
        encoder.located = located
        return encoder
