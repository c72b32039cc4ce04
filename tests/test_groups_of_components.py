"""Registries of samplers, encoders and engines: their words, interfaces and groups, as docs/extending.md lists them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.core import kinds
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.encoders.registry import ENCODERS
from mm_ldlm.data.engines.base import ENGINES, EngineConfig
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.base import TextSampler
from mm_ldlm.sampling.gaussian import LatentSampler
from mm_ldlm.sampling.registry import CAPTION_SAMPLERS, LATENT_SAMPLERS, TEXT_SAMPLERS, AnySampler

EXTENDING = Path(__file__).parents[1] / "docs" / "extending.md"
DOCUMENTED = {
    "model": MODELS, "objective": OBJECTIVES, "text process": TEXT_PROCESSES, "text sampler": TEXT_SAMPLERS,
    "latent sampler": LATENT_SAMPLERS, "encoder": ENCODERS, "engine": ENGINES,
}  # fmt: skip


def test_the_groups_in_the_documentation_are_those_of_the_registries() -> None:
    row = re.compile(r"^\| ([a-z ]+) \| `src/mm_ldlm/[^|]*\| `(mm_ldlm\.\w+)` \|$", re.MULTILINE)
    rows = row.findall(EXTENDING.read_text())
    assert dict(rows) == {what: registry.group for what, registry in DOCUMENTED.items()}
    assert len({registry.group for registry in DOCUMENTED.values()}) == len(DOCUMENTED)
    for what, registry in DOCUMENTED.items():
        assert registry.what == what


@pytest.mark.parametrize(
    ("registry", "words", "group", "interface", "known"),
    [
        (TEXT_SAMPLERS, "a text sampler", "mm_ldlm.text_samplers", TextSampler, "confidence"),
        (LATENT_SAMPLERS, "a latent sampler", "mm_ldlm.latent_samplers", LatentSampler, "ddim"),
        (CAPTION_SAMPLERS, "a caption sampler", "mm_ldlm.text_samplers", AnySampler, "heun"),
        (ENGINES, "an engine", "mm_ldlm.data.engines", EngineConfig, "local"),
    ],
)  # fmt: skip
def test_other_packages_add_components_under_the_group_of_their_kind(
    registry: Any, words: str, group: str, interface: type, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (registry.group, registry.interface) == (group, interface)
    asked: list[str] = []
    point = SimpleNamespace(name="added", value=registry.known[known])
    monkeypatch.setattr(kinds, "entry_points", lambda group: asked.append(group) or [point])
    assert registry.find("added", at="x") is registry.find(known, at="x")
    assert asked == [group]
    with pytest.raises(ConfigurationError, match=rf"^parameter 'x\.kind': expected {words}, found 'addd'\.") as error:
        registry.find("addd", at="x")
    assert "Did you mean 'added'?" in str(error.value)
    other = ENGINES.known["ray"] if registry is not ENGINES else LATENT_SAMPLERS.known["ddim"]
    with pytest.raises(ConfigurationError, match=rf"expected {words}, found {re.escape(other)}, which is not one: it"):
        registry.find(other, at="x")


def test_captions_are_sampled_by_every_sampler_of_texts_and_of_latents() -> None:
    assert {**TEXT_SAMPLERS.known, **LATENT_SAMPLERS.known} == CAPTION_SAMPLERS.known
    assert not TEXT_SAMPLERS.known.keys() & LATENT_SAMPLERS.known.keys()


@pytest.mark.parametrize("registry", [TEXT_SAMPLERS, LATENT_SAMPLERS, ENGINES], ids=lambda each: each.group)
def test_each_kind_names_the_class_that_has_this_kind(registry: Any) -> None:
    found = {kind: registry.find(kind, at="x") for kind in registry.known}
    assert {kind: each.kind for kind, each in found.items()} == {kind: kind for kind in registry.known}
    assert {kind: registry.name(each, "?") for kind, each in found.items()} == {kind: kind for kind in registry.known}
