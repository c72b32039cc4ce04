"""Parts of a model: tags on modules, by which parameters are frozen, counted and reported; and their freezing.

The tag of a module applies to all modules below it that have no tag themselves. Names of parameters are never
matched, because wrappers change them. Tags survive DDP, FSDP2, `torch.compile` and a move between devices. Every model
chooses its own parts.
"""

import dataclasses
from collections.abc import Collection, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from mm_ldlm.core import FreezingError, nearest

M = TypeVar("M", bound=nn.Module)


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a model that a parameter belongs to.

    Attributes:
        input: whether the layer reads raw data; frozen at random initial values it would destroy its input.
        occasional: whether it is trained only on some steps (a learned null condition), and can lack a gradient for
            many steps.
    """

    name: str
    input: bool = False
    occasional: bool = False

    def __str__(self) -> str:
        return self.name


def tag(module: M, part: str, *, input: bool = False, occasional: bool = False) -> M:
    """Mark a module as belonging to a part, and return it."""
    module._mm_ldlm_part = Part(part, input, occasional)  # type: ignore[assignment]
    return module


def tagged_parameters(root: nn.Module) -> Iterator[tuple[str, Part, nn.Parameter]]:
    """Yield (name, part, parameter) once for every parameter; a shared one belongs to the first layer that has it.

    Raises:
        FreezingError: a parameter has no tag.
    """
    waiting: list[tuple[str, nn.Module, Part | None]] = [("", root, None)]
    seen: set[int] = set()
    while waiting:
        prefix, module, part = waiting.pop()
        part = getattr(module, "_mm_ldlm_part", part)
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if part is None:
                raise FreezingError(
                    f"parameter {prefix}{name} belongs to no part. Call models.parts.tag where its layer is made."
                )
            yield f"{prefix}{name}", part, parameter
        children = [(f"{prefix}{name}.", child, part) for name, child in module._modules.items() if child is not None]
        waiting += reversed(children)


def count_by_part(root: nn.Module) -> dict[str, dict[str, int]]:
    """Count the trained and the frozen parameters (elements) of each part."""
    counts: dict[str, dict[str, int]] = {}
    for _, part, parameter in tagged_parameters(root):
        entry = counts.setdefault(part.name, {"trains": 0, "frozen": 0})
        entry["trains" if parameter.requires_grad else "frozen"] += parameter.numel()
    return counts


# -- freezing ----------------------------------------------------------------------------------------------------------


def freeze(root: nn.Module, frozen: Collection[str], *, trained: bool = False) -> None:
    """Set `requires_grad` on every parameter: False for the parts named in `frozen`, True for all others.

    Args:
        trained: whether the parameters come from a checkpoint.

    Raises:
        FreezingError: the model has no such part, or an input layer would be frozen at its random initial values.
    """
    parts = {part.name: part for _, part, _ in tagged_parameters(root)}
    if unknown := sorted(set(frozen) - set(parts)):
        hint = nearest(unknown[0], parts)
        raise FreezingError(f"expected parts of the model ({', '.join(sorted(parts))}), found {unknown}.{hint}")
    if untrained := sorted(name for name in frozen if parts[name].input and not trained):
        raise FreezingError(
            f"{', '.join(untrained)} would be frozen at random initial values, and an input layer with random weights "
            "destroys its input. Load trained weights first (training.init_from), or leave these parts trainable."
        )
    for _, part, parameter in tagged_parameters(root):
        parameter.requires_grad_(part.name not in frozen)


class FreezingSnapshot:
    """Copies of the frozen parameters at the start of training, on their device.

    The sanity stage also checks that every other parameter receives gradients (`extras.sanity`).
    """

    def __init__(self, root: nn.Module) -> None:
        self.values: dict[str, Tensor] = {
            name: parameter.detach().clone()
            for name, _, parameter in tagged_parameters(root)
            if not parameter.requires_grad
        }

    def verify(self, root: nn.Module) -> None:
        """Compare what is frozen now with the snapshot.

        Raises:
            FreezingError: a frozen parameter changed or became trainable, or a trainable one was frozen.
        """
        faults = [
            f"{name} ({part})"
            for name, part, parameter in tagged_parameters(root)
            if parameter.requires_grad is (name in self.values)
            or (name in self.values and not torch.equal(self.values[name], parameter.detach()))
        ]
        if faults:
            raise FreezingError(
                f"expected {len(self.values)} frozen parameters with their values of the start and all others "
                f"trainable, found {len(faults)} that differ, the first of them {', '.join(faults[:3])}."
            )
