"""Every option of every objective has its effect, and in no other place: on which losses of which kind of step, on the
frequencies of the kinds, on the weights, on the identity of a checkpoint, on the frozen parts, and on the uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.models.base import DataShape, init_weights
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Batch, BuildsOnModel, UsesTokenCounts, UsesTrainingLength
from mm_ldlm.objectives.registry import OBJECTIVES

SHAPE = DataShape(
    vocab_size=12, pad_id=0, mask_id=1, max_length=6, latent_dim=4, state_dim=3, image_size=(4, 4, 1), noise_ids=3
)  # fmt: skip
NAMES = torch.tensor([list(name.ljust(7, b"\0")) for name in (b"first", b"second", b"similar")], dtype=torch.uint8)
STORES = {
    "label_names": NAMES, "token_clusters": torch.tensor([[-1], [-1], *([i % 3] for i in range(10))])
}  # fmt: skip
B, REAL = 10, 8
STEP = 37
"""Of 80: in the second stage of the curriculum below, and one of the steps that estimate a latent first"""
KINDS = {
    "multimodal": ("mmdit", {"self_condition": True}),
    "text_diffusion": ("dit", {}), "adaptive_masking": ("dit", {}), "autoregressive": ("causal", {}),
    "latent_conditioned": ("latent_dit", {}), "ccdd": ("ccdd", {}), "classification": ("latent_mlp", {}),
    "pairwise_classification": ("dit", {}), "image_text": ("image_mmdit", {}),
    "image_text_continuous": ("image_mmdit_continuous", {"caption_dim": 5}),
}  # fmt: skip
"""kind of objective → its model"""


ABSORBING = {"process": {"kind": "absorbing"}}
# case → (kind of objective, the options that it starts from, {places: options, each of which changes just these}). A
# place is a trained loss in a kind of step, the weight of a loss, or a key of `seen`.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "multimodal": ("multimodal", ABSORBING, {
        "identity l2t:text_loss unconditional:latent_loss unconditional:text_loss": "process.kind=uniform",
        "weight:text_loss": "text_weight=3",
        "weight:length_loss": "length_weight=0.7",
        "l2t:length_loss parts t2l:length_loss unconditional:length_loss weight:length_loss": "length_weight=0",
        "l2t:z_loss unconditional:z_loss weight:z_loss": "z_loss=0.5",
        "l2t:text_loss unconditional:latent_loss unconditional:text_loss": (
            "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2"
        ),
        "l2t:text_loss unconditional:text_loss": "process.loss_weighting=constant",
        "kinds t2l:length_loss": "mode=sequential",
        "kinds parts t2l:latent_loss t2l:length_loss unconditional:latent_loss unconditional:length_loss "
        "unconditional:text_loss": (
            "mode=l2t"
        ),
        "kinds l2t:length_loss l2t:text_loss parts t2l:length_loss unconditional:latent_loss "
        "unconditional:length_loss unconditional:text_loss": (
            "mode=t2l"
        ),
        "kinds l2t:length_loss l2t:text_loss t2l:latent_loss t2l:length_loss": "mode=unconditional",
        "kinds": "loss_type_weights.l2t=5 loss_type_weights.t2l=5 loss_type_weights.unconditional=5",
        "identity t2l:latent_loss unconditional:latent_loss": (
            "parameterisation=x0 parameterisation=eps parameterisation=flow"
        ),
        "t2l:latent_loss unconditional:latent_loss": "latent_loss=uniform min_snr_gamma=0.5",
        "l2t:length_loss l2t:text_loss t2l:latent_loss t2l:length_loss unconditional:length_loss": (
            "condition_dropout=0.6"
        ),
        "t2l:latent_loss unconditional:latent_loss unconditional:text_loss": (
            "self_condition=true t_min=0.2 latent_schedule.offset=0.1"
        ),
        "weight:latent_loss": "latent_weight=3",
        "identity t2l:latent_loss unconditional:latent_loss unconditional:text_loss": "latent_schedule.name=linear",
        "l2t:cycle_text_loss weight:cycle_text_loss": "cycle.text_weight=0.5",
        "t2l:cycle_latent_loss weight:cycle_latent_loss": "cycle.latent_weight=0.5",
    }),
    "cycles": ("multimodal", {**ABSORBING, "cycle": {"text_weight": 1.0, "latent_weight": 1.0}}, {
        "l2t:cycle_text_loss t2l:cycle_latent_loss": "cycle.ramp_steps=100",
        "weight:cycle_text_loss": "cycle.text_weight=2",
        "weight:cycle_latent_loss": "cycle.latent_weight=2",
        "identity l2t:cycle_text_loss t2l:cycle_latent_loss t2l:latent_loss unconditional:latent_loss": (
            "parameterisation=x0"
        ),
    }),
    "sequential": ("multimodal", {**ABSORBING, "mode": "sequential"}, {
        "kinds": "sequential_steps=3",
    }),
    "absorbing": ("text_diffusion", ABSORBING, {
        "identity text:text_loss": (
            "process.kind=d3pm process.kind=sedd process.kind=uniform process.kind=gidd"
        ),
        "weight:text_loss": "text_weight=3",
        "weight:length_loss": "length_weight=0.7",
        "parts text:length_loss weight:length_loss": "length_weight=0",
        "text:z_loss weight:z_loss": "z_loss=0.5",
        "text:text_loss": (
            "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2 "
            "process.loss_weighting=constant"
        ),
    }),
    "d3pm": ("text_diffusion", {"process": {"kind": "d3pm"}}, {
        "text:text_loss": "process.steps=7 process.schedule.name=cosine process.schedule.epsilon=0.2",
    }),
    "sedd": ("text_diffusion", {"process": {"kind": "sedd"}}, {
        "text:text_loss": (
            "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2 process.graph=uniform"
        ),
    }),
    "uniform sedd": ("text_diffusion", {"process": {"kind": "sedd", "graph": "uniform"}}, {
        "text:text_loss": "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2",
    }),
    "uniform": ("text_diffusion", {"process": {"kind": "uniform"}}, {
        "text:text_loss": "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2",
    }),
    "gidd": ("text_diffusion", {"process": {"kind": "gidd"}}, {
        "text:text_loss": (
            "process.p_uniform=0.4 process.p_uniform=0 process.gamma=1.7 process.loss_weighting=elbo "
            "process.loss_weighting=clip process.max_weight=0.3 process.t_min=0.2"
        ),
    }),
    "hdlm": ("text_diffusion", {"process": {"kind": "hdlm"}}, {
        "text:text_loss": "process.gamma=2.5 process.t_min=0.2",
    }),
    "adaptive_masking": ("adaptive_masking", {**ABSORBING, "estimator": {"dim": 8, "depth": 1, "heads": 2}}, {
        "weight:text_loss": "text_weight=3",
        "weight:length_loss": "length_weight=0.7",
        "parts text:length_loss weight:length_loss": "length_weight=0",
        "text:z_loss weight:z_loss": "z_loss=0.5",
        "text:importance_loss text:text_loss": (
            "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2 policy=uniform "
            "policy=importance policy=inverse time_sharpening=false estimator.dim=16 estimator.depth=2 "
            "estimator.heads=4"
        ),
        "identity text:importance_loss text:text_loss": "importance=learned_only",
        "identity text:importance_loss text:text_loss weight:importance_loss": (
            "importance=frequency_only importance=none"
        ),
        "weight:importance_loss": "importance_weight=0.6",
        "text:importance_loss": "noised_inputs=0.9",
    }),
    "policy": ("adaptive_masking", {**ABSORBING, "importance": "none", "policy": "importance"}, {
        "text:text_loss": "temperature=3",
    }),
    "curriculum": ("adaptive_masking", {
        **ABSORBING, "importance": "frequency_only", "warmup_steps": 10, "curriculum": {"pace": "step"}
    }, {
        "text:text_loss": (
            "warmup_steps=60 curriculum=null curriculum.pace=linear curriculum.pace=exponential "
            "curriculum.steps=38"
        ),
    }),
    "autoregressive": ("autoregressive", {}, {
        "text:z_loss weight:z_loss": "z_loss=0.5",
    }),
    "latent_conditioned": ("latent_conditioned", ABSORBING, {
        "identity text:text_loss": "process.kind=uniform",
        "weight:text_loss": "text_weight=3",
        "weight:length_loss": "length_weight=0.7",
        "parts text:length_loss weight:length_loss": "length_weight=0",
        "text:z_loss weight:z_loss": "z_loss=0.5",
        "text:text_loss": (
            "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2 "
            "process.loss_weighting=constant"
        ),
        "text:length_loss text:text_loss": "condition_dropout=0.6",
    }),
    "ccdd": ("ccdd", ABSORBING, {
        "identity text:state_loss text:text_loss": "process.kind=uniform state_schedule.name=linear",
        "weight:text_loss": "text_weight=3",
        "weight:length_loss": "length_weight=0.7",
        "parts text:length_loss weight:length_loss": "length_weight=0",
        "text:z_loss weight:z_loss": "z_loss=0.5",
        "text:state_loss text:text_loss": (
            "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2 timesteps=separate "
            "state_schedule.offset=0.1 condition_dropout=0.6"
        ),
        "text:text_loss": "process.loss_weighting=constant",
        "text:state_loss": "state_loss=min_snr",
        "weight:state_loss": "state_weight=3",
    }),
    "classification": ("classification", {}, {
        "identity": "label=other",
        "classes:class_loss": "label_smoothing=0.3",
        "classes:class_loss identity parts reads": "features=trunk features=frozen_trunk",
    }),
    "trunk": ("classification", {"features": "trunk"}, {
        "reads": "with_latents=true",
        "parts": "features=frozen_trunk",
    }),
    "pairwise_classification": ("pairwise_classification", {}, {
        "identity": "label=other",
        "classes:class_loss": "label_smoothing=0.3 hidden_dim=16",
        "parts": "features=frozen_trunk",
    }),
    "image_text": ("image_text", ABSORBING, {
        "identity image_to_caption:text_loss joint:image_loss joint:text_loss": "process.kind=uniform",
        "weight:text_loss": "text_weight=3",
        "weight:length_loss": "length_weight=0.7",
        "image_to_caption:length_loss joint:length_loss parts weight:length_loss": "length_weight=0",
        "weight:image_loss": "image_weight=3",
        "caption_to_image:image_loss joint:image_loss joint:text_loss": "t_min=0.2 image_schedule.offset=0.1",
        "caption_to_image:image_loss identity joint:image_loss": (
            "parameterisation=x0 parameterisation=eps parameterisation=flow"
        ),
        "caption_to_image:image_loss joint:image_loss": "image_loss=uniform min_snr_gamma=0.5",
        "caption_to_image:image_loss image_to_caption:length_loss image_to_caption:text_loss joint:length_loss": (
            "condition_dropout=0.6"
        ),
        "kinds": "mode_weights.caption_to_image=5 mode_weights.image_to_caption=5 mode_weights.joint=5",
        "caption_to_image:image_loss kinds": "mode_weights.caption_to_image=0",
        "image_to_caption:length_loss image_to_caption:text_loss kinds": "mode_weights.image_to_caption=0",
        "joint:image_loss joint:length_loss joint:text_loss kinds": "mode_weights.joint=0",
        "caption_to_image:image_loss identity joint:image_loss joint:text_loss": "image_schedule.name=linear",
        "image_to_caption:text_loss joint:image_loss joint:text_loss": (
            "process.schedule.name=cosine process.schedule.epsilon=0.2 process.t_min=0.2"
        ),
        "image_to_caption:text_loss joint:text_loss": "process.loss_weighting=constant",
    }),
    "image_text_continuous": ("image_text_continuous", {}, {
        "weight:text_loss": "text_weight=3",
        "weight:length_loss": "length_weight=0.7",
        "image_to_caption:length_loss joint:length_loss parts weight:length_loss": "length_weight=0",
        "weight:image_loss": "image_weight=3",
        "caption_to_image:image_loss image_to_caption:text_loss joint:image_loss joint:text_loss": (
            "t_min=0.2 image_schedule.offset=0.1"
        ),
        "caption_to_image:image_loss identity joint:image_loss": (
            "parameterisation=x0 parameterisation=eps parameterisation=flow"
        ),
        "caption_to_image:image_loss joint:image_loss": "image_loss=uniform min_snr_gamma=0.5",
        "caption_to_image:image_loss image_to_caption:length_loss image_to_caption:text_loss joint:length_loss": (
            "condition_dropout=0.6"
        ),
        "kinds": "mode_weights.caption_to_image=5 mode_weights.image_to_caption=5 mode_weights.joint=5",
        "caption_to_image:image_loss kinds": "mode_weights.caption_to_image=0",
        "image_to_caption:length_loss image_to_caption:text_loss kinds": "mode_weights.image_to_caption=0",
        "joint:image_loss joint:length_loss joint:text_loss kinds": "mode_weights.joint=0",
        "caption_to_image:image_loss identity image_to_caption:text_loss joint:image_loss joint:text_loss": (
            "image_schedule.name=linear"
        ),
    }),
}  # fmt: skip
ELSEWHERE = {
    "curriculum.window", "curriculum.plateau",  # test_curriculum.py
    *("sigma_min", "sigma_max", "beta_min", "beta_max", "sigmoid_start", "sigmoid_end"),  # diffusion/test_schedules.py
}  # fmt: skip
"""Options, or their last names, whose effect other tests show."""


def batch() -> Batch:
    """Eight texts of different lengths and two examples that only fill the batch."""
    draw = torch.Generator().manual_seed(0)
    lengths_B = torch.tensor([6, 1, 4, 5, 2, 3, 6, 4, 0, 0])
    valid_BL = torch.arange(6) < lengths_B[:, None]
    tokens_BL = torch.randint(2, 12, (B, 6), generator=draw).masked_fill(~valid_BL, 0)
    fields = {
        "latents": torch.randn(B, 4, generator=draw), "token_states": torch.randn(B, 6, 3, generator=draw),
        "images": torch.randn(B, 16, generator=draw), "labels": torch.arange(B)[:, None] % 3,
        "pair_tokens": tokens_BL.flip(0),
    }  # fmt: skip
    examples_B = torch.where(torch.arange(B) < REAL, torch.arange(B), -1)
    return Batch(tokens_BL, valid_BL, fields, examples_B, torch.arange(B), REAL, int(valid_BL.sum()))


@cache
def model_of(kind: str, features: str | None = None) -> Any:
    """A model with noise on every parameter, because heads and gates start at 0."""
    name, keys = KINDS[kind]
    name = "dit" if features in ("trunk", "frozen_trunk") else name
    config = parse_kind(MODELS, {"kind": name, "dim": 16, "depth": 1, **keys}, at="model")
    model = config.build(SHAPE, generator=torch.Generator().manual_seed(0))
    stir(model)
    return model


def generator(rows: int = B) -> RowGenerator:
    return RowGenerator(STEP, torch.arange(rows))


def stir(module: nn.Module) -> None:
    for number, parameter in enumerate(module.parameters()):
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))


def built(kind: str, options: Mapping[str, Any], *, fixed_shapes: bool = False) -> tuple[Any, Any, Any]:
    """The configuration, the objective before its first step, and its model."""
    config = parse_kind(OBJECTIVES, {"kind": kind, **options}, at="objective")
    made = config.build(SHAPE, fixed_shapes=fixed_shapes, **{name: STORES[name] for name in config.stores})
    model = model_of(kind, getattr(config, "features", None))
    if isinstance(made, BuildsOnModel):
        made.attach(model)
    if isinstance(made, nn.Module):
        init_weights(made, torch.Generator())
        stir(made)
    if isinstance(made, UsesTokenCounts):
        made.set_token_counts(lambda: torch.tensor([0, 0, 40, 30, 20, 9, 8, 7, 6, 5, 4, 0]))
    if isinstance(made, UsesTrainingLength):
        made.set_training_length(80)
    return config, made, model


def seen(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What an objective shows of itself, by the place where it shows it."""
    config, made, model = built(kind, options)
    found: dict[str, Any] = {
        "identity": config.identity, "reads": (config.fields, config.stores),
        "parts": (made.frozen_parts(trained=True), made.frozen_parts(trained=False), made.idle_parts),
        "kinds": (made.kinds, [made.kind(RowGenerator(step, torch.arange(2)), step=step) for step in range(24)]),
    }  # fmt: skip
    found |= {f"weight:{name}": (weight, made.units[name]) for name, weight in made.weights.items()}
    with torch.no_grad():
        for mode in made.kinds:
            losses = made(model, batch(), generator(), kind=mode, step=STEP)
            found |= {
                f"{mode}:{name}": [float(x) for x in pair] for name, pair in losses.items() if name in made.weights
            }
    return found


def leaves(config: Any) -> Iterator[str]:
    """Yield the options of a configuration, those of its parts by their path."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from (f"{field.name}.{name}" for name in leaves(value))
        elif field.name != "kind":
            yield field.name


def parsed(options: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of options that are written as "path=value path=value"."""
    for option in options.split():
        path, _, value = option.partition("=")
        yield path, yaml.safe_load(value)


def with_option(options: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {**options, first: with_option(options.get(first) or {}, rest, value) if rest else value}


@pytest.mark.parametrize("case", CASES)
def test_every_option_changes_what_it_should_and_nothing_else(case: str) -> None:
    kind, base, expected = CASES[case]
    before = seen(kind, base)
    for places, options in expected.items():
        for path, value in parsed(options):
            after = seen(kind, with_option(base, path, value))
            changed = {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}
            assert changed == set(places.split()), f"{path}: {value}"


def test_no_option_is_left_out() -> None:
    def key(kind: str, base: Mapping[str, Any], path: str) -> tuple[str, ...]:
        process = base["process"]["kind"] if path.startswith("process.") else ""
        return kind, process, path

    named = {
        key(kind, base, path)
        for kind, base, expected in CASES.values()
        for options in expected.values()
        for path, _ in parsed(options)
    }
    named.add(("adaptive_masking", "absorbing", "process.loss_weighting"))  # refused: test_adaptive_masking.py
    for kind, base, _ in CASES.values():
        config = parse_kind(OBJECTIVES, {"kind": kind, **base}, at="objective")
        for path in leaves(config):
            if path not in ELSEWHERE and path.rsplit(".", 1)[-1] not in ELSEWHERE:
                assert key(kind, base, path) in named, path
    assert {kind for kind, _, _ in CASES.values()} == set(OBJECTIVES.known)
    processes = {base["process"]["kind"] for kind, base, _ in CASES.values() if kind == "text_diffusion"}
    assert processes == set(TEXT_PROCESSES.known)


# -- every loss and every statistic of every kind ---------------------------------------------------------------------


def numbers(losses: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (float(total), float(count)) for name, (total, count) in losses.items()}


def part(data: Batch, rows: slice) -> Batch:
    return dataclasses.replace(
        data, tokens_BL=data.tokens_BL[rows], valid_BL=data.valid_BL[rows], examples_B=data.examples_B[rows],
        position_B=data.position_B[rows], fields={name: value[rows] for name, value in data.fields.items()},
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_a_sum_over_real_examples(kind: str) -> None:
    """Examples that fill a batch are in no sum and no count, and two parts of a batch have those of the whole."""
    _, made, model = built(kind, {})
    data = batch()
    for mode in made.kinds:
        with torch.no_grad():
            whole, real, first, second, filling = (
                numbers(
                    made(model, part(data, rows), generator().select(torch.arange(B)[rows]), kind=mode, step=STEP)
                )
                for rows in (slice(None), slice(REAL), slice(5), slice(5, None), slice(REAL, None))
            )  # fmt: skip
        assert set(filling.values()) == {(0.0, 0.0)}
        counts = {"tokens": int(data.valid_BL.sum()), "examples": REAL}
        for name in set(made.weights) & set(whole):
            assert whole[name][1] == counts[made.units[name]], f"{mode}:{name}"
        assert set(whole) == set(real) == set(first) == set(second) > set(made.weights) & set(whole)
        for name, found in whole.items():
            assert found == pytest.approx(real[name], rel=1e-4, abs=1e-6), f"{mode}:{name}"
            if name not in ("importance_std", "importance_min", "importance_max"):  # no sums over the tokens
                halves = [a + b for a, b in zip(first[name], second[name], strict=True)]
                assert found == pytest.approx(halves, rel=1e-4, abs=1e-6), f"{mode}:{name}"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pairwise_classification"])
def test_fixed_shapes_change_no_number(kind: str) -> None:
    _, made, model = built(kind, {})
    _, fixed, _ = built(kind, {}, fixed_shapes=True)
    for mode in made.kinds:
        with torch.no_grad():
            plain, dense = (numbers(each(model, batch(), generator(), kind=mode, step=STEP)) for each in (made, fixed))
        assert set(plain) == set(dense)
        for name, found in plain.items():
            assert found == pytest.approx(dense[name], rel=1e-4, abs=1e-6), f"{mode}:{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_trained_losses_alone_have_gradients(kind: str) -> None:
    cycles = {"cycle": {"text_weight": 1.0, "latent_weight": 1.0}} if kind == "multimodal" else {}
    _, made, model = built(kind, cycles)
    for mode in made.kinds:
        losses = made(model, batch(), generator(), kind=mode, step=STEP)
        for name, (total, count) in losses.items():
            assert total.requires_grad == (name in made.weights), f"{mode}:{name}"
            assert not count.requires_grad, f"{mode}:{name}"
