"""The sentence-transformers backend, for folders with further modules (dense layers, word embeddings, ...)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.encoders.base import Encoder
from mm_ldlm.data.encoders.transformer import choose_device, first_line, quiet_loading
from mm_ldlm.data.encoders.weights import LocatedWeights


class SentenceTransformersEncoder(Encoder):
    """An `Encoder` that sentence-transformers runs. It tokenises inside `run`."""

    def __init__(self, located: LocatedWeights, *, device: str, max_length: int | None, batch_rows: int) -> None:
        import torch
        from safetensors import SafetensorError
        from sentence_transformers import SentenceTransformer

        super().__init__(located)
        self.spec, self.batch_rows = located.spec, batch_rows
        try:
            with quiet_loading():
                self.model = SentenceTransformer(
                    str(located.folder),
                    device=choose_device(device),
                    local_files_only=True,
                    trust_remote_code=False,
                    truncate_dim=located.truncate_dim,
                    model_kwargs={"dtype": getattr(torch, located.dtype)},
                )
        except (OSError, ValueError, KeyError, RuntimeError, AttributeError, SafetensorError) as error:
            raise EncoderError(
                f"encoder {located.spec.name!r}: sentence-transformers cannot load {located.folder} "
                f"({first_line(error)}). Fetch the model again, or set encoder.path to another folder."
            ) from error
        if max_length is not None:
            self.model.max_seq_length = min(max_length, self.model.max_seq_length or max_length)
        self.dim = int(self.encode(["dim"]).shape[1])

    def run(self, prepared: list[str]) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences."""
        if not prepared:
            return np.empty((0, self.dim), np.float32)
        found = self.model.encode(
            prepared,
            prompt=self.spec.prompt or None,
            batch_size=self.batch_rows,
            normalize_embeddings=self.spec.normalised,
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return np.asarray(found, np.float32)
