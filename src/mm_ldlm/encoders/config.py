"""Parameters that choose an encoder."""

from __future__ import annotations

from typing import Literal

from mm_ldlm.config import AutoDevice, InvalidValue, Rows, Size, config
from mm_ldlm.encoders.registry import REGISTRY


@config
class EncoderConfig:
    """The encoder, where its weights are, and how it runs.

    Attributes:
        name: a name of the registry, or the hub id of any sentence-transformers model.
        path: folder with the weights, instead of the registry's source; null uses the package or the hub cache.
        revision: commit on the hub, instead of the pinned one.
        truncate_dim: number of leading dimensions to keep (Matryoshka) before normalising again; null keeps all.
        prompt: prompt, instead of the spec's; "" for none.
        language: source language code, instead of the spec's (SONAR).
        max_length: maximum number of tokens, at most the spec's.
        dtype: data type of weights and activations; the vectors are always float32.
        device: a torch device name, or "auto" for the process's GPU if there is one, else the CPU.
        batch_tokens: maximum number of padded tokens in one forward pass.
        batch_rows: maximum number of sentences in one forward pass.
    """

    name: str = "minilm"
    path: str | None = None
    revision: str | None = None
    truncate_dim: Size | None = None
    prompt: str | None = None
    language: str | None = None
    max_length: Size | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: AutoDevice = "auto"
    batch_tokens: Rows = 4096
    batch_rows: Rows = 64

    def __post_init__(self) -> None:
        spec = REGISTRY.get(self.name)
        if spec is None:
            if "/" not in self.name and self.path is None:
                raise InvalidValue(
                    f"encoder {self.name!r} is neither in the registry ({', '.join(REGISTRY)}) nor a hub id "
                    "(owner/model); set path to use a local sentence-transformers folder under any name",
                    "name",
                )
            return
        if self.truncate_dim is not None and self.truncate_dim != spec.dim:
            if spec.truncation is None:
                raise InvalidValue(
                    f"truncate_dim={self.truncate_dim}: {self.name} was not trained for truncation", "truncate_dim"
                )
            low, high = spec.truncation
            if not low <= self.truncate_dim <= high:
                raise InvalidValue(
                    f"truncate_dim={self.truncate_dim}: {self.name} can be truncated to {low}..{high}", "truncate_dim"
                )
        if self.dtype == "float16" and spec.architecture == "t5_encoder":
            raise InvalidValue("T5 overflows in float16; use bfloat16 or float32", "dtype")
        if self.language is not None and spec.language is None:
            raise InvalidValue(f"language={self.language!r}: {self.name} has no language setting", "language")

    @property
    def dim(self) -> int | None:
        """Dimension of the vectors, where it is known without loading anything."""
        spec = REGISTRY.get(self.name)
        return self.truncate_dim or (spec.dim if spec else None)
