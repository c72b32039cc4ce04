"""Limits of samplers and tasks from both sides, and which input, sampler and length each task has."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from mm_ldlm.sampling.config import (
    TASKS,
    EditConfig,
    ImageTasksConfig,
    InterpolateConfig,
    L2tConfig,
    SamplingConfig,
    SearchConfig,
    Task,
)

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.lengths import how_many_lengths
from mm_ldlm.sampling.limits import COLDEST, HOTTEST
from mm_ldlm.sampling.logit_filters import filter_logits
from mm_ldlm.sampling.registry import latent_sampler, text_sampler
from mm_ldlm.sampling.search import search


@pytest.mark.parametrize(
    ("kind", "key", "good", "bad"),
    [
        ("remdm_conf", "eta", 0.3678, 0.3679),
        ("remdm_cap", "eta", 1.0, 1.01),
        ("ancestral", "top_p", 1e-6, 0),
        ("ancestral", "top_p", 1.0, 1.1),
        ("ancestral", "top_k", 1, 0),
        ("ancestral", "steps", 1, 0),
        ("ancestral", "steps", 10_000, 10_001),
        ("ancestral", "temperature", 0, COLDEST / 2),
        ("ancestral", "temperature", COLDEST, -1),
        ("ancestral", "temperature", HOTTEST, 2 * HOTTEST),
        ("ancestral", "guidance", 0, -0.1),
        ("ancestral", "guidance", 1000, 1001),
        ("threshold", "threshold", 1.0, 1.1),
    ],
)
def test_a_text_sampler_accepts_its_limits_and_nothing_beyond(kind: str, key: str, good: float, bad: float) -> None:
    assert getattr(text_sampler(kind, **{key: good}), key) == good
    with pytest.raises(ConfigurationError, match=f"sampler.{key}"):
        text_sampler(kind, **{key: bad})


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [("steps", 1, 0), ("draws", 1, 0), ("draws", 10_000, 10_001), ("guidance", 0, -1), ("eta", 1.0, 1.1),
     ("t_max", 1.0, 1.01), ("t_max", 0.01, 0)],
)  # fmt: skip
def test_a_latent_sampler_accepts_its_limits_and_nothing_beyond(key: str, good: float, bad: float) -> None:
    assert getattr(latent_sampler("ddim", **{key: good}), key) == good
    with pytest.raises(ConfigurationError, match=f"sampler.{key}"):
        latent_sampler("ddim", **{key: bad})


@pytest.mark.parametrize("temperature", [0.0, -1.0, COLDEST / 2, 2 * HOTTEST])
def test_logits_are_not_divided_by_a_temperature_without_digits(temperature: float) -> None:
    with pytest.raises(SamplingError, match="temperature must be"):
        filter_logits(torch.zeros(1, 3), temperature=temperature)


@pytest.mark.parametrize(
    ("length", "count"), [("argmax", 1), ("sample", 1), ("top-1", 1), ("top-12", 12), (1, 1), (40, 1)]
)
def test_lengths_to_try(length: Any, count: int) -> None:
    assert how_many_lengths(length) == count


@pytest.mark.parametrize("length", [0, -3, True, "top-0", "top-", "top-1x", "all", 2.5, None])
def test_other_lengths_are_refused(length: Any) -> None:
    with pytest.raises(ValueError, match="length must be"):
        how_many_lengths(length)


@pytest.mark.parametrize(("good_enough", "calls", "rounds"), [(0.5, 1, 0), (0.51, 2 + 2 * 3, 3)])
def test_a_search_ends_where_a_text_is_exactly_good_enough(good_enough: float, calls: int, rounds: int) -> None:
    made: list[int] = []

    def write(canvas: Any, target: Any, generator: Any, greedy: bool) -> TextSample:
        made.append(len(canvas))
        tokens = torch.where(canvas == 9, 1, canvas)
        ones = torch.ones(len(canvas), dtype=torch.long)
        return TextSample(tokens, torch.zeros(tokens.shape), torch.zeros_like(tokens), ones, 1)

    found = search(
        torch.full((1, 2, 4), 9), config=SearchConfig(candidates=2, rounds=3, good_enough=good_enough), write=write,
        nearness=lambda tokens, target: torch.full((len(tokens),), 0.5), mask_id=9, pad_id=8,
        generator=RowGenerator(0, torch.arange(1)),
    )  # fmt: skip
    assert (len(made), int(found.rounds_taken[0])) == (calls, rounds)


# task → sections of the parameters, each of which gives it an input; the others need rows of the split
INPUTS: dict[Task, list[dict[str, Any]]] = {
    "l2t": [{"rows": 1}, {"l2t": {"files": ["a"]}}, {"l2t": {"texts": ["a"]}}],
    "t2l": [{"rows": 1}, {"t2l": {"files": ["a"]}}, {"t2l": {"texts": ["a"]}}],
    "infill": [{"infill": {"texts": ["a [MASK]"]}}],
    "edit": [{"edit": {"sources": ["a"], "targets": ["b"]}}],
    "interpolate": [{"interpolate": {"starts": ["a"], "ends": ["b"]}}],
    "caption_to_image": [{"rows": 1}],
    "image_to_caption": [{"rows": 1}],
}
SAMPLERS = {"text": {"kind": "margin"}, "latent": {"kind": "ddim"}}
BASE = {**SAMPLERS, "rows": 0, "unconditional": {"text": {"kind": "random"}, "latent": {"kind": "heun"}}}


def config(**changes: Any) -> SamplingConfig:
    return parse(SamplingConfig, {**BASE, **changes}, at="sampling")


@pytest.mark.parametrize("task", TASKS)
def test_a_task_takes_place_where_it_has_an_input(task: Task) -> None:
    assert config().has_input(task) is (task not in INPUTS)
    for given in INPUTS.get(task, []):
        made = config(**given)
        assert made.has_input(task)
        assert made.requests(task)
        assert config(tasks=[task], **given).requests(task)
        other: Task = "image_text" if task != "image_text" else "unconditional"
        assert not config(tasks=[other], **given).requests(task)
    if task in INPUTS:
        with pytest.raises(ConfigurationError, match=f"task '{task}' has no input"):
            config(tasks=[task])


def test_every_task_has_its_own_sampler_and_length() -> None:
    made = config(
        length="top-4", unconditional={**BASE["unconditional"], "order": "latent_first", "length": 5},
        images={"caption": {"kind": "entropy"}, "length": 6},
    )  # fmt: skip
    own, alone = ("sampling.text", made.text), ("sampling.unconditional.text", made.unconditional.text)
    assert {task: made.text_sampler(task) for task in TASKS} == {
        "l2t": (*own, True), "t2l": None, "unconditional": (*alone, True), "infill": (*own, False),
        "edit": (*own, True), "interpolate": (*own, True), "caption_to_image": None, "image_text": None,
        "image_to_caption": ("sampling.images.caption", made.images.caption, True),
    }  # fmt: skip
    assert {task: made.length_of(task) for task in TASKS} == {
        "l2t": "top-4", "interpolate": "top-4", "unconditional": 5, "image_to_caption": 6, "image_text": "sample",
        "t2l": None, "infill": None, "edit": None, "caption_to_image": None,
    }  # fmt: skip
    assert config().text_sampler("image_to_caption") is None
    assert config(images={"caption": {"kind": "ddim"}}).text_sampler("image_to_caption") is None
    text_first = config(unconditional={**BASE["unconditional"], "order": "text_first"})
    assert text_first.text_sampler("unconditional") == (*alone, False)
    given = config(infill={"texts": ["a [MASK]"], "latents_of": ["b"]})
    assert given.text_sampler("infill") == (*own, True)
    assert (given.use("infill"), config().use("infill"), given.use("edit")) == ("infill_given_latent", "infill", "edit")


@pytest.mark.parametrize(
    ("section", "good", "bad", "message"),
    [
        ("edit", {"sources": ["a", "b"], "targets": ["c"]}, {"sources": ["a", "b"]},
         "one for each of 2 sources, found 0"),
        ("edit", {"sources": ["a", "b", "c"], "targets": ["d"] * 3}, {"sources": ["a", "b", "c"], "targets": ["d"] * 2},
         "one for each of 3 sources, found 2"),
        ("edit", {"targets": ["d"] * 2}, {"sources": ["a"], "targets": ["d"] * 2},
         "one for each of 1 sources, found 2"),
        ("infill", {"texts": ["a", "b"], "latents_of": ["c", "d"]}, {"texts": ["a", "b"], "latents_of": ["c"]},
         "one text for each of 2 texts, found 1"),
        ("interpolate", {"starts": ["a"], "ends": ["b"], "steps": 2}, {"starts": ["a"], "ends": []},
         "found 1 starts, 0 ends"),
        ("interpolate", {"starts": [], "ends": []}, {"starts": [], "ends": ["b"]}, "found 0 starts, 1 ends"),
        ("interpolate", {"steps": 2}, {"steps": 1}, "steps must be at least 2"),
        ("images", {"image": {"kind": "ddim", "draws": 1}}, {"image": {"kind": "ddim", "draws": 2}},
         "image.draws is 2"),
        ("images", {"caption": {"kind": "ddim", "draws": 1}}, {"caption": {"kind": "ddim", "draws": 2}},
         "caption.draws is 2"),
        ("images", {"length": "sample"}, {"length": "top-1"}, "length 'top-1' ranks captions"),
        ("unconditional", {"length": "argmax"}, {"length": "top-1"}, "length 'top-1' ranks texts"),
        ("unconditional", {"latent": {"kind": "ddim", "draws": 2}},
         {"order": "latent_first", "latent": {"kind": "ddim", "draws": 2}}, "latent.draws is 2"),
        ("unconditional",
         {"order": "together", "text": {"kind": "ancestral", "steps": 9}, "latent": {"kind": "ddim", "steps": 9}},
         {"order": "together", "text": {"kind": "ancestral", "steps": 8}, "latent": {"kind": "ddim", "steps": 9}},
         "expected text.steps 9, found 8"),
        ("unconditional",
         {"order": "together", "text": {"kind": "ancestral", "steps": 9}, "latent": {"kind": "ddim", "steps": 9}},
         {"order": "together", "text": {"kind": "ancestral", "steps": 9, "guidance": 2.0},
          "latent": {"kind": "ddim", "steps": 9}}, "expected text.guidance 1.0, found 2.0"),
        ("unconditional",
         {"order": "together", "text": {"kind": "ancestral", "steps": 9}, "latent": {"kind": "ddim", "steps": 9}},
         {"order": "together", "text": {"kind": "ancestral", "steps": 9},
          "latent": {"kind": "ddim", "steps": 9, "guidance": 2.0}}, "expected latent.guidance 1.0, found 2.0"),
        ("unconditional", {"order": "text_first"}, {"order": "together"},
         "expected text.kind 'ancestral', found 'random'"),
    ],
)  # fmt: skip
def test_a_section_accepts_what_fits_together_and_nothing_else(
    section: str, good: dict[str, Any], bad: dict[str, Any], message: str
) -> None:
    base = BASE["unconditional"] if section == "unconditional" else {}
    assert config(**{section: {**base, **good}})
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        config(**{section: {**base, **bad}})


@pytest.mark.parametrize(
    ("section", "key", "good", "bad"),
    [
        (SearchConfig, "candidates", (1, 1000), (0, 1001)), (SearchConfig, "rounds", (0, 1000), (-1, 1001)),
        (SearchConfig, "beam", (1, 1000), (0, 1001)), (SearchConfig, "lengths", (1, 2), (0, -1)),
        (SearchConfig, "remask_ratio", (0, 1), (-0.1, 1.1)), (SearchConfig, "remask_noise", (0, 9), (-0.1,)),
        (SearchConfig, "resize", (0, 1), (-0.1, 1.1)), (SearchConfig, "good_enough", (1e-9, 2), (0, -1)),
        (SearchConfig, "temperature", (0, COLDEST, HOTTEST), (-1, COLDEST / 2, 2 * HOTTEST)),
        (L2tConfig, "samples", (1, 1000), (0, 1001)), (L2tConfig, "keep", ("best", "all"), ("some",)),
        (EditConfig, "strength", (0, 1), (-0.1, 1.1)), (EditConfig, "which", ("random",), ("likely",)),
        (InterpolateConfig, "steps", (2, 10_000), (1, 10_001)), (InterpolateConfig, "path", ("lerp",), ("line",)),
        (ImageTasksConfig, "joint_steps", (1, 10_000), (0, 10_001)),
    ],
)  # fmt: skip
def test_a_setting_of_a_task_accepts_its_limits_and_nothing_beyond(
    section: Any, key: str, good: tuple[Any, ...], bad: tuple[Any, ...]
) -> None:
    for value in good:
        assert getattr(parse(section, {key: value}, at="here"), key) == value
    for value in bad:
        with pytest.raises(ConfigurationError, match=f"'here.{key}'"):
            parse(section, {key: value}, at="here")


@pytest.mark.parametrize("task", sorted(INPUTS))
def test_a_task_without_an_input_names_the_parameters_that_give_it_one(task: Task) -> None:
    """Each parameter of the message is one that gives the task an input."""
    with pytest.raises(ConfigurationError) as error:
        config(tasks=[task])
    named = str(error.value).partition("has no input: set ")[2].rstrip(".").replace(" or ", ", ").split(", ")
    given = [".".join([key, *(value if isinstance(value, dict) else ())][:2]) for each in INPUTS[task]
             for key, value in each.items()]  # fmt: skip
    assert sorted(named) == sorted(given)
