"""DiT: the identity at the start, padding, timestep, length prior, and an effect of every key."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.models.base import DataShape, count_parameters
from mm_ldlm.models.dit import DiT, DiTConfig
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.models.timestep_embedding import sinusoid

SHAPE = DataShape(vocab_size=23, pad_id=0, mask_id=1, max_length=10)
TINY: dict[str, Any] = {"dim": 32, "depth": 3, "heads": 4}


def build(*, stirred: bool = True, shape: DataShape = SHAPE, seed: int = 0, **keys: Any) -> DiT:
    """With `stirred`, noise is added to every parameter, the same to parameters of the same name."""
    model = DiTConfig(**{**TINY, **keys}).build(shape, generator=torch.Generator().manual_seed(seed))
    for name, parameter in model.named_parameters() if stirred else ():
        seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        parameter.data.add_(0.1 * noise)
    return model.eval()


def inputs(*lengths: int, width: int = 8) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    valid = torch.arange(width) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(1, 23, (len(lengths), width), generator=draw).masked_fill(~valid, 0)
    return {"tokens_BL": tokens, "valid_BL": valid, "t_B": torch.rand(len(lengths), generator=draw)}


# -- the start ----------------------------------------------------------------------------------------------------


def test_every_block_is_the_identity_at_the_start():
    model, seen = build(stirred=False), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: seen.append((args[0][0], out[0])))
    model(**inputs(8, 5))
    assert len(seen) == 3
    assert all(torch.equal(before, after) for before, after in seen)


def test_the_loss_starts_at_log_v_and_the_lengths_are_uniform():
    model = build(stirred=False)
    logits, length_logits = model(**inputs(8, 5))
    assert logits.shape == (2, 8, 23)
    assert torch.equal(logits, torch.zeros_like(logits))
    assert float(F.cross_entropy(logits.detach().flatten(0, 1), torch.full((16,), 4))) == pytest.approx(math.log(23))
    assert torch.equal(length_logits, torch.zeros(10))


def test_initial_values_are_a_function_of_the_generator_alone():
    before = torch.random.get_rng_state()
    a, b, c = (build(stirred=False, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["text_embedding.weight"], c["text_embedding.weight"])
    assert all(torch.isfinite(x).all() and x.dtype == torch.float32 for x in a.values())
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_number_of_parameters():
    D, C, V, N, M = 32, 16, 23, 10, 48
    block = 6 * D * (C + 1) + 3 * D * D + 2 * D + D * D + 2 * D * M
    time = 257 * C + C * (C + 1)
    assert count_parameters(build(conditioning_dim=C, mlp_ratio=1.5)) == (
        (V + N) * D + time + 3 * block + 2 * D * (C + 1) + V * (D + 1) + N
    )


def test_every_parameter_has_a_part():
    parts = {name: str(part) for name, part, _ in tagged_parameters(build())}
    assert set(parts) == {name for name, _ in build().named_parameters()}
    assert set(parts.values()) == {"text_embedding", "conditioning", "backbone", "text_head", "length_head"}
    assert [name for name, part in parts.items() if part == "length_head"] == ["length_prior.logits_N"]


# -- what the inputs do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"logit_softcap": 5.0}, {"qk_norm": False, "tied_embeddings": True}])
def test_pads_never_change_a_valid_output(keys):
    model, batch = build(**keys), inputs(8, 5, 2)
    out = model(**batch).logits
    for i, length in enumerate((8, 5, 2)):
        alone = model(batch["tokens_BL"][i : i + 1, :length], valid_BL=None, t_B=batch["t_B"][i : i + 1]).logits
        assert torch.allclose(alone[0], out[i, :length], atol=1e-5)
    other = model(**batch | {"tokens_BL": torch.where(batch["valid_BL"], batch["tokens_BL"], 7)}).logits
    assert torch.equal(other[batch["valid_BL"]], out[batch["valid_BL"]])


def test_a_row_of_padding_alone_is_finite_forward_and_backward():
    model, batch = build(), inputs(8, 0)
    out = model(**batch).logits
    out.square().sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_every_position_reads_both_sides():
    model, batch = build(), inputs(8)
    out = model(**batch).logits
    for changed in (0, 7):
        tokens = batch["tokens_BL"].clone()
        tokens[0, changed] = 1 + (tokens[0, changed] + 3) % 20
        moved = (model(**batch | {"tokens_BL": tokens}).logits - out).abs().amax(-1)[0]
        assert (moved > 1e-4).all()


def test_positions_matter():
    model, batch = build(), inputs(8)
    turned = model(**batch | {"tokens_BL": batch["tokens_BL"].flip(1)}).logits
    assert not torch.allclose(model(**batch).logits, turned.flip(1), atol=1e-3)


def test_a_canvas_of_masks_shows_its_positions_and_its_length():
    model, batch = build(), inputs(8, 5)
    tokens = torch.where(batch["valid_BL"], SHAPE.mask_id, SHAPE.pad_id)
    logits = model(tokens, valid_BL=batch["valid_BL"], t_B=torch.ones(2)).logits
    assert float((logits[0, 1:] - logits[0, :-1]).abs().amax(-1).min().detach()) > 1e-2
    assert float((logits[0, :5] - logits[1, :5]).abs().amax(-1).min().detach()) > 1e-3


def test_examples_do_not_read_each_other():
    model, batch = build(), inputs(8, 6, 4, 2)
    part = model(**{key: value[1:3] for key, value in batch.items()})
    assert torch.allclose(part.logits, model(**batch).logits[1:3], atol=1e-5)


def test_logits_at_chosen_positions():
    model, batch = build(), inputs(8, 5)
    at = batch["valid_BL"] & (torch.arange(8) % 2 == 0)
    assert torch.allclose(model(**batch, logits_at=at).logits, model(**batch).logits[at], atol=1e-5)


def test_ids_outside_the_vocabulary_get_embeddings_and_no_logits():
    model = build(shape=DataShape(vocab_size=10, pad_id=10, mask_id=11, max_length=8))
    valid = torch.tensor([[True, True, False]])
    logits = model(torch.tensor([[2, 11, 10]]), valid_BL=valid, t_B=torch.ones(1)).logits
    assert logits.shape == (1, 3, 10)


def test_too_long_a_text_is_refused():
    with pytest.raises(ValueError, match="at most 10 tokens, found 11"):
        build()(**inputs(11, width=11))


# -- every key has an effect --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [("qk_norm", True), ("logit_softcap", 0.5), ("tied_embeddings", True), ("rope_theta", 100.0), ("heads", 2)],
)
def test_keys_that_change_the_function(key, value):
    plain, other = build(qk_norm=False), build(**{"qk_norm": False, key: value})
    other.load_state_dict({n: x for n, x in plain.state_dict().items() if n in other.state_dict()}, strict=False)
    assert not torch.allclose(plain(**inputs(8, 5)).logits, other(**inputs(8, 5)).logits, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "value", "name", "shape"),
    [
        ("dim", 48, "text_embedding.weight", (23, 48)),
        ("mlp_ratio", 2.0, "blocks.0.streams.0.mlp.up.weight", (64, 32)),
        ("conditioning_dim", 16, "blocks.0.streams.0.modulation.weight", (192, 16)),
        ("depth", 5, "blocks.4.streams.0.out.weight", (32, 32)),
        ("heads", 2, "blocks.0.streams.0.qk_norm.scale", (2, 2, 16)),
    ],
)
def test_keys_that_change_shapes(key, value, name, shape):
    assert tuple(build(**{key: value}).state_dict()[name].shape) == shape


@pytest.mark.parametrize("options", [{"mlp_bias": True}, {"mlp_activation": "gelu_tanh"}, {"time_factor": 1.0}])
def test_options_of_older_models_change_the_output(options):
    batch = inputs(8, 5)
    assert not torch.allclose(build()(**batch).logits, build(**options)(**batch).logits, atol=1e-5)


def test_an_mlp_with_biases_and_tanh_computes_its_definition():
    mlp = build(mlp_bias=True, mlp_activation="gelu_tanh").blocks[0].streams[0].mlp
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    inner = x @ mlp.up.weight.T + mlp.up.bias
    gelu = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
    assert torch.allclose(mlp(x), gelu @ mlp.down.weight.T + mlp.down.bias, atol=1e-5)


@pytest.mark.parametrize("conditioned", [True, False])
def test_the_factor_of_the_timestep(conditioned):
    model = build(time_factor=2.0, time_conditioning=conditioned)
    t_B = torch.tensor([0.25, 1.0])
    expected = sinusoid(2 / 1000 * t_B if conditioned else 0 * t_B)
    assert torch.allclose(model.embed_time(t_B), model.time(expected), atol=1e-5)


def test_tied_embeddings_have_no_output_matrix():
    assert count_parameters(build()) - count_parameters(build(tied_embeddings=True)) == 23 * 33


def test_the_length_prior_learns_the_distribution_of_lengths():
    model = build()
    optimizer = torch.optim.Adam([model.length_prior.logits_N], lr=0.1)
    for _ in range(200):
        loss = F.cross_entropy(model(**inputs(8, 5)).length_logits_N.expand(4, -1), torch.tensor([4, 4, 4, 7]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = model(**inputs(8)).length_logits_N.detach().softmax(-1)
    assert float(found[4]) == pytest.approx(0.75, abs=0.02)
    assert float(found[7]) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("conditioned", [True, False])
def test_time_conditioning(conditioned):
    model, batch = build(time_conditioning=conditioned), inputs(8, 5)
    same = torch.allclose(model(**batch).logits, model(**batch | {"t_B": batch["t_B"] * 0.5}).logits, atol=1e-6)
    assert same != conditioned


def test_dropout_acts_in_training_only():
    model, batch = build(dropout=0.3), inputs(8, 5)
    assert torch.equal(model(**batch).logits, model(**batch).logits)
    model.train()
    assert not torch.allclose(model(**batch).logits, model(**batch).logits, atol=1e-4)


def test_gradient_checkpointing_computes_the_blocks_again_and_the_same_gradients():
    gradients, calls = [], []
    for on in (False, True):
        model, count = build(gradient_checkpointing=on).train(), [0]
        model.blocks[0].register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        model(**inputs(8, 5)).logits.square().sum().backward()
        gradients.append([p.grad for n, p in model.named_parameters() if "length" not in n])
        calls.append(count[0])
    assert calls == [1, 2]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dim": 100, "heads": 3}, "found dim 100 and 3 heads"),
        ({"dim": 12, "heads": 4}, "even for RoPE, found 3"),
        ({"latent_dim": 8}, "'model.latent_dim' is not known"),
        ({"dropout": 1.5}, r"model\.dropout"),
    ],
)
def test_bad_shapes_are_refused(bad, message):
    with pytest.raises(ConfigurationError, match=message):
        parse(DiTConfig, bad, at="model")
