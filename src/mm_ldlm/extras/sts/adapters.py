"""Adapter of an encoding function to the interface of `sentence_transformers` evaluators and of `mteb`.

Both call `encode(sentences, **options)` with options that differ by version. Options that do not change the vectors
(batch size, progress bar, prompts of tasks that have none here) are accepted; an option that would change them
(`output_value="token_embeddings"`, `truncate_dim`) is refused.
"""

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sentence_transformers.util import cos_sim, pairwise_cos_sim

from mm_ldlm.core import EvaluationError

UNCHANGED = {"output_value": "sentence_embedding", "truncate_dim": None, "normalize_embeddings": False}
"""Options that would change the vectors → the value that does not"""


class EncoderAdapter:
    """Wrap `encode(list of str) → (n, d)` (`Encoder.encode`, or the latents of `MMLDLM.embed`) for external evaluators.

    mteb ≥ 2 passes batches as an iterable of {"text": [...]} with task metadata; mteb 1 and sentence-transformers
    pass strings.
    """

    similarity_fn_name, max_seq_length = "cosine", None
    similarity, similarity_pairwise = staticmethod(cos_sim), staticmethod(pairwise_cos_sim)
    model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *_, **__: None)  # for scores

    def __init__(
        self, encode: Callable[[Sequence[str]], np.ndarray], *, name: str = "mm-ldlm", revision: str = "local"
    ) -> None:
        self._encode, self.name, self.revision = encode, name, revision

    def encode(
        self, sentences: str | Sequence[str] | Iterable[dict[str, Any]], *_: Any, convert_to_tensor: bool = False,
        convert_to_numpy: bool = True, **options: Any,
    ) -> Any:  # fmt: skip
        """Encode texts: (n, d) float32, or (d,) for a single string; a torch tensor on request."""
        if wrong := [name for name, value in UNCHANGED.items() if options.get(name, value) != value]:
            raise EvaluationError(f"Expected options that do not alter vectors, found {', '.join(wrong)}. Remove them.")
        items = [sentences] if isinstance(sentences, str) else sentences
        texts = [text for item in items for text in (item["text"] if isinstance(item, dict) else [item])]
        vectors = np.asarray(self._encode(texts), dtype=np.float32)
        vectors = vectors[0] if isinstance(sentences, str) else vectors
        if convert_to_numpy and not convert_to_tensor:
            return vectors
        return torch.from_numpy(vectors)

    encode_query = encode_document = encode

    @property
    def mteb_model_meta(self) -> Any:
        """Name and revision for mteb's result files; needs mteb."""
        from mteb.models.model_meta import ModelMeta

        return ModelMeta.create_empty(
            {"name": f"mm-ldlm/{self.name}", "revision": self.revision, "framework": ["PyTorch"], "open_weights": False}
        )
