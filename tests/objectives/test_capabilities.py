"""Capabilities: the table of modes and uses, and the messages of refusals."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Objective
from mm_ldlm.objectives.capabilities import USES, Capabilities
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.registry import TEXT_SAMPLERS

SHAPE = DataShape(vocab_size=20, pad_id=0, mask_id=1, max_length=8, latent_dim=6, image_size=(4, 4, 1))
NAMES = torch.tensor([list(name.ljust(7, b"\0")) for name in (b"first", b"second", b"similar")], dtype=torch.uint8)
# kind of the objective → the kinds of models that it trains
TRAINS = {
    "multimodal": ["mmdit"], "text_diffusion": ["dit"], "adaptive_masking": ["dit"], "autoregressive": ["causal"],
    "latent_conditioned": ["latent_dit", "latent_dit_cross"], "ccdd": ["ccdd"], "classification": ["latent_mlp"],
    "pairwise_classification": ["dit"], "image_text": ["image_mmdit"],
    "image_text_continuous": ["image_mmdit_continuous"],
}  # fmt: skip
ORDERS = ("together", "latent_first", "text_first")

# modes → (uses, joint orders), where conditions are dropped in training
GIVEN = "l2t infill_given_latent edit interpolate search score_given_latent"
WITH_NULLS: dict[tuple[str, ...], tuple[str, str]] = {
    ("l2t",): (f"{GIVEN} infill score", ""),
    ("t2l",): ("t2l", ""),
    ("unconditional",): ("t2l unconditional infill score", "together latent_first text_first"),
    ("l2t", "t2l"): (f"{GIVEN} t2l unconditional infill score", "latent_first text_first"),
    ("l2t", "unconditional"): (f"{GIVEN} t2l unconditional infill score", "together latent_first text_first"),
    ("t2l", "unconditional"): ("t2l unconditional infill score", "together latent_first text_first"),
    ("l2t", "t2l", "unconditional"): (
        f"{GIVEN} t2l unconditional infill score", "together latent_first text_first"
    ),
}  # fmt: skip
# Without nulls, nothing but the mode unconditional stands for an unknown latent or an unknown text. The marginal
# distribution of lengths is that of the null latent, so a text without a latent has no score.
WITHOUT_NULLS: dict[tuple[str, ...], tuple[str, str]] = {
    modes: (" ".join(use for use in uses.split() if use != "score"), orders)
    for modes, (uses, orders) in {
        **WITH_NULLS,
        ("l2t",): (GIVEN, ""),
        ("l2t", "t2l"): (f"{GIVEN} t2l", ""),
    }.items()
}
# Where conditions are always dropped, the modes l2t and t2l see none.
ALWAYS_NULL: dict[tuple[str, ...], tuple[str, str]] = {
    ("l2t",): ("infill score", ""),
    ("t2l",): ("", ""),
    ("l2t", "t2l"): ("infill score", ""),
    **{
        modes: ("t2l unconditional infill score", "together latent_first text_first")
        for modes in WITH_NULLS if "unconditional" in modes
    },
}  # fmt: skip
TABLES = {0.1: WITH_NULLS, 0.0: WITHOUT_NULLS, 1.0: ALWAYS_NULL}


def capabilities(kind: str, *, model: dict[str, Any] | None = None, **keys: Any) -> Capabilities:
    config = parse_kind(OBJECTIVES, {"kind": kind, **keys}, at="objective")
    of_model = parse_kind(MODELS, {"kind": TRAINS[kind][0], **(model or {})}, at="model")
    found: Capabilities = config.capabilities(of_model)
    return found


@pytest.mark.parametrize("mode", ["mixed", "sequential"])
@pytest.mark.parametrize("dropout", TABLES)
@pytest.mark.parametrize("modes", WITH_NULLS, ids="+".join)
def test_the_uses_of_every_combination_of_modes(modes: tuple[str, ...], dropout: float, mode: str) -> None:
    uses, orders = TABLES[dropout][modes]
    weights = {name: float(name in modes) for name in ("l2t", "t2l", "unconditional")}
    found = capabilities("multimodal", mode=mode, loss_type_weights=weights, condition_dropout=dropout)
    assert found.uses == set(uses.split())
    assert set(found.joint_orders) == set(orders.split())
    assert (found.likelihood, found.reads_latents) == ("bound", True)
    assert found.trained_as == f"objective multimodal, modes {', '.join(modes)}"
    if len(modes) == 1:
        assert capabilities("multimodal", mode=modes[0], condition_dropout=dropout) == found


def test_the_table_names_every_combination_and_every_use() -> None:
    assert len(WITH_NULLS) == len(WITHOUT_NULLS) == len(ALWAYS_NULL) == 2**3 - 1
    others = {"classify", "caption_to_image", "image_to_caption", "image_text"}
    assert {use for uses, _ in WITH_NULLS.values() for use in uses.split()} == set(USES) - others


@pytest.mark.parametrize(
    ("kind", "uses", "likelihood"),
    [("text_diffusion", "unconditional infill score", "bound"), ("autoregressive", "unconditional score", "exact")],
)
def test_objectives_of_texts_alone_have_no_latents(kind: str, uses: str, likelihood: str) -> None:
    found = capabilities(kind)
    assert found.uses == set(uses.split())
    assert (found.likelihood, found.reads_latents, found.joint_orders) == (likelihood, False, ())


@pytest.mark.parametrize("model", ["dit", "mmdit"])
@pytest.mark.parametrize("features", ["trunk", "frozen_trunk"])
def test_a_classifier_of_texts_reads_latents_where_its_dataset_keeps_them(model: str, features: str) -> None:
    for with_latents in {True, model == "mmdit"}:
        found = capabilities("classification", model={"kind": model}, features=features, with_latents=with_latents)
        assert (found.reads_latents, found.classifies) == (with_latents, "texts")
    assert capabilities("classification").reads_latents


@pytest.mark.parametrize("model", TRAINS["latent_conditioned"])
@pytest.mark.parametrize("dropout", [0.1, 0.0, 1.0])
def test_a_text_model_given_latents_writes_and_scores_and_has_no_latents_of_its_own(model: str, dropout: float) -> None:
    found = capabilities("latent_conditioned", model={"kind": model}, condition_dropout=dropout)
    given, without = GIVEN if dropout < 1 else "", "unconditional infill score" if dropout > 0 else ""
    assert found.uses == set(f"{given} {without}".split())
    assert (found.likelihood, found.reads_latents, found.joint_orders) == ("bound", True, ())
    assert found.trained_as == "objective latent_conditioned, process absorbing"


IMAGE_USES = {"caption_to_image": "caption_to_image", "image_to_caption": "image_to_caption", "joint": "image_text"}


@pytest.mark.parametrize("kind", ["image_text", "image_text_continuous"])
@pytest.mark.parametrize("dropout", [0.1, 0.0, 1.0])
@pytest.mark.parametrize("modes", [("caption_to_image",), ("image_to_caption", "joint"), tuple(IMAGE_USES)])
def test_the_uses_of_images_and_captions_follow_from_the_modes(
    kind: str, dropout: float, modes: tuple[str, ...]
) -> None:
    weights = {name: float(name in modes) for name in IMAGE_USES}
    found = capabilities(kind, mode_weights=weights, condition_dropout=dropout)
    texts = {"infill", "score"} if kind == "image_text" and dropout and "image_to_caption" in modes else set()
    assert found.uses == {IMAGE_USES[mode] for mode in modes if dropout < 1 or mode == "joint"} | texts
    assert (found.reads_images, found.reads_latents, found.joint_orders) == (True, False, ())


# -- lengths that were not learned ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "keys", "lost", "refused"),
    [
        ("text_diffusion", {"length_weight": 0}, "score", "unconditional"),
        ("adaptive_masking", {"length_weight": 0}, "score", "unconditional"),
        ("latent_conditioned", {"length_weight": 0}, "score score_given_latent", "l2t interpolate unconditional"),
        ("latent_conditioned", {"condition_dropout": 0}, "score infill unconditional", "unconditional"),
        ("latent_conditioned", {"condition_dropout": 1}, GIVEN, "l2t interpolate"),
        ("multimodal", {"length_weight": 0}, "score score_given_latent",
         "l2t interpolate together latent_first text_first"),
        ("multimodal", {"condition_dropout": 0}, "score", "together latent_first text_first"),
        ("multimodal", {"condition_dropout": 1}, GIVEN, "l2t interpolate latent_first"),
        ("autoregressive", {}, "", ""),
    ],
)  # fmt: skip
def test_a_run_without_a_distribution_of_lengths_neither_scores_nor_chooses_lengths(
    kind: str, keys: dict[str, float], lost: str, refused: str
) -> None:
    """A score contains -log p(length); texts are still written where the caller gives the length."""
    whole, found = capabilities(kind), capabilities(kind, **keys)
    assert not whole.untrained_lengths
    assert set(whole.uses) - found.uses == set(lost.split())
    assert set(found.untrained_lengths) == set(refused.split())
    for use in refused.split():
        order, task = (use, "unconditional") if use in ORDERS else ("text_first", use)
        for length in ("sample", "argmax", "top-3"):
            reason = found.refuse_length(length, task, order=order)  # type: ignore[arg-type]
            assert reason is not None
            assert "not learned the distribution of lengths" in reason
            assert found.refuse_task(task, order=order, length=length) is not None  # type: ignore[arg-type]
        assert found.refuse_length(5, task, order=order) is None  # type: ignore[arg-type]


# -- refusals -----------------------------------------------------------------------------------------------------


def test_a_refusal_names_the_use_the_training_and_what_the_run_can_do() -> None:
    found = capabilities("multimodal", mode="t2l")
    expected = (
        "this run cannot write texts from latents (l2t): it was trained with objective multimodal, modes t2l. "
        "It can: t2l."
    )
    assert found.refusal("l2t") == expected
    with pytest.raises(SamplingError, match=f"^{re.escape(expected)}$"):
        found.require("l2t")
    assert found.refusal("t2l") is None
    found.require("t2l")
    assert "t2l" in found
    assert "l2t" not in found


@pytest.mark.parametrize("use", USES)
def test_every_use_is_refused_in_its_own_words_by_a_run_that_can_do_nothing(use: Any) -> None:
    nothing = Capabilities(uses=frozenset(), trained_as="the objective of a test")
    with pytest.raises(SamplingError, match=rf"^this run cannot {USES[use]} \({use}\): .* It can: nothing\.$"):
        nothing.require(use)
    dataclasses.replace(nothing, uses=frozenset({use})).require(use)


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_that_training_did_not_prepare_is_refused(order: str) -> None:
    both = capabilities("multimodal", mode="unconditional")
    both.require_order(order)
    assert both.refuse_order(order) is None
    with pytest.raises(
        SamplingError, match=f"^this run cannot generate texts and latents in the order '{order}'.*modes l2t.*: none"
    ):
        capabilities("multimodal", mode="l2t").require_order(order)
    with pytest.raises(SamplingError, match=r"objective text_diffusion.*Orders .*supports: none: it has no latents\.$"):
        capabilities("text_diffusion").require_order(order)
    with pytest.raises(SamplingError, match=r"objective latent_conditioned.*Orders that it supports: none\.$"):
        capabilities("latent_conditioned").require_order(order)


def test_a_refused_order_lists_the_orders_that_are_possible() -> None:
    some = capabilities("multimodal", loss_type_weights={"l2t": 1, "t2l": 1, "unconditional": 0})
    some.require_order("latent_first")
    with pytest.raises(SamplingError, match=r"'together'.*Orders that it supports: latent_first, text_first\.$"):
        some.require_order("together")


# -- objectives and models that do not fit ------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES.known)
@pytest.mark.parametrize("model", MODELS.known)
def test_an_objective_accepts_the_models_of_its_interface_alone(objective: str, model: str) -> None:
    config = parse_kind(OBJECTIVES, {"kind": objective}, at="objective")
    of_model = parse_kind(MODELS, {"kind": model}, at="model")
    if model in TRAINS[objective]:
        assert config.capabilities(of_model).uses
        return
    with pytest.raises(ConfigurationError, match=rf"'objective\.kind' is '{objective}'.*found 'model\.kind' '{model}'"):
        config.capabilities(of_model)


@pytest.mark.parametrize("objective", [True, False])
def test_self_conditioning_has_to_be_set_in_the_model_and_in_the_objective(objective: bool) -> None:
    assert capabilities("multimodal", self_condition=objective, model={"self_condition": objective}).uses
    with pytest.raises(ConfigurationError, match=rf"'objective\.self_condition' is {objective}.*Set both"):
        capabilities("multimodal", self_condition=objective, model={"self_condition": not objective})


# -- every registry entry -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OBJECTIVES.known)
def test_every_objective_kind_builds_from_its_defaults(kind: str) -> None:
    config = parse_kind(OBJECTIVES, {"kind": kind}, at="objective")
    shape = SHAPE if config.fields else dataclasses.replace(SHAPE, latent_dim=None)
    stores = {name: NAMES for name in config.stores}
    for fixed_shapes in (False, True) if kind != "pairwise_classification" else (False,):  # it refuses compilation
        built = config.build(shape, fixed_shapes=fixed_shapes, **stores)
        assert isinstance(built, Objective)
        assert built.fields == config.fields
        assert built.kinds
        assert set(built.units) == set(built.weights)
    assert config.kind == kind


@pytest.mark.parametrize("kind", OBJECTIVES.known)
def test_a_key_of_another_kind_is_refused_with_the_kinds_own_keys(kind: str) -> None:
    own = [f.name for f in dataclasses.fields(parse_kind(OBJECTIVES, {"kind": kind}, at="objective"))]
    known = {
        other: {f.name for f in dataclasses.fields(parse_kind(OBJECTIVES, {"kind": other}, at="objective"))}
        for other in OBJECTIVES.known
    }
    foreign = sorted(set().union(*known.values()) - set(own))
    assert foreign
    for key in foreign:
        message = rf"^parameter 'objective\.{key}' is not known\..* Known here: {re.escape(', '.join(own))}\.$"
        with pytest.raises(ConfigurationError, match=message):
            parse_kind(OBJECTIVES, {"kind": kind, key: 1}, at="objective")


@pytest.mark.parametrize(("dropout", "fits"), [(0.1, True), (0.0, False)])
def test_the_sampler_of_states_is_guided_without_a_latent(dropout: float, fits: bool) -> None:
    """Its condition are the states, which it makes itself; training has to drop them."""
    found = capabilities("ccdd", condition_dropout=dropout)
    sampler = parse_kind(TEXT_SAMPLERS, {"kind": "joint_states", "guidance": 2.0}, at="sampler")
    reason = found.refuse_sampler(sampler, "unconditional", given_latent=False)
    assert (reason is None) == fits
    plain = parse_kind(TEXT_SAMPLERS, {"kind": "ancestral", "guidance": 2.0}, at="sampler")
    assert found.refuse_sampler(plain, "unconditional", given_latent=False) is not None
