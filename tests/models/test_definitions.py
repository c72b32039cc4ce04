"""Every model against its definition, written a second time in plain operations: what is added, modulated, masked and
read, in which order, and by which of two streams, times or options."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core.config import parse_kind
from mm_ldlm.families.atat.importance import ImportanceConfig, ImportanceEstimator
from mm_ldlm.models.base import DataShape, init_weights
from mm_ldlm.models.registry import MODELS

B, L, N, V, PAD, MASK, d, P = 3, 6, 9, 23, 0, 1, 5, 36
SHAPE = DataShape(
    vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=N, latent_dim=d, state_dim=4, image_size=(4, 3, 3), noise_ids=2
)  # fmt: skip
LENGTHS = torch.tensor([L, L - 2, 1])
VALID = torch.arange(L) < LENGTHS[:, None]


def build(kind: str, **keys: Any) -> Any:
    """A model with noise on every parameter."""
    small = {"dim": 16, "depth": 3} | ({} if kind == "latent_mlp" else {"heads": 2})
    small |= {"patch": 1} if "image" in kind else {}
    config = parse_kind(MODELS, {"kind": kind, **small, **keys}, at="model")
    return stirred(config.build(SHAPE, generator=torch.Generator().manual_seed(0)))


def stirred(module: Any) -> Any:
    for number, parameter in enumerate(module.parameters()):
        draw = torch.Generator().manual_seed(number)
        parameter.data = parameter.data + 0.3 * torch.randn(parameter.shape, generator=draw)
    return module.eval()


def inputs() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(7)
    tokens = torch.randint(2, V + 2, (B, L), generator=draw)
    tokens[0, 2] = tokens[1, 1] = MASK
    sizes = {
        "latent": (d,), "clean": (d,), "previous": (d,), "states": (L, 4), "image": (P,), "clean_image": (P,)
    }  # fmt: skip
    given = {name: torch.randn(B, *size, generator=draw) for name, size in sizes.items()}
    return given | {
        "tokens": tokens.masked_fill(~VALID, PAD), "t": torch.rand(B, generator=draw),
        "s": torch.rand(B, generator=draw),
    }  # fmt: skip


# -- operations --------------------------------------------------------------------------------------------------------


def lin(layer: Any, x: Tensor) -> Tensor:
    return x @ layer.weight.T + (0.0 if layer.bias is None else layer.bias)


def normed(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def mlp(layer: Any, x: Tensor) -> Tensor:
    inner = lin(layer.up, x)
    cdf = 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    return lin(layer.down, inner * cdf)


def time_vector(layer: Any, t: Tensor, factor: float = 1000.0) -> Tensor:
    angle = factor * t[:, None] * torch.exp(-math.log(10_000) / 128 * torch.arange(128))
    return vector(layer, torch.cat([angle.cos(), angle.sin()], dim=1))


def vector(layer: Any, x: Tensor) -> Tensor:
    return lin(layer.outer, F.silu(lin(layer.inner, x)))


def turned(x: Tensor) -> Tensor:
    """RoPE: neighbouring coordinates of position l are turned by l · θ^(−2i/E)."""
    E = x.shape[-1]
    angle = torch.arange(x.shape[1])[:, None] * 10_000.0 ** (-torch.arange(0, E, 2) / E)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)[:, None]).flatten(-2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax(QKᵀ/√E)V of (B, L, H, E), joined to (B, L, D)."""
    logits = torch.einsum("blhe,bkhe->bhlk", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    return torch.einsum("bhlk,bkhe->blhe", logits.softmax(-1), v).flatten(2)


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return normed(x) * (1 + scale[:, None]) + shift[:, None]


def block_of(
    block: Any, xs: list[Tensor], c: Tensor, mask: Tensor, turns: list[int], latent: Any = None
) -> list[Tensor]:
    """adaLN-Zero with joint attention; the first `turns` positions of a stream are turned."""
    H = block.streams[0].heads
    mods = [
        lin(stream.modulation, F.silu(c)).split(x.shape[-1], dim=-1)
        for stream, x in zip(block.streams, xs, strict=True)
    ]
    joint = []
    for stream, x, mod, turn in zip(block.streams, xs, mods, turns, strict=True):
        q, k, v = lin(stream.qkv, modulated(x, mod[0], mod[1])).view(len(x), -1, 3, H, x.shape[-1] // H).unbind(2)
        q, k = (rms(y) * scale for y, scale in zip((q, k), stream.qk_norm.scale, strict=True))
        q, k = (torch.cat([turned(y[:, :turn]), y[:, turn:]], dim=1) for y in (q, k))
        joint.append((q, k, v))
    q, k, v = (torch.cat(parts, dim=1) for parts in zip(*joint, strict=True))
    read = attend(q, k, v, mask).split([x.shape[1] for x in xs], dim=1)
    out = []
    for stream, x, mod, part in zip(block.streams, xs, mods, read, strict=True):
        x = x + mod[2][:, None] * lin(stream.out, part)
        if stream.cross is not None:
            layer, y = stream.cross, modulated(x, mod[6], mod[7])
            q = rms(lin(layer.query, y).unflatten(-1, (H, -1))) * layer.qk_norm.scale[0]
            k, v = lin(layer.key_value, latent).unflatten(-1, (2, H, -1)).unbind(2)
            x = x + mod[8][:, None] * lin(layer.out, attend(q, rms(k) * layer.qk_norm.scale[1], v, None))
        out.append(x + mod[5][:, None] * mlp(stream.mlp, modulated(x, mod[3], mod[4])))
    return out


def head(layer: Any, x: Tensor, c: Tensor) -> Tensor:
    return modulated(x, *lin(layer.modulation, F.silu(c)).chunk(2, dim=-1))


def lengths_of(layer: Any, x: Tensor) -> Tensor:
    return lin(layer.outer, F.gelu(lin(layer.middle, F.gelu(lin(layer.inner, x)))))


def keys(*, others: int = 0, valid: Tensor = VALID) -> Tensor:
    return torch.cat([valid, torch.ones(B, others, dtype=torch.bool)], dim=1)[:, None, None]


def close(found: Tensor, expected: Tensor, *, at: Tensor | None = None) -> None:
    """At the positions `at`, by default those of the text; the others are not read."""
    assert found.shape == expected.shape
    if at is None and found.ndim == 3:
        at = VALID
    torch.testing.assert_close(found if at is None else found[at], expected if at is None else expected[at],
                               rtol=2e-4, atol=2e-4)  # fmt: skip


# -- text models -------------------------------------------------------------------------------------------------------


def trunk(model: Any, x: Tensor, c: Tensor, latent: Any = None) -> Tensor:
    for block in model.blocks:
        (x,) = block_of(block, [x], c, keys(), [L], latent)
    return x


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dit", "ccdd", "latent_dit", "latent_dit_cross"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_text_transformer(kind: str, tied: bool) -> None:
    model, given = build(kind, tied_embeddings=tied, conditioning_dim=12), inputs()
    null_B = torch.tensor([False, True, False])
    x = model.text_embedding.weight[given["tokens"]] + model.positions.weight[:L]
    c, latent = time_vector(model.time, given["t"]), None
    more: dict[str, Any] = {"t_B": given["t"]}
    if kind == "ccdd":
        z = torch.where(null_B[:, None, None], model.null_state.value, given["states"])
        x, c = x + lin(model.state_encoder, z), c + time_vector(model.state_time, given["s"])
        more = {"t_text_B": given["t"], "t_state_B": given["s"], "states_BLd": given["states"], "null_state_B": null_B}
    elif kind != "dit":
        read = torch.where(null_B[:, None], model.null_latent.value, given["latent"])
        more |= {"latents_Bd": given["latent"], "null_latent_B": null_B}
        if kind == "latent_dit":
            c = c + vector(model.latent_encoder, read)
        else:
            latent = lin(model.latent_encoder.linear, read).view(B, -1, 16) + model.latent_encoder.position_KD
    x = trunk(model, x, c, latent)
    found = model(given["tokens"], valid_BL=VALID, **more)
    last = head(model.text_head, x, c)
    close(found.logits, last @ model.text_embedding.weight[:V].T if tied else lin(model.text_head.linear, last))
    if kind == "ccdd":
        close(found.states_BLd, lin(model.state_head.linear, head(model.state_head, x, c)))
    if kind.startswith("latent"):
        close(found.length_logits_BN, lengths_of(model.length_head, read))
    if kind == "dit":
        c = time_vector(model.time, torch.zeros(B))
        x = normed(trunk(model, model.text_embedding.weight[given["tokens"]] + model.positions.weight[:L], c))
        expected = (x * VALID[..., None]).sum(1) / LENGTHS[:, None]
        close(model.features(given["tokens"], valid_BL=VALID), expected)


@torch.no_grad()
def test_a_causal_transformer() -> None:
    model, tokens = build("causal"), inputs()["tokens"].clamp(max=V - 1)
    x = model.text_embedding.weight[F.pad(tokens, (1, 0), value=model.begin_id)]
    causal = torch.ones(L + 1, L + 1, dtype=torch.bool).tril()
    for block in model.blocks:
        q, k, v = lin(block.qkv, rms(x) * block.attention_norm.scale_D).view(B, L + 1, 3, 2, 8).unbind(2)
        q, k = (turned(rms(y) * scale) for y, scale in zip((q, k), block.qk_norm.scale, strict=True))
        x = x + lin(block.out, attend(q, k, v, causal))
        x = x + mlp(block.mlp, rms(x) * block.mlp_norm.scale_D)
    expected = lin(model.text_head, rms(x) * model.norm.scale_D)
    expected[..., [PAD, MASK]] = expected[:, 0, V] = -torch.inf
    close(model(tokens), expected, at=F.pad(VALID, (1, 0), value=True))


@torch.no_grad()
@pytest.mark.parametrize("depth", [0, 2])
def test_the_features_of_a_latent(depth: int) -> None:
    model, x = build("latent_mlp", depth=depth), inputs()["latent"]
    expected = x if depth == 0 else lin(model.input, x)
    for block in model.blocks:
        expected = expected + lin(block.outer, F.gelu(lin(block.inner, normed(expected))))
    close(model(x), normed(expected) if depth else expected)


@torch.no_grad()
def test_the_importance_of_tokens() -> None:
    made, tokens = ImportanceEstimator(ImportanceConfig(dim=16, depth=2, heads=2), SHAPE), inputs()["tokens"]
    init_weights(made, torch.Generator().manual_seed(0))
    stirred(made)
    tokens = tokens.clamp(max=V - 1)
    x = made.tokens.weight[tokens] + made.positions.weight[:L]
    for block in made.blocks:
        scaled = normed(x) * block.attention_norm.weight + block.attention_norm.bias
        x = x + lin(block.out, attend(*lin(block.qkv, scaled).unflatten(-1, (3, 2, 8)).unbind(2), mask=keys()))
        x = x + mlp(block, normed(x) * block.mlp_norm.weight + block.mlp_norm.bias)
    x = F.gelu(lin(made.hidden, normed(x) * made.norm.weight + made.norm.bias))
    close(made(tokens, VALID), lin(made.output, x)[..., 0].sigmoid(), at=VALID)


# -- models of two streams ---------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [{}, {"direct_views": True, "token_vectors": "encoder", "self_condition": True, "tied_embeddings": True},
     {"cross_modal_blocks": 1, "condition_on_latent": False}, {"token_vectors": "encoder", "cross_modal_blocks": 2}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("drops", [False, True])
def test_the_mmdit_of_texts_and_latents(options: dict[str, Any], drops: bool) -> None:
    K, D = 3, 16
    model, given = build("mmdit", latent_tokens=K, conditioning_dim=12, **options), inputs()
    null_text, null_latent, null_length = (torch.tensor(each) for each in ([False, drops, False], [drops, False, False],
                                                                           [False, False, True]))  # fmt: skip
    read = torch.where(null_latent[:, None], model.null_latent.value, given["latent"])
    c = time_vector(model.conditioning.text_time, given["t"]) + time_vector(model.conditioning.latent_time, given["s"])
    if options.get("condition_on_latent", True):
        c = c + vector(model.conditioning.latent, read)
    vectors = model.text_embedding.table.weight[given["tokens"]]
    text = vectors if model.text_embedding.linear is None else lin(model.text_embedding.linear, vectors)
    source = torch.cat([read, given["previous"]], dim=1) if options.get("self_condition") else read
    latent = lin(model.latent_encoder.linear, source).view(B, K, D) + model.latent_encoder.position_KD
    if options.get("direct_views"):
        text = text + torch.einsum("bd,lcd->blc", read, model.latent_encoder.view_LDd[:L])
        known = VALID & (given["tokens"] != MASK) & ~null_text[:, None]
        pooled = normed((vectors * known[..., None]).sum(1))
        latent = latent + lin(model.pooled_text.linear, pooled).view(B, K, D)
    text = torch.where(null_text[:, None, None], model.null_text.value, text)
    valid = torch.where(null_text[:, None], torch.arange(L) == 0, VALID)
    xs = [text, latent]
    for index, block in enumerate(model.blocks):
        if index == options.get("cross_modal_blocks"):
            xs = [torch.cat(xs, dim=1)]
        xs = block_of(block, xs, c, keys(others=K, valid=valid), [L] if len(xs) == 1 else [L, 0])
    text, latent = torch.cat(xs, dim=1).split([L, K], dim=1)
    found = model(
        given["tokens"], valid_BL=VALID, t_text_B=given["t"], latents_Bd=given["latent"], t_latent_B=given["s"],
        null_latent_B=null_latent, null_text_B=null_text, length_latents_Bd=given["clean"], null_length_B=null_length,
        self_condition_Bd=given["previous"],
    )  # fmt: skip
    last = head(model.text_head, text, c)
    last = last if model.text_head.linear is None else lin(model.text_head.linear, last)
    if model.text_head.bias is not None:
        table = (model.text_head.table or model.text_embedding.table).weight[:V]
        last = last @ table.T + model.text_head.bias
    close(found.logits_BLV, last, at=valid)
    close(found.latent_Bd, lin(model.latent_head.linear, head(model.latent_head, latent, c).flatten(1)))
    clean = torch.where(null_length[:, None], model.null_latent.value, given["clean"])
    close(found.length_logits_BN, lengths_of(model.length_head, clean))
    plain = model(given["tokens"], valid_BL=VALID, t_text_B=given["t"], latents_Bd=given["latent"],
                  t_latent_B=given["s"], null_latent_B=null_latent, heads=("length",))  # fmt: skip
    close(plain.length_logits_BN, lengths_of(model.length_head, read))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["image_mmdit", "image_mmdit_continuous"])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("drops", [False, True])
def test_the_mmdit_of_captions_and_images(kind: str, pooled: bool, drops: bool) -> None:
    K = 12
    more = {"caption_dim": 4} if "continuous" in kind else {}
    model, given = build(kind, pooled_conditions=pooled, conditioning_dim=12, **more), inputs()
    null_text, null_image, null_length = (torch.tensor(each) for each in ([False, drops, False], [drops, False, False],
                                                                          [False, False, True]))  # fmt: skip
    read = torch.where(null_image[:, None], model.null_image.value, given["image"])
    image = lin(model.image_encoder.linear, read.view(B, K, 3)) + model.image_encoder.position_KD  # a pixel is a patch
    inputs_of: dict[str, Any] = {}
    if more:
        unit = model.text_embedding.weight / model.text_embedding.weight.norm(dim=1, keepdim=True) * math.sqrt(4)
        noise, signal = given["states"], torch.tensor([0.2, 0.5, 0.9])
        inputs_of = {"captions_BLe": noise, "signal_B": signal}
        words = lin(model.caption_encoder, signal[:, None, None] * unit[given["tokens"]] + noise)
    else:
        words = model.text_embedding.weight[given["tokens"]]
    text = torch.where(null_text[:, None, None], model.null_text.value, words + model.positions.weight[:L])
    valid = torch.where(null_text[:, None], torch.arange(L) == 0, VALID)
    c = time_vector(model.text_time, given["t"]) + time_vector(model.image_time, given["s"])
    if pooled:
        known = VALID & ~null_text[:, None] & (torch.ones_like(VALID) if more else given["tokens"] != MASK)
        c = c + vector(model.pooled_text, normed((words * known[..., None]).sum(1))) + vector(model.pooled_image, read)
    xs = [text, image]
    for block in model.blocks:
        xs = block_of(block, xs, c, keys(others=K, valid=valid), [L, 0])
    found = model(
        given["tokens"], valid_BL=VALID, t_text_B=given["t"], images_BP=given["image"], t_image_B=given["s"],
        null_image_B=null_image, null_text_B=null_text, length_images_BP=given["clean_image"],
        null_length_B=null_length, **inputs_of,
    )  # fmt: skip
    close(found.logits, lin(model.text_head.linear, head(model.text_head, xs[0], c)), at=valid)
    close(found.images_BP, lin(model.image_head.linear, head(model.image_head, xs[1], c)).flatten(1))
    clean = torch.where(null_length[:, None], model.null_image.value, given["clean_image"])
    close(found.length_logits_BN, lengths_of(model.length_head, clean))
