"""Token vectors: the encoder's vector of every token, from which the token embeddings of a model may be initialised."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.encoders import EncoderConfig, load_encoder, locate_encoder
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.writer import write_shard


def embed_vocabulary(tokenizer: TextTokenizer, *, encoder: EncoderConfig, workspace: Path) -> Manifest:
    """Write a store of kind "latents" with one row per token id, in the order of the ids.

    Each token is encoded by itself, as plain text (word pieces without their continuation prefix). An intact store of
    the same tokenizer and encoder is kept, so that its bytes do not change if the encoder repeats vectors only
    approximately.

    Raises:
        EncoderError: The vector of a token is not finite, or the encoder changed in between.
    """
    earlier = Manifest.read(workspace) if Manifest.exists(workspace) else None
    located = locate_encoder(encoder, expected=earlier.fingerprints.get("encoder") if earlier else None)
    made_from = {"tokenizer": tokenizer.fingerprint, "encoder": located.fingerprint}
    if earlier and earlier.fingerprints == made_from and _is_intact(workspace, earlier):
        return earlier
    tokens = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    loaded = load_encoder(encoder, located=located)
    vectors_Vd = loaded.encode([token.removeprefix("##").replace("▁", " ").strip() or token for token in tokens])
    if not np.isfinite(vectors_Vd).all():
        bad = tokens[int(np.flatnonzero(~np.isfinite(vectors_Vd).all(1))[0])]
        raise EncoderError(
            f"expected finite token vectors, found NaN or infinity for the token {bad!r}. Set model.token_vectors to "
            "'random', or encode in float32."
        )
    loaded.verify()
    shard = write_shard(workspace, "part-00000.arrow", latent_store.table(tokens, vectors_Vd, dtype="float32"))
    return Manifest(
        kind=latent_store.KIND, rows=len(tokens), shards=(shard,),
        fingerprints=made_from,
        meta={"dim": int(vectors_Vd.shape[1])},
    )  # fmt: skip


def _is_intact(workspace: Path, manifest: Manifest) -> bool:
    """Return whether every shard exists and has the recorded checksum."""
    paths = [workspace / shard.name for shard in manifest.shards]
    return all(path.is_file() for path in paths) and not ShardStore(workspace, manifest).damaged_shards()
