"""Parts: the scope of a tag, shared parameters, untagged parameters, and counts."""

import copy

import pytest
import torch
from torch import nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import FreezingError
from mm_ldlm.models.base import count_parameters
from mm_ldlm.models.parts import Part, count_by_part, tag, tagged_parameters
from mm_ldlm.models.registry import MODELS

MULTIMODAL = {
    "text_embedding", "text_head", "latent_encoder", "latent_head", "length_head", "backbone", "conditioning",
    "null_text", "null_latent",
}  # fmt: skip


def parts(root: nn.Module) -> dict[str, str]:
    return {name: part.name for name, part, _ in tagged_parameters(root)}


def two_layers() -> nn.Sequential:
    """Part "outer" with a layer of its own part "inner"."""
    return tag(nn.Sequential(nn.Linear(2, 3), tag(nn.Sequential(nn.Linear(3, 1)), "inner")), "outer")


def test_a_tag_holds_for_everything_below_without_a_tag_of_its_own():
    assert parts(two_layers()) == {
        "0.weight": "outer", "0.bias": "outer", "1.0.weight": "inner", "1.0.bias": "inner"
    }  # fmt: skip


def test_a_place_without_a_module_or_a_parameter_has_no_part():
    model = two_layers()
    model.register_module("absent", None)
    model[1].register_parameter("absent", None)
    model.append(tag(nn.Linear(1, 1, bias=False), "last"))
    assert parts(model) == {
        "0.weight": "outer", "0.bias": "outer", "1.0.weight": "inner", "1.0.bias": "inner", "3.weight": "last"
    }  # fmt: skip


def test_tag_returns_the_module_and_takes_any_name():
    layer = nn.Linear(1, 1)
    assert tag(layer, "a part of my own", input=True) is layer
    part = next(part for _, part, _ in tagged_parameters(layer))
    assert part == Part("a part of my own", input=True, occasional=False)
    assert str(part) == "a part of my own"


def test_tags_survive_wrapping_copying_and_a_change_of_type():
    changed = copy.deepcopy(two_layers()).double()
    assert list(parts(nn.ModuleDict({"module": changed})).values()) == ["outer", "outer", "inner", "inner"]


def test_a_shared_parameter_belongs_to_the_first_layer_that_holds_it():
    first, second = tag(nn.Linear(2, 2, bias=False), "embedding"), tag(nn.Linear(2, 2), "head")
    second.weight = first.weight
    assert parts(nn.ModuleList([first, second])) == {"0.weight": "embedding", "1.bias": "head"}
    assert count_by_part(nn.ModuleList([first, second]))["embedding"]["trains"] == 4


def test_a_parameter_without_a_part_is_refused_by_name(make):
    model = make()
    model.extra = nn.Linear(2, 2)
    with pytest.raises(FreezingError, match=r"parameter extra\.weight belongs to no part.*parts\.tag"):
        list(tagged_parameters(model))


def test_parts_are_counted_by_elements_trained_and_frozen():
    model = two_layers()
    model[1].requires_grad_(False)
    model[0].bias.requires_grad_(False)
    assert count_by_part(model) == {"outer": {"trains": 6, "frozen": 3}, "inner": {"trains": 0, "frozen": 4}}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied_embeddings": True, "cross_modal_blocks": 1, "self_condition": True},
        {"direct_views": True, "token_vectors": "encoder"},
    ],
    ids=str,
)
def test_every_parameter_of_mmdit_has_one_part_and_all_parts_are_used(make, options):
    found = parts(make(**options))
    assert list(found) == [name for name, _ in make(**options).named_parameters()]
    assert set(found.values()) == MULTIMODAL


def test_inputs_and_occasional_parts_of_mmdit_are_marked(make):
    found = {part for _, part, _ in tagged_parameters(make())}
    assert {part.name for part in found if part.input} == {"text_embedding", "latent_encoder"}
    assert {part.name for part in found if part.occasional} == {"null_text", "null_latent"}


@pytest.mark.parametrize("kind", MODELS.known)
def test_the_counts_of_every_model_add_up(kind, shape):
    config = parse_kind(MODELS, {"kind": kind, "dim": 32, "depth": 2}, at="model")
    model = config.build(shape, generator=torch.Generator().manual_seed(0))
    counts = count_by_part(model)
    assert sum(n["trains"] + n["frozen"] for n in counts.values()) == count_parameters(model)
    assert all(n["frozen"] == 0 for n in counts.values())
