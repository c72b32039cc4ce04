"""Row-wise randomness: uniform, independent, and unaffected by neighbours, padding and order."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.times import antithetic, stratified


def generator(seed: int = 0, rows: int = 64) -> RowGenerator:
    return RowGenerator(seed, torch.arange(rows))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_have_their_distribution(dtype: torch.dtype) -> None:
    uniform = generator(1, 500).uniform(400, dtype=dtype).flatten().double().numpy()
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert generator(3).normal(5).dtype == torch.float32


def _pairs() -> dict[str, tuple[Any, Any]]:
    u, parent, draws, axes = (generator(4, 1000) for _ in range(4))
    rows, axis = u.uniform(200), axes.uniform(20, 10)
    return {
        "seeds": (rows, generator(5, 1000).uniform(200)),
        "neighbouring rows": (rows[:-1], rows[1:]),
        "neighbouring positions": (rows[:, :-1], rows[:, 1:]),
        "the diagonal": (rows[:-1, 1:], rows[1:, :-1]),
        "draws": (draws.uniform(200), draws.uniform(200)),
        "a fork and its parent": (rows, parent.fork("a").uniform(200)),
        "forks": (parent.fork("a").uniform(200), parent.fork("b").uniform(200)),
        "numbered forks": (parent.fork(1).uniform(200), parent.fork(2).uniform(200)),
        "numbers of the same rows": tuple(parent.numbered(parent.rows * 0 + n).uniform(200) for n in (0, 1)),
        "numbers of neighbouring rows": tuple(
            parent.numbered(parent.rows * 0 + n).uniform(200)[first : 999 + first] for n, first in ((256, 0), (0, 1))
        ),
        "numbers of another draw": tuple(each.numbered(each.rows).uniform(200) for each in (parent, u)),
        "axes": (axis[:, :-1], axis[:, 1:]),
    }


@pytest.mark.parametrize("name", _pairs())
def test_streams_are_uncorrelated(name: str) -> None:
    a, b = (x.flatten().numpy() for x in _pairs()[name])
    assert abs(stats.pearsonr(a, b).statistic) < 5 / np.sqrt(a.size)
    assert (a == b).mean() < 1e-3


@settings(max_examples=25)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    rows=st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=6),
    short=st.integers(1, 9),
    longer=st.integers(0, 9),
)
def test_pitfall_05_a_row_depends_on_nothing_but_itself(seed: int, rows: list[int], short: int, longer: int) -> None:
    """Rows get the same numbers alone or in a batch, padded or not, in any order and in every draw."""
    together = RowGenerator(seed, torch.tensor(rows))
    draws = [together.uniform(short + longer), together.normal(3, short + longer)]
    for i, row in enumerate(rows):
        alone = RowGenerator(seed, torch.tensor([row]))
        assert torch.equal(alone.uniform(short)[0], draws[0][i, :short])
        assert torch.equal(alone.normal(3, short)[0], draws[1][i, :, :short])


def test_select_and_fork_keep_rows_and_draws() -> None:
    whole = generator(7)
    whole.uniform(3)
    part = whole.select(torch.tensor([5, 2]))
    assert torch.equal(part.uniform(4), whole.uniform(4)[[5, 2]])
    used = generator(7)
    used.normal(100)
    expected = generator(7).fork("noise").uniform(4)
    assert torch.equal(used.fork("noise").uniform(4), expected)
    assert not torch.equal(used.fork("a").fork("noise").uniform(4), expected), "the whole path of forks counts"
    assert torch.equal(generator(7).fork("noise").select(torch.tensor([3])).uniform(4)[0], expected[3])


def test_pitfall_06_shared_numbers_are_the_same_on_all_ranks_and_differ_by_draw() -> None:
    a, b = RowGenerator(9, torch.tensor([0, 1])), RowGenerator(9, torch.tensor([70, 3, 4]))
    drawn = [a.shared_uniform() for _ in range(2000)]
    assert drawn == [b.shared_uniform() for _ in range(2000)]
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3


def test_numbers_are_pinned() -> None:
    """The same numbers in every release: a resumed run depends on it."""
    bits = RowGenerator(42, torch.tensor([0, 1, 2**40])).fork("mask").uniform(5, 3).numpy().tobytes()
    assert hashlib.sha256(bits).hexdigest()[:16] == "65e4aa2562680437"
    assert RowGenerator(7, torch.arange(2)).shared_uniform() == 0.598710131180915


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_a_normal_number_is_the_quantile_of_the_uniform_number_of_the_same_draw(shape: tuple[int, ...]) -> None:
    uniform, normal = generator(9).uniform(*shape), generator(9).normal(*shape, dtype=torch.float64)
    torch.testing.assert_close(torch.special.ndtr(normal), uniform)
    assert torch.equal(generator(9).normal(*shape), normal.float())
    narrow = generator(9).uniform(*shape, dtype=torch.float32)
    assert float((uniform - narrow.double()).abs().max()) <= 2.0**-24, "the same number with fewer bits"


def test_empty_batches_have_no_numbers_and_the_global_generator_is_not_touched() -> None:
    before = torch.random.get_rng_state()
    assert RowGenerator(0, torch.empty(0, dtype=torch.long)).uniform(3).shape == (0, 3)
    assert torch.equal(generator(0, 4).uniform(), generator(0, 8).uniform()[:4])
    assert torch.equal(before, torch.random.get_rng_state())


# -- times --------------------------------------------------------------------------------------------------------------


@given(u=st.floats(0, 1, exclude_max=True), total=st.integers(1, 300), t_min=st.sampled_from([0.0, 1e-3, 0.1]))
def test_one_time_lies_in_each_cell_of_the_comb(u: float, total: int, t_min: float) -> None:
    t_B = antithetic(u, torch.arange(total), total, t_min)
    assert t_B.dtype == torch.float32
    assert float(t_B.min()) >= t_min
    assert float(t_B.max()) <= 1
    gaps = t_B.double().sort().values.diff()
    assert torch.allclose(gaps, torch.full_like(gaps, (1 - t_min) / total), atol=1e-5)


@pytest.mark.parametrize("draws", [1, 3, 8])
def test_each_text_has_levels_of_its_own_one_in_each_of_as_many_cells_as_draws(draws: int) -> None:
    levels_KB = torch.stack(stratified(draws, RowGenerator(0, torch.arange(200))))
    assert bool(((levels_KB > 0) & (levels_KB <= 1)).all())
    cells_KB = (levels_KB * draws).ceil().long()
    assert torch.equal(cells_KB.sort(dim=0).values, torch.arange(1, draws + 1)[:, None].expand(-1, 200))
    assert len(set(levels_KB[0].tolist())) == 200
    assert float(levels_KB[0].mean()) == pytest.approx(0.5, abs=0.1)
