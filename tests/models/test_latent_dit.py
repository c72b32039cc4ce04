"""DiT given a latent, in both kinds: the identity at the start, what the latent reaches, the null latent, padding, and
an effect of every key."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.models.base import DataShape, count_parameters
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.models.layers import CrossAttention
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.models.registry import MODELS

V, N, D_LATENT = 23, 10, 6
SHAPE = DataShape(vocab_size=V, pad_id=0, mask_id=1, max_length=N, latent_dim=D_LATENT)
TINY: dict[str, Any] = {"dim": 32, "depth": 3, "heads": 4}
KINDS = ("latent_dit", "latent_dit_cross")
both = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, *, stirred: bool = True, shape: DataShape = SHAPE, seed: int = 0, **keys: Any) -> Any:
    """With `stirred`, noise is added to every parameter, the same to parameters of the same name."""
    config = parse_kind(MODELS, {"kind": kind, **TINY, **keys}, at="model")
    model = config.build(shape, generator=torch.Generator().manual_seed(seed))
    if stirred:
        stir(model)
    return model.eval()


def stir(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        parameter.data.add_(0.1 * noise)


def inputs(*lengths: int, width: int = 8) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    valid = torch.arange(width) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(1, V, (len(lengths), width), generator=draw).masked_fill(~valid, 0)
    return {
        "tokens_BL": tokens, "valid_BL": valid, "t_B": torch.rand(len(lengths), generator=draw),
        "latents_Bd": torch.randn(len(lengths), D_LATENT, generator=draw),
    }  # fmt: skip


# -- the start ----------------------------------------------------------------------------------------------------


@both
def test_every_block_is_the_identity_at_the_start_and_nothing_is_predicted(kind):
    model, seen = build(kind, stirred=False), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: seen.append((args[0][0], out[0])))
    logits, length_logits = model(**inputs(8, 5))
    assert len(seen) == 3
    assert all(torch.equal(before, after) for before, after in seen)
    assert torch.equal(logits, torch.zeros(2, 8, V))
    assert torch.equal(length_logits, torch.zeros(2, N))


@both
def test_data_without_latents_are_refused(kind):
    with pytest.raises(
        ConfigurationError, match=rf"'{kind}', which reads latents, but the dataset has none.*kind: dit"
    ):
        build(kind, shape=DataShape(vocab_size=V, pad_id=0, mask_id=1, max_length=N))


def test_the_number_of_parameters():
    D, C, M, d, K, W = 32, 16, 48, D_LATENT, 3, 20
    block = 6 * D * (C + 1) + 4 * D * D + 2 * D + 2 * D * M
    time, length = 257 * C + C * (C + 1), (d + 1) * W + (W + 1) * W + (W + 1) * N
    shared = (V + N) * D + time + 3 * block + 2 * D * (C + 1) + V * (D + 1) + length + d
    keys = {"conditioning_dim": C, "mlp_ratio": 1.5, "length_hidden_dim": W}
    assert count_parameters(build("latent_dit", **keys)) == shared + (d + 1) * C + C * (C + 1)
    cross = 3 * D * (C + 1) + 4 * D * D + 2 * D  # in the first and the third of three blocks
    assert count_parameters(build("latent_dit_cross", latent_tokens=K, **keys)) == (
        shared + 2 * cross + (d + 1) * K * D + K * D
    )


def test_the_environments_have_as_many_parameters_as_the_mmdit_beside_them():
    """Both within 2 % of each other and within 5 % of the MMDiT of `compare_latent`, on base's data (600 tokens)."""
    conf, counts = Path(__file__).parents[2] / "conf", []
    layer = yaml.safe_load((conf / "compare_latent/parameters.yml").read_text())
    params = layer["comparison"]["members"][0]["params"]
    sizes = {key.removeprefix("model."): value for key, value in params.items() if key.startswith("model.")}
    assert set(sizes) == {"depth", "mlp_ratio", "conditioning_dim"}
    shape = DataShape(vocab_size=600, pad_id=0, mask_id=1, max_length=24, latent_dim=384)
    for file in ("base/parameters/model", "latent_dit/parameters", "latent_dit_cross/parameters"):
        keys = yaml.safe_load((conf / f"{file}.yml").read_text())["model"]
        keys |= sizes if file.startswith("base") else {}
        model = parse_kind(MODELS, keys, at="model").build(shape, generator=torch.Generator())
        counts.append(count_parameters(model))
    beside, adaln, cross = counts
    assert counts == [8_161_328, 8_304_112, 8_292_848]
    assert abs(adaln / cross - 1) < 0.02
    assert max(abs(adaln / beside - 1), abs(cross / beside - 1)) < 0.05


@both
def test_every_parameter_has_a_part(kind):
    model = build(kind)
    parts = {name: part for name, part, _ in tagged_parameters(model)}
    assert set(parts) == {name for name, _ in model.named_parameters()}
    assert {part.name for part in parts.values()} == {
        "text_embedding", "conditioning", "backbone", "text_head", "latent_encoder", "null_latent", "length_head"
    }  # fmt: skip
    assert {part.name for part in parts.values() if part.input} == {"text_embedding", "latent_encoder"}
    assert {part.name for part in parts.values() if part.occasional} == {"null_latent"}


# -- the latent ---------------------------------------------------------------------------------------------------


@both
def test_every_weight_has_a_gradient(kind):
    """With some latents dropped; the null latent has none without."""
    for null_B, without in (
        (torch.tensor([True, False]), set()),
        (torch.tensor([False, False]), {"null_latent.value"}),
    ):
        model = build(kind)
        out = model(**inputs(8, 5), null_latent_B=null_B)
        (out.logits.square().sum() + out.length_logits_BN.square().sum()).backward()
        zero = {name for name, p in model.named_parameters() if p.grad is None or not bool((p.grad != 0).any())}
        assert zero == without


@both
def test_the_latent_reaches_every_position_and_the_length(kind):
    model, batch = build(kind), inputs(8, 5)
    other = {**batch, "latents_Bd": batch["latents_Bd"] + torch.tensor([[0.0], [1.0]])}
    first, second = model(**batch), model(**other)
    assert torch.equal(first.logits[0], second.logits[0]), "examples do not read each other's latents"
    assert float((first.logits[1, :5] - second.logits[1, :5]).abs().amax(-1).min().detach()) > 1e-4
    assert not torch.allclose(first.length_logits_BN[1], second.length_logits_BN[1], atol=1e-4)


@both
def test_the_null_latent_is_learned_and_hides_the_latent(kind):
    model, batch, null_B = build(kind), inputs(8, 5), torch.tensor([False, True])
    out = model(**batch, null_latent_B=null_B)
    moved = {**batch, "latents_Bd": batch["latents_Bd"] + null_B[:, None].float()}
    again = model(**moved, null_latent_B=null_B)
    as_latent = torch.where(null_B[:, None], model.null_latent.value, batch["latents_Bd"])
    given = model(**batch | {"latents_Bd": as_latent})
    zeros = model(**batch | {"latents_Bd": torch.zeros(2, D_LATENT)})
    for found, same, plain, zero in zip(out, again, given, zeros, strict=True):
        assert torch.equal(found, same)
        assert torch.equal(found, plain)
        assert not torch.allclose(found[1], zero[1], atol=1e-4), "zeros are a legal embedding, not the null latent"
    assert (build(kind, stirred=False).null_latent.value != 0).any()


@both
def test_lengths_do_not_depend_on_the_text(kind):
    model, batch, null_B = build(kind), inputs(8, 5), torch.tensor([False, True])
    found = model(**batch, null_latent_B=null_B).length_logits_BN
    assert torch.equal(model.length_logits(batch["latents_Bd"], null_B), found)
    turned = {**batch, "tokens_BL": batch["tokens_BL"].flip(1)}
    assert torch.equal(model(**turned, null_latent_B=null_B).length_logits_BN, found)


def test_only_the_first_third_fifth_block_reads_latent_tokens():
    assert [block.streams[0].cross is not None for block in build("latent_dit_cross", depth=5).blocks] == [
        True, False, True, False, True
    ]  # fmt: skip
    assert not any(block.streams[0].cross for block in build("latent_dit", depth=5).blocks)


@both
def test_without_its_latent_it_is_a_dit(kind):
    """With the same weights, and nothing added to c, or the gates of cross-attention closed."""
    model, dit = build(kind), DiTConfig(**TINY).build(SHAPE, generator=torch.Generator()).eval()
    state = model.state_dict()
    if kind == "latent_dit":
        torch.nn.init.zeros_(model.latent_encoder.outer.weight)
        torch.nn.init.zeros_(model.latent_encoder.outer.bias)
    for name, value in dit.state_dict().items():
        if name in state:
            value.copy_(state[name][: len(value)])
    for block in model.blocks if kind == "latent_dit_cross" else ():
        block.streams[0].modulation.weight.data[8 * 32 :] = 0
        block.streams[0].modulation.bias.data[8 * 32 :] = 0
    batch = inputs(8, 5)
    plain = {key: batch[key] for key in ("tokens_BL", "valid_BL", "t_B")}
    assert torch.allclose(model(**batch).logits, dit(**plain).logits, atol=1e-6)


def test_cross_attention_stands_between_attention_and_mlp():
    model = build("latent_dit_cross")
    order: list[str] = []
    for name in ("out", "cross", "mlp"):
        model.blocks[0].streams[0].get_submodule(name).register_forward_hook(lambda *_, name=name: order.append(name))
    model(**inputs(8))
    assert order == ["out", "cross", "mlp"]


@pytest.mark.parametrize("length", [5, 70])
def test_cross_attention_is_torchs(length):
    """Softmax of QKᵀ/√E over the latent tokens, with a root mean square of 1 in every head of Q and K."""
    config = parse_kind(MODELS, {"kind": "latent_dit_cross", **TINY}, at="model")
    layer, draw = CrossAttention(config, fused=True), torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=draw)
    x, z = torch.randn(2, length, 32, generator=draw), torch.randn(2, 3, 32, generator=draw)
    k, v = layer.key_value(z).chunk(2, dim=-1)
    q, k, v = (y.unflatten(-1, (4, 8)) for y in (layer.query(x), k, v))
    q, k = (F.rms_norm(y, (8,), eps=1e-6) * scale for y, scale in zip((q, k), layer.qk_norm.scale, strict=True))
    read = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v))).transpose(1, 2).flatten(2)
    assert torch.allclose(layer(x, z), layer.out(read), atol=1e-4)


# -- the text -----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("keys", [{}, {"logit_softcap": 5.0}, {"qk_norm": False, "tied_embeddings": True}], ids=str)
def test_pads_never_change_a_valid_output(kind, keys):
    model, batch = build(kind, **keys), inputs(8, 5, 2)
    out = model(**batch).logits
    for i, length in enumerate((8, 5, 2)):
        one = {key: batch[key][i : i + 1] for key in ("t_B", "latents_Bd")}
        alone = model(batch["tokens_BL"][i : i + 1, :length], valid_BL=None, **one).logits
        assert torch.allclose(alone[0], out[i, :length], atol=1e-5)
    other = model(**batch | {"tokens_BL": torch.where(batch["valid_BL"], batch["tokens_BL"], 7)}).logits
    assert torch.equal(other[batch["valid_BL"]], out[batch["valid_BL"]])


@both
def test_a_row_of_padding_alone_is_finite_forward_and_backward(kind):
    model = build(kind)
    out = model(**inputs(8, 0)).logits
    out.square().sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@both
def test_logits_at_chosen_positions(kind):
    model, batch = build(kind), inputs(8, 5)
    at = batch["valid_BL"] & (torch.arange(8) % 2 == 0)
    assert torch.allclose(model(**batch, logits_at=at).logits, model(**batch).logits[at], atol=1e-5)


# -- every key has an effect --------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("key", "value"),
    [("qk_norm", True), ("logit_softcap", 0.5), ("tied_embeddings", True), ("rope_theta", 100.0), ("heads", 2)],
)
def test_keys_that_change_the_function(kind, key, value):
    plain, other = build(kind, qk_norm=False), build(kind, **{"qk_norm": False, key: value})
    other.load_state_dict({n: x for n, x in plain.state_dict().items() if n in other.state_dict()}, strict=False)
    assert not torch.allclose(plain(**inputs(8, 5)).logits, other(**inputs(8, 5)).logits, atol=1e-4)


@pytest.mark.parametrize(("key", "value"), [("qk_norm", True), ("logit_softcap", 0.5), ("heads", 2)])
def test_keys_that_change_cross_attention(key, value):
    layers = [
        CrossAttention(parse_kind(MODELS, {"kind": "latent_dit_cross", **TINY, **keys}, at="model"), fused=True)
        for keys in ({"qk_norm": False}, {"qk_norm": False, key: value})
    ]
    x, z = torch.randn(2, 5, 32), torch.randn(2, 3, 32)
    for layer in layers:
        stir(layer)
    layers[1].load_state_dict(layers[0].state_dict(), strict=False)
    assert not torch.allclose(layers[0](x, z), layers[1](x, z), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "key", "value", "name", "shape"),
    [
        ("latent_dit", "conditioning_dim", 16, "latent_encoder.outer.weight", (16, 16)),
        ("latent_dit", "length_hidden_dim", 48, "length_head.middle.weight", (48, 48)),
        ("latent_dit_cross", "length_hidden_dim", 48, "length_head.middle.weight", (48, 48)),
        ("latent_dit_cross", "latent_tokens", 5, "latent_encoder.position_KD", (5, 32)),
        ("latent_dit_cross", "mlp_ratio", 2.0, "blocks.0.streams.0.mlp.up.weight", (64, 32)),
        ("latent_dit_cross", "dim", 48, "blocks.0.streams.0.cross.key_value.weight", (96, 48)),
        ("latent_dit_cross", "depth", 5, "blocks.4.streams.0.cross.out.weight", (32, 32)),
    ],
)
def test_keys_that_change_shapes(kind, key, value, name, shape):
    assert tuple(build(kind, **{key: value}).state_dict()[name].shape) == shape


@both
@pytest.mark.parametrize("conditioned", [True, False])
def test_time_conditioning(kind, conditioned):
    model, batch = build(kind, time_conditioning=conditioned), inputs(8, 5)
    same = torch.allclose(model(**batch).logits, model(**batch | {"t_B": batch["t_B"] * 0.5}).logits, atol=1e-6)
    assert same != conditioned


@both
def test_dropout_acts_in_training_only(kind):
    model, batch = build(kind, dropout=0.3), inputs(8, 5)
    assert torch.equal(model(**batch).logits, model(**batch).logits)
    model.train()
    assert not torch.allclose(model(**batch).logits, model(**batch).logits, atol=1e-4)
    layer = model.blocks[0].streams[0].cross
    if layer is not None:
        x, z = torch.randn(1, 4, 32), torch.randn(1, 3, 32)
        assert not torch.allclose(layer(x, z), layer(x, z), atol=1e-4)


@both
def test_gradient_checkpointing_computes_the_blocks_again_and_the_same_gradients(kind):
    gradients, calls = [], []
    for on in (False, True):
        model, count = build(kind, gradient_checkpointing=on).train(), [0]
        model.blocks[0].register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        model(**inputs(8, 5)).logits.square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        calls.append(count[0])
    assert calls == [1, 2]
    assert gradients[0].keys() == gradients[1].keys()
    assert any("latent_encoder" in name for name in gradients[0])
    assert all(torch.allclose(gradients[0][name], gradients[1][name], atol=1e-5) for name in gradients[0])


@both
def test_too_long_a_text_is_refused(kind):
    with pytest.raises(ValueError, match="at most 10 tokens, found 11"):
        build(kind)(**inputs(11, width=11))


@both
def test_the_loss_starts_at_log_v(kind):
    logits = build(kind, stirred=False)(**inputs(8)).logits.detach()
    assert float(F.cross_entropy(logits.flatten(0, 1), torch.full((8,), 4))) == pytest.approx(math.log(V))
