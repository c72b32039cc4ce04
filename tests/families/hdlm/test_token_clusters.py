"""Clusters of words: words of like direction, whatever the length of their vectors and the order of the words."""

from typing import Any

import numpy as np
import pytest

from mm_ldlm.core import ConfigurationError
from mm_ldlm.families.hdlm.token_clusters import cluster


def words(groups: int, each: int, *, seed: int) -> Any:
    """Vectors of any length around `groups` orthogonal directions, shuffled, and the group of each."""
    draw = np.random.default_rng(seed)
    group_n = draw.permutation(np.repeat(np.arange(groups), each))
    direction_nd = np.eye(groups, 12)[group_n] + 0.05 * draw.standard_normal((len(group_n), 12))
    return (direction_nd * draw.uniform(0.1, 50, (len(group_n), 1))).astype(np.float32), group_n


@pytest.mark.parametrize("seed", range(4))
def test_words_of_one_direction_share_a_cluster_numbered_by_first_appearance(seed: int) -> None:
    vectors_nd, group_n = words(5, 20, seed=seed)
    found_n = cluster(vectors_nd, count=5, seed=seed)
    assert len({*zip(found_n, group_n, strict=True)}) == 5
    assert list(dict.fromkeys(found_n.tolist())) == [0, 1, 2, 3, 4]
    assert np.array_equal(found_n, cluster(vectors_nd, count=5, seed=seed))


def test_a_word_without_a_direction_and_as_many_clusters_as_words() -> None:
    vectors_nd = np.concatenate([np.zeros((1, 12)), np.eye(3, 12)]).astype(np.float32)
    assert {*cluster(vectors_nd, count=2, seed=0)} == {0, 1}
    assert sorted(cluster(vectors_nd[1:], count=3, seed=0)) == [0, 1, 2]


def test_more_clusters_than_different_words_are_refused(refuses: Any) -> None:
    with refuses(ConfigurationError, "hdlm.clusters", 2, 3):
        cluster(np.eye(2, 4, dtype=np.float32)[[0, 0, 1]], count=3, seed=0)
