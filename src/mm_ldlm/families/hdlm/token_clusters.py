"""Token clusters: words grouped by the direction of their encoder vectors, the coarse scale of hierarchical diffusion.

The store has one row for each token id, in the order of the ids: the column `id` is the token, the column `value` its
cluster (−1 for [PAD] and [MASK], which are no words).
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.cluster.vq import kmeans2

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.config import TokenClustersConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, StoreWriter
from mm_ldlm.data.store.fingerprint import fingerprint

KIND = "token_clusters"
SCHEMA = pa.schema([("id", pa.string()), ("value", pa.list_(pa.int32(), 1))])
ITERATIONS = 100
"""Of Lloyd's algorithm; the assignment of some thousand words settles before."""


def cluster_vocabulary(
    tokenizer: TextTokenizer, token_vectors: LatentStore, *, config: TokenClustersConfig, seed: int, workspace: Path
) -> Manifest:
    """Write and commit the clusters of a tokenizer's words; a function of the vectors, the count and the seed.

    Raises:
        FingerprintError: the vectors belong to another tokenizer.
        ConfigurationError: there are fewer different words than clusters.
    """
    token_vectors.manifest.require(directory=token_vectors.directory, tokenizer=tokenizer.fingerprint)
    words = [i for i in range(tokenizer.vocab_size) if i not in (tokenizer.pad_id, tokenizer.mask_id)]
    cluster_V1 = np.full((tokenizer.vocab_size, 1), -1, np.int32)
    cluster_V1[words, 0] = cluster(token_vectors.take(words), count=config.count, seed=seed)
    writer = StoreWriter(workspace, kind=KIND, schema=SCHEMA)
    values = pa.FixedSizeListArray.from_arrays(pa.array(cluster_V1.reshape(-1), pa.int32()), 1)
    names = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    writer.append(pa.Table.from_arrays([pa.array(names, pa.string()), values], schema=SCHEMA))
    return writer.finish(
        fingerprints={
            "tokenizer": tokenizer.fingerprint,
            "token_vectors": token_vectors.manifest.fingerprint,
            "parameters": fingerprint({"config": config, "seed": seed}),
        },
        meta={"clusters": int(cluster_V1.max()) + 1, "sizes": np.bincount(cluster_V1[words, 0]).tolist()},
    )


def cluster(vectors_nd: npt.NDArray[np.float32], *, count: int, seed: int) -> npt.NDArray[np.int32]:
    """Assign each of n vectors to one of at most `count` clusters by k-means on their directions (k-means++ start).

    Returns (n,) int32, numbered 0, 1, … in the order of first appearance. A cluster that lost all its vectors is left
    out.

    Raises:
        ConfigurationError: fewer than `count` vectors differ.
    """
    norm_n1 = np.linalg.norm(vectors_nd.astype(np.float64), axis=1, keepdims=True)
    direction_nd = vectors_nd / np.where(norm_n1 > 0, norm_n1, 1)
    different = len(np.unique(direction_nd, axis=0))
    if count > different:
        raise ConfigurationError(
            f"parameter 'token_clusters.count': expected at most {different}, the words with different vectors, found "
            f"{count}. Lower it, or use a larger vocabulary."
        )
    with warnings.catch_warnings():  # of an empty cluster
        warnings.filterwarnings("ignore", category=UserWarning, module="scipy")
        _, label_n = kmeans2(direction_nd, count, iter=ITERATIONS, minit="++", rng=np.random.default_rng(seed))
    _, first, label_n = np.unique(label_n, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int32)[label_n]
