"""HDLM: the process against its closed forms, and clusters of words of like direction."""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.diffusion.enumeration import MASK, VOCABULARY, V
from tests.families.hdlm.cases import CLUSTERS

from mm_ldlm.core import ConfigurationError
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.store import ShardStore
from mm_ldlm.diffusion.process import Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.hdlm.process import Hdlm, HdlmConfig, Levels, weights
from mm_ldlm.families.hdlm.token_clusters import HdlmSection, TokenClusters, cluster

GAMMAS = (0.7, 1.0, 2.0, 3.5)


def process(clusters: torch.Tensor = CLUSTERS, gamma: float = 1.0) -> Hdlm:
    return HdlmConfig(gamma=gamma).build(VOCABULARY, token_clusters=clusters)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_weights_are_rates_of_the_true_reverse_process(gamma: float) -> None:
    t = torch.linspace(0.002, 0.998, 60, dtype=torch.float64, requires_grad=True)
    at = Levels.at(t, gamma=gamma)
    token_prime, mask_prime = (torch.autograd.grad(x.sum(), t, retain_graph=True)[0] for x in (at.token, at.mask))
    mask_weight, cluster_weight = weights(t.detach(), gamma=gamma)
    torch.testing.assert_close(mask_weight, mask_prime / at.mask.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(cluster_weight, -token_prime / at.cluster.detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_both_ends_of_time_are_exact_and_finite(gamma: float) -> None:
    ends = torch.stack(Levels.at(torch.tensor([0.0, 1.0]), gamma=gamma), dim=1)
    assert ends.tolist() == [[1, 0, 0], [0, 0, 1]]
    for found in weights(torch.tensor([1e-12, 1e-7, 1 - 1e-7, 1.0], dtype=torch.float64), gamma=gamma):
        assert bool(((found > 0) & found.isfinite()).all())
    below, above = Levels.at(torch.tensor([1 - 1e-9, 1 + 1e-9], dtype=torch.float64) * 1e-3, gamma=gamma).mask
    assert float(above / below) == pytest.approx(1, rel=1e-7), "where the series begins"
    assert float(process(gamma=gamma).times(0.5, torch.arange(10_000), 10_000).max()) <= 1 - 1e-3


@pytest.mark.parametrize("t", [1e-5, 9.99e-4, 0.2])
def test_the_fractions_of_the_largest_gamma_are_exact(t: float) -> None:
    kept = 1 - Fraction(t)
    mask = float(1 - kept**16 - 16 * (kept - kept**16) / 15)
    assert float(Levels.at(torch.tensor(t).double(), gamma=16.0).mask) == pytest.approx(mask, rel=1e-6)


def test_pitfall_11_x0_at_a_cluster_has_the_words_of_the_cluster_only() -> None:
    made, logits = process(), torch.randn(3, V)
    found = made.log_x0(logits.clone(), torch.tensor([MASK, V, V + 1])).exp()
    members = CLUSTERS[:, 0] == torch.tensor([[0], [1]])
    assert torch.equal(found[1:] > 0, members)
    torch.testing.assert_close(found[0, 1:5], logits[0, 1:5].softmax(0))
    losses = made.token_losses(
        logits.clone(), *(torch.tensor(each) for each in ([1, 1, 2], [MASK, V, V + 1], [0.5] * 3))
    )
    torch.testing.assert_close(losses.log_norm_M, logits[:, 1:5].logsumexp(1))
    alone = process(torch.tensor([[-1], [0], [1], [1], [1], [-1]]))
    certain = alone.token_losses(torch.randn(9, V), *(torch.tensor([each] * 9) for each in (1, V, 0.5)))
    costs = float(certain.weighted_M.sum()), float(certain.nll_M.sum())
    assert [*costs, *set(certain.best_M.tolist())] == [0, 0, 1], "nothing is left to predict"


def test_the_ids_of_clusters_follow_those_of_the_tokenizer() -> None:
    outside = Vocabulary(vocab_size=2, pad_id=2, mask_id=3)
    beyond = HdlmConfig().build(outside, token_clusters=torch.tensor([[4], [0]]))
    assert (beyond.first_noise_id, beyond.noise_ids) == (4, 5), "up to the largest cluster, whether others have words"
    pads_BL, rows = torch.tensor([[2, 2]]), RowGenerator(0, torch.arange(1))
    assert torch.equal(beyond.corrupt(pads_BL, pads_BL < 2, torch.full((1,), 0.5), rows), pads_BL)
    times = (
        HdlmConfig(t_min=0.1)
        .build(outside, token_clusters=torch.tensor([[0], [0]]))
        .times(0.37, torch.arange(1000), 1000)
    )
    assert (float(times.min()), float(times.max())) == pytest.approx((0.1, 0.9), abs=1e-3)


# -- clusters of words -------------------------------------------------------------------------------------------------


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
    variants = {TokenClusters(HdlmSection(clusters=n), seed=each).variant for n in (4, 5) for each in (0, 1)}
    assert len(variants) == 4, "stores of another number or seed are other ones"


def test_a_word_without_a_direction_and_as_many_clusters_as_words() -> None:
    vectors_nd = np.concatenate([np.zeros((1, 12)), np.eye(3, 12)]).astype(np.float32)
    assert {*cluster(vectors_nd, count=2, seed=0)} == {0, 1}
    assert sorted(cluster(vectors_nd[1:], count=3, seed=0)) == [0, 1, 2]


def test_the_store_has_the_cluster_of_every_word_and_names_what_it_was_made_from(tmp_path: Path) -> None:
    none: Any = None
    vectors_nd, _ = words(4, 2, seed=0)
    tokenizer: Any = SimpleNamespace(vocab_size=10, pad_id=9, mask_id=0, fingerprint="t", token=str)
    asked: dict[str, Any] = {}
    manifest = SimpleNamespace(fingerprint="v", require=lambda **given: asked.update(given))
    vectors: Any = SimpleNamespace(
        manifest=manifest,
        directory=tmp_path,
        fixed=lambda name: SimpleNamespace(take=lambda ids: vectors_nd[np.array(ids) - 1]),
    )
    made = TokenClusters(HdlmSection(clusters=3), seed=5).make(
        Inputs(none, none, tokenizer, {"token_vectors": vectors}), tmp_path / "made"
    )
    found = ShardStore.open(tmp_path / "made").fixed("value").take(slice(None))[:, 0]
    assert found.tolist() == [-1, *cluster(vectors_nd, count=3, seed=5), -1]
    assert (asked["tokenizer"], made.fingerprints["tokenizer"], made.fingerprints["token_vectors"]) == ("t", "t", "v")


def test_more_clusters_than_different_words_are_refused(refuses: Any) -> None:
    with refuses(ConfigurationError, "hdlm.clusters", 2, 3):
        cluster(np.eye(2, 4, dtype=np.float32)[[0, 0, 1]], count=3, seed=0)
