"""Low-discrepancy draws of times."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.timesteps import antithetic, stratified


@given(u=st.floats(0, 1, exclude_max=True), total=st.integers(1, 300), t_min=st.sampled_from([0.0, 1e-3, 0.1]))
def test_one_time_lies_in_each_cell_of_the_comb(u: float, total: int, t_min: float) -> None:
    t_B = antithetic(u, torch.arange(total), total, t_min)
    assert t_B.dtype == torch.float32
    assert float(t_B.min()) >= t_min
    assert float(t_B.max()) <= 1
    gaps = t_B.double().sort().values.diff()
    assert torch.allclose(gaps, torch.full_like(gaps, (1 - t_min) / total), atol=1e-5)


def test_each_time_alone_is_uniform() -> None:
    rows = RowGenerator(1, torch.arange(2))
    draws = torch.cat([antithetic(rows.shared_uniform(1), torch.tensor([3]), 64, 0.0) for _ in range(2000)])
    assert stats.kstest(draws.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("draws", [1, 3, 8])
def test_each_text_has_levels_of_its_own_one_in_each_of_as_many_cells_as_draws(draws: int) -> None:
    levels_KB = torch.stack(stratified(draws, RowGenerator(0, torch.arange(200))))
    assert bool(((levels_KB > 0) & (levels_KB <= 1)).all())
    cells_KB = (levels_KB * draws).ceil().long()
    assert torch.equal(cells_KB.sort(dim=0).values, torch.arange(1, draws + 1)[:, None].expand(-1, 200))
    assert len(set(levels_KB[0].tolist())) == 200
    assert float(levels_KB[0].mean()) == pytest.approx(0.5, abs=0.1)
