"""Sentence encoders as data: one registry of specs, one loader, one method `encode(sentences) -> (n, d) float32`.

This room contains the specifications (pooling, prompt, padding side, dimension, pinned revision), the search for
weights with its checks, and two backends: a bare transformer, and sentence-transformers for folders with further
modules. Nothing here depends on pipelines, and nothing here trains. Torch and transformers are imported only when an
encoder is loaded.
"""

from mm_ldlm.encoders.base import Encoder, load_encoder
from mm_ldlm.encoders.config import EncoderConfig
from mm_ldlm.encoders.registry import REGISTRY
from mm_ldlm.encoders.spec import EncoderSpec
from mm_ldlm.encoders.token_states import TokenEncoder
from mm_ldlm.encoders.weights import LocatedEncoder, locate_encoder

__all__ = [
    "REGISTRY",
    "Encoder",
    "EncoderConfig",
    "EncoderSpec",
    "LocatedEncoder",
    "TokenEncoder",
    "load_encoder",
    "locate_encoder",
]
