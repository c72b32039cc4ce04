"""Group words by the direction of their encoder vectors, for the coarse scale of hierarchical diffusion."""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import ConfigurationError, Rows, config
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.store import Manifest, fixed_lists, write_store
from mm_ldlm.data.store.fingerprint import fingerprint

SCHEMA = pa.schema([("id", pa.string()), ("value", pa.list_(pa.int32(), 1))])
ITERATIONS = 100
"""Of Lloyd's algorithm; the assignment of some thousand words settles before."""


@config
class HdlmSection:
    """Clusters of the vocabulary, for text processes that are made from them.

    Attributes:
        clusters: number of clusters; the HDLM paper uses 64 and 128 for vocabularies of 30,000 to 50,000 ids.
    """

    clusters: Rows = 64


@dataclasses.dataclass(frozen=True)
class TokenClusters(Feature):
    """One row for each token id, in the order of the ids: the column `id` is the token, the column `value` its cluster.

    The cluster is −1 for [PAD] and [MASK], which are not words.
    """

    hdlm: HdlmSection
    seed: int

    name = kind = "token_clusters"
    row_of = "id"
    made_from = ("token_vectors",)

    @property
    def variant(self) -> str:
        return f"{self.hdlm.clusters}-{self.seed}"

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Write the clusters of the tokenizer's words, a function of their vectors, the count and the seed.

        Raises:
            FingerprintError: the vectors belong to another tokenizer.
            ConfigurationError: there are fewer different words than clusters.
        """
        tokenizer, vectors = inputs.tokenizer, inputs.features["token_vectors"]
        vectors.manifest.require(directory=vectors.directory, tokenizer=tokenizer.fingerprint)
        words = [i for i in range(tokenizer.vocab_size) if i not in (tokenizer.pad_id, tokenizer.mask_id)]
        cluster_V1 = np.full((tokenizer.vocab_size, 1), -1, np.int32)
        words_nd = vectors.fixed("latent").take(words)
        cluster_V1[words, 0] = cluster(words_nd, count=self.hdlm.clusters, seed=self.seed)
        names = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
        return write_store(
            workspace,
            [{"id": names, "value": fixed_lists(cluster_V1)}],
            kind=self.kind,
            schema=SCHEMA,
            fingerprints={
                "tokenizer": tokenizer.fingerprint,
                "token_vectors": vectors.manifest.fingerprint,
                "parameters": fingerprint({"clusters": self.hdlm.clusters, "seed": self.seed}),
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
    from scipy.cluster.vq import kmeans2

    norm_n1 = np.linalg.norm(vectors_nd.astype(np.float64), axis=1, keepdims=True)
    direction_nd = vectors_nd / np.where(norm_n1 > 0, norm_n1, 1)
    different = len(np.unique(direction_nd, axis=0))
    if count > different:
        raise ConfigurationError(
            f"parameter 'hdlm.clusters': expected at most {different}, the words with different vectors, found "
            f"{count}. Lower it, or use a larger vocabulary."
        )
    with warnings.catch_warnings():  # of an empty cluster
        warnings.filterwarnings("ignore", category=UserWarning, module="scipy")
        _, label_n = kmeans2(direction_nd, count, iter=ITERATIONS, minit="++", rng=np.random.default_rng(seed))
    _, first, label_n = np.unique(label_n, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int32)[label_n]
