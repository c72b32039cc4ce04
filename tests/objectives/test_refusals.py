"""What a trained run refuses: uses that its objective never trained, and samplers that need another model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_capabilities import NAMES, TRAINS, capabilities

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.registry import TEXT_SAMPLERS, latent_sampler

SHAPE = DataShape(
    vocab_size=9, pad_id=0, mask_id=1, max_length=4, latent_dim=3, state_dim=2, image_size=(2, 2, 1)
)  # fmt: skip
CANVAS = torch.ones(2, 3, dtype=torch.long)
LATENTS = torch.zeros(2, 3)


def rows() -> RowGenerator:
    return RowGenerator(0, torch.arange(2))


def generation(kind: str, **keys: Any) -> Any:
    objective = parse_kind(OBJECTIVES, {"kind": kind, **keys}, at="objective")
    small = {"dim": 8, "depth": 1, "heads": 2} if kind != "classification" else {"dim": 8, "depth": 1}
    model = parse_kind(MODELS, {"kind": TRAINS[kind][0], **small}, at="model").build(
        SHAPE, generator=torch.Generator().manual_seed(0)
    )
    made = objective.build(SHAPE, **{name: NAMES for name in objective.stores})
    if hasattr(made, "attach"):
        made.attach(model)
    return made.generative_model(model)


@pytest.mark.parametrize("kind", ["classification", "pairwise_classification"])
def test_a_classifier_writes_and_scores_nothing(kind: str) -> None:
    made = generation(kind)
    with pytest.raises(SamplingError, match="does not provide texts"):
        made.write(CANVAS, CANVAS == 1, latents_Bd=None, sampler=None, generator=rows())
    with pytest.raises(SamplingError, match="does not provide likelihoods"):
        made.likelihood(CANVAS, latents_Bd=None, draws=1, generator=rows())


@pytest.mark.parametrize("kind", ["text_diffusion", "ccdd"])
def test_a_model_of_texts_alone_is_given_no_latent(kind: str) -> None:
    with pytest.raises(SamplingError, match="does not provide texts given latents"):
        generation(kind).text_denoiser(LATENTS, rows())


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("asks", ["write", "both"])
def test_captions_as_vectors_have_no_given_token(asks: str, place: int) -> None:
    """All tokens are drawn at once; a word in the canvas would be written over without a word."""
    made, sampler = generation("image_text_continuous"), latent_sampler("ddim", steps=2)
    canvas = CANVAS.clone()
    canvas[1, place] = 5

    def asked(canvas_BL: torch.Tensor) -> Any:
        if asks == "both":
            return made.both(canvas_BL, text=None, latent=sampler, generator=rows())
        return made.write(canvas_BL, canvas_BL == 1, latents_Bd=None, sampler=sampler, generator=rows())

    with made.evaluating():
        assert asked(CANVAS) is not None
        with pytest.raises(SamplingError) as raised:
            asked(canvas)
    assert str(raised.value) == (
        "ContinuousImageTextGeneration does not provide captions with given tokens; it writes whole captions. Check "
        "`capabilities` before the call."
    )


@pytest.mark.parametrize("kind", ["latent_conditioned", "image_text"])
def test_a_run_without_dropout_has_neither_an_unknown_condition_nor_guidance(kind: str) -> None:
    given = torch.zeros(2, 3 if kind == "latent_conditioned" else 4)
    for dropout, guided in ((0.1, True), (0.0, False)):
        made = generation(kind, condition_dropout=dropout)
        assert (made.text_denoiser(given, rows()).unconditional is not None) is guided
        unknown = made.text_denoiser(None, rows())
        assert unknown.unconditional is None
        asked = (CANVAS, torch.ones(2), torch.arange(2), CANVAS == 1)
        if guided:
            assert unknown.logits(*asked).shape == (6, 9)
            continue
        with pytest.raises(SamplingError, match=r"does not provide a null (latent|image), because .*condition_dropout"):
            unknown.logits(*asked)


@pytest.mark.parametrize("kind", ["latent_conditioned", "multimodal", "image_text"])
@pytest.mark.parametrize("dropout", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_lengths_are_chosen_given_a_condition_and_without_one_as_they_were_trained(
    kind: str, dropout: float, weight: float
) -> None:
    made = generation(kind, condition_dropout=dropout, length_weight=weight)
    for given, trained in ((torch.zeros(2, made.dim), dropout < 1), (None, dropout > 0)):
        if trained and weight:
            with made.evaluating():
                assert made.length_log_probs(given, rows=2).exp().sum(1).tolist() == pytest.approx([1, 1])
            continue
        named = "length_weight 0" if not weight else f"condition_dropout {dropout:g}"
        with pytest.raises(SamplingError, match=rf"not learned the distribution of lengths.*objective\.{named}\."):
            made.length_log_probs(given, rows=2)


@pytest.mark.parametrize(("dropout", "kind"), [(0.1, "confidence"), (0.0, "joint_states")])
def test_part_of_a_text_is_written_without_states_where_they_were_dropped(dropout: float, kind: str) -> None:
    made = generation("ccdd", condition_dropout=dropout)
    assert made.default_sampler(conditional=True).kind == kind
    assert made.default_sampler(conditional=False).kind == "joint_states"
    with made.evaluating():
        sample = made.write(
            CANVAS, CANVAS == 1, latents_Bd=None, sampler=made.default_sampler(conditional=True), generator=rows()
        )  # fmt: skip
    assert bool((sample.tokens > 1).all())


@pytest.mark.parametrize("kind", ["text_diffusion", "multimodal", "latent_conditioned"])
def test_the_sampler_of_states_is_refused_by_every_run_without_states(kind: str) -> None:
    sampler = parse_kind(TEXT_SAMPLERS, {"kind": "joint_states", "guidance": 2.0}, at="sampler")
    reason = capabilities(kind).refuse_sampler(sampler, "unconditional", given_latent=False)
    assert reason is not None
    assert "continuous state for each token (objective 'ccdd')" in reason


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_texts_are_guided_given_a_latent_alone(given: bool, scale: float) -> None:
    found = capabilities("multimodal")
    sampler = parse_kind(TEXT_SAMPLERS, {"kind": "ancestral", "guidance": scale}, at="sampler")
    for use in ("unconditional", "infill_given_latent"):
        reason = found.refuse_sampler(sampler, use, given_latent=given)  # type: ignore[arg-type]
        assert (reason is None) == (given or scale == 1.0)
    assert (found.refuse_sampler(sampler, "infill", given_latent=given) is None) == (scale == 1.0)


@pytest.mark.parametrize("kind", ["multimodal", "image_text", "image_text_continuous"])
def test_the_smallest_time_of_latents_and_images_is_below_1(kind: str) -> None:
    assert parse_kind(OBJECTIVES, {"kind": kind, "t_min": 0.999}, at="objective").t_min == 0.999
    with pytest.raises(ConfigurationError, match=r"t_min must be below 1, found 1\.0"):
        parse_kind(OBJECTIVES, {"kind": kind, "t_min": 1.0}, at="objective")
