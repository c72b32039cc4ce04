"""Options of an objective that contradict each other are refused under the keys of all that take part, and no others;
and a run says in which uses it cannot choose a length."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_capabilities import capabilities
from test_every_option import built

from mm_ldlm.core.config import parse_kind, to_dict
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.objectives.registry import OBJECTIVES

FLOW = {"name": "flow"}
NO_MODE = {"l2t": 0, "t2l": 0, "unconditional": 0}
NO_IMAGE_MODE = {"caption_to_image": 0, "image_to_caption": 0, "joint": 0}
# what is chosen, the keys that the message names, and its words
CONTRADICTIONS: list[tuple[str, dict[str, Any], str, str]] = [
    ("multimodal", {"loss_type_weights": NO_MODE}, "loss_type_weights", "at least one mode"),
    ("multimodal", {"mode": "sequential", "loss_type_weights": NO_MODE}, "loss_type_weights", "at least one mode"),
    ("multimodal", {"t_min": 1.0}, "t_min", r"below 1, found 1\.0"),
    ("multimodal", {"latent_schedule": FLOW}, "parameterisation latent_schedule.name", "found 'flow'"),
    ("multimodal", {"mode": "l2t", "cycle": {"text_weight": 1}}, "cycle mode", "found l2t"),
    ("multimodal", {"mode": "unconditional", "cycle": {"latent_weight": 1}}, "cycle mode", "found unconditional"),
    ("multimodal", {"loss_type_weights": {"t2l": 0}, "cycle": {"text_weight": 1}}, "cycle mode",
     "found l2t, unconditional"),
    ("multimodal", {"parameterisation": "eps", "cycle": {"text_weight": 1}}, "cycle parameterisation", "pure noise"),
    ("image_text", {"image_schedule": FLOW}, "parameterisation image_schedule.name", "found 'flow'"),
    ("image_text", {"mode_weights": NO_IMAGE_MODE}, "mode_weights", "at least one mode"),
    ("image_text_continuous", {"image_schedule": FLOW}, "parameterisation image_schedule.name", "found 'flow'"),
    ("image_text_continuous", {"mode_weights": NO_IMAGE_MODE}, "mode_weights", "at least one mode"),
    ("adaptive_masking", {"process": {"kind": "gidd"}}, "process.kind", "found 'gidd'"),
    ("adaptive_masking", {"process": {"kind": "absorbing", "loss_weighting": "constant"}}, "process.loss_weighting",
     "found 'constant'"),
    ("classification", {"with_latents": True}, "with_latents features", "always has the latents"),
]  # fmt: skip
# what is accepted although it is near a contradiction
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("multimodal", {"mode": "l2t", "loss_type_weights": NO_MODE}),
    ("multimodal", {"loss_type_weights": {**NO_MODE, "unconditional": 1e-3}}),
    ("multimodal", {"latent_schedule": FLOW, "parameterisation": "flow"}),
    ("multimodal", {"latent_schedule": FLOW, "parameterisation": "eps"}),
    ("multimodal", {"loss_type_weights": {"unconditional": 0}, "cycle": {"text_weight": 1}}),
    ("multimodal", {"mode": "sequential", "parameterisation": "x0", "cycle": {"text_weight": 1}}),
    ("image_text", {"image_schedule": FLOW, "parameterisation": "x0"}),
    ("image_text_continuous", {"mode_weights": {**NO_IMAGE_MODE, "joint": 1}}),
    ("classification", {"with_latents": True, "features": "frozen_trunk"}),
]


@pytest.mark.parametrize(("kind", "chosen", "keys", "words"), CONTRADICTIONS, ids=str)
def test_a_contradiction_names_every_option_that_takes_part(
    kind: str, chosen: dict[str, Any], keys: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        parse_kind(OBJECTIVES, {"kind": kind, **chosen}, at="objective")
    named = re.findall(r"'(objective[\w.]*)'", str(raised.value).split(": ")[0])
    assert named == [f"objective.{key}" for key in keys.split()]


@pytest.mark.parametrize(("kind", "chosen"), ACCEPTED, ids=str)
def test_what_is_near_a_contradiction_is_accepted(kind: str, chosen: dict[str, Any]) -> None:
    found = to_dict(parse_kind(OBJECTIVES, {"kind": kind, **chosen}, at="objective"))
    for key, value in chosen.items():
        assert found[key] == ({**found[key], **value} if isinstance(value, dict) else value), key


@pytest.mark.parametrize("kind", ["image_text", "image_text_continuous"])
@pytest.mark.parametrize(
    ("chosen", "uses"),
    [
        ({}, ""), ({"length_weight": 0}, "image_to_caption image_text"), ({"condition_dropout": 1}, "image_to_caption"),
        ({"condition_dropout": 0}, "image_text"),
    ],
)  # fmt: skip
def test_the_length_of_a_caption_is_chosen_where_it_was_trained(kind: str, chosen: dict[str, Any], uses: str) -> None:
    found = capabilities(kind, **chosen).untrained_lengths
    assert set(found) == set(uses.split())
    for use, reason in found.items():
        name, value = next(iter(chosen.items()))
        assert f"objective.{name} {value}." in reason
        given = (
            "" if name == "length_weight" else " given a latent" if use == "image_to_caption" else " without a latent"
        )
        assert f"the distribution of lengths{given}:" in reason


@pytest.mark.parametrize("kind", ["multimodal", "image_text"])
def test_a_process_that_is_made_from_a_store_is_refused_where_no_store_is_read(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'objective\.process\.kind' is 'hdlm'.*token_clusters; .*'{kind}'"):
        capabilities(kind, process={"kind": "hdlm"})
    capabilities("text_diffusion", process={"kind": "hdlm"})


def test_a_cycle_of_latents_is_refused_where_the_model_predicts_scores() -> None:
    cycle = {"process": {"kind": "sedd"}, "cycle": {"latent_weight": 1.0}}
    with pytest.raises(ConfigurationError, match=r"'objective\.cycle\.latent_weight'.*found 'sedd'"):
        built("multimodal", cycle)
    built("multimodal", {"process": {"kind": "sedd"}, "cycle": {"text_weight": 1.0}})
