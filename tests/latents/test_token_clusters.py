"""Token clusters: a function of the vectors, the count and the seed, and of nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.errors import ConfigurationError, FingerprintError
from mm_ldlm.data.dataset import values
from mm_ldlm.data.latents.config import TokenClustersConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.families.hdlm.token_clusters import cluster, cluster_vocabulary

TEXTS, SPLITS = ["w0 w1 w2"], ["train"]
VECTORS = np.random.default_rng(0).normal(size=(23, 6)).astype(np.float32)


@pytest.fixture
def make(write_dataset: Any, tmp_path: Path) -> Any:
    def make(name: str, vectors: Any = VECTORS, *, count: int = 5, seed: int = 0) -> tuple[Manifest, Any]:
        dataset = write_dataset(tmp_path / name, TEXTS, SPLITS, token_vectors=vectors)
        manifest = cluster_vocabulary(
            dataset.tokenizer, LatentStore.open(dataset.folder("token_vectors")),
            config=TokenClustersConfig(count=count), seed=seed, workspace=tmp_path / name / "clusters",
        )  # fmt: skip
        return manifest, values(ShardStore.open(tmp_path / name / "clusters", "token_clusters"))

    return make


def test_every_word_has_a_cluster_and_other_ids_have_none(make: Any, tmp_path: Path) -> None:
    manifest, found = make("one")
    assert found.shape == (23, 1)
    assert found[[21, 22], 0].tolist() == [-1, -1]  # [PAD], [MASK]
    assert sorted(set(found[:21, 0].tolist())) == list(range(5))
    assert manifest.meta["clusters"] == 5
    store = ShardStore.open(tmp_path / "one" / "clusters")
    assert store.strings("id").take([0, 19, 21, 22]) == ["w0", "w19", "[PAD]", "[MASK]"], "row i is the token i"
    assert manifest.meta["sizes"] == np.bincount(found[:21, 0]).tolist()


def test_the_clusters_are_deterministic_and_their_fingerprint_follows_every_input(make: Any) -> None:
    first, again = make("first")[0], make("again")[0]
    assert first.fingerprint == again.fingerprint
    moved = VECTORS.copy()
    moved[0] = -moved[0]
    other = [make("vectors", moved)[0], make("count", count=4)[0], make("seed", seed=1)[0]]
    assert len({first.fingerprint, *(manifest.fingerprint for manifest in other)}) == 4


def test_words_of_one_direction_share_a_cluster() -> None:
    centres = np.eye(4, 8)
    label = np.random.default_rng(1).integers(0, 4, 200)
    label[:4] = [2, 0, 1, 3]
    noise = np.random.default_rng(2).normal(size=(200, 8)) * 0.05
    lengths = np.random.default_rng(3).uniform(0.1, 10, (200, 1))
    found = [cluster(((centres[label] + noise) * lengths).astype(np.float32), count=4, seed=seed) for seed in range(20)]
    whole = [x for x in found if len(set(x.tolist())) == 4 and all(len(set(x[label == k])) == 1 for k in range(4))]
    assert len(whole) >= 10, "k-means may end in a local minimum, but not often"
    assert whole[0][:4].tolist() == [0, 1, 2, 3], "numbered in the order of first appearance"
    assert whole[0].dtype == np.int32


def test_more_clusters_than_different_words_are_refused() -> None:
    vectors = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    assert sorted(set(cluster(vectors, count=3, seed=0).tolist())) == [0, 1, 2]
    with pytest.raises(ConfigurationError, match=r"'token_clusters.count': expected at most 3.*found 4"):
        cluster(vectors, count=4, seed=0)


def test_vectors_of_another_tokenizer_are_refused(write_dataset: Any, tmp_path: Path) -> None:
    class Other:
        fingerprint = "f" * 32

    dataset = write_dataset(tmp_path / "data", TEXTS, SPLITS, token_vectors=VECTORS)
    with pytest.raises(FingerprintError, match="expected a latents store made with tokenizer f"):
        cluster_vocabulary(
            Other(), LatentStore.open(dataset.folder("token_vectors")),  # type: ignore[arg-type]
            config=TokenClustersConfig(), seed=0, workspace=tmp_path / "clusters",
        )  # fmt: skip
