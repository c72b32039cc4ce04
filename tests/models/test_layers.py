"""Layers against their definitions: rotations, norms, and the fused path against plain operations."""

import pytest
import torch

from mm_ldlm.models.fused_qkv import PrepareQKV, short_attention
from mm_ldlm.models.layers import (
    EPSILON,
    SHORT,
    Attention,
    Linear,
    QKNorm,
    modulate,
    prepare_qkv,
    prepare_qkv_plainly,
    rope_table,
    rotate,
)


def test_rope_depends_on_the_distance_alone():
    E, table = 8, rope_table(20, 8, 100.0).double()
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(E, generator=g, dtype=torch.float64).expand(1, 20, 1, 1, E) for _ in range(2))
    q, k = rotate(q, table)[0, :, 0, 0], rotate(k, table)[0, :, 0, 0]
    logits = q @ k.T
    assert torch.allclose(logits[3, 1], logits[17, 15], atol=1e-6)
    assert not torch.allclose(logits[3, 1], logits[3, 2], atol=1e-3)
    assert torch.allclose(q.norm(dim=-1), q[0].norm().expand(20))
    assert torch.allclose(rotate(torch.ones(1, 1, 1, 1, E), rope_table(1, E, 100.0)), torch.ones(1, 1, 1, 1, E))


def test_qk_norm_is_a_scaled_root_mean_square():
    norm = QKNorm(2, 4)
    torch.nn.init.ones_(norm.scale)
    x = torch.randn(3, 5, 2, 2, 4, generator=torch.Generator().manual_seed(0)) * 100
    y = norm(x)
    assert torch.allclose(y.square().mean(-1), torch.ones(3, 5, 2, 2), atol=1e-4)
    with torch.no_grad():
        norm.scale[1, 0] *= 3
    assert torch.allclose(norm(x)[:, :, 1, 0], 3 * y[:, :, 1, 0])
    assert norm(x.bfloat16()).dtype == torch.float32


def test_modulate_is_layer_norm_then_affine():
    x, shift, scale = torch.randn(2, 3, 8) * 9 + 4, torch.randn(2, 8), torch.randn(2, 8)
    normed = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, unbiased=False)
    assert torch.allclose(modulate(x, shift, scale), normed * (1 + scale[:, None]) + shift[:, None], atol=1e-4)


@pytest.mark.parametrize("with_rope", [True, False])
def test_the_step_by_hand_equals_plain_operations(with_rope):
    B, H, E, lengths = 3, 2, 8, (5, 4)
    g = torch.Generator().manual_seed(0)
    norms = [QKNorm(H, E) for _ in lengths]
    for norm in norms:
        norm.scale.data = torch.randn(2, H, E, generator=g)
    ropes = (rope_table(5, E, 100.0) if with_rope else None, None)
    results = []
    for by_hand in (True, False):
        g = torch.Generator().manual_seed(1)
        qkvs = [torch.randn(B, L, 3, H, E, generator=g).requires_grad_() for L in lengths]
        pairs = [x for norm, qkv in zip(norms, qkvs, strict=True) for x in (norm.scale, qkv)]
        out = PrepareQKV.apply(EPSILON, ropes, *pairs) if by_hand else prepare_qkv_plainly(qkvs, norms, ropes)
        gradients = torch.autograd.grad((out * torch.randn(out.shape, generator=g)).sum(), pairs)
        results.append([out, *gradients])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_the_step_by_hand_passes_gradcheck():
    rope = rope_table(3, 4, 100.0).double()
    scale = torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)
    qkv = torch.randn(2, 3, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, x: PrepareQKV.apply(EPSILON, (rope,), s, x), (scale, qkv))


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_reads_no_masked_key_and_caps_its_logits(softcap):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 4, generator=g) * 4 for _ in range(3))
    mask = torch.tensor([True, True, False, True, False]).expand(2, 1, 1, 5)
    out = Attention(fused=False, softcap=softcap)(q, k, v, mask)
    keep = mask[0, 0, 0]
    logits = q @ k[:, :, keep].mT / 2
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    assert torch.allclose(out, logits.softmax(-1) @ v[:, :, keep], atol=1e-5)
    if softcap is None:
        fused = Attention(fused=True, softcap=None)(q, k, v, mask)
        assert torch.allclose(out, fused, atol=1e-5)


def test_linear_starts_by_its_gain():
    layer = Linear(400, 300)
    layer.init_weights(torch.Generator().manual_seed(0))
    assert float(layer.weight.detach().std()) == pytest.approx(1 / 20, rel=0.03)
    assert float(layer.weight.detach().abs().max()) <= 3 / 20 + 1e-6
    assert not layer.bias.any()
    zero = Linear(4, 3, gain=0.0)
    zero.init_weights(torch.Generator())
    assert not zero.weight.any()


@pytest.mark.parametrize("length", [5, SHORT + 1])
def test_attention_on_the_cpu_is_float32_under_autocast(length):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, length, 4, generator=g, requires_grad=True) for _ in range(3))
    mask = (torch.arange(length) % 3 != 2).expand(2, 1, 1, length)
    plain = Attention(fused=True, softcap=None)(q, k, v, mask)
    assert torch.allclose(plain, short_attention(q, k, v, mask), atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = Attention(fused=True, softcap=None)(q, k, v, mask)
    assert cast.dtype == torch.float32
    assert torch.equal(plain, cast)
    half = Attention(fused=True, softcap=None)(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask)
    assert half.dtype == torch.float32, "bf16 is read, and computed in float32"
    assert torch.allclose(half, plain, atol=0.05)


def test_the_step_by_hand_reads_bf16_and_computes_in_float32():
    g = torch.Generator().manual_seed(0)
    norm, rope = QKNorm(2, 8), rope_table(5, 8, 100.0)
    norm.scale.data = torch.randn(2, 2, 8, generator=g)
    qkv = torch.randn(3, 5, 3, 2, 8, generator=g).bfloat16().requires_grad_()
    out = prepare_qkv([qkv], [norm], (rope,))
    assert out.dtype == torch.float32
    assert type(out.grad_fn).__name__ == "PrepareQKVBackward"
    want = prepare_qkv_plainly([qkv.float()], [norm], (rope,))
    assert torch.allclose(out, want, atol=1e-5)
    (gradient,) = torch.autograd.grad(out.sum(), qkv)
    assert gradient.dtype == torch.bfloat16
