"""What every model of the registry has to keep, whatever it predicts."""

import dataclasses
import inspect
from typing import Any, get_args, get_type_hints

import pytest
import torch
from tests.components import (
    MODELS_AND_OPTIONS,
    SHAPE,
    inputs_of,
    labelled,
    model_of,
    model_options,
    outputs_of,
    random_batch,
)
from torch import Tensor

from mm_ldlm.core import ConfigurationError, parse_kind
from mm_ldlm.diffusion.schedules import LogLinear
from mm_ldlm.models.base import MODELS
from mm_ldlm.models.blocks import TransformerOptions
from mm_ldlm.models.embeddings import Conditioner
from mm_ldlm.models.parts import count_by_part, tagged_parameters
from mm_ldlm.objectives.base import Batch

each_model = pytest.mark.parametrize(("kind", "options"), **labelled(MODELS_AND_OPTIONS))
each_transformer = pytest.mark.parametrize(
    ("kind", "options"),
    **labelled(
        case for case in MODELS_AND_OPTIONS
        if isinstance(parse_kind(MODELS, model_options(*case), at="model"), TransformerOptions)
    ),
)  # fmt: skip


def answers(model: Any, batch: Batch, **changes: Any) -> dict[str, Tensor]:
    return outputs_of(model(**inputs_of(model, batch) | changes))


def total(found: dict[str, Tensor]) -> Tensor:
    """A scalar that depends on every finite output."""
    return torch.stack([(x * torch.linspace(0.5, 1.5, x.shape[-1])).masked_fill(~x.isfinite(), 0.0).square().sum()
                        for x in found.values()]).sum()  # fmt: skip


def at_texts(found: dict[str, Tensor], valid_BL: Tensor) -> dict[str, Tensor]:
    """The outputs at real tokens, and those of whole texts."""
    L = valid_BL.shape[1]
    return {name: x[:, :L][valid_BL] if x.ndim == 3 else x for name, x in found.items()}


def identities(model: Any) -> list[bool]:
    """Whether each block that the model calls from now on returns the text stream that it is given."""
    seen: list[bool] = []

    def remember(block: Any, given: tuple[Any, ...], out: Any) -> None:
        before, after = ((x if isinstance(x, Tensor) else x[0]) for x in (given[0], out[0]))
        seen.append(torch.equal(before, after))

    for block in model.blocks:
        block.register_forward_hook(remember)
    return seen


# -- the start ----------------------------------------------------------------------------------------------------------


@each_transformer
def test_pitfall_02_every_block_is_the_identity_at_the_start(kind: str, options: dict[str, Any]) -> None:
    """And all words are equally probable, so that the first loss is the logarithm of their number."""
    model = model_of(kind, options, stirred=False)
    seen = identities(model)
    found = answers(model, random_batch())
    assert seen == [True] * len(model.blocks)
    assert not bool(found["logits"][found["logits"].isfinite()].any())


@each_model
def test_initial_values_are_float32_and_a_function_of_the_generator_alone(kind: str, options: dict[str, Any]) -> None:
    before = torch.random.get_rng_state()
    first, same, other = (model_of(kind, options, stirred=False, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert {value.dtype for value in first.values()} == {torch.float32}, "pitfall 3: small updates survive"
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@each_model
def test_every_parameter_has_a_part(kind: str, options: dict[str, Any]) -> None:
    model = model_of(kind, options)
    found = list(tagged_parameters(model))
    assert [name for name, _, _ in found] == [name for name, _ in model.named_parameters()]
    counts = count_by_part(model)
    assert sum(entry["trains"] for entry in counts.values()) == sum(
        parameter.numel() for parameter in model.parameters()
    )
    assert getattr(model, "feature_parts", frozenset()) <= set(counts)
    marked = {part.name for _, part, _ in found if part.input}
    embedded = {part.name for name, part, _ in found if name.startswith(("text_embedding", "state_encoder"))}
    assert embedded <= marked, "what reads ids or raw vectors must not be frozen at random values"


# -- rows and padding ---------------------------------------------------------------------------------------------------


@each_model
def test_pitfall_09_neither_padding_nor_other_texts_change_an_output(kind: str, options: dict[str, Any]) -> None:
    model, batch = model_of(kind, options), random_batch()
    inputs, whole = inputs_of(model, batch), answers(model, batch)
    for row, length in enumerate(batch.valid_BL.sum(1).tolist()):
        one = {name: value[row : row + 1] for name, value in inputs.items()}
        one = {name: value[:, :length] if "_BL" in name else value for name, value in one.items()}
        alone = outputs_of(model(**one | ({"valid_BL": None} if "valid_BL" in one else {})))
        for name, value in alone.items():
            expected = whole[name] if whole[name].ndim == 1 else whole[name][row : row + 1]
            expected = expected[:, : value.shape[1]] if expected.ndim > 1 else expected
            if name == "logits" and expected.shape[1] != length:
                value, expected = value[:, :length], expected[:, :length]  # after the last token
            torch.testing.assert_close(value, expected, atol=2e-5, rtol=1e-4)


@each_model
def test_a_text_of_padding_alone_is_finite_forward_and_backward(kind: str, options: dict[str, Any]) -> None:
    model, batch = model_of(kind, options).train(), random_batch(filling=2)
    found = answers(model, batch)
    total(found).backward()
    assert not any(bool(value.isnan().any()) for value in found.values())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("schedule", ["log_linear", "cosine"])
def test_pitfall_12_noise_without_signal_is_a_finite_time(schedule: str) -> None:
    model = model_of("dit", {"time_schedule": {"kind": schedule, "epsilon": 0.0}})
    found = answers(model, random_batch(), t_B=torch.tensor([0.0, 0.5, 1.0, 1.0]))
    assert all(bool(value.isfinite().all()) for value in found.values())


@each_model
def test_chosen_positions_have_the_logits_of_a_whole_pass(kind: str, options: dict[str, Any]) -> None:
    model, batch = model_of(kind, options), random_batch()
    if "logits_at" in inspect.signature(model.forward).parameters:
        logits = answers(model, batch)["logits"]
        at = torch.rand(logits.shape[:2]) < 0.5
        torch.testing.assert_close(answers(model, batch, logits_at=at)["logits"], logits[at], atol=1e-5, rtol=1e-4)


@each_model
def test_features_are_those_of_the_text_alone(kind: str, options: dict[str, Any]) -> None:
    model, batch = model_of(kind, options), random_batch()
    if not hasattr(model, "features") or "tokens_BL" not in inspect.signature(model.forward).parameters:
        return
    found = model.features(batch.tokens_BL, valid_BL=batch.valid_BL)
    assert (found.shape, found.dtype) == ((len(batch.tokens_BL), model.feature_dim), torch.float32)
    for row, length in enumerate(batch.valid_BL.sum(1).tolist()):
        alone = model.features(batch.tokens_BL[row : row + 1, :length])
        torch.testing.assert_close(alone[0], found[row], atol=2e-5, rtol=1e-4)


# -- what a model reads -------------------------------------------------------------------------------------------------


@each_model
def test_every_input_changes_an_output(kind: str, options: dict[str, Any]) -> None:
    model, batch = model_of(kind, options), random_batch()
    inputs = inputs_of(model, batch)
    found = at_texts(outputs_of(model(**inputs)), batch.valid_BL)
    for name, value in inputs.items():
        if value.dtype == torch.bool:
            continue
        changed = value.roll(1, 0) if name == "tokens_BL" else 0.7 * value
        other = at_texts(outputs_of(model(**inputs | {name: changed})), batch.valid_BL)
        assert any(not torch.allclose(found[each], other[each], atol=1e-4) for each in found), name


@each_model
def test_the_order_of_tokens_matters(kind: str, options: dict[str, Any]) -> None:
    """Also for a canvas of equal masks, whose positions RoPE alone cannot tell apart."""
    model, batch = model_of(kind, options), random_batch()
    if "tokens_BL" not in inspect.signature(model.forward).parameters:
        return
    canvas = torch.full_like(batch.tokens_BL, SHAPE.mask_id)
    found = answers(model, dataclasses.replace(batch, valid_BL=canvas == SHAPE.mask_id), tokens_BL=canvas)["logits"]
    finite = found.nan_to_num(neginf=0.0)
    assert not torch.allclose(finite[:, 0], finite[:, 1], atol=1e-4)


def another(value: Any, hint: Any) -> Any:
    """Another value of an option."""
    choices = [choice for choice in get_args(hint) if isinstance(choice, str)]
    if choices:
        return next(choice for choice in choices if choice != value)
    if value is None and Any in get_args(hint):
        return LogLinear()
    if value is None:
        return 0.5 if float in get_args(hint) or "float" in str(hint) else 1
    if isinstance(value, bool):
        return not value
    return value * 2 if isinstance(value, int) else value / 2


def every_option() -> list[Any]:
    cases = []
    for kind in MODELS.known:
        config = parse_kind(MODELS, model_options(kind, {}), at="model")
        hints = get_type_hints(type(config))
        for field in dataclasses.fields(config):
            if field.name not in ("kind", "dropout", "gradient_checkpointing"):
                value = another(getattr(config, field.name), hints[field.name])
                cases.append(pytest.param(kind, {field.name: value}, id=f"{kind}-{field.name}"))
    return cases


@pytest.mark.parametrize(("kind", "option"), every_option())
def test_pitfall_01_every_option_changes_the_model(kind: str, option: dict[str, Any]) -> None:
    """The shape of a parameter or an output, or it is refused for this model."""
    try:
        changed = model_of(kind, option)
    except ConfigurationError:
        return
    plain, batch = model_of(kind, {}), random_batch()
    shapes = [{name: value.shape for name, value in model.named_parameters()} for model in (plain, changed)]
    if shapes[0] == shapes[1]:
        found, other = answers(plain, batch), answers(changed, batch)
        assert any(not torch.allclose(found[name], other[name], atol=1e-4) for name in found)


# -- training -----------------------------------------------------------------------------------------------------------


@each_model
def test_every_parameter_gets_a_gradient(kind: str, options: dict[str, Any]) -> None:
    model = model_of(kind, options).train()
    total(answers(model, random_batch(examples=16))).backward()
    idle = {name for name, part, p in tagged_parameters(model)
            if not part.occasional and (p.grad is None or not bool(p.grad.any()))}  # fmt: skip
    assert not idle
    modulations = [p.grad for name, p in model.named_parameters() if name.endswith("modulation.weight")]
    assert all(bool(each.any(dim=1).all()) for each in modulations), "every shift, scale and gate acts"


@each_model
def test_dropout_acts_in_training_only(kind: str, options: dict[str, Any]) -> None:
    model, batch = model_of(kind, {**options, "dropout": 0.5}), random_batch()
    first, second, plain = (answers(each, batch) for each in (model, model, model_of(kind, options)))
    assert all(torch.equal(first[name], second[name]) and torch.equal(first[name], plain[name]) for name in first)
    nothing = model_of(kind, {**options, "dropout": 1.0}).train()
    seen = identities(nothing)
    found = answers(nothing, batch)
    assert any(not torch.allclose(found[name], plain[name], atol=1e-3) for name in plain)
    assert all(seen) or not isinstance(nothing.config, TransformerOptions), "every layer of a block is dropped"


@each_transformer
def test_checkpointing_computes_the_blocks_again_and_the_same_gradients(kind: str, options: dict[str, Any]) -> None:
    gradients, runs = [], []
    for on in (False, True):
        model = model_of(kind, {**options, "gradient_checkpointing": on, "dropout": 0.2}).train()
        count: list[int] = []
        model.blocks[0].register_forward_pre_hook(lambda *_, count=count: count.append(1))
        torch.default_generator.manual_seed(0)
        total(answers(model, random_batch())).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        runs.append(len(count))
    assert runs == [1, 2]
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-4)


@each_model
def test_pitfall_03_autocast_leaves_everything_but_logits_and_products_in_float32(
    kind: str, options: dict[str, Any]
) -> None:
    model, batch, streams = model_of(kind, options).train(), random_batch(), set()

    def remember(block: Any, given: tuple[Any, ...], out: Any) -> None:
        first = out[0] if isinstance(out, tuple) else out
        streams.add((first if isinstance(first, Tensor) else first[0]).dtype)

    for part in (*model.blocks, *(each for each in model.modules() if isinstance(each, Conditioner))):
        part.register_forward_hook(remember)
    exact = answers(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = answers(model, batch)
    assert streams <= {torch.float32}
    for name, value in found.items():
        assert value.dtype == torch.float32 or name == "logits"
        finite = exact[name].isfinite()
        scale = float(exact[name][finite].detach().abs().max())
        torch.testing.assert_close(value.float()[finite], exact[name][finite], atol=0.1 * scale, rtol=0.1)
    total(found).backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


@each_transformer
def test_pitfall_01_qk_norm_bounds_the_attention_logits(kind: str, options: dict[str, Any]) -> None:
    """Q and K blown up a thousandfold: with the norm the logits stay, without it they follow."""
    biggest = {}
    for qk_norm in (True, False):
        model, seen = model_of(kind, {**options, "qk_norm": qk_norm}), []
        for name, module in model.named_modules():
            if name.endswith("qkv"):
                module.weight.data *= 1e3
            if name.endswith("attention") and hasattr(module, "softcap"):
                module.register_forward_hook(
                    lambda module, given, out, seen=seen: seen.append(float((given[0] @ given[1].mT).detach().max()))
                )
        answers(model, random_batch())
        biggest[qk_norm] = max(seen)
    assert biggest[True] < 100
    assert biggest[False] > 1e4
