"""Models from parameters and the shape of the data: refusals, initial values, and the 892M shape."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
import yaml

from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.models.base import DataShape, build_on_meta, count_parameters
from mm_ldlm.models.mmdit import MMDiT, MMDiTConfig
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.models.registry import MODELS

# kind → a key that another kind reads and this one does not
FOREIGN_KEYS = {
    "mmdit": "time_conditioning", "dit": "latent_tokens", "latent_dit": "latent_tokens",
    "latent_dit_cross": "direct_views", "ccdd": "latent_tokens", "latent_mlp": "heads", "image_mmdit": "caption_dim",
    "image_mmdit_continuous": "latent_tokens", "causal": "conditioning_dim",
}  # fmt: skip


def keys(kind: str) -> list[str]:
    """The parameters that a kind reads."""
    return [field.name for field in dataclasses.fields(parse_kind(MODELS, {"kind": kind}, at="model"))]


def data(vocab_size: int = 23, *, pad_id: int = 0, mask_id: int = 1, latent_dim: int | None = 6) -> DataShape:
    return DataShape(
        vocab_size=vocab_size, pad_id=pad_id, mask_id=mask_id, max_length=10, latent_dim=latent_dim, state_dim=5,
        image_size=(4, 4, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dim": 100, "heads": 3}, "dim must be divisible by heads, found dim 100 and 3 heads"),
        ({"dim": 12, "heads": 4}, "must be even for RoPE, found 3"),
        ({"depth": 2, "cross_modal_blocks": 3}, r"must lie in 1\.\.depth \(2\), found 3"),
        ({"depth": 2, "cross_modal_blocks": 0}, r"must lie in 1\.\.depth \(2\), found 0"),
        ({"dim": 8, "heads": 2, "mlp_ratio": 0.05}, r"mlp_ratio · dim must be at least 1, found 0\.05 · 8"),
        ({"depht": 2}, "'model.depht' is not known. Did you mean 'depth'"),
        ({"latent_dim": 8}, "'model.latent_dim' is not known"),
        ({"max_length": 8}, "'model.max_length' is not known"),
        ({"heads": 0}, r"model\.heads"),
        ({"dropout": 1.5}, r"model\.dropout"),
    ],
)
def test_bad_shapes_are_refused(bad, message):
    with pytest.raises(ConfigurationError, match=message):
        parse(MMDiTConfig, bad, at="model")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_number_of_two_stream_blocks_up_to_all_of_them_is_accepted(count):
    config = parse(MMDiTConfig, {"dim": 8, "depth": 3, "heads": 2, "cross_modal_blocks": count}, at="model")
    model = config.build(data(), generator=torch.Generator())
    assert [len(block.streams) for block in model.blocks] == [2] * count + [1] * (3 - count)


def test_ids_outside_the_vocabulary_get_embeddings_and_no_logits():
    config, generator = MMDiTConfig(dim=8, depth=1, heads=2), torch.Generator()
    model = config.build(data(10, pad_id=10, mask_id=11), generator=generator)
    assert model.text_embedding.table.weight.shape == (12, 8)
    assert model.text_head.linear.out_features == 10
    with pytest.raises(ValueError, match="must be two different ids"):
        config.build(data(10, pad_id=3, mask_id=3), generator=generator)


def test_mmdit_refuses_data_without_latents_and_names_the_remedy():
    with pytest.raises(ConfigurationError, match=r"'mmdit', which reads latents, but the dataset has none.*kind: dit"):
        MMDiTConfig(dim=8, depth=1, heads=2).build(data(latent_dim=None), generator=torch.Generator())


def test_ccdd_refuses_data_without_token_states_and_names_the_remedy():
    config = parse_kind(MODELS, {"kind": "ccdd", "dim": 8, "depth": 1, "heads": 2}, at="model")
    with pytest.raises(ConfigurationError, match=r"'ccdd', which reads a continuous state.*has none.*kind: dit"):
        config.build(dataclasses.replace(data(), state_dim=None), generator=torch.Generator())


@pytest.mark.parametrize(("ratio", "units"), [(1.2, 10), (1.3, 10), (0.07, 1), (4, 32)])
def test_an_mlp_has_the_nearest_whole_number_of_units(ratio, units):
    for kind, layer in (("dit", "streams.0.mlp.up"), ("causal", "mlp.up"), ("latent_mlp", "inner")):
        keys = {"dim": 8, "depth": 1, "mlp_ratio": ratio} | ({"heads": 2} if kind != "latent_mlp" else {})
        model = parse_kind(MODELS, {"kind": kind, **keys}, at="model").build(data(), generator=torch.Generator())
        assert model.blocks[0].get_submodule(layer).out_features == units


@pytest.mark.parametrize(("depth", "dim"), [(0, 6), (2, 16)])
def test_the_features_of_a_latent_are_the_output_of_its_model(depth, dim):
    config = parse_kind(MODELS, {"kind": "latent_mlp", "dim": 16, "depth": depth}, at="model")
    model = config.build(data(), generator=torch.Generator().manual_seed(0)).eval()
    latents = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    found = model.features(latents)
    assert found.shape == (3, model.feature_dim) == (3, dim)
    assert torch.equal(found, model(latents))
    assert torch.equal(found, latents) is (depth == 0)


def test_the_892m_shape_has_its_exact_number_of_parameters():
    """24 blocks, dim 1024, 16 heads of 64, length 1024, 32-d latents, the bert vocabulary: conf/mmdit_892m."""
    conf = Path(__file__).parents[2] / "conf"
    config = parse_kind(
        MODELS, yaml.safe_load((conf / "mmdit_892m/parameters.yml").read_text())["model"], at="model"
    )  # fmt: skip
    assert isinstance(config, MMDiTConfig)
    assert (config.depth, config.dim, config.heads, config.head_dim) == (24, 1024, 16, 64)
    shape = DataShape(vocab_size=30_522, pad_id=0, mask_id=103, max_length=1024, latent_dim=32)
    with torch.device("meta"):
        model = MMDiT(config, shape)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    D, C, M, V, K, d, N, T = 1024, 1024, config.mlp_dim, 30_522, config.latent_tokens, 32, 1024, 256
    stream = 6 * (C + 1) * D + 4 * D * D + 2 * D * M + 2 * D
    conditioning = 2 * ((T + 1) * C + (C + 1) * C) + (d + 1) * C + (C + 1) * C
    text = V * D + 2 * (C + 1) * D + (D + 1) * V + D
    W = config.length_hidden_dim or D
    latent = (d + 1) * K * D + K * D + 2 * (C + 1) * D + (K * D + 1) * d + d
    length = (d + 1) * W + (W + 1) * W + (W + 1) * N
    assert count_parameters(model) == 24 * 2 * stream + conditioning + text + latent + length
    assert count_parameters(model) == 891_404_154


# -- the builder --------------------------------------------------------------------------------------------------


class TwoLayers(torch.nn.Module):
    """Counts how often each module is asked for its initial values."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[str] = []
        self.inner = torch.nn.Linear(2, 2)
        self.inner.init_weights = lambda generator: self.inner.weight.normal_(generator=generator)
        self.devices.append(self.inner.weight.device.type)

    def init_weights(self, generator: torch.Generator) -> None:
        self.devices.append(self.inner.weight.device.type)
        self.inner.bias.zero_()


def test_a_model_is_made_on_meta_and_initialised_once_on_the_cpu():
    model = build_on_meta(TwoLayers, torch.Generator().manual_seed(0))
    assert model.devices == ["meta", "cpu"]
    assert torch.equal(model.inner.weight, torch.randn(2, 2, generator=torch.Generator().manual_seed(0)))


def test_building_does_not_touch_the_global_random_state():
    before = torch.random.get_rng_state()
    with torch.device("meta"):
        MMDiT(MMDiTConfig(), data())
    for kind in MODELS.known:
        parse_kind(MODELS, {"kind": kind, "dim": 32, "depth": 1}, at="model").build(data(), generator=torch.Generator())
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_shared_parameter_is_counted_once():
    layer = torch.nn.Linear(3, 2)
    assert count_parameters(torch.nn.ModuleList([layer, layer])) == 8


# -- every registry entry -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS.known)
def test_every_model_kind_builds_from_its_defaults(kind):
    """Float32 on the CPU, a function of the generator, with blocks and with a part for every parameter."""
    config = parse_kind(MODELS, {"kind": kind}, at="model")
    assert config.kind == kind
    small = parse_kind(MODELS, {"kind": kind, "dim": 32, "depth": 2}, at="model")
    states = []
    for seed in (1, 1, 2):
        model = small.build(data(), generator=torch.Generator().manual_seed(seed))
        assert isinstance(model.blocks, torch.nn.ModuleList)
        assert len(model.blocks) == 2
        assert {name for name, _, _ in tagged_parameters(model)} == {name for name, _ in model.named_parameters()}
        states.append(dict(model.named_parameters()))
    assert all(p.dtype == torch.float32 and p.device.type == "cpu" for p in states[0].values())
    assert all(torch.isfinite(p).all() for p in states[0].values())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


@pytest.mark.parametrize("kind", MODELS.known)
def test_a_key_of_another_kind_is_refused_with_the_kinds_own_keys(kind):
    key = FOREIGN_KEYS[kind]
    message = rf"parameter 'model\.{key}' is not known\..* Known here: {re.escape(', '.join(keys(kind)))}\."
    with pytest.raises(ConfigurationError, match=message):
        parse_kind(MODELS, {"kind": kind, key: 1}, at="model")


def test_each_foreign_key_is_a_key_of_some_other_kind():
    assert set(FOREIGN_KEYS) == set(MODELS.known)
    for kind, key in FOREIGN_KEYS.items():
        assert key not in keys(kind)
        assert any(key in keys(other) for other in MODELS.known)
