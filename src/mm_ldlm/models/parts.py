"""Parts of a model: tags on modules, by which parameters are frozen, counted and reported.

The tag of a module applies to all modules below it that have no tag of their own. Names of parameters are never
matched, because wrappers change them. Tags survive DDP, FSDP2, `torch.compile` and a move between devices. Every model
chooses its own parts.
"""

import dataclasses
from collections.abc import Iterator
from typing import TypeVar

from torch import nn

from mm_ldlm.core import FreezingError

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
