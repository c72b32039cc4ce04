"""A refusal of values that do not fit one another names every parameter concerned, and no other, by its full path."""

from __future__ import annotations

import copy
import functools
import importlib
import operator
import re
from typing import Any

import pytest

from base_parameters import base
from mm_ldlm.app.parameters import SECTIONS
from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.sampling.lengths import how_many_lengths
from mm_ldlm.sampling.limits import COLDEST, HOTTEST, refuse_temperature
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS

ANCESTRAL = {"kind": "ancestral", "steps": 8}
DDIM = {"kind": "ddim", "steps": 8}
FREE = "sampling.unconditional"
MEMBERS = [{"name": "one"}, {"name": "two"}]

REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    (FREE, {"order": "latent_first", "latent": {**DDIM, "draws": 2}}, ["latent.draws", "order"]),
    (FREE, {"order": "together", "text": ANCESTRAL, "latent": {**DDIM, "draws": 2}}, ["latent.draws", "order"]),
    (FREE, {"order": "together", "text": {"kind": "confidence", "steps": 8}, "latent": DDIM}, ["text.kind", "order"]),
    (FREE, {"order": "together", "text": ANCESTRAL, "latent": {"kind": "heun", "steps": 8}}, ["latent.kind", "order"]),
    (FREE, {"order": "together", "text": ANCESTRAL, "latent": {**DDIM, "steps": 9}}, ["text.steps", "order"]),
    (FREE, {"order": "together", "text": {**ANCESTRAL, "guidance": 2.0}, "latent": DDIM}, ["text.guidance", "order"]),
    (FREE, {"order": "together", "text": ANCESTRAL, "latent": {**DDIM, "guidance": 2.0}}, ["latent.guidance", "order"]),
    (FREE, {"length": "top-2"}, ["length"]),
    (FREE, {"length": "longest"}, ["length"]),
    ("sampling", {"length": "longest"}, ["length"]),
    ("sampling", {"tasks": ["t2l", "infill"]}, ["tasks"]),
    ("sampling.search", {"temperature": 1e-9}, ["temperature"]),
    ("sampling.infill", {"texts": ["a", "b"], "latents_of": ["c"]}, ["latents_of", "texts"]),
    ("sampling.edit", {"sources": ["a", "b"], "targets": []}, ["sources", "targets"]),
    ("sampling.interpolate", {"starts": ["a"], "ends": []}, ["starts", "ends"]),
    ("sampling.interpolate", {"steps": 1}, ["steps"]),
    ("sampling.images", {"length": "top-2"}, ["length"]),
    ("sampling.images", {"length": 0}, ["length"]),
    ("sampling.images", {"image": {**DDIM, "draws": 2}}, ["image.draws"]),
    ("sampling.images", {"caption": {**DDIM, "draws": 3}}, ["caption.draws"]),
    ("evaluation.bootstrap", {"replicates": 19}, ["replicates"]),
    ("evaluation.bootstrap", {"level": 0.49}, ["level"]),
    ("evaluation.inversion", {"reference": "nothing"}, ["reference", "sweep"]),
    ("evaluation.inversion", {"length_edges": [5, 3]}, ["length_edges"]),
    ("evaluation.sts", {"files": {"starter": "a.csv"}}, ["sets", "files"]),
    ("evaluation.sts", {"files": {"a b": "a.csv"}}, ["files"]),
    ("evaluation.sts", {"sets": [{"format": "starter", "name": "a"}, {"format": "starter", "name": "a"}]},
     ["sets", "files"]),
    ("evaluation.latents", {"calibration_sentences": 1, "calibration_samples": 1}, ["calibration_samples"]),
    ("evaluation.classification", {"baseline_grid": []}, ["baseline_grid"]),
    ("reporting", {"smoothing": 1}, ["smoothing"]),
    ("comparison", {"members": [{"name": "one"}, {"name": "ONE"}]}, ["members"]),
    ("comparison", {"members": MEMBERS, "baseline": "three"}, ["baseline"]),
    ("comparison", {"members": MEMBERS, "seeds": [3, 3]}, ["seeds"]),
    ("comparison", {"budget": {"tokens": 5, "seconds": 2.0}}, ["budget.tokens", "budget.seconds"]),
    ("tracking", {"uri": "http://a:b@host:5000"}, ["uri"]),
    ("tracking", {"uri": "gopher://host"}, ["uri"]),
]  # fmt: skip
"""Section, the values that replace those of conf/base, and the parameters that the refusal names"""


@pytest.mark.parametrize(("at", "values", "keys"), REFUSED, ids=lambda v: v if isinstance(v, str) else None)
def test_a_refusal_names_the_parameters_that_do_not_fit(at: str, values: dict[str, Any], keys: list[str]) -> None:
    section, *parts = at.split(".")
    module, _, name = SECTIONS[section].partition(":")
    found = copy.deepcopy(base()[section])
    functools.reduce(operator.getitem, parts, found).update(values)
    with pytest.raises(ConfigurationError) as error:
        parse(getattr(importlib.import_module(module), name), found, at=section)
    assert named(str(error.value)) == [f"{at}.{key}" for key in keys]


@pytest.mark.parametrize(("values", "key"), [
    ({"name": "-one"}, "name"), ({"name": "a/b"}, "name"), ({"name": ""}, "name"),
    ({"name": "a", "params": {"model..dim": 4}}, "params"), ({"name": "a", "params": {"model": {"": 4}}}, "params"),
    ({"name": "a", "seeds": []}, "seeds"), ({"name": "a", "seeds": [2, 2]}, "seeds"),
])  # fmt: skip
def test_the_parameters_of_a_member_are_named_with_its_number(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        _comparison({"members": [{"name": "one"}, values]})
    assert re.match(rf"parameter 'comparison\.members(\.1|\[1\])\.{key}'", str(error.value)), str(error.value)


@pytest.mark.parametrize(("values", "key"), [({"format": "stsb", "name": "a"}, "path"), ({"name": "a/b"}, "name")])
def test_the_parameters_of_an_sts_set_are_named_with_its_number(values: dict[str, Any], key: str) -> None:
    section = copy.deepcopy(base()["evaluation"])
    section["sts"]["sets"] = [{"format": "starter", "name": "a"}, {"format": "starter", **values}]
    module, _, name = SECTIONS["evaluation"].partition(":")
    with pytest.raises(ConfigurationError) as error:
        parse(getattr(importlib.import_module(module), name), section, at="evaluation")
    assert re.match(rf"parameter 'evaluation\.sts\.sets(\.1|\[1\])\.{key}'", str(error.value)), str(error.value)


SAMPLERS: list[tuple[dict[str, Any], list[str]]] = [
    ({**ANCESTRAL, "top_p": 0}, ["top_p"]),
    ({**ANCESTRAL, "temperature": 1e-5}, ["temperature"]),
    ({**ANCESTRAL, "temperature": 1e5}, ["temperature"]),
    ({"kind": "confidence", "steps": 4, "temperature": -1e-9}, ["temperature"]),
    ({"kind": "autoregressive", "top_p": 0}, ["top_p"]),
    ({"kind": "autoregressive", "temperature": 1e5}, ["temperature"]),
    ({"kind": "blocks", "inner": {"kind": "blocks", "inner": ANCESTRAL}}, ["inner"]),
    ({"kind": "remdm_conf", "steps": 4, "eta": 0.3679}, ["eta"]),
    ({"kind": "remdm_conf", "steps": 4, "top_p": 0}, ["top_p"]),
    ({"kind": "remdm_conf", "steps": 4, "temperature": 1e5}, ["temperature"]),
    ({"kind": "remdm_loop", "steps": 4, "t_off": 0.5, "t_on": 0.5}, ["t_off", "t_on"]),
    ({"kind": "self_correction", "steps": 4, "correction_time": 1.01}, ["correction_time"]),
    ({"kind": "self_correction", "steps": 4, "correction_temperature": 1e-9}, ["correction_temperature"]),
]


@pytest.mark.parametrize(("values", "keys"), SAMPLERS, ids=lambda v: v["kind"] if isinstance(v, dict) else "-".join(v))
def test_a_refused_setting_of_a_text_sampler_is_named(values: dict[str, Any], keys: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_kind(TEXT_SAMPLERS, values, at="sampling.text")
    assert named(str(error.value)) == [f"sampling.text.{key}" for key in keys]


@pytest.mark.parametrize("kind", ["ddim", "heun"])
def test_a_time_beyond_pure_noise_is_refused_by_its_name(kind: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_kind(LATENT_SAMPLERS, {"kind": kind, "t_max": 1.001}, at="evaluation.sts.sampler")
    assert named(str(error.value)) == ["evaluation.sts.sampler.t_max"]
    assert "found 1.001" in str(error.value)
    assert parse_kind(LATENT_SAMPLERS, {"kind": kind, "t_max": 1.0}, at="sampler").t_max == 1.0


@pytest.mark.parametrize("fits", [0, COLDEST, 1.0, HOTTEST])
def test_the_temperatures_up_to_the_limits_are_accepted(fits: float) -> None:
    refuse_temperature(fits)
    assert parse_kind(TEXT_SAMPLERS, {**ANCESTRAL, "temperature": fits}, at="sampler").temperature == fits


@pytest.mark.parametrize("wrong", [COLDEST * 0.999, HOTTEST * 1.001, -1.0, float("nan"), float("inf")])
def test_temperatures_beyond_the_limits_are_refused_under_the_given_name(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"^hot must be 0, .* between 0\.0001 and 10000, found") as error:
        refuse_temperature(wrong, name="hot")
    assert error.value.keys == ("hot",)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("length", "texts"), [(1, 1), (64, 1), ("argmax", 1), ("sample", 1), ("top-1", 1), ("top-12", 12)]
)
def test_a_length_says_how_many_lengths_are_tried(length: str | int, texts: int) -> None:
    assert how_many_lengths(length) == texts


@pytest.mark.parametrize("length", ["top-0", "top-01", "top-", "top-1.5", "top--1", "Top-1", "top-1 ", "", None, 1.5])
def test_what_is_no_length_is_shown_in_its_refusal(length: Any) -> None:
    with pytest.raises(ValueError, match="length must be 'argmax', 'sample', 'top-n'") as error:
        how_many_lengths(length)
    assert error.value.keys == ("length",)  # type: ignore[attr-defined]
    assert str(length) in str(error.value)


def test_the_label_of_a_budget_is_its_amount_in_its_unit() -> None:
    labels = [
        _comparison({"budget": value}).budget.label
        for value in ({"tokens": 7}, {"seconds": 7}, {"seconds": 7.0}, {"seconds": 7.5}, {"seconds": 10.05})
    ]
    assert labels == ["tokens-7", "seconds-7", "seconds-7", "seconds-7.5", "seconds-10.05"]


def test_own_seeds_of_a_member_replace_those_of_the_comparison() -> None:
    found = _comparison({"members": [{"name": "one"}, {"name": "two", "seeds": [5]}], "seeds": [1, 2]})
    assert [found.seeds_of(member) for member in found.members] == [(1, 2), (5,)]


def test_the_first_member_is_the_reference_unless_another_is_named() -> None:
    assert _comparison({"members": MEMBERS}).reference == "one"
    assert _comparison({"members": MEMBERS, "baseline": "two"}).reference == "two"


def _comparison(values: dict[str, Any]) -> Any:
    module, _, name = SECTIONS["comparison"].partition(":")
    return parse(getattr(importlib.import_module(module), name), {**base()["comparison"], **values}, at="comparison")


def named(message: str) -> list[str]:
    """The parameters that the beginning of a refusal names: parameters 'a.b' and 'a.c': …"""
    found = re.match(r"parameters? ('[^']+'(?: and '[^']+')*): ", message)
    assert found, message
    assert message.startswith("parameters ") == (" and " in found[1])
    return re.findall(r"'([^']+)'", found[1])
