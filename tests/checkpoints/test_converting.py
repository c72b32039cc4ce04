"""A checkpoint of a known format has the same outputs here; names that cannot be mapped are listed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core.config import to_dict
from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints.converting import NEVER, Names, convert, head_dim_of, rename
from mm_ldlm.extras.foreign_checkpoints.formats import DDIT, FORMATS, matches, recognise, summary
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.training.checkpoints.weights import load_tensors

V, D, C, H, N, L = 23, 32, 24, 4, 2, 7
ROWS = 37  # the vocabulary is rounded
SHAPE = DataShape(vocab_size=V, pad_id=0, mask_id=1, max_length=10)
SOURCE = Path("older/model.pt")
CONFIG = DiTConfig(
    dim=D, depth=N, heads=H, conditioning_dim=C, mlp_bias=True, mlp_activation="gelu_tanh", qk_norm=False,
    time_factor=1.0,
)  # fmt: skip


def ddit(rows: int = ROWS, **more: Tensor) -> dict[str, Tensor]:
    """Random weights of MDLM's DiT, under its names."""
    shapes = {"vocab_embed.embedding": (rows, D), "output_layer.norm_final.weight": (D,)}
    linears = {"sigma_map.mlp.0": (C, 256), "sigma_map.mlp.2": (C, C), "output_layer.linear": (rows, D),
               "output_layer.adaLN_modulation": (2 * D, C)}  # fmt: skip
    for n in range(N):
        block = f"blocks.{n}."
        shapes |= {block + "norm1.weight": (D,), block + "norm2.weight": (D,), block + "attn_qkv.weight": (3 * D, D),
                   block + "attn_out.weight": (D, D)}  # fmt: skip
        linears |= {block + "mlp.0": (4 * D, D), block + "mlp.2": (D, 4 * D), block + "adaLN_modulation": (6 * D, C)}
    for name, (outputs, inputs) in linears.items():
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    draw = torch.Generator().manual_seed(0)
    return {name: 0.1 * torch.randn(shape, generator=draw) + ("norm" in name) for name, shape in shapes.items()} | more


def reference(w: dict[str, Tensor], tokens: Tensor, valid: Tensor, t: Tensor) -> Tensor:
    """The logits of MDLM's DiT by its definition: LayerNorm with weights and ε = 1e-5, rotary positions by halves."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(x: Tensor, name: str, shift: Tensor, scale: Tensor) -> Tensor:
        return F.layer_norm(x, [D]) * w[f"{name}.weight"] * (1 + scale) + shift

    frequency = torch.exp(-math.log(10_000) * torch.arange(128) / 128)
    features = torch.cat([torch.cos(t[:, None] * frequency), torch.sin(t[:, None] * frequency)], dim=1)
    c = F.silu(linear(F.silu(linear(features, "sigma_map.mlp.0")), "sigma_map.mlp.2"))
    B, length, E = *tokens.shape, D // H
    angle = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, E, 2) / E)
    cos, sin = (torch.cat([f(angle), f(angle)], dim=1)[None, :, None] for f in (torch.cos, torch.sin))

    def turned(x: Tensor) -> Tensor:
        one, two = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-two, one], dim=-1) * sin

    x = w["vocab_embed.embedding"][tokens]
    for n in range(N):
        block = f"blocks.{n}."
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = linear(c, block + "adaLN_modulation")[:, None].chunk(6, -1)
        qkv = linear(norm(x, block + "norm1", shift, scale), block + "attn_qkv").view(B, length, 3, H, E)
        q, k, v = turned(qkv[:, :, 0]), turned(qkv[:, :, 1]), qkv[:, :, 2]
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=valid[:, None, None]
        ).transpose(1, 2)
        x = x + gate * linear(attended.reshape(B, length, D), block + "attn_out")
        inner = F.gelu(linear(norm(x, block + "norm2", mlp_shift, mlp_scale), block + "mlp.0"), approximate="tanh")
        x = x + mlp_gate * linear(inner, block + "mlp.2")
    shift, scale = linear(c, "output_layer.adaLN_modulation")[:, None].chunk(2, -1)
    return linear(norm(x, "output_layer.norm_final", shift, scale), "output_layer.linear")


def targets(config: DiTConfig = CONFIG, shape: DataShape = SHAPE) -> tuple[Any, dict[str, torch.Size]]:
    model = config.build(shape, generator=torch.Generator().manual_seed(1)).eval()
    return model, {name: value.shape for name, value in model.named_parameters()}


def converted(found: dict[str, Tensor], config: DiTConfig = CONFIG, shape: DataShape = SHAPE, **more: Any) -> Any:
    return convert(found, targets(config, shape)[1], options=to_dict(config), source=SOURCE, **more)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    valid = torch.arange(L) < torch.tensor([L, 4])[:, None]
    return torch.randint(1, V, (2, L), generator=draw).masked_fill(~valid, 0), valid, torch.tensor([0.3, 0.9])


@pytest.mark.parametrize("conditioned", [True, False])
def test_the_dit_of_mdlm_has_the_same_logits_here(conditioned: bool) -> None:
    """With embeddings as small as at the start of a training, where the ε of LayerNorm counts."""
    found = ddit()
    found["vocab_embed.embedding"] = 0.1 * found["vocab_embed.embedding"]
    config = CONFIG if conditioned else DiTConfig(**(to_dict(CONFIG) | {"time_conditioning": False}))
    model, shapes = targets(config)
    made = convert(found, shapes, options=to_dict(config), source=SOURCE)
    load_tensors(dict(model.named_parameters()), made.tensors, SOURCE)
    tokens, valid, t = batch()
    with torch.no_grad():
        expected = reference(found, tokens, valid, t if conditioned else torch.zeros(2))[..., :V]
        logits = model(tokens, valid_BL=valid, t_B=t).logits
    assert made.format == "ddit"
    assert float(expected[valid].std()) > 0.1
    assert torch.allclose(logits[valid], expected[valid], atol=2e-5)


def test_buffers_and_parts_that_sampling_does_not_read_are_left_out_and_named() -> None:
    more = {"rotary_emb.cos_cached": torch.ones(1, 10, 3, 1, D // H), "logit_bias": torch.zeros(1, 1, 1),
            "importance_estimator.head.weight": torch.ones(2), "pad_id": torch.tensor(0)}  # fmt: skip
    assert converted(ddit(**more)).left_out == sorted(more)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("latent_projection.0.weight", "no model here can express it.*latent_projection.*one token of cross-attention"),
        ("blocks.0.cross_attn_q.weight", "cross-attention that shares its modulation"),
        ("blocks.1.latent_adaLN_modulation.bias", "a second modulation of each block"),
        ("output_layer_clusters.linear.bias", "a second output layer, for clusters"),
        ("label_map.weight", "Without a rule: label_map.weight"),
    ],
)
def test_the_parts_that_cannot_be_expressed_are_named(name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        converted(ddit(**{name: torch.ones(2)}))
    assert str(error.value).count("\n") < 3


def test_missing_parameters_are_listed() -> None:
    found = ddit()
    del found["blocks.1.mlp.2.bias"], found["blocks.0.norm1.weight"]
    with pytest.raises(CheckpointError, match=r"Missing: blocks\.0\.norm1.*, blocks\.1\.mlp\.2\.bias"):
        converted(found)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"qk_norm": True}, r"Set model\.qk_norm=false \(found true\)"),
        ({"mlp_bias": False, "mlp_activation": "gelu"}, r"model\.mlp_bias=true.*model\.mlp_activation=gelu_tanh"),
        ({"time_factor": 1000.0}, r"model\.time_conditioning=false or model\.time_factor=1, as it was trained"),
        ({"tied_embeddings": True}, r"model\.tied_embeddings=false"),
        ({"rope_theta": 500.0}, r"model\.rope_theta=10000 \(found 500\)"),
    ],
)
def test_options_that_change_the_function_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        converted(ddit(), DiTConfig(**(to_dict(CONFIG) | option)))


def test_another_number_of_heads_is_refused() -> None:
    for half, heads in ((8, 2), (2, 8)):
        found = ddit(**{"rotary_emb.inv_freq": torch.ones(half)})
        assert head_dim_of(found) == 2 * half
        words = rf"heads of dimension 8 .* found {2 * half} .* Set model\.heads to {heads}"
        with pytest.raises(CheckpointError, match=words):
            converted(found)


@pytest.mark.parametrize("rows", [V - 1, V + 128, 5])
def test_another_vocabulary_is_refused(rows: int) -> None:
    with pytest.raises(CheckpointError, match=rf"expected 23 tokens .* found {rows}"):
        converted(ddit(rows))


def test_tokens_that_the_checkpoint_lacks_are_never_written() -> None:
    made = converted(ddit(V - 2), added_ids=2).tensors
    assert made["text_head.linear.bias"][-2:].tolist() == [NEVER, NEVER]
    assert math.exp(NEVER) == 0.0  # no probability, whatever the other logits
    assert not made["text_embedding.weight"][-2:].any()
    assert made["text_embedding.weight"][:-2].any(dim=1).all()


def test_weights_of_another_type_or_shape_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"floating-point numbers for time\.inner\.bias, found torch\.int64"):
        converted(ddit(**{"sigma_map.mlp.0.bias": torch.arange(C)}))
    with pytest.raises(
        CheckpointError, match=r"qkv\.weight cannot be made .* blocks\.{n}\.attn_qkv\.weight \(90, 32\)"
    ):
        converted(ddit(**{"blocks.0.attn_qkv.weight": torch.ones(90, D)}))


OLDER = {
    "text_encoder.token_embed.weight", "text_encoder.position_embed", "latent_encoder.projection.0.weight",
    "conditioning.text_sigma_map.mlp.0.weight", "conditioning.combine.2.bias",
    "mmdit.blocks.0.attn_residual_fns.0.static_beta", "mmdit.blocks.0.joint_attn.to_qkv.0.weight",
    "mmdit.blocks.0.joint_attn.to_out.1.weight", "mmdit.blocks.11.ff_residual_fns.1.norm.gamma", "mmdit.norms.0.g",
    "text_head.weight", "latent_head.0.weight", "latent_head.3.weight",
}  # fmt: skip


def test_the_multimodal_model_of_the_older_trainers_is_recognised_and_its_parts_are_named() -> None:
    assert recognise(OLDER) == "multimodal"
    with pytest.raises(CheckpointError) as error:
        convert(dict.fromkeys(OLDER, torch.ones(1)), {}, options=to_dict(CONFIG), source=SOURCE)
    for part in ("hyper-connections", "without rotary positions", "latent_encoder", "without the factor 1000", "GELU"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"blocks.0.joint_attn.to_qkv.0.weight", "blocks.0.joint_attn.to_out.0.weight"}, "mmdit"),
        ({"layers.0.self_attn.q_proj.weight", "layers.0.mlp.gate_proj.weight"}, "llama"),
        ({"text_embedding.weight", "blocks.0.streams.0.qkv.weight"}, None),
        (set(), None),
    ],
)
def test_formats_are_recognised_by_their_names(names: set[str], expected: str | None) -> None:
    assert recognise(names) == expected


def test_every_rule_names_parameters_of_the_model() -> None:
    _, shapes = targets()
    for form in FORMATS.values():
        for rule in form.rules:
            assert any(matches(rule.ours, name) for name in shapes), rule.ours
        assert not form.rules or set(form.zeros) <= set(shapes)


# -- a mapping of the user ---------------------------------------------------------------------------------------------

SIZES = {"a.weight": torch.Size([2]), "blocks.0.b": torch.Size([3]), "blocks.1.b": torch.Size([3])}
GIVEN = {"x.weight": torch.ones(2), "layer.0.y": torch.zeros(3), "layer.1.y": torch.ones(3), "extra.q": torch.ones(9)}
MAPPING: dict[str, str | None] = {"x.weight": "a.weight", "layer.{n}.y": "blocks.{n}.b", "extra.*": None}


def test_a_mapping_renames_and_leaves_out() -> None:
    made = rename(GIVEN, SIZES, Names(MAPPING), source=SOURCE)
    assert made.left_out == ["extra.q"]
    assert {name: value.sum().item() for name, value in made.tensors.items()} == {
        "a.weight": 2, "blocks.0.b": 0, "blocks.1.b": 3,
    }  # fmt: skip
    partial = rename(GIVEN, SIZES, Names({**MAPPING, "layer.{n}.y": None}, ("blocks.{n}.b",)), source=SOURCE)
    assert set(partial.tensors) == {"a.weight"}
    several = Names({"x.*": "a.*", "*r.{n}.y": "blocks.{n}.b", "extra.*": None})
    assert rename(GIVEN, SIZES, several, source=SOURCE).tensors.keys() == SIZES.keys(), "* carries its text over"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x.weight": "a.wieght"}, r"'x\.weight': no parameter 'a\.wieght' here\. Did you mean 'a\.weight'"),
        ({"x.wieght": "a.weight"}, r"'x\.wieght': no such name in the checkpoint\. Did you mean 'x\.weight'"),
        ({"layer.{n}.y": "blocks.0.b"}, r"a second tensor for 'blocks\.0\.b'.*without a name .*: blocks\.1\.b"),
        ({"x.weight": "blocks.0.b", "layer.0.y": None}, r"expected shape \(3,\), found \(2,\)"),
        ({"x.weight": "q"}, r"no parameter 'q' here; without"),
        ({"x.weight": None}, r"without a name in the checkpoint: a\.weight"),
    ],
)
def test_faults_of_a_mapping_are_listed_with_the_nearest_names(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        rename(GIVEN, SIZES, Names({**change, **{k: v for k, v in MAPPING.items() if k not in change}}), source=SOURCE)


def test_lists_of_names_are_short() -> None:
    assert summary([f"blocks.{n}.a.weight" for n in range(24)] + ["b"]) == "b, blocks.{n}.a.weight (24)"
    assert summary(f"p{n}" for n in range(20)).endswith("and 8 more")


@pytest.mark.parametrize("rule", [rule for rule in DDIT.rules if len(rule.theirs) == 1], ids=lambda rule: rule.ours)
def test_only_rows_of_tokens_are_left_out(rule: Any) -> None:
    """A parameter with a row more than the model's keeps it, and is refused when it is loaded."""
    theirs, ours = rule.theirs[0].replace("{n}", "0"), rule.ours.replace("{n}", "0")
    found, shapes = ddit(), targets()[1]
    more = 3 if "qkv" in ours else 1  # Q, K and V together
    found[theirs] = torch.cat([found[theirs], found[theirs][:more]])
    try:
        made = converted(found).tensors[ours]
    except CheckpointError:
        assert "qkv" in ours, "a head is cut"
        return
    assert len(made) == shapes[ours][0] + (0 if ours in TOKENS else more)


TOKENS = {"text_embedding.weight", "text_head.linear.weight", "text_head.linear.bias"}

PARTS = {
    "left_out": {
        "rotary_emb.inv_freq", "logit_bias", "importance_estimator.a.b", "masking_scheduler.x", "noise", "noise.sigma",
        "text_noise_schedule.x", "pad_id", "mask_id", "t0", "t1",
    },
    "obstacles": {
        "blocks.3.latent_adaLN_modulation.weight", "blocks.3.cross_attn_q.weight", "latent_encoder.0.weight",
        "latent_projection.0.weight", "latent_prediction_head.0.bias", "output_layer_clusters.weight",
        "blocks.3.attn.q.weight", "blocks.3.mixer.in.weight",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PARTS["left_out"]))
def test_every_name_that_sampling_does_not_read_is_left_out(name: str) -> None:
    assert converted(ddit(**{name: torch.ones(D // H // 2)})).left_out == [name]


@pytest.mark.parametrize("name", sorted(PARTS["obstacles"]))
def test_every_part_that_no_model_has_is_an_obstacle(name: str) -> None:
    with pytest.raises(CheckpointError, match="no model here can express it"):
        converted(ddit(**{name: torch.ones(1)}))
