"""Row-wise randomness: uniform, independent, and unaffected by neighbours, padding and order."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mm_ldlm.diffusion.random import RowGenerator


def generator(seed: int = 0, rows: int = 64) -> RowGenerator:
    return RowGenerator(seed, torch.arange(rows))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_uniform_passes_kolmogorov_smirnov(dtype):
    u = generator(1, 500).uniform(400, dtype=dtype).flatten().double().numpy()
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert u.min() > 0
    assert u.max() < 1


def test_uniform_bits_are_all_alive():
    """Each of the top 16 bits is a fair coin: a weak mixer fails here first."""
    u = generator(2, 256).uniform(256).flatten()
    for bit in range(1, 17):
        ones = float(torch.floor(u * 2**bit).remainder(2).mean())
        assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(u.numel()), (bit, ones)


def test_normal_passes_kolmogorov_smirnov():
    x = generator(3, 500).normal(400, dtype=torch.float64).flatten().numpy()
    assert stats.kstest(x, "norm").pvalue > 1e-3
    assert generator(3).normal(5).dtype == torch.float32


@pytest.mark.parametrize(
    "pair",
    [
        lambda: (generator(4, 1000).uniform(200), generator(5, 1000).uniform(200)),  # seeds
        lambda: (lambda u: (u[:-1], u[1:]))(generator(4, 1000).uniform(200)),  # neighbouring rows
        lambda: (lambda u: (u[:, :-1], u[:, 1:]))(generator(4, 1000).uniform(200)),  # neighbouring positions
        lambda: (lambda u: (u[:-1, 1:], u[1:, :-1]))(generator(4, 1000).uniform(200)),  # the diagonal
        lambda: (lambda g: (g.uniform(200), g.uniform(200)))(generator(4, 1000)),  # draws
        lambda: (lambda g: (g.uniform(200), g.fork("a").uniform(200)))(generator(4, 1000)),  # a fork and its parent
        lambda: (lambda g: (g.fork("a").uniform(200), g.fork("b").uniform(200)))(generator(4, 1000)),
        lambda: (lambda g: (g.fork(1).uniform(200), g.fork(2).uniform(200)))(generator(4, 1000)),
        lambda: (lambda u: (u[:, :-1], u[:, 1:]))(generator(4, 1000).uniform(20, 10)),  # axes
    ],
)
def test_streams_are_uncorrelated(pair):
    a, b = (x.flatten().numpy() for x in pair())
    assert abs(stats.pearsonr(a, b).statistic) < 5 / np.sqrt(a.size)
    assert (a == b).mean() < 1e-3


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    rows=st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=6),
    short=st.integers(1, 9),
    longer=st.integers(0, 9),
)
def test_a_row_depends_on_nothing_but_itself(seed, rows, short, longer):
    """Rows get the same numbers alone or in a batch, padded or not, in any order and in every draw."""
    together = RowGenerator(seed, torch.tensor(rows))
    draws = [together.uniform(short + longer), together.normal(3, short + longer)]
    for i, row in enumerate(rows):
        alone = RowGenerator(seed, torch.tensor([row]))
        assert torch.equal(alone.uniform(short)[0], draws[0][i, :short])
        assert torch.equal(alone.normal(3, short)[0], draws[1][i, :, :short])


def test_select_and_fork_keep_rows_and_draws():
    whole = generator(7)
    whole.uniform(3)
    part = whole.select(torch.tensor([5, 2]))
    expected = whole.uniform(4)[[5, 2]]
    assert torch.equal(part.uniform(4), expected)
    fresh = generator(7)
    fresh.normal(100)
    assert torch.equal(fresh.fork("noise").uniform(4), generator(7).fork("noise").uniform(4))
    assert torch.equal(
        generator(7).fork("noise").select(torch.tensor([3])).uniform(4)[0], fresh.fork("noise").uniform(4)[3]
    )


def test_a_stream_that_is_moved_goes_on_at_the_same_draw():
    here = generator(7)
    here.uniform(3)
    there = here.to("cpu")
    assert torch.equal(there.uniform(4), here.uniform(4))
    assert here.to("meta").uniform(2).device.type == "meta"


def test_more_axes_than_there_are_constants_are_refused():
    assert generator(1, 2).uniform(2, 2, 2, 2).shape == (2, 2, 2, 2, 2)
    with pytest.raises(ValueError, match="at most 4 axes after the rows, found 5"):
        generator(1, 2).uniform(1, 1, 1, 1, 1)


def test_shared_uniform_is_the_same_for_all_rows_and_differs_by_draw():
    a, b = RowGenerator(9, torch.tensor([0, 1])), RowGenerator(9, torch.tensor([70, 3, 4]))
    first = a.shared_uniform(2)
    assert torch.equal(first, b.shared_uniform(2))
    assert not torch.equal(first, a.shared_uniform(2))
    many = generator(1).shared_uniform(20_000).numpy()
    assert stats.kstest(many, "uniform").pvalue > 1e-3


def test_numbers_are_pinned():
    """The same numbers in every release: a resumed run depends on it."""
    bits = RowGenerator(42, torch.tensor([0, 1, 2**40])).fork("mask").uniform(5, 3).numpy().tobytes()
    assert hashlib.sha256(bits).hexdigest()[:16] == "65e4aa2562680437"


def test_empty_batches_and_scalars():
    assert RowGenerator(0, torch.empty(0, dtype=torch.long)).uniform(3).shape == (0, 3)
    assert generator(0, 4).uniform().shape == (4,)
    assert torch.equal(generator(0, 4).uniform(), generator(0, 8).uniform()[:4])
    with pytest.raises(ValueError, match="int64"):
        RowGenerator(0, torch.zeros(3))


def test_global_random_state_is_not_touched():
    before = torch.random.get_rng_state()
    generator().normal(8)
    assert torch.equal(before, torch.random.get_rng_state())


def test_rows_are_one_axis_of_integers():
    for rows in (torch.zeros(2, 2, dtype=torch.int64), torch.tensor(3), torch.zeros(3, dtype=torch.int32)):
        with pytest.raises(ValueError, match="rows must be a 1-D int64 tensor, found"):
            RowGenerator(0, rows)


def test_a_normal_number_is_the_quantile_of_the_uniform_number_of_the_same_draw():
    for shape in ((), (5,), (2, 3)):
        uniform, normal = generator(9).uniform(*shape), generator(9).normal(*shape, dtype=torch.float64)
        torch.testing.assert_close(torch.special.ndtr(normal), uniform)
        assert torch.equal(generator(9).normal(*shape), normal.float())


def test_narrow_uniform_numbers_are_the_wide_ones_with_fewer_bits():
    wide, narrow = generator(9, 500).uniform(20), generator(9, 500).uniform(20, dtype=torch.float32)
    assert float((wide - narrow.double()).abs().max()) <= 2.0**-24
    assert torch.equal((narrow.double() * 2**24) % 2, torch.ones(500, 20, dtype=torch.float64)), "odd multiples"
    assert torch.equal((wide * 2**53) % 2, torch.ones(500, 20, dtype=torch.float64))


def splitmix(word):
    """The finaliser of the published generator (Steele, Lea, Flood 2014)."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    return word ^ (word >> 31)


@pytest.mark.parametrize("seed", [0, 7, -3])
def test_shared_numbers_are_those_of_every_release(seed):
    """Two rounds of the published finaliser over a Weyl sequence, whose key contains the letters SHARED_U."""
    gamma, made = 0x9E3779B97F4A7C15, RowGenerator(seed, torch.arange(2))
    key = splitmix((splitmix(seed % 2**64) + gamma) % 2**64)
    for draw in (1, 2):
        start = splitmix(splitmix((key + draw * gamma) % 2**64) ^ int.from_bytes(b"SHARED_U", "big"))
        bits = [splitmix(splitmix((index * gamma + start) % 2**64)) for index in range(3)]
        assert made.shared_uniform(3).tolist() == [(2 * (word >> 12) + 1) / 2**53 for word in bits]
