"""The records that an objective's configuration makes, whole: what a run can do, what it reads, and its identity; and
the messages of refusals, whole."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.process import ProcessTraits
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.families.atat.objective import AdaptiveMaskingConfig
from mm_ldlm.families.autoregressive.model import CausalConfig
from mm_ldlm.families.autoregressive.objective import AutoregressiveConfig
from mm_ldlm.families.ccdd.model import CcddConfig
from mm_ldlm.families.ccdd.objective import CcddObjectiveConfig
from mm_ldlm.families.classification.latent_mlp import LatentMLPConfig
from mm_ldlm.families.classification.objective import ClassificationConfig
from mm_ldlm.families.classification.pairs import PairwiseClassificationConfig
from mm_ldlm.families.images.model import ContinuousImageMMDiTConfig, ImageMMDiTConfig
from mm_ldlm.families.images.objective import ContinuousImageTextConfig, ImageTextConfig
from mm_ldlm.families.images.options import ImageModeWeights
from mm_ldlm.families.latent_dit.model import LatentDiTConfig
from mm_ldlm.families.latent_dit.objective import LatentConditionedConfig
from mm_ldlm.families.uniform.gidd import GiddConfig
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.models.mmdit import MMDiTConfig
from mm_ldlm.objectives.base import require_interface
from mm_ldlm.objectives.capabilities import USES, Capabilities
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig
from mm_ldlm.objectives.text_generation import untrained_lengths
from mm_ldlm.sampling.registry import text_sampler

ABSORBING = ProcessTraits(kind="absorbing", only_masks=True)
GIVEN = "l2t infill_given_latent edit interpolate search"
GUIDED = "l2t infill_given_latent edit interpolate"
IMAGES = "caption_to_image image_to_caption image_text"


def no_lengths(option: str, given: str = "") -> str:
    return (
        f"this run has not learned the distribution of lengths{given}: it was trained with objective.{option}. "
        "Give the length as a number of tokens."
    )


UNWEIGHTED = no_lengths("length_weight 0")
NEVER_DROPPED = no_lengths("condition_dropout 0", " without a latent")
ALWAYS_DROPPED = no_lengths("condition_dropout 1", " given a latent")


def record(uses: str, trained_as: str, *, guided: str = "", **fields: Any) -> Capabilities:
    return Capabilities(
        uses=frozenset(uses.split()), guided=frozenset(guided.split()), trained_as=f"objective {trained_as}", **fields
    )  # type: ignore[arg-type]


TEXTS = {"process": ABSORBING}
LATENTS = {**TEXTS, "reads_latents": True}
WITH_IMAGES = {**TEXTS, "reads_images": True}
RECORDS: list[tuple[Any, Any, Capabilities]] = [
    (TextDiffusionConfig(), DiTConfig(), record("unconditional infill score", "text_diffusion, process absorbing",
                                                **TEXTS)),
    (TextDiffusionConfig(process=GiddConfig()), DiTConfig(),
     record("unconditional infill score", "text_diffusion, process gidd",
            process=ProcessTraits(kind="gidd", revises=True))),
    (TextDiffusionConfig(length_weight=0.0), DiTConfig(),
     record("unconditional infill", "text_diffusion, process absorbing", **TEXTS,
            untrained_lengths={"unconditional": UNWEIGHTED})),
    (AdaptiveMaskingConfig(), DiTConfig(), record("unconditional infill score", "adaptive_masking, process absorbing",
                                                  **TEXTS)),
    (AutoregressiveConfig(), CausalConfig(), record("unconditional score", "autoregressive", likelihood="exact")),
    (LatentConditionedConfig(), LatentDiTConfig(),
     record(f"{GIVEN} score_given_latent unconditional infill score", "latent_conditioned, process absorbing",
            guided=GUIDED, **LATENTS)),
    (LatentConditionedConfig(condition_dropout=0.0), LatentDiTConfig(),
     record(f"{GIVEN} score_given_latent", "latent_conditioned, process absorbing", **LATENTS,
            untrained_lengths={"unconditional": NEVER_DROPPED})),
    (LatentConditionedConfig(length_weight=0.0), LatentDiTConfig(),
     record(f"{GIVEN} unconditional infill", "latent_conditioned, process absorbing", guided=GUIDED, **LATENTS,
            untrained_lengths=dict.fromkeys(["l2t", "interpolate", "unconditional"], UNWEIGHTED))),
    (LatentConditionedConfig(condition_dropout=1.0), LatentDiTConfig(),
     record("unconditional infill score", "latent_conditioned, process absorbing", guided=GUIDED, **LATENTS,
            untrained_lengths=dict.fromkeys(["l2t", "interpolate"], ALWAYS_DROPPED))),
    (CcddObjectiveConfig(), CcddConfig(),
     record("unconditional infill score", "ccdd, process absorbing, condition_dropout 0.1", guided="unconditional",
            token_states=True, **TEXTS)),
    (CcddObjectiveConfig(condition_dropout=0.0), CcddConfig(),
     record("unconditional", "ccdd, process absorbing, condition_dropout 0.0", token_states=True, **TEXTS)),
    (CcddObjectiveConfig(length_weight=0.0), CcddConfig(),
     record("unconditional infill", "ccdd, process absorbing, condition_dropout 0.1", guided="unconditional",
            token_states=True, untrained_lengths={"unconditional": UNWEIGHTED}, **TEXTS)),
    (ClassificationConfig(), LatentMLPConfig(),
     record("classify", "classification, features latents", reads_latents=True, classifies="latents")),
    (ClassificationConfig(features="frozen_trunk"), DiTConfig(),
     record("classify", "classification, features frozen_trunk", classifies="texts")),
    (ClassificationConfig(features="trunk", with_latents=True), MMDiTConfig(),
     record("classify", "classification, features trunk", reads_latents=True, classifies="texts")),
    (PairwiseClassificationConfig(features="frozen_trunk"), DiTConfig(),
     record("classify", "pairwise_classification, features frozen_trunk", classifies="pairs")),
    (MultimodalConfig(), MMDiTConfig(),
     record(f"{GIVEN} score_given_latent t2l unconditional infill score",
            "multimodal, modes l2t, t2l, unconditional", guided=f"{GUIDED} unconditional",
            joint_orders=("together", "latent_first", "text_first"), **LATENTS)),
    (MultimodalConfig(condition_dropout=0.0), MMDiTConfig(),
     record(f"{GIVEN} score_given_latent t2l unconditional infill", "multimodal, modes l2t, t2l, unconditional",
            joint_orders=("together", "latent_first", "text_first"), **LATENTS,
            untrained_lengths=dict.fromkeys(["together", "text_first", "latent_first"], NEVER_DROPPED))),
    (MultimodalConfig(mode="t2l"), MMDiTConfig(), record("t2l", "multimodal, modes t2l", **LATENTS)),
    (MultimodalConfig(mode="unconditional", condition_dropout=1.0), MMDiTConfig(),
     record("t2l unconditional infill score", "multimodal, modes unconditional", **LATENTS,
            joint_orders=("together", "latent_first", "text_first"),
            untrained_lengths=dict.fromkeys(["l2t", "interpolate"], ALWAYS_DROPPED))),
    (MultimodalConfig(mode="unconditional", condition_dropout=0.0), MMDiTConfig(),
     record("t2l unconditional infill", "multimodal, modes unconditional", **LATENTS,
            joint_orders=("together", "latent_first", "text_first"),
            untrained_lengths=dict.fromkeys(["together", "text_first", "latent_first"], NEVER_DROPPED))),
    (ImageTextConfig(), ImageMMDiTConfig(),
     record(f"{IMAGES} infill score", "image_text, modes caption_to_image, image_to_caption, joint",
            guided="image_to_caption", **WITH_IMAGES)),
    (ImageTextConfig(mode_weights=ImageModeWeights(image_to_caption=0.0)), ImageMMDiTConfig(),
     record("caption_to_image image_text", "image_text, modes caption_to_image, joint", **WITH_IMAGES)),
    (ImageTextConfig(mode_weights=ImageModeWeights(caption_to_image=0.0, joint=0.0)), ImageMMDiTConfig(),
     record("image_to_caption infill score", "image_text, modes image_to_caption", guided="image_to_caption",
            **WITH_IMAGES)),
    (ImageTextConfig(length_weight=0.0), ImageMMDiTConfig(),
     record(f"{IMAGES} infill", "image_text, modes caption_to_image, image_to_caption, joint",
            guided="image_to_caption", **WITH_IMAGES,
            untrained_lengths=dict.fromkeys(["image_to_caption", "image_text"], UNWEIGHTED))),
    (ImageTextConfig(condition_dropout=0.0), ImageMMDiTConfig(),
     record(IMAGES, "image_text, modes caption_to_image, image_to_caption, joint", **WITH_IMAGES,
            untrained_lengths={"image_text": NEVER_DROPPED})),
    (ContinuousImageTextConfig(), ContinuousImageMMDiTConfig(),
     record(IMAGES, "image_text_continuous, modes caption_to_image, image_to_caption, joint", reads_images=True)),
    (ContinuousImageTextConfig(condition_dropout=1.0), ContinuousImageMMDiTConfig(),
     record("image_text", "image_text_continuous, modes caption_to_image, image_to_caption, joint", reads_images=True,
            untrained_lengths={"image_to_caption": ALWAYS_DROPPED})),
]  # fmt: skip


@pytest.mark.parametrize(("config", "model", "expected"), RECORDS, ids=lambda each: type(each).__name__)
def test_the_whole_record_of_what_a_run_can_do(config: Any, model: Any, expected: Capabilities) -> None:
    assert config.capabilities(model) == expected


LINEAR = GaussianSchedule(name="linear")
# the configuration, the fields that it reads, its stores, and its identity
READS: list[tuple[Any, str, str, dict[str, Any]]] = [
    (TextDiffusionConfig(), "", "", {"process": "absorbing"}),
    (AdaptiveMaskingConfig(importance="learned_only"), "", "",
     {"process": "absorbing", "importance": "learned_only"}),
    (AutoregressiveConfig(), "", "", {}),
    (LatentConditionedConfig(process=GiddConfig()), "latents", "", {"process": "gidd"}),
    (CcddObjectiveConfig(state_schedule=LINEAR), "token_states", "",
     {"process": "absorbing", "state_schedule": "linear"}),
    (ClassificationConfig(label="shape"), "labels latents", "label_names", {"features": "latents", "label": "shape"}),
    (ClassificationConfig(features="frozen_trunk"), "labels", "label_names", {"features": "trunk", "label": "label"}),
    (ClassificationConfig(features="trunk", with_latents=True), "labels latents", "label_names",
     {"features": "trunk", "label": "label"}),
    (PairwiseClassificationConfig(features="frozen_trunk", label="which"), "labels pair_tokens", "label_names",
     {"features": "trunk", "label": "which"}),
    (MultimodalConfig(parameterisation="x0", latent_schedule=LINEAR), "latents", "",
     {"parameterisation": "x0", "process": "absorbing", "latent_schedule": "linear"}),
    (ImageTextConfig(parameterisation="x0", image_schedule=LINEAR, process=AbsorbingConfig()), "images", "",
     {"parameterisation": "x0", "process": "absorbing", "image_schedule": "linear"}),
    (ContinuousImageTextConfig(parameterisation="eps", image_schedule=LINEAR), "images", "",
     {"parameterisation": "eps", "image_schedule": "linear"}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "fields", "stores", "identity"), READS, ids=lambda each: type(each).__name__)
def test_what_an_objective_reads_and_what_a_checkpoint_must_share_with_it(
    config: Any, fields: str, stores: str, identity: dict[str, Any]
) -> None:
    assert (config.fields, config.stores, config.identity) == (
        tuple(fields.split()), tuple(stores.split()), identity
    )  # fmt: skip


# -- messages, whole ---------------------------------------------------------------------------------------------------


def test_a_refusal_lists_the_uses_in_the_order_of_their_table() -> None:
    found = record("score infill unconditional l2t edit", "of a test")
    assert found.refusal("search") == (
        "this run cannot search for the text nearest to a latent (search): it was trained with objective of a test. "
        "It can: l2t, unconditional, infill, edit, score."
    )


def test_an_order_that_is_not_possible_is_refused_with_those_that_are() -> None:
    found = record("unconditional", "of a test", joint_orders=("together", "text_first"), reads_latents=True)
    with pytest.raises(SamplingError) as raised:
        found.require_order("latent_first")
    assert str(raised.value) == (
        "this run cannot generate texts and latents in the order 'latent_first': it was trained with objective of a "
        "test. Orders that it supports: together, text_first."
    )


def test_a_model_of_another_interface_is_refused_with_the_interfaces_that_fit() -> None:
    with pytest.raises(ConfigurationError) as raised:
        require_interface(TextDiffusionConfig(), CausalConfig(), "text_denoiser", "latent_features")
    assert str(raised.value) == (
        "parameter 'objective.kind' is 'text_diffusion', which trains a model of interface 'text_denoiser' or "
        "'latent_features'; found 'model.kind' 'causal', of interface 'next_token'. Choose a model and an objective "
        "that fit (docs/models.md)."
    )


# -- tasks and samplers ------------------------------------------------------------------------------------------------


WORDS = {
    "l2t": "write.*from latents", "t2l": "embed texts", "unconditional": "texts from noise",
    "infill": "masked positions.*without a latent", "infill_given_latent": "masked positions.*given a latent",
    "edit": "edit texts", "interpolate": "interpolate", "search": "search", "score": "score.*without a latent",
    "score_given_latent": "score.*given their latents", "classify": "classes",
    "caption_to_image": "images from captions", "image_to_caption": "captions of images",
    "image_text": "images and captions together",
}  # fmt: skip
"""What the words of a use contain, and those of no other"""


@pytest.mark.parametrize("use", USES)
def test_the_words_of_a_refusal_describe_the_use_that_is_refused(use: Any) -> None:
    reason = record("", "of a test").refusal(use)
    assert reason is not None
    assert [other for other, words in WORDS.items() if re.search(f"^this run cannot .*{words}.* \\(", reason)] == [use]
    assert f"({use})" in reason


@pytest.mark.parametrize(
    ("options", "given", "reason"),
    [
        ({"length_weight": 0.0, "condition_dropout": 0.0}, False, UNWEIGHTED),
        ({"length_weight": 0.0, "condition_dropout": 1.0}, True, UNWEIGHTED),
        ({"condition_dropout": 0.0}, False, NEVER_DROPPED), ({"condition_dropout": 0.0}, True, None),
        ({"condition_dropout": 1.0}, True, ALWAYS_DROPPED), ({"condition_dropout": 1.0}, False, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("config", [LatentConditionedConfig, MultimodalConfig, ImageTextConfig])
def test_lengths_that_were_never_trained_are_the_first_reason(
    config: Any, options: dict[str, float], given: bool, reason: str | None
) -> None:
    assert untrained_lengths(config(**options), given_latents=given) == reason


def test_an_order_is_refused_where_texts_are_generated_together_with_latents_alone() -> None:
    """A run without latents has no order, and a task that is given a latent has none."""
    texts = record("unconditional infill", "of texts")
    assert texts.refuse_task("unconditional", order="together", length="sample") is None
    one = record("unconditional l2t", "of both", joint_orders=("text_first",), reads_latents=True)
    assert one.refuse_task("unconditional", order="text_first", length="sample") is None
    assert one.refuse_task("unconditional", order="together", length="sample") == one.refuse_order("together")
    assert one.refuse_task("l2t", order="together", length="sample") is None
    assert one.refuse_task("t2l", order="text_first", length=None) == one.refusal("t2l")


@pytest.mark.parametrize("use", ["l2t", "edit", "search", "infill", "unconditional"])
@pytest.mark.parametrize("given", [True, False])
def test_guidance_is_accepted_in_the_guided_uses_given_a_condition(use: Any, given: bool) -> None:
    found = record("l2t edit search infill unconditional", "of a test", guided="l2t edit unconditional", **LATENTS)
    reason = found.refuse_sampler(text_sampler("ancestral", guidance=1.5), use, given_latent=given)
    assert (reason is None) == (given and use in found.guided)
    if reason is not None:
        assert reason.startswith("guidance 1.5 needs an unconditional prediction")
    assert found.refuse_sampler(text_sampler("ancestral", guidance=1.0), use, given_latent=given) is None


def test_a_sampler_is_refused_by_the_process_of_the_run() -> None:
    words = record("l2t", "of words", process=ProcessTraits(kind="gidd", revises=True))
    reason = words.refuse_sampler(text_sampler("confidence"), "l2t", given_latent=True)
    assert reason is not None
    assert re.search(r"'confidence' needs a process whose only noise is \[MASK\].*'gidd'", reason)
    masks = record("l2t", "of masks", **TEXTS)
    assert masks.refuse_sampler(text_sampler("confidence"), "l2t", given_latent=True) is None
