"""The registries of objectives, models and text processes: each kind names its own class, other packages add to each
under a group of its own, and a component of another registry is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.core import kinds
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.models.base import ModelConfig
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import ObjectiveConfig
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig

# registry, its component in words, its group of entry points, its interface, and one class of it
REGISTRIES: list[tuple[Any, str, str, type, type]] = [
    (OBJECTIVES, "an objective", "mm_ldlm.objectives", ObjectiveConfig, TextDiffusionConfig),
    (MODELS, "a model", "mm_ldlm.models", ModelConfig, DiTConfig),
    (TEXT_PROCESSES, "a text process", "mm_ldlm.text_processes", TextProcessConfig, AbsorbingConfig),
]


@pytest.mark.parametrize("registry", [row[0] for row in REGISTRIES], ids=lambda each: each.group)
def test_every_kind_names_the_class_that_has_this_kind(registry: Any) -> None:
    found = {kind: registry.find(kind, at="x") for kind in registry.known}
    assert {kind: each().kind for kind, each in found.items()} == {kind: kind for kind in registry.known}
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(("registry", "what", "group", "interface", "own"), REGISTRIES, ids=lambda each: str(each))
def test_a_registry_has_words_a_group_and_an_interface_of_its_own(
    registry: Any, what: str, group: str, interface: type, own: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (registry.group, registry.interface) == (group, interface)
    asked: list[str] = []
    point = SimpleNamespace(name="added", value=f"{own.__module__}:{own.__name__}")
    monkeypatch.setattr(kinds, "entry_points", lambda group: asked.append(group) or [point])
    assert registry.find("added", at="x") is own
    assert asked == [group]
    with pytest.raises(ConfigurationError, match=rf"^parameter 'x\.kind': expected {what}, found 'no_such_kind'\."):
        registry.find("no_such_kind", at="x")
    for other in (row[-1] for row in REGISTRIES if row[-1] is not own):
        with pytest.raises(ConfigurationError, match=rf"expected {what}, found .*{other.__name__}, which is not one"):
            registry.find(f"{other.__module__}:{other.__name__}", at="x")
