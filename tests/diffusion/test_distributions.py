"""Functions over logits in parts and in place equal PyTorch's plain functions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.distributions import categorical, entropy, normalise_, token_loss

V, MASK, PAD = 7, 0, 1


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_distributions_in_parts_equal_the_whole(rows):
    logits = torch.randn(rows, 20_000, generator=torch.Generator().manual_seed(rows)) * 5  # 25 rows are a part
    logits[:, 7] = -torch.inf
    expected = torch.log_softmax(logits.double(), dim=-1)
    log_probs = normalise_(logits.clone())
    assert torch.isneginf(log_probs[:, 7]).all()
    assert torch.allclose(log_probs.double(), expected, atol=1e-4)
    by_definition = -(expected.exp() * expected.masked_fill(torch.isneginf(expected), 0.0)).sum(dim=-1)
    assert torch.allclose(entropy(log_probs).double(), by_definition, atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_the_token_loss_is_subs_at_masked_positions(seed):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(15, V + 2, generator=g) * 3
    targets = torch.randint(2, V, (15,), generator=g)
    before = logits.clone()
    found = token_loss(logits, targets, mask_id=MASK, pad_id=PAD, vocab_size=V)
    assert torch.equal(logits, before), "a leaf stays as it is"
    process = AbsorbingConfig().build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    dense = process.log_x0(logits.clone(), torch.full((15,), MASK))
    assert torch.allclose(found.nll_M, -dense.gather(1, targets[:, None])[:, 0], atol=1e-5)
    assert torch.equal(found.best_M, dense.argmax(1))


@pytest.mark.parametrize(("rows", "size"), [(0, 9), (5, 9), (60, 20_000)])
def test_the_token_losses_gradient_is_the_plain_one(rows, size):
    """Both outputs, through the linear layer that made the logits, over several parts."""
    g = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 4, generator=g), torch.randn(size, 4, generator=g)
    targets, grads = torch.randint(2, size, (rows,), generator=g), torch.rand(2, rows, generator=g)
    forbidden = torch.zeros(size).index_fill(0, torch.tensor([MASK, PAD]), -torch.inf)
    results = []
    for plain in (True, False):
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        logits = F.linear(a, b)
        if plain:
            nll, norm = (
                F.cross_entropy(logits + forbidden, targets, reduction="none"),
                (logits + forbidden).logsumexp(1),
            )
        else:
            nll, norm, _ = token_loss(logits, targets, mask_id=MASK, pad_id=PAD)
        ((nll * grads[0]).sum() + (norm.square() * grads[1]).sum()).backward()
        results.append((nll.detach(), norm.detach(), a.grad, b.grad))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_the_token_loss_is_float32_under_half_precision_logits():
    logits = torch.zeros(4, V, dtype=torch.bfloat16, requires_grad=True)
    found = token_loss(logits * 1, torch.full((4,), 3), mask_id=MASK, pad_id=PAD)
    assert found.nll_M.dtype == torch.float32
    assert torch.allclose(found.nll_M, torch.full((4,), math.log(V - 2)))
    found.nll_M.sum().backward()
    assert logits.grad.dtype == torch.bfloat16
    assert (logits.grad[:, [MASK, PAD]] == 0).all()


def test_a_forbidden_target_costs_everything():
    assert torch.isposinf(token_loss(torch.zeros(1, V), torch.tensor([PAD]), mask_id=MASK, pad_id=PAD).nll_M).all()


def test_a_second_use_of_the_logits_is_refused():
    logits = torch.zeros(2, V, requires_grad=True) * 1
    first, second = (token_loss(logits, torch.tensor([3, 4]), mask_id=MASK, pad_id=PAD) for _ in range(2))
    with pytest.raises(RuntimeError, match="the logits; they cannot be used a second time"):
        (first.nll_M + second.nll_M).sum().backward()


def test_a_common_offset_costs_no_digits():
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(0)).double().round(decimals=3)
    targets = torch.tensor([2, 3, 4, 5])
    shifted = (logits * 1024).round() / 1024 + 4096  # exact in float32
    one, other = (token_loss(x.float(), targets, mask_id=MASK, pad_id=PAD).nll_M for x in (shifted, shifted - 4096))
    assert torch.allclose(one, other, atol=1e-6)
    assert torch.allclose(normalise_(shifted.float()), normalise_((shifted - 4096).float()), atol=1e-6)


@pytest.mark.parametrize("mass", [1.0, 3.0])
def test_an_impossible_id_is_not_drawn_where_the_level_is_rounded_to_the_total(mass):
    probs = torch.tensor([[0.0, 0.5, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64) * mass
    assert categorical(probs, torch.ones(2, dtype=torch.float64)).tolist() == [2, 1]
    assert categorical(probs, torch.full((2,), 1e-300, dtype=torch.float64)).tolist() == [1, 1]


def test_a_second_backward_pass_is_refused():
    found = token_loss(torch.zeros(2, V, requires_grad=True) * 1, torch.tensor([3, 4]), mask_id=MASK, pad_id=PAD)
    found.nll_M.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="the logits; they cannot be used a second time"):
        found.nll_M.sum().backward()


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_loss_of_logits_of_any_type_is_computed_in_float32_and_leaves_leaves_alone(dtype, leaf):
    """Without gradients every tensor is a leaf, also logits of half precision."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 9, generator=draw).mul(4).to(dtype)
    targets = torch.randint(2, 9, (7,), generator=draw)
    before, given = logits.clone(), logits if leaf else logits.clone().requires_grad_() + 0
    found = token_loss(given, targets, mask_id=0, pad_id=1)
    log_p = before.double()[:, 2:].log_softmax(-1)
    expected = -log_p.gather(1, targets[:, None] - 2)[:, 0]
    assert {found.nll_M.dtype, found.log_norm_M.dtype} == {torch.float32}
    torch.testing.assert_close(found.nll_M.detach().double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        found.log_norm_M.detach().double(), before.double()[:, 2:].logsumexp(-1), rtol=1e-5, atol=1e-5
    )
    assert torch.equal(before.gather(1, found.best_M[:, None])[:, 0], before[:, 2:].amax(-1))
    assert torch.equal(logits, before)
