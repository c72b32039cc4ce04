"""The messages of the objectives, word for word: each names what was found, and not what was expected in its place."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from classifiers import names

from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.families.atat.objective import AdaptiveMaskingConfig
from mm_ldlm.families.ccdd.model import CcddConfig
from mm_ldlm.families.ccdd.objective import CcddObjectiveConfig
from mm_ldlm.families.classification.objective import ClassificationConfig, refuse_compiled
from mm_ldlm.families.classification.pairs import PairwiseClassificationConfig
from mm_ldlm.families.hdlm.process import HdlmConfig
from mm_ldlm.families.images.model import ImageMMDiTConfig
from mm_ldlm.families.images.objective import ContinuousImageTextConfig, ImageTextConfig
from mm_ldlm.families.images.options import ImageModeWeights
from mm_ldlm.families.latent_dit.objective import LatentConditionedConfig
from mm_ldlm.families.sedd.process import SeddConfig
from mm_ldlm.families.uniform.gidd import GiddConfig
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.mmdit import MMDiTConfig
from mm_ldlm.objectives.cycle import CycleConfig
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.objectives.multimodal_options import ModeWeights
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

SHAPE = DataShape(
    vocab_size=9, pad_id=0, mask_id=1, max_length=4, latent_dim=3, state_dim=2, image_size=(2, 2, 1)
)  # fmt: skip
CANVAS = torch.ones(2, 3, dtype=torch.long)
FLOW = GaussianSchedule(name="flow")
NO_MODES = ModeWeights(l2t=0.0, t2l=0.0, unconditional=0.0)
NO_IMAGES = ImageModeWeights(caption_to_image=0.0, image_to_caption=0.0, joint=0.0)
# what is refused, its words, and the keys that take part
VALUES: list[tuple[Callable[[], Any], str, tuple[str, ...]]] = [
    (lambda: AdaptiveMaskingConfig(process=GiddConfig()),
     "process must be 'absorbing', whose loss can be weighted by the mask probability of each token, found 'gidd'",
     ("process.kind",)),
    (lambda: AdaptiveMaskingConfig(process=AbsorbingConfig(loss_weighting="constant")),
     "process.loss_weighting must be 'elbo': adaptive masking weights the loss by the mask probability of each token, "
     "found 'constant'", ("process.loss_weighting",)),
    (lambda: ClassificationConfig(with_latents=True),
     "'with_latents' is for features of a text model; with features 'latents' the dataset always has the latents. "
     "Remove it", ("with_latents", "features")),
    (lambda: MultimodalConfig(t_min=1.25), "t_min must be below 1, found 1.25", ("t_min",)),
    (lambda: MultimodalConfig(loss_type_weights=NO_MODES),
     "loss_type_weights: expected at least one mode of weight above 0, found none", ("loss_type_weights",)),
    (lambda: MultimodalConfig(latent_schedule=FLOW),
     "parameterisation 'v' needs a variance-preserving latent_schedule, found 'flow'; set parameterisation to 'flow' "
     "or choose another schedule", ("parameterisation", "latent_schedule.name")),
    (lambda: MultimodalConfig(loss_type_weights=ModeWeights(l2t=0.0), cycle=CycleConfig(text_weight=1.0)),
     "cycle losses need the modes l2t and t2l, found t2l, unconditional; choose mode 'mixed' or 'sequential' with both"
     ", or set cycle.text_weight and cycle.latent_weight to 0", ("cycle", "mode")),
    (lambda: MultimodalConfig(parameterisation="eps", cycle=CycleConfig(latent_weight=1.0)),
     "cycle losses need an estimate of the latent from pure noise, which parameterisation 'eps' does not give; choose "
     "x0, v or flow", ("cycle", "parameterisation")),
    (lambda: ImageTextConfig(t_min=1.5), "t_min must be below 1, found 1.5", ("t_min",)),
    (lambda: ContinuousImageTextConfig(mode_weights=NO_IMAGES),
     "mode_weights: expected at least one mode of weight above 0, found none", ("mode_weights",)),
    (lambda: ImageTextConfig(image_schedule=FLOW),
     "parameterisation 'v' needs a variance-preserving image_schedule, found 'flow'; set parameterisation to 'flow' or "
     "choose another schedule", ("parameterisation", "image_schedule.name")),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "words", "keys"), VALUES, ids=lambda each: None)
def test_options_that_contradict_one_another(refused: Callable[[], Any], words: str, keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        refused()
    named, _, found = str(raised.value).partition(": ")
    assert re.findall(r"'\w+\.([\w.]+)'", named) == list(keys)
    assert found == f"{words}."


CONFIGURATIONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: MultimodalConfig(process=HdlmConfig()).capabilities(MMDiTConfig()),
     "parameter 'objective.process.kind' is 'hdlm', which is made from the stores token_clusters; the objective "
     "'multimodal' has processes without stores only, such as 'absorbing'. Choose one of them, or the objective "
     "'text_diffusion'."),
    (lambda: MultimodalConfig(self_condition=True).capabilities(MMDiTConfig()),
     "parameter 'objective.self_condition' is True, but 'model.self_condition' is False. Set both to the same value: a "
     "model can read its previous estimate only if the objective trains it to."),
    (lambda: MultimodalConfig(process=SeddConfig(), cycle=CycleConfig(latent_weight=1.0)).build(SHAPE),
     "parameter 'objective.cycle.latent_weight': the cycle needs a process whose model predicts the tokens, found "
     "'sedd', whose model predicts scores. Set it to 0, or choose 'absorbing'."),
    (lambda: ImageTextConfig(process=HdlmConfig()).capabilities(ImageMMDiTConfig()),
     "parameter 'objective.process.kind' is 'hdlm', which is made from the stores token_clusters; the objective "
     "'image_text' has processes without stores only, such as 'absorbing'. Choose one of them."),
    (lambda: CcddObjectiveConfig(condition_dropout=1.0).capabilities(CcddConfig()),
     "parameter 'objective.condition_dropout' is 1, which drops the states of every text, so that the model never "
     "learns them. Lower it, or choose the objective 'text_diffusion', which has no states."),
    (lambda: ClassificationConfig(features="trunk").capabilities(MMDiTConfig()),
     "parameter 'objective.with_latents' is false, but 'model.kind' 'mmdit' is built for latents. Set "
     "objective.with_latents to true, or choose a text-only model (model.kind: dit)."),
    (lambda: refuse_compiled(True),
     "parameter 'training.precision.compile' is true, which compiles the forward pass of the model; found an objective "
     "that reads the features of a text model instead. Set training.precision.compile to false."),
    (lambda: PairwiseClassificationConfig().build(SHAPE, label_names=names("worse", "first", "better")),
     "objective 'pairwise_classification': expected the labels first, second, similar, found ['better', 'worse']. "
     "Validate the data with this objective (`kedro run --pipelines=validation`)."),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "words"), CONFIGURATIONS, ids=lambda each: None)
def test_components_that_do_not_fit_one_another(refused: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        refused()
    assert str(raised.value) == words


@pytest.mark.parametrize(
    ("config", "fixed", "refuses"),
    [
        (ClassificationConfig(), True, False), (ClassificationConfig(features="trunk"), True, True),
        (ClassificationConfig(features="frozen_trunk"), True, True),
        (ClassificationConfig(features="trunk"), False, False), (PairwiseClassificationConfig(), True, True),
        (PairwiseClassificationConfig(), False, False),
    ],
)  # fmt: skip
def test_a_text_model_of_a_classifier_is_not_compiled(config: Any, fixed: bool, refuses: bool) -> None:
    labels = names("first", "second", "similar")
    if not refuses:
        config.build(SHAPE, fixed_shapes=fixed, label_names=labels)
        return
    with pytest.raises(ConfigurationError, match=r"'training\.precision\.compile' is true"):
        config.build(SHAPE, fixed_shapes=fixed, label_names=labels)


# -- requests ----------------------------------------------------------------------------------------------------------


def generation(config: Any) -> Any:
    return config.build(SHAPE).generative_model(None)


def rows() -> RowGenerator:
    return RowGenerator(0, torch.arange(2))


def write(config: Any, sampler: Any) -> None:
    model: Any = type("Model", (), {"config": type("Config", (), {"vector_dim": 5})})
    config.build(SHAPE).generative_model(model).write(
        CANVAS, CANVAS == 1, latents_Bd=None, sampler=sampler, generator=rows()
    )


def lengths(config: Any, given: Any) -> None:
    generation(config).length_log_probs(given, rows=2)


UNTRAINED = "Give the length as a number of tokens."
LEARNED = "this run has not learned the distribution of lengths"
REQUESTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: generation(CcddObjectiveConfig(condition_dropout=0.0)).text_denoiser(None, rows()).logits(
        CANVAS, torch.ones(2), torch.arange(2), CANVAS == 1),
     "expected a run that can write texts without token states, found one that was trained with "
     "objective.condition_dropout 0. Choose the sampler 'joint_states'."),
    (lambda: write(ImageTextConfig(), latent_sampler("ddpm")),
     "the captions of this run are tokens, but the sampler 'ddpm' is a latent sampler. Choose a text sampler, for "
     "example 'confidence'."),
    (lambda: write(ContinuousImageTextConfig(), text_sampler("remdm_rescale")),
     "the captions of this run are vectors, but the sampler 'remdm_rescale' unmasks tokens. Choose a latent sampler, "
     "for example 'ddim'."),
    (lambda: generation(TextDiffusionConfig()).text_denoiser(torch.zeros(2, 3), rows()),
     "TextGeneration does not provide texts given latents. Check `capabilities` before the call."),
    (lambda: generation(LatentConditionedConfig(condition_dropout=0.0)).text_denoiser(None, rows()).logits(
        CANVAS, torch.ones(2), torch.arange(2), CANVAS == 1),
     "LatentConditionedGeneration does not provide a null latent, because objective.condition_dropout was 0. Check "
     "`capabilities` before the call."),
    (lambda: generation(ImageTextConfig(condition_dropout=0.0)).text_denoiser(None, rows()).logits(
        CANVAS, torch.ones(2), torch.arange(2), CANVAS == 1),
     "ImageTextGeneration does not provide a null image, because it was not trained (condition_dropout, mode_weights). "
     "Check `capabilities` before the call."),
    (lambda: lengths(TextDiffusionConfig(length_weight=0.0), None),
     f"{LEARNED}: it was trained with objective.length_weight 0. {UNTRAINED}"),
    (lambda: lengths(CcddObjectiveConfig(length_weight=0.0), None),
     f"{LEARNED}: it was trained with objective.length_weight 0. {UNTRAINED}"),
    (lambda: lengths(MultimodalConfig(condition_dropout=0.0), None),
     f"{LEARNED} without a latent: it was trained with objective.condition_dropout 0. {UNTRAINED}"),
    (lambda: lengths(ImageTextConfig(condition_dropout=1.0), torch.zeros(2, 4)),
     f"{LEARNED} given a latent: it was trained with objective.condition_dropout 1. {UNTRAINED}"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "words"), REQUESTS, ids=lambda each: None)
def test_requests_that_a_run_cannot_answer(asked: Callable[[], Any], words: str) -> None:
    with pytest.raises(SamplingError) as raised:
        asked()
    assert str(raised.value) == words


def test_lengths_of_texts_with_states_need_no_dropped_states() -> None:
    """They do not depend on the states."""
    model: Any = type("Model", (), {"length_logits": lambda self: torch.tensor([0.0, 1.0, 2.0, 3.0])})()
    for dropout in (0.0, 0.5):
        config = dataclasses.replace(CcddObjectiveConfig(), condition_dropout=dropout)
        found = config.build(SHAPE).generative_model(model).length_log_probs(None, rows=3)
        expected = torch.tensor([0.0, 1.0, 2.0, 3.0]).log_softmax(0)
        torch.testing.assert_close(found, expected.expand(3, -1))
