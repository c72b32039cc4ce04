"""The encoder specification: everything that distinguishes one encoder from another, as data."""

from __future__ import annotations

import dataclasses
from typing import Literal

Pooling = Literal["mean", "cls", "last"]
Architecture = Literal["auto", "t5_encoder", "m2m100_encoder", "sentence_transformers"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """The specification of one encoder.

    Attributes:
        name: its name in the parameters.
        source: hub id, or `package:NAME` for weights inside an installed package.
        revision: pinned commit on the hub; None for weights of a package or a folder. The digests of the files are
            always part of the fingerprint.
        dim: dimension of the vectors before truncation; None to read it from the folder.
        pooling: pooling of the last hidden states: masked mean, first token, or last token.
        prompt: text prepended to every sentence.
        padding_side: "left" for decoders that pool the last token.
        max_length: maximum number of tokens, special tokens included; longer sentences are truncated.
        normalised: vectors are scaled to unit length, also after truncation.
        truncation: smallest and largest dimension for which the model was trained (Matryoshka); None refuses
            truncation.
        architecture: the class that loads the weights.
        final_token: token that must end every sequence (pooling reads it), appended where the tokenizer does not do so.
        language: source language code for multilingual tokenizers that need one.
        licence: licence of the weights.
        digests: sha256 by file name, checked when the weights come from `source` at `revision`.
    """

    name: str
    source: str
    revision: str | None = None
    dim: int | None = None
    pooling: Pooling = "mean"
    prompt: str = ""
    padding_side: Literal["left", "right"] = "right"
    max_length: int = 512
    normalised: bool = True
    truncation: tuple[int, int] | None = None
    architecture: Architecture = "auto"
    final_token: str | None = None
    language: str | None = None
    licence: str = "unknown"
    digests: tuple[tuple[str, str], ...] = ()
