"""Types of numbers in every model: float32 under autocast but for the matrix products, and inputs of other types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_model import KINDS, VALID, outputs
from test_definitions import B, build, inputs, stirred
from torch import nn

from mm_ldlm.families.atat.importance import ImportanceConfig, ImportanceEstimator
from mm_ldlm.families.classification.latent_mlp import LatentMLP
from mm_ldlm.models.base import DataShape, init_weights
from mm_ldlm.models.fused_qkv import PrepareQKV
from mm_ldlm.models.heads import ClassHead, ComparisonHead, LengthHead, mean_features
from mm_ldlm.models.layers import Attention, QKNorm, prepare_qkv, rope_table
from mm_ldlm.models.timestep_embedding import Conditioner
from mm_ldlm.models.token_vectors import set_token_vectors


@torch.no_grad()
@pytest.mark.parametrize("kind", [*KINDS, "causal", "latent_mlp"])
def test_every_output_but_the_logits_of_tokens_is_float32_under_autocast(kind: str) -> None:
    model, residual, conditioning = build(kind), set[torch.dtype](), set[torch.dtype]()
    for module in model.modules():
        if isinstance(module, Conditioner):
            module.register_forward_hook(lambda _, args, out: conditioning.add(out.dtype))
    for block in model.blocks:
        block.register_forward_hook(
            lambda _, args, out: residual.update(x.dtype for x in (out if isinstance(out, tuple) else (out,)))
        )
    exact = outputs(kind, model)
    plain = {name: value.dtype for name, value in exact.items()}
    residual.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = outputs(kind, model)
    assert set(plain.values()) == {torch.float32}
    products = {"logits", "logits_BLV"} if kind != "causal" else set()
    for name, value in cast.items():
        assert value.dtype == (torch.bfloat16 if name in products else torch.float32), name
        finite = exact[name].isfinite() & (exact[name].abs() < 1e3)
        assert torch.equal(value.isfinite(), exact[name].isfinite()), name
        error = (value.float() - exact[name])[finite].abs().mean()
        assert float(error) < 0.1 * float(exact[name][finite].abs().mean()) + 0.05, name
    if kind != "causal":  # whose blocks return keys and values too
        assert residual == {torch.float32}
    assert conditioning <= {torch.float32}


HEADS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "classes": (lambda: ClassHead(8, 3), ((B, 8),)),
    "comparison": (lambda: ComparisonHead(8, hidden_dim=6), ((B, 8), (B, 8))),
    "length": (lambda: LengthHead(8, hidden_dim=6, max_length=5), ((B, 8),)),
}


def made(head: str) -> Any:
    module = HEADS[head][0]()
    init_weights(module, torch.Generator().manual_seed(0))
    return stirred(module)


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS)
def test_every_head_is_float32_under_autocast(head: str) -> None:
    module, draw = made(head), torch.Generator().manual_seed(1)
    given = [torch.randn(*size, generator=draw) for size in HEADS[head][1]]
    exact = module(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = module(*given)
    assert exact.dtype == cast.dtype == torch.float32
    assert not torch.equal(exact, cast), "the matrix products do run in bfloat16"
    torch.testing.assert_close(exact, cast, rtol=0.1, atol=0.1)


@torch.no_grad()
def test_the_importance_of_tokens_is_float32_under_autocast() -> None:
    shape = DataShape(vocab_size=23, pad_id=0, mask_id=1, max_length=9)
    module = ImportanceEstimator(ImportanceConfig(dim=16, depth=2, heads=2), shape)
    init_weights(module, torch.Generator().manual_seed(0))
    tokens = inputs()["tokens"].clamp(max=22)
    exact = stirred(module)(tokens, VALID)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = module(tokens, VALID)
    assert exact.dtype == cast.dtype == torch.float32
    assert cast.unique().numel() == exact.unique().numel(), "as fine as float32"
    torch.testing.assert_close(exact, cast, rtol=0.1, atol=0.1)


# -- inputs of other types ---------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_reads_data_of_every_type_in_float32(kind: str, dtype: torch.dtype) -> None:
    """Stores of embeddings and images may have half precision."""
    data = {"latent", "states", "image"}
    rounded = {name: value.to(dtype).float() if name in data else value for name, value in inputs().items()}
    model = build(kind)
    exact = outputs(kind, model, rounded)
    typed = {name: value.to(dtype) if name in data else value for name, value in rounded.items()}
    found = outputs(kind, model, typed)
    for name, value in exact.items():
        assert found[name].dtype == torch.float32, name
        assert torch.equal(found[name], value), name


@torch.no_grad()
def test_the_features_that_are_the_latent_itself_are_float32() -> None:
    model = build("latent_mlp", depth=0)
    assert isinstance(model, LatentMLP)
    latents = inputs()["latent"].bfloat16()
    assert model.features(latents).dtype == torch.float32
    assert torch.equal(model.features(latents), model(latents.float()))


def test_features_of_half_precision_are_averaged_in_float32() -> None:
    hidden = 40 * torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    for valid in (None, torch.arange(5) < torch.tensor([[5], [2]])):
        found = mean_features(hidden.bfloat16(), valid)
        assert found.dtype == torch.float32
        assert torch.equal(found, mean_features(hidden.bfloat16().float(), valid))


def test_token_vectors_of_half_precision_are_centred_in_float32() -> None:
    shape = DataShape(vocab_size=30, pad_id=0, mask_id=1, max_length=4, latent_dim=3)
    vectors = (100 + torch.randn(30, 3, generator=torch.Generator().manual_seed(0))).half()
    tables = [nn.Embedding(30, 3) for _ in range(2)]
    set_token_vectors(tables[:1], vectors, shape=shape)
    set_token_vectors(tables[1:], vectors.float(), shape=shape)
    assert torch.equal(tables[0].weight[2:], tables[1].weight[2:])
    assert float(tables[0].weight[2:].detach().std()) == pytest.approx(0.1, rel=0.1)


# -- the functions by hand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float32])
def test_the_functions_by_hand_are_for_float32_and_bf16_alone(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They compute in float32, which would lose digits of float64."""
    by_hand = dtype in (torch.float32, torch.bfloat16)
    draw, norm, rope = torch.Generator().manual_seed(0), QKNorm(2, 8), rope_table(5, 8, 100.0)
    norm.scale.data = torch.ones(2, 2, 8)
    qkv = torch.randn(3, 5, 3, 2, 8, generator=draw).to(dtype)
    called: list[int] = []
    plain = PrepareQKV.apply
    monkeypatch.setattr(PrepareQKV, "apply", lambda *args: called.append(1) or plain(*args))
    joint = prepare_qkv([qkv], [norm], (rope,))
    assert bool(called) is by_hand
    assert joint.dtype == (torch.float32 if by_hand else dtype)
    q, k, v = (torch.randn(2, 2, 5, 4, generator=draw, dtype=torch.float64).to(dtype) for _ in range(3))
    found = Attention(fused=True, softcap=None)(q, k, v, None)
    assert found.dtype == (torch.float32 if by_hand else dtype)
    if dtype == torch.float64:
        expected = (q @ k.mT / 2).softmax(-1) @ v
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_without_a_kernel_has_the_type_of_its_values(softcap: float | None, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(3))
    assert Attention(fused=False, softcap=softcap)(q, k, v, None).dtype == dtype
