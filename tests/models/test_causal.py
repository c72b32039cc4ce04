"""The causal transformer: causality, padding, forbidden symbols, the cache, and an effect of every key."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.families.autoregressive.model import CausalConfig, CausalTransformer
from mm_ldlm.models.base import DataShape, count_parameters
from mm_ldlm.models.parts import tagged_parameters

SHAPE = DataShape(vocab_size=23, pad_id=0, mask_id=1, max_length=10)
TINY: dict[str, Any] = {"dim": 32, "depth": 3, "heads": 4}
END = 23


def build(*, stirred: bool = True, shape: DataShape = SHAPE, seed: int = 0, **keys: Any) -> CausalTransformer:
    """With `stirred`, noise is added to every parameter, the same to parameters of the same name."""
    model = CausalConfig(**{**TINY, **keys}).build(shape, generator=torch.Generator().manual_seed(seed))
    for name, parameter in model.named_parameters() if stirred else ():
        seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        parameter.data.add_(0.1 * noise)
    return model.eval()


def texts(B: int = 3, L: int = 8) -> torch.Tensor:
    return torch.randint(2, 23, (B, L), generator=torch.Generator().manual_seed(0))


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().softmax(-1)


# -- the start ----------------------------------------------------------------------------------------------------


def test_the_model_starts_at_the_uniform_distribution_over_words_and_end():
    probs = probabilities(build(stirred=False)(texts()))
    assert probs.shape == (3, 9, 24)
    assert (probs[:, :, :2] == 0).all()
    assert (probs[:, 0, END] == 0).all()
    assert torch.allclose(probs[:, 0, 2:END], torch.tensor(1 / 21).double())
    assert torch.allclose(probs[:, 1:, 2:], torch.tensor(1 / 22).double())


def test_every_block_is_the_identity_at_the_start():
    model, seen = build(stirred=False), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: seen.append((args[0], out[0])))
    model(texts())
    assert len(seen) == 3
    assert all(torch.equal(before, after) for before, after in seen)


def test_initial_values_are_a_function_of_the_generator_alone():
    before = torch.random.get_rng_state()
    a, b, c = (build(stirred=False, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["text_embedding.weight"], c["text_embedding.weight"])
    assert all(torch.isfinite(x).all() and x.dtype == torch.float32 for x in a.values())
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_number_of_parameters():
    D, V, M = 32, 23, 48
    block = 3 * D * D + 2 * D + D * D + 2 * D * M + 2 * D
    assert count_parameters(build(mlp_ratio=1.5)) == (V + 1) * D + 3 * block + D + (V + 1) * D


def test_every_parameter_has_a_part():
    parts = {name: str(part) for name, part, _ in tagged_parameters(build())}
    assert set(parts) == {name for name, _ in build().named_parameters()}
    assert set(parts.values()) == {"text_embedding", "backbone", "text_head"}


# -- what the inputs do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"logit_softcap": 5.0}, {"qk_norm": False}])
def test_a_token_changes_no_earlier_logits_and_every_later_one(keys):
    model, tokens = build(**keys), texts(1)
    out = model(tokens)
    for changed in range(8):
        other = tokens.clone()
        other[0, changed] = 2 + (other[0, changed] + 5) % 21
        moved = (probabilities(model(other)) - probabilities(out)).abs().amax(-1)[0]
        assert torch.equal(model(other)[:, : changed + 1], out[:, : changed + 1])
        assert (moved[changed + 1 :] > 1e-6).all()


def test_padding_never_changes_a_valid_output():
    model, tokens = build(), texts()
    out = model(tokens)
    for fill in (0, 7):
        padded = tokens.clone()
        padded[:, 5:] = fill
        assert torch.equal(model(padded)[:, :6], out[:, :6])
    assert torch.allclose(model(tokens[:, :5]), out[:, :6], atol=1e-5)


def test_gradients_are_finite_although_some_logits_are_not():
    model = build()
    logits = model(texts())
    F.cross_entropy(logits.flatten(0, 1), torch.full((27,), 5)).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert (model.text_head.weight.grad[:2] == 0).all()


def test_logits_at_chosen_positions():
    model, tokens = build(), texts()
    at = torch.arange(9).expand(3, -1) % 3 == torch.arange(3)[:, None]
    chosen, dense = model(tokens, logits_at=at), model(tokens)[at]
    assert torch.equal(torch.isinf(chosen), torch.isinf(dense))
    assert torch.allclose(chosen.nan_to_num(neginf=0), dense.nan_to_num(neginf=0), atol=1e-5)


def test_ids_outside_the_vocabulary_get_embeddings_and_no_logits():
    model = build(shape=DataShape(vocab_size=10, pad_id=10, mask_id=11, max_length=8))
    assert (model.begin_id, model.end_id, len(model.text_embedding.weight)) == (12, 10, 13)
    logits = model(torch.tensor([[2, 10, 10]]))
    assert logits.shape == (1, 4, 11)
    assert torch.isfinite(logits[:, 1:]).all()


def test_too_long_a_text_is_refused():
    model = build()
    with pytest.raises(ValueError, match="at most 10 tokens, found 11"):
        model(texts(L=11))
    cache = model.start()
    for _ in range(11):  # <begin> and 10 tokens
        model.step(cache, torch.tensor([3]))
    with pytest.raises(ValueError, match="at most 10 tokens, found 11"):
        model.step(cache, torch.tensor([3]))


# -- the cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"logit_softcap": 5.0}, {"qk_norm": False}])
def test_cached_steps_equal_the_full_forward_pass(keys):
    model, tokens = build(**keys), texts()
    with torch.no_grad():
        full = model(tokens).log_softmax(-1)
        cache, given = model.start(), F.pad(tokens, (1, 0), value=model.begin_id)
        steps = torch.stack([model.step(cache, given[:, i]) for i in range(9)], dim=1).log_softmax(-1)
    assert torch.equal(torch.isinf(steps), torch.isinf(full))
    assert torch.allclose(steps.nan_to_num(neginf=0), full.nan_to_num(neginf=0), atol=1e-5)


def test_rows_of_a_cache_can_be_dropped():
    model, tokens = build(), texts()
    cache, given = model.start(), F.pad(tokens, (1, 0), value=model.begin_id)
    for i in range(4):
        model.step(cache, given[:, i])
    cache.keep(torch.tensor([True, False, True]))
    rest = model.step(cache, given[[0, 2], 4])
    assert torch.allclose(rest[:, 2:], model(tokens)[[0, 2], 4, 2:], atol=1e-5)


# -- every key has an effect --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"), [("qk_norm", True), ("logit_softcap", 0.5), ("rope_theta", 10.0), ("heads", 2)]
)
def test_keys_that_change_the_function(key, value):
    plain, other = build(qk_norm=False), build(**{"qk_norm": False, key: value})
    other.load_state_dict(plain.state_dict(), strict=False)
    assert not torch.allclose(probabilities(plain(texts())), probabilities(other(texts())), atol=1e-4)


@pytest.mark.parametrize(
    ("key", "value", "name", "shape"),
    [
        ("dim", 48, "text_embedding.weight", (24, 48)),
        ("mlp_ratio", 2.0, "blocks.0.mlp.up.weight", (64, 32)),
        ("depth", 5, "blocks.4.out.weight", (32, 32)),
        ("heads", 2, "blocks.0.qk_norm.scale", (2, 2, 16)),
    ],
)
def test_keys_that_change_shapes(key, value, name, shape):
    assert tuple(build(**{key: value}).state_dict()[name].shape) == shape


def test_dropout_acts_in_training_only():
    model = build(dropout=0.3)
    assert torch.equal(model(texts()), model(texts()))
    model.train()
    assert not torch.allclose(probabilities(model(texts())), probabilities(model(texts())), atol=1e-4)


def test_gradient_checkpointing_computes_the_blocks_again_and_the_same_gradients():
    gradients, calls = [], []
    for on in (False, True):
        model, count = build(gradient_checkpointing=on).train(), [0]
        model.blocks[0].register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        model(texts())[:, 1:, 2:].square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
        calls.append(count[0])
    assert calls == [1, 2]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))


def test_a_few_steps_on_one_batch_lower_the_loss():
    model, tokens = build(stirred=False).train(), texts()
    targets = F.pad(tokens, (0, 1), value=END)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx((math.log(21) + 8 * math.log(22)) / 9, rel=1e-4)
    assert losses[-1] < 0.5


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dim": 100, "heads": 3}, "found dim 100 and 3 heads"),
        ({"dim": 12, "heads": 4}, "even for RoPE, found 3"),
        ({"time_conditioning": True}, "'model.time_conditioning' is not known"),
    ],
)
def test_bad_shapes_are_refused(bad, message):
    with pytest.raises(ConfigurationError, match=message):
        parse(CausalConfig, bad, at="model")


def test_rows_are_chosen_before_the_first_step_too():
    model = build()
    cache = model.start()
    cache.keep(torch.tensor([0, 2]))
    assert (cache.length, cache.layers) == (0, [None] * 3)
    found = model.step(cache, torch.full((2,), model.begin_id))
    assert torch.equal(found, model.step(model.start(), torch.full((2,), model.begin_id)))
    assert (cache.length, len(cache.layers)) == (1, 3)
    assert {tuple(x.shape) for layer in cache.layers for x in layer} == {(2, 4, 1, 8)}


@pytest.mark.parametrize("rows", [torch.tensor([2, 0]), torch.tensor([True, False, True])])
def test_keys_and_values_of_every_block_are_those_of_the_chosen_rows(rows):
    model, tokens = build(), texts()
    cache = model.start()
    for place in range(3):
        model.step(cache, tokens[:, place])
    before = list(cache.layers)
    cache.keep(rows)
    assert cache.length == 3
    for old, new in zip(before, cache.layers, strict=True):
        assert all(torch.equal(x[rows], y) for x, y in zip(old, new, strict=True))
        assert not torch.equal(*new)
