"""Sentence encoders: kinds of encoders, one loader, one method `encode(sentences) -> (n, d) float32`.

Encoders of the kind `local` run here: this room contains their specifications (pooling, prompt, padding side,
dimension, pinned revision), the search for weights with its checks, and two backends: a bare transformer, and
sentence-transformers for folders with further modules. Extras register further kinds: encoders behind a service,
and vectors that come with the texts. Nothing here depends on pipelines or trains. Torch and
transformers are imported only when an encoder is loaded.
"""

from mm_ldlm.data.encoders.base import (
    ENCODERS,
    Encoder,
    EncoderConfig,
    LocatedEncoder,
    load_encoder,
    no_encoder,
    parse_encoder,
)
from mm_ldlm.data.encoders.local import LocalEncoderConfig
from mm_ldlm.data.encoders.specs import REGISTRY, EncoderSpec

__all__ = [
    "ENCODERS",
    "REGISTRY",
    "Encoder",
    "EncoderConfig",
    "EncoderSpec",
    "LocalEncoderConfig",
    "LocatedEncoder",
    "load_encoder",
    "no_encoder",
    "parse_encoder",
]
