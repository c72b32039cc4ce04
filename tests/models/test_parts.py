"""Parts and freezing, sizes of the data, and models that cannot be made."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.components import inputs_of, model_of, outputs_of, random_batch
from torch import nn

from mm_ldlm.core import ConfigurationError, FreezingError
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.blocks import Linear
from mm_ldlm.models.parts import FreezingSnapshot, Part, count_by_part, freeze, tag, tagged_parameters


def parts(root: nn.Module) -> dict[str, str]:
    return {name: part.name for name, part, _ in tagged_parameters(root)}


def two_layers() -> nn.Sequential:
    """Part "outer" with a layer of its own part "inner"."""
    return tag(nn.Sequential(nn.Linear(2, 3), tag(nn.Sequential(nn.Linear(3, 1)), "inner", input=True)), "outer")


def test_a_tag_holds_for_everything_below_and_survives_wrapping_and_copying() -> None:
    model = two_layers()
    model.register_module("absent", None)
    model.append(tag(nn.Linear(1, 1, bias=False), "last"))
    expected = ["outer", "outer", "inner", "inner", "last"]
    assert list(parts(model).values()) == expected
    assert list(parts(nn.ModuleDict({"module": copy.deepcopy(model).double()})).values()) == expected
    layer = nn.Linear(1, 1)
    assert tag(layer, "own", input=True) is layer
    assert next(tagged_parameters(layer))[1] == Part("own", input=True, occasional=False)


def test_a_shared_parameter_belongs_to_the_first_layer_that_holds_it() -> None:
    first, second = tag(nn.Linear(2, 2, bias=False), "embedding"), tag(nn.Linear(2, 2), "head")
    second.weight = first.weight
    assert parts(nn.ModuleList([first, second])) == {"0.weight": "embedding", "1.bias": "head"}
    second.requires_grad_(False)
    assert count_by_part(nn.ModuleList([first, second])) == {
        "embedding": {"trains": 0, "frozen": 4}, "head": {"trains": 0, "frozen": 2}
    }  # fmt: skip


def test_a_parameter_without_a_part_is_refused_by_name(refuses: Any) -> None:
    with refuses(FreezingError, "extra.weight"):
        list(tagged_parameters(nn.ModuleDict({"first": two_layers(), "extra": nn.Linear(2, 2)})))


def test_freezing_is_by_parts_and_another_mode_thaws() -> None:
    model = two_layers()
    freeze(nn.Sequential(model), {"outer"})
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    freeze(model, {"inner"}, trained=True)
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]


@pytest.mark.parametrize(("frozen", "named"), [({"outer", "inner"}, "inner"), ({"outer", "iner"}, "iner")])
def test_pitfall_10_a_frozen_random_input_and_an_unknown_part_are_refused(
    frozen: set[str], named: str, refuses: Any
) -> None:
    model = two_layers()
    with refuses(FreezingError, named):
        freeze(model, frozen)
    assert all(p.requires_grad for p in model.parameters()), "nothing was changed"


def move(model: Any) -> None:
    model.latent_head.linear.bias.data[0] += 1e-7


def thaw(model: Any) -> None:
    model.latent_head.linear.bias.requires_grad_(True)


def stop(model: Any) -> None:
    model.text_head.linear.weight.requires_grad_(False)


@pytest.mark.parametrize(
    ("fault", "named"),
    [(move, "latent_head.linear.bias"), (thaw, "latent_head.linear.bias"), (stop, "text_head.linear.weight")],
)
def test_pitfall_10_every_fault_of_freezing_is_found(fault: Callable[..., None], named: str, refuses: Any) -> None:
    model = model_of("mmdit", {}).train()
    freeze(model, {"latent_head"})
    snapshot = FreezingSnapshot(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    found = outputs_of(model(**inputs_of(model, random_batch()), heads=("text", "length")))
    torch.stack([x.square().mean() + 0.1 * x.sum() for x in found.values()]).sum().backward()
    optimizer.step()
    snapshot.verify(model)
    fault(model)
    with refuses(FreezingError, named):
        snapshot.verify(model)


# -- sizes of the data -------------------------------------------------------------------------------------------------


def test_ids_of_noise_follow_those_of_the_tokenizer() -> None:
    shape = DataShape(vocab_size=4, pad_id=4, mask_id=0, max_length=3, noise_ids=2, fields={"sounds": (2, 3, 1)})
    assert (shape.first_noise_id, shape.num_ids, shape.word_ids) == (5, 7, [1, 2, 3])
    assert dataclasses.replace(shape, pad_id=0, mask_id=4).first_noise_id == 5
    assert (shape.dim("sounds"), shape.dim("latents")) == (6, 0)


def test_data_without_what_a_model_reads_are_refused(refuses: Any) -> None:
    with refuses(ConfigurationError, "latents", "sounds", "mine"):
        DataShape(vocab_size=4, pad_id=0, mask_id=1, max_length=3, fields={"sounds": (2, 3, 1)}).require(
            "latents", kind="mine"
        )


def too_large() -> nn.Module:
    return Linear(2**40, 2**40)


def test_a_model_that_cannot_be_made_is_refused(refuses: Any) -> None:
    with refuses(ConfigurationError, "memory"):
        build_on_meta(too_large, torch.Generator())
