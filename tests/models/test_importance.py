"""The importance estimator of adaptive masking."""

from __future__ import annotations

import pytest
import torch

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.families.atat.importance import ImportanceConfig, ImportanceEstimator
from mm_ldlm.models.base import DataShape, count_parameters, init_weights
from mm_ldlm.models.parts import count_by_part

V, PAD, MASK, N = 30, 0, 1, 10
SHAPE = DataShape(vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=N)


def estimator(*, seed=0, head=True, **keys):
    made = ImportanceEstimator(ImportanceConfig(**{"dim": 16, "depth": 2, "heads": 4, **keys}), SHAPE)
    init_weights(made, torch.Generator().manual_seed(seed))
    if head:  # the head starts at 0
        torch.nn.init.normal_(made.output.weight, generator=torch.Generator().manual_seed(1))
    return made


def texts(*lengths):
    tokens_BL = torch.randint(2, V, (len(lengths), N), generator=torch.Generator().manual_seed(2))
    valid_BL = torch.arange(N) < torch.tensor(lengths)[:, None]
    return tokens_BL.masked_fill(~valid_BL, PAD), valid_BL


def test_it_starts_at_one_half_and_lies_between_0_and_1():
    tokens_BL, valid_BL = texts(10, 4)
    assert bool((estimator(head=False)(tokens_BL, valid_BL) == 0.5).all())
    found_BL = estimator()(tokens_BL, valid_BL)
    assert found_BL.dtype == torch.float32
    assert bool(((found_BL > 0) & (found_BL < 1)).all())
    assert float(found_BL[valid_BL].std()) > 0.01


def test_pads_never_change_a_valid_output_and_a_row_of_pads_is_finite():
    tokens_BL, valid_BL = texts(7, 4, 0)
    made = estimator()
    found_BL = made(tokens_BL, valid_BL)
    assert bool(torch.isfinite(found_BL).all())
    for row, length in enumerate((7, 4)):
        alone = made(tokens_BL[row : row + 1, :length], valid_BL[row : row + 1, :length])
        torch.testing.assert_close(found_BL[row, :length], alone[0], rtol=1e-5, atol=1e-6)


def test_it_reads_the_whole_text_and_the_positions():
    tokens_BL, valid_BL = texts(10, 10)
    made = estimator()
    changed_BL = tokens_BL.clone()
    changed_BL[:, 9] = (changed_BL[:, 9] - 1).clamp_min(2)
    assert not torch.equal(made(tokens_BL, valid_BL)[:, 0], made(changed_BL, valid_BL)[:, 0])
    alike_BL = torch.full_like(tokens_BL, 5)
    assert float(made(alike_BL, valid_BL)[0].std()) > 1e-4


def test_the_shape_is_as_configured():
    assert count_parameters(estimator(depth=3)) > count_parameters(estimator(depth=2))
    tokens_BL, valid_BL = texts(10)
    assert not torch.equal(estimator(heads=4)(tokens_BL, valid_BL), estimator(heads=2)(tokens_BL, valid_BL))
    assert set(count_by_part(estimator())) == {"importance"}
    published = ImportanceEstimator(ImportanceConfig(), SHAPE)
    assert (len(published.blocks), published.tokens.weight.shape[1], published.blocks[0].heads) == (2, 256, 4)
    with pytest.raises(ConfigurationError, match="dim must be divisible by heads, found dim 10 and 4 heads"):
        parse(ImportanceConfig, {"dim": 10}, at="estimator")


def test_its_initial_values_are_a_function_of_the_generator():
    tokens_BL, valid_BL = texts(10)
    assert torch.equal(estimator(seed=3)(tokens_BL, valid_BL), estimator(seed=3)(tokens_BL, valid_BL))
    assert not torch.equal(estimator(seed=3)(tokens_BL, valid_BL), estimator(seed=4)(tokens_BL, valid_BL))
