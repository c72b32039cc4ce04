"""Encoders whose weights run on this machine: their parameters, location and loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from mm_ldlm.core.config import AutoDevice, InvalidValue, Rows, Size, config, to_dict
from mm_ldlm.data.encoders.base import Encoder
from mm_ldlm.data.encoders.registry import REGISTRY
from mm_ldlm.data.encoders.weights import LocatedWeights, locate_weights


@config
class LocalEncoderConfig:
    """An encoder whose weights are on this machine: its name, where they are, and how it runs.

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

    kind: str = "local"
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

    @property
    def batching(self) -> dict[str, int]:
        """Limits of the batches, which influence the last bits of the vectors."""
        return {"batch_tokens": self.batch_tokens, "batch_rows": self.batch_rows}

    def portable(self) -> dict[str, Any]:
        """Return the parameters without path and device, so that stores of two machines are equal."""
        plain: dict[str, Any] = to_dict(self)
        return {key: value for key, value in plain.items() if key not in ("path", "device")}

    def missing(self) -> str | None:
        """Return that the folder `path` does not exist, or None."""
        if self.path is None or Path(self.path).exists():
            return None
        return (
            f"parameter 'encoder.path': {self.path} does not exist (looked from {Path.cwd()}). Correct it or put the "
            "folder with the weights there."
        )

    def locate(self, *, expected: str | None = None) -> LocatedWeights:
        """Find the weights and check them; their fingerprint depends on their bytes and not on `expected`."""
        return locate_weights(self)

    def load(self, located: LocatedWeights, *, device: str | None = None) -> Encoder:
        """Load tokenizer and weights."""
        chosen = device or self.device
        if located.spec.architecture == "sentence_transformers":
            from mm_ldlm.data.encoders.sentence_transformers import SentenceTransformersEncoder

            return SentenceTransformersEncoder(
                located, device=chosen, max_length=self.max_length, batch_rows=self.batch_rows
            )
        from mm_ldlm.data.encoders.transformer import TransformerEncoder

        return TransformerEncoder(located, device=chosen, **self.batching)
