"""Layers against their definitions: rotations, norms, time, and attention by hand."""

import math
from typing import Any

import pytest
import torch

from mm_ldlm.models.attention import EPSILON, SHORT, Attention, LongAttention, QKNorm, key_mask, short_attention
from mm_ldlm.models.blocks import Linear, modulate, prepare_qkv
from mm_ldlm.models.embeddings import sinusoid
from mm_ldlm.models.heads import mean_features
from mm_ldlm.models.rope import rope_table, rotate


def norm_of(heads: int, dim: int) -> QKNorm:
    norm = QKNorm(heads, dim)
    norm.scale.data = torch.randn(2, heads, dim)
    return norm


def test_rope_depends_on_the_distance_alone() -> None:
    table, (q, k) = rope_table(20, 8, 100.0).double(), torch.randn(2, 1, 1, 1, 1, 8, dtype=torch.float64)
    q, k = (rotate(x.expand(1, 20, 1, 1, 8), table)[0, :, 0, 0] for x in (q, k))
    logits = q @ k.T
    torch.testing.assert_close(logits[3, 1], logits[17, 15], atol=1e-6, rtol=0)
    assert not torch.allclose(logits[3, 1], logits[3, 2], atol=1e-3)
    torch.testing.assert_close(q.norm(dim=-1), q[0].norm().expand(20))
    far = rope_table(100_001, 8, 10_000.0)[-1, 0, 0]
    assert float(far) == pytest.approx(math.cos(100_000), abs=1e-6), "angles are computed in float64"


def test_norms_are_their_definitions() -> None:
    norm, x = norm_of(2, 4), torch.randn(3, 5, 2, 2, 4) * 100
    expected = x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * norm.scale
    torch.testing.assert_close(norm(x), expected)
    torch.testing.assert_close(torch.stack(norm.each(x[:, :, 0], x[:, :, 1]), dim=2), expected)
    assert norm(x.bfloat16()).dtype == torch.float32
    x, shift, scale = torch.randn(2, 3, 8) * 9 + 4, torch.randn(2, 8), torch.randn(2, 8)
    normed = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, unbiased=False)
    torch.testing.assert_close(modulate(x, shift, scale), normed * (1 + scale[:, None]) + shift[:, None])


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("length", [5, SHORT + 1])
def test_attention_reads_no_masked_key_and_caps_its_logits(softcap: float | None, length: int) -> None:
    q, k, v = torch.randn(3, 2, 2, length, 4) * 4
    keep = torch.arange(length) % 3 != 2
    mask, logits = keep.expand(2, 1, 1, length), q @ k[:, :, keep].mT / 2
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    expected, attention = logits.softmax(-1) @ v[:, :, keep], Attention(softcap=softcap)
    torch.testing.assert_close(attention(q, k, v, mask), expected)
    attention.fused = False
    torch.testing.assert_close(attention(q, k, v, mask), expected)


def test_pitfall_03_attention_of_short_texts_is_float32_under_autocast() -> None:
    q, k, v = torch.randn(3, 2, 2, 5, 4)
    mask = (torch.arange(5) % 3 != 2).expand(2, 1, 1, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = Attention(softcap=None)(q, k, v, mask)
    assert torch.equal(Attention(softcap=None)(q, k, v, mask), cast)
    assert torch.equal(short_attention(q, k, v, mask), cast)
    assert prepare_qkv([torch.randn(2, 5, 3, 2, 4).bfloat16()], [norm_of(2, 4)], (None,)).dtype == torch.float32


@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_long_texts_in_bf16_has_the_gradients_of_float32(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the batch is computed in parts, and where queries and keys differ in number."""
    monkeypatch.setattr("mm_ldlm.models.attention.MATRIX", 4 * SHORT * SHORT)
    q = torch.randn(5, 2, SHORT + 1, 4, requires_grad=True)
    k, v = (torch.randn(5, 2, SHORT - 3, 4, requires_grad=True) for _ in range(2))
    mask = torch.rand(5, 1, 1, SHORT - 3) < 0.7 if masked else None
    projection, found = torch.randn_like(q), []
    for half in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            read = Attention(softcap=None)(q, k, v, mask)
        found.append([read.float(), *torch.autograd.grad((read * projection).sum(), (q, k, v))])
    for exact, cast in zip(*found, strict=True):
        assert (exact - cast).norm() < 0.01 * exact.norm()
    doubles = [x.double().detach()[:2, :, :7].requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *x: LongAttention.apply(*x, None), doubles)


def test_a_compiled_graph_computes_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """By plain operations, with a mask that is made without looking at values."""
    (q, k, v), norms, qkv = torch.randn(3, 2, 2, 5, 4), [norm_of(2, 4)], torch.randn(2, 5, 3, 2, 4)
    valid_BL = torch.arange(5) < torch.tensor([[5], [2]])

    def compute() -> list[torch.Tensor]:
        mask = key_mask(valid_BL)
        whole = key_mask(torch.ones_like(valid_BL))
        return [
            Attention(softcap=None)(q, k, v, mask), Attention(softcap=None)(q, k, v, whole),
            prepare_qkv([qkv], [*norms], (rope_table(5, 4, 100.0),)),
        ]  # fmt: skip

    plain = compute()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for a, b in zip(plain, compute(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("others", [0, 2])
def test_every_row_has_a_key_and_no_padding(others: int) -> None:
    valid_BL = torch.arange(4) < torch.tensor([[4], [2], [0]])
    mask: Any = key_mask(valid_BL, others=others)
    assert bool(mask.any(-1).all())
    assert torch.equal(mask[:2, 0, 0, :4], valid_BL[:2])
    assert key_mask(None) is None
    assert key_mask(torch.ones(2, 3, dtype=torch.bool)) is None


def test_linear_layers_start_by_their_gain() -> None:
    layer = Linear(400, 300)
    layer.init_weights(torch.Generator().manual_seed(0))
    assert float(layer.weight.detach().std()) == pytest.approx(1 / 20, rel=0.03)
    assert float(layer.weight.detach().abs().max()) <= 3 / 20 + 1e-6
    assert not bool(layer.bias.any())


def test_pitfall_04_time_is_scaled_and_float32() -> None:
    t_B = torch.tensor([0.5, 0.501])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = sinusoid(t_B)
    assert first.dtype == torch.float32
    assert float((first - second).abs().max()) > 0.4, "a thousandth of time must be visible"
    assert float(sinusoid(torch.tensor([1.0]))[0, 0]) == pytest.approx(math.cos(1000.0), abs=1e-3)


def test_pitfall_09_features_are_means_over_real_tokens() -> None:
    x_BLD, valid_BL = torch.randn(3, 4, 8), torch.arange(4) < torch.tensor([[4], [2], [0]])
    found = mean_features(x_BLD, valid_BL)
    torch.testing.assert_close(found[1], mean_features(x_BLD[1:2, :2], None)[0])
    assert not bool(found[2].any())
    assert mean_features(x_BLD.half(), valid_BL).dtype == torch.float32
