"""Check of the parameters: sources with vectors need an encoder that declares them, and the reverse."""

from collections.abc import Mapping
from typing import Any

from mm_ldlm.data.encoders.base import SourceVectors


def problems(sections: Mapping[str, Any]) -> list[str]:
    """List the sources whose vectors contradict the encoder, or that lack the vectors that it declares."""
    encoder = sections["encoder"]
    given = isinstance(encoder, SourceVectors)
    wrong = [
        (place, source) for place, source in enumerate(sections["ingestion"].sources) if source.has_vectors != given
    ]
    expected = "a source with vectors" if given else "a source without vectors, because this encoder computes others"
    remedy = (
        "Set its vector_column (a column of a table) or vectors (the .npy file of a text file), or choose an encoder "
        "that embeds texts"
        if given
        else "Set encoder to {kind: precomputed, name: …, dim: …, normalised: …}, or remove the vectors of the source"
    )
    return [
        f"parameter 'ingestion.sources[{place}]': encoder.kind is '{encoder.kind}': expected {expected}, found "
        f"'{source.label}'. {remedy}."
        for place, source in wrong
    ]
