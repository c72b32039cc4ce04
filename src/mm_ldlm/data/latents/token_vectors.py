"""Token vectors: the encoder's vector of every token, from which the token embeddings of a model may be initialised."""

import dataclasses
from pathlib import Path

import numpy as np

from mm_ldlm.core import EncoderError
from mm_ldlm.data.encoders.base import EncoderConfig
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.store import Manifest, write_shard
from mm_ldlm.data.store.parts import Parts


@dataclasses.dataclass(frozen=True)
class TokenVectors(Feature):
    """One vector per token id, in the order of the ids.

    Each token is encoded by itself, as plain text (word pieces without their continuation prefix). A finished store of
    the same tokenizer and encoder is kept, so that its bytes do not change if the encoder repeats vectors only
    approximately.
    """

    encoder: EncoderConfig

    name = "token_vectors"
    kind = latent_store.KIND
    column = "latent"
    row_of = "id"
    from_encoder = True

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Encode every token.

        Raises:
            EncoderError: The vector of a token is not finite, or the encoder changed in between.
        """
        tokenizer = inputs.tokenizer
        located = self.encoder.locate(expected=Parts(workspace, {}).earlier.get("encoder"))
        made_from = {"tokenizer": tokenizer.fingerprint, "encoder": located.fingerprint}
        if (kept := Manifest.finished(workspace, made_from)) is not None:
            return kept
        tokens = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
        loaded = self.encoder.load(located, device=None)
        vectors_Vd = loaded.encode([token.removeprefix("##").replace("▁", " ").strip() or token for token in tokens])
        if not np.isfinite(vectors_Vd).all():
            bad = tokens[int(np.flatnonzero(~np.isfinite(vectors_Vd).all(1))[0])]
            raise EncoderError(
                f"expected finite token vectors, found NaN or infinity for the token {bad!r}. Set model.token_vectors "
                "to 'random', or encode in float32."
            )
        loaded.verify()
        shard = write_shard(workspace, "part-00000.arrow", latent_store.table(tokens, vectors_Vd))
        manifest = Manifest(
            kind=self.kind, rows=len(tokens), shards=(shard,), fingerprints=made_from,
            meta={"dim": int(vectors_Vd.shape[1])},
        )  # fmt: skip
        manifest.write(workspace)
        return manifest
