"""Every call of a model says where its texts end, in training and in every request; and the denoisers that samplers
receive have the ids, the noise and the dimension of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from test_every_option import ABSORBING, REAL, STEP, batch, built, generator, part
from torch import Tensor

from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.families.atat.objective import AdaptiveMaskingConfig
from mm_ldlm.families.ccdd.objective import CcddObjectiveConfig
from mm_ldlm.families.images.generation import ContinuousImageTextGeneration, ImageTextGeneration
from mm_ldlm.families.images.objective import ImageTextConfig
from mm_ldlm.families.latent_dit.objective import LatentConditionedConfig
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.cycle import CycleConfig
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.objectives.multimodal_generation import MultimodalGeneration
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

PAD, MASK = 0, 1
CYCLES = {"cycle": dataclasses.asdict(CycleConfig(text_weight=1.0, latent_weight=1.0))}
TRAINED: list[tuple[str, dict[str, Any]]] = [
    ("text_diffusion", {}), ("adaptive_masking", {}), ("latent_conditioned", {}), ("ccdd", {}), ("image_text", {}),
    ("image_text_continuous", {}), ("multimodal", {"self_condition": True, **CYCLES}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


@contextmanager
def calls(model: Any) -> Iterator[list[tuple[Tensor, dict[str, Any]]]]:
    """Collect the tokens and the arguments of every call of the model."""
    seen: list[tuple[Tensor, dict[str, Any]]] = []
    handle = model.register_forward_pre_hook(lambda _, args, keys: seen.append((args[0], keys)), with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


@pytest.mark.parametrize(("kind", "options"), TRAINED, ids=str)
def test_every_call_of_a_training_step_excludes_the_padding(kind: str, options: dict[str, Any]) -> None:
    _, made, model = built(kind, options)
    data = batch()
    for mode in made.kinds:
        with calls(model) as seen:
            made(model, data, generator(), kind=mode, step=STEP)
        several = options and mode != "unconditional"  # the cycles have two calls of their own
        assert len(seen) >= (3 if several else 1)
        for _, given in seen:
            assert torch.equal(given["valid_BL"], data.valid_BL), mode


def test_the_stand_in_for_expected_words_is_a_word_at_every_token_and_padding_elsewhere() -> None:
    """The model takes the expected embedding there, and must count the position as a known token."""
    _, made, model = built("multimodal", CYCLES)
    data = batch()
    with calls(model) as seen:
        made(model, data, generator(), kind="t2l", step=STEP)
    (stand_in,) = [tokens for tokens, given in seen if given.get("token_probs_BLV") is not None]
    assert bool((stand_in[data.valid_BL] > MASK).all())
    assert bool((stand_in[~data.valid_BL] == PAD).all())


# -- token states ------------------------------------------------------------------------------------------------------


def test_states_of_half_precision_are_noised_in_float32() -> None:
    _, made, model = built("ccdd", {"timesteps": "separate"})
    data = batch()
    half = data.fields["token_states"].bfloat16()
    found = [
        made(model, dataclasses.replace(data, fields={"token_states": states}), generator(), kind="text", step=STEP)
        for states in (half, half.float())
    ]
    assert found[0] == found[1]
    assert {total.dtype for total, _ in found[0].values() if total.is_floating_point()} == {torch.float32}


def test_the_smallest_time_of_states_is_not_that_of_the_text() -> None:
    """Only shared timesteps begin where those of the text do."""
    found = {}
    for timesteps in ("shared", "separate"):
        process = {"kind": "absorbing", "t_min": 0.5}
        _, made, model = built("ccdd", {"timesteps": timesteps, "process": process, "condition_dropout": 0.0})
        with calls(model) as seen:
            made(model, batch(), generator(), kind="text", step=STEP)
        ((_, given),) = seen
        assert float(given["t_text_B"].min()) >= 0.5
        found[timesteps] = float(given["t_state_B"].min())
    assert found["shared"] >= 0.5
    assert 1e-3 <= found["separate"] < 0.2, "ten times are spread over the whole interval"


TOKENS = part(batch(), slice(REAL)).tokens_BL
CANVAS = torch.where(TOKENS != PAD, MASK, PAD)
DDIM = latent_sampler("ddim", steps=2)


def written(made: Any, given: Tensor | None, *, conditional: bool) -> None:
    made.write(
        CANVAS, CANVAS == MASK, latents_Bd=given, sampler=made.default_sampler(conditional=conditional),
        generator=generator(REAL),
    )  # fmt: skip


def both(made: Any, given: Tensor | None) -> None:
    made.both(CANVAS, text=text_sampler("ancestral", steps=2), latent=DDIM, generator=generator(REAL))


REQUESTS: dict[str, Callable[[Any, Tensor | None], Any]] = {
    "write given": lambda made, given: written(made, given, conditional=True),
    "write": lambda made, given: written(made, None, conditional=False),
    "infill": lambda made, given: written(made, None, conditional=True),
    "score given": lambda made, given: made.likelihood(
        TOKENS, latents_Bd=given, draws=2, generator=generator(REAL)
    ),
    "score": lambda made, given: made.likelihood(TOKENS, latents_Bd=None, draws=2, generator=generator(REAL)),
    "tokens": lambda made, given: made.token_log_probs(TOKENS, latents_Bd=given, generator=generator(REAL)),
    "embed": lambda made, given: made.latents_given_texts(TOKENS, sampler=DDIM, generator=generator(REAL)),
    "latents": lambda made, given: made.latents_given_lengths(CANVAS, sampler=DDIM, generator=generator(REAL)),
    "both": both,
}  # fmt: skip
ASKED: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "text_diffusion": (ABSORBING, None, "write,infill,score,tokens"),
    "adaptive_masking": (ABSORBING, None, "write,infill,score"),
    "latent_conditioned": (ABSORBING, "latents", "write given,write,infill,score given,score,tokens"),
    "ccdd": (ABSORBING, None, "write,infill,score"),
    "multimodal": (ABSORBING, "latents", "write given,write,infill,score given,score,tokens,embed,latents,both"),
    "multimodal without nulls": (
        {**ABSORBING, "condition_dropout": 0.0}, "latents", "write given,write,score,embed,latents,both"
    ),
    "image_text": (ABSORBING, "images", "write given,write,infill,score given,score,tokens,embed,both"),
    "image_text_continuous": ({}, "images", "write given,write,embed,both"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ASKED)
def test_every_call_of_a_request_excludes_the_padding(kind: str) -> None:
    options, field, requests = ASKED[kind]
    _, made, model = built(kind.split(" ")[0], options)
    generation = made.generative_model(model)
    given = None if field is None else part(batch(), slice(REAL)).fields[field]
    for request in requests.split(","):
        with calls(model) as seen:
            REQUESTS[request](generation, given)
        assert seen, request
        for tokens, keys in seen:
            assert torch.equal(keys["valid_BL"], tokens != PAD), request
        alone = request == "latents" and kind == "multimodal"  # the null text has one position
        assert any(bool((tokens == PAD).any()) for tokens, _ in seen) is not alone, request


# -- what samplers receive ---------------------------------------------------------------------------------------------

BEYOND = DataShape(
    vocab_size=10, pad_id=10, mask_id=11, max_length=6, latent_dim=4, state_dim=3, image_size=(4, 4, 1), noise_ids=3
)  # fmt: skip
"""The vocabulary ends below the special ids, and the noise has ids of its own"""
CONFIGS: list[tuple[Any, int]] = [
    (TextDiffusionConfig(), 0), (AdaptiveMaskingConfig(), 0), (LatentConditionedConfig(), 4), (MultimodalConfig(), 4),
    (ImageTextConfig(), 16), (CcddObjectiveConfig(state_schedule=GaussianSchedule(name="linear")), 0),
]  # fmt: skip


@pytest.mark.parametrize(("config", "dim"), CONFIGS, ids=lambda each: getattr(each, "kind", each))
def test_a_denoiser_has_the_ids_of_the_data(config: Any, dim: int) -> None:
    made = config.build(BEYOND).generative_model(None)
    for given in [None, *[torch.zeros(2, dim)] * (dim > 0)]:
        found = made.text_denoiser(given, generator(2))
        assert (found.vocab_size, found.pad_id, found.mask_id) == (10, 10, 11)
        assert (found.states is not None) == (config.kind == "ccdd")
        assert (found.importance is not None) == (config.kind == "adaptive_masking")
        assert (found.unconditional is not None) == (given is not None)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_denoiser_of_states_has_their_dimension_schedule_and_null(dropout: float) -> None:
    schedule = GaussianSchedule(name="linear", beta_max=0.05)
    config = CcddObjectiveConfig(state_schedule=schedule, condition_dropout=dropout)
    found = config.build(BEYOND).generative_model(None).text_denoiser(None, generator(2)).states
    assert found is not None
    assert (found.dim, found.schedule, found.dropped) == (3, schedule, dropout > 0)


def test_captions_as_vectors_are_denoised_under_the_schedule_of_the_run() -> None:
    asked: list[Any] = []

    class Kept(type(DDIM)):  # type: ignore[misc]
        """Keeps what it receives."""

        def sample(self, denoise: Any, *, dim: int, generator: Any) -> Any:
            asked.append((denoise.parameterisation, denoise.schedule.name, dim))
            return super().sample(denoise, dim=dim, generator=generator)

    _, made, model = built("image_text_continuous", {"image_schedule": {"name": "linear"}, "parameterisation": "eps"})
    generation = made.generative_model(model)
    assert isinstance(generation, ContinuousImageTextGeneration)
    kept, images = Kept(steps=2, t_max=0.99), part(batch(), slice(REAL)).fields["images"]
    generation.write(CANVAS, CANVAS == MASK, latents_Bd=images, sampler=kept, generator=generator(REAL))
    generation.latents_given_texts(TOKENS, sampler=kept, generator=generator(REAL))
    found = generation.both(CANVAS, text=None, latent=kept, generator=generator(REAL))
    assert asked == [("x0", "linear", 30), ("eps", "linear", 16), ("eps", "linear", 46)]
    assert torch.equal(found.latent.draws, found.latent.latents[None])
    assert found.latent.latents.shape == (REAL, 16)
    assert (found.latent.model_calls, found.text.model_calls, found.model_calls) == (2, 3, 3)


def test_the_generative_models_of_two_modalities_have_the_dimension_of_the_second() -> None:
    for config, kind, dim in (
        (ImageTextConfig(), ImageTextGeneration, 16), (MultimodalConfig(), MultimodalGeneration, 4)
    ):  # fmt: skip
        made = config.build(BEYOND).generative_model(None)  # type: ignore[attr-defined]
        assert isinstance(made, kind)
        assert made.dim == dim
