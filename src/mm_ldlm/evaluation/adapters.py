"""Adapter of an encoding function to the interface of `sentence_transformers` evaluators and of `mteb`.

Both call `encode(sentences, **options)` with options that differ by version. Options that do not change the vectors
(batch size, progress bar, prompts of tasks that have none here) are accepted; an option that would change them
(`output_value="token_embeddings"`) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mm_ldlm.core.errors import EvaluationError


class EncoderAdapter:
    """Wrap `encode(list of str) → (n, d)` (`Encoder.encode`, or the latents of `MMLDLM.embed`) for external evaluators.

    mteb ≥ 2 passes batches as an iterable of {"text": [...]} with task metadata; mteb 1 and sentence-transformers
    pass strings.
    """

    similarity_fn_name = "cosine"

    def __init__(
        self, encode: Callable[[Sequence[str]], np.ndarray], *, name: str = "mm-ldlm", revision: str = "local"
    ) -> None:
        self._encode = encode
        self.name, self.revision = name, revision
        self.model_card_data = _Card()
        self.max_seq_length: int | None = None

    def encode(
        self,
        sentences: str | Sequence[str] | Iterable[dict[str, Any]],
        *_: Any,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        output_value: str | None = "sentence_embedding",
        truncate_dim: int | None = None,
        **__: Any,
    ) -> Any:
        """Encode texts: (n, d) float32, or (d,) for a single string; a torch tensor on request."""
        if output_value != "sentence_embedding":
            raise EvaluationError(
                f"Expected output_value 'sentence_embedding', found '{output_value}'. Use 'sentence_embedding'."
            )
        if single := isinstance(sentences, str):
            sentences = [sentences]
        texts = [text for item in sentences for text in (item["text"] if isinstance(item, dict) else [item])]
        vectors = np.asarray(self._encode(texts), dtype=np.float32)
        if len(vectors) != len(texts):
            raise EvaluationError(f"Expected {len(texts)} vectors, one per text, found {len(vectors)}.")
        if truncate_dim is not None:
            vectors = vectors[:, :truncate_dim]
        if normalize_embeddings:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors[0] if single else vectors
        if convert_to_tensor or not convert_to_numpy:
            import torch

            return torch.from_numpy(vectors)
        return vectors

    encode_query = encode
    encode_document = encode

    def similarity(self, a: Any, b: Any) -> Any:
        """Compute the cosine of every pair: (n, m), as a tensor."""
        from sentence_transformers.util import cos_sim

        return cos_sim(a, b)

    def similarity_pairwise(self, a: Any, b: Any) -> Any:
        """Compute the cosine of each row of `a` to the same row of `b`: (n,), as a tensor."""
        from sentence_transformers.util import pairwise_cos_sim

        return pairwise_cos_sim(a, b)

    @property
    def mteb_model_meta(self) -> Any:
        """Name and revision for mteb's result files; needs mteb."""
        from mteb.models.model_meta import ModelMeta

        return ModelMeta.create_empty(
            {"name": f"mm-ldlm/{self.name}", "revision": self.revision, "framework": ["PyTorch"], "open_weights": False}
        )


class _Card:
    """Stand-in for the model card to which sentence-transformers' evaluators write their scores."""

    def set_evaluation_metrics(self, *_: Any, **__: Any) -> None:
        return None
