"""Functions over logits in parts and in place equal PyTorch's plain functions."""

import math

import pytest
import torch
from torch.nn import functional as F

from mm_ldlm.diffusion.distributions import categorical, entropy, normalise_, token_loss
from mm_ldlm.diffusion.random import RowGenerator

V, MASK, PAD = 7, 0, 1


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_distributions_in_parts_equal_the_whole(rows: int) -> None:
    logits = torch.randn(rows, 20_000) * 5  # 25 rows are a part
    logits[:, 7] = -torch.inf
    expected = torch.log_softmax(logits.double(), dim=-1)
    log_probs = normalise_(logits.clone())
    assert bool(torch.isneginf(log_probs[:, 7]).all())
    assert torch.allclose(log_probs.double(), expected, atol=1e-4)
    by_definition = -(expected.exp() * expected.masked_fill(torch.isneginf(expected), 0.0)).sum(dim=-1)
    assert torch.allclose(entropy(log_probs).double(), by_definition, atol=1e-4)


@pytest.mark.parametrize(("rows", "size"), [(0, 9), (5, 9), (60, 20_000)])
def test_the_token_loss_and_its_gradient_are_the_plain_ones(rows: int, size: int) -> None:
    """Both outputs, through the linear layer that made the logits, over several parts."""
    x, weight = torch.randn(rows, 4), torch.randn(size, 4)
    targets, grads = torch.randint(2, size, (rows,)), torch.rand(2, rows)
    forbidden = torch.zeros(size).index_fill(0, torch.tensor([MASK, PAD]), -torch.inf)
    results = []
    for plain in (True, False):
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        logits = F.linear(a, b)
        if plain:
            logits = logits + forbidden
            nll, norm = F.cross_entropy(logits, targets, reduction="none"), logits.logsumexp(1)
            best = logits.argmax(1)
        else:
            nll, _, best, norm = token_loss(logits, targets, mask_id=MASK, pad_id=PAD)
        ((nll * grads[0]).sum() + (norm.square() * grads[1]).sum()).backward()
        results.append((nll.detach(), norm.detach(), best, a.grad, b.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_pitfall_10_the_token_loss_is_float32_and_leaves_its_callers_tensors_alone(
    dtype: torch.dtype, leaf: bool
) -> None:
    """Without gradients every tensor is a leaf, also logits of half precision."""
    logits, targets = torch.randn(7, 9).mul(4).to(dtype), torch.randint(2, 9, (7,))
    before, given = logits.clone(), logits if leaf else logits.clone().requires_grad_() + 0
    found = token_loss(given, targets, mask_id=MASK, pad_id=PAD, vocab_size=8)
    possible = before.double()[:, 2:8]
    expected = -possible.log_softmax(-1).gather(1, targets[:, None].clamp(max=7) - 2)[:, 0]
    here = targets < 8
    assert {found.nll_M.dtype, found.log_norm_M.dtype} == {torch.float32}
    torch.testing.assert_close(found.nll_M.detach().double()[here], expected[here], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.log_norm_M.detach().double(), possible.logsumexp(-1), rtol=1e-5, atol=1e-5)
    assert bool(torch.isposinf(found.nll_M[~here]).all()), "a target that is impossible costs everything"
    assert torch.equal(logits, before)


def test_a_common_offset_costs_no_digits() -> None:
    logits = torch.randn(4, V).double().round(decimals=3)
    targets = torch.tensor([2, 3, 4, 5])
    shifted = (logits * 1024).round() / 1024 + 4096  # exact in float32
    one, other = (token_loss(x.float(), targets, mask_id=MASK, pad_id=PAD).nll_M for x in (shifted, shifted - 4096))
    assert torch.allclose(one, other, atol=1e-6)
    assert torch.allclose(normalise_(shifted.float()), normalise_((shifted - 4096).float()), atol=1e-6)


def test_a_second_use_of_the_logits_is_refused() -> None:
    logits = torch.zeros(2, V, requires_grad=True) * 1
    first, second = (token_loss(logits, torch.tensor([3, 4]), mask_id=MASK, pad_id=PAD) for _ in range(2))
    with pytest.raises(RuntimeError, match="second time"):
        (first.nll_M + second.nll_M).sum().backward()
    once = token_loss(torch.zeros(2, V, requires_grad=True) * 1, torch.tensor([3, 4]), mask_id=MASK, pad_id=PAD)
    once.nll_M.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second time"):
        once.nll_M.sum().backward()


def test_categorical_draws_its_distribution_and_never_an_impossible_id() -> None:
    probs = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    drawn = categorical(probs.expand(50_000, -1), RowGenerator(0, torch.arange(50_000)).uniform())
    deviation = 5 * math.sqrt(0.25 / 50_000)
    assert torch.allclose(torch.bincount(drawn, minlength=6) / 50_000, probs, atol=deviation)
    edges = torch.tensor([0.0, 1e-300, 2.0**-53, 1 - 2.0**-53, 1.0], dtype=torch.float64)
    assert categorical(probs.expand(5, -1) * 3, edges).tolist() == [1, 1, 1, 4, 4], "also where the level is rounded"
