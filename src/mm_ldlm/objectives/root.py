"""Trainable root: the only module whose parameters are optimised, averaged, saved, restored, frozen and checked."""

import itertools
import traceback
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, get_args

import torch
from torch import Tensor, nn

from mm_ldlm.core import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape, Unset, init_weights
from mm_ldlm.models.parts import tag
from mm_ldlm.objectives.base import Batch, Losses, Objective, Unit


class TrainableRoot(nn.Module):
    """Module of the model and the objective; its forward pass returns the losses of one micro-batch.

    Parameters of the objective, of its process and of its schedules without a tagged part belong to the part
    "objective".
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective: Any = objective
        if isinstance(objective, nn.Module) and not hasattr(objective, "_mm_ldlm_part"):
            tag(objective, "objective")
        self.call_as(model)
        self.checked_kinds = set[str]()

    def call_as(self, model: nn.Module) -> None:
        """Let the forward pass call this form of the model (such as the compiled one), which shares its parameters."""
        object.__setattr__(self, "forward_model", model)  # not a submodule: its parameters would be listed twice

    def forward(self, batch: Batch, generator: RowGenerator, kind: str, step: int) -> Losses:
        try:
            losses: Losses = self.objective(self.forward_model, batch, generator, kind=kind, step=step)
        except TypeError as error:
            if traceback.extract_tb(error.__traceback__)[-1].filename != nn.modules.module.__file__:
                raise  # not raised where torch calls a forward pass with arguments that it does not accept
            raise ConfigurationError(
                f"expected forward passes of the model and the objective that accept the arguments of their calls, "
                f"found: {error}. Correct the names of the arguments in the forward pass or its call."
            ) from error
        if malformed := [name for name, pair in losses.items() if not _is_loss(pair)]:
            raise ConfigurationError(
                "expected each loss of the objective as (sum over the micro-batch, count), two 0-D tensors, found "
                f"another form of {', '.join(malformed)}. Correct what `forward` of the objective returns."
            )
        weights = self.objective.weights
        forgotten = [
            name
            for name, (value, _) in losses.items()
            if name not in weights and (value.requires_grad or name.endswith("_loss"))
        ]
        trained = [name for name in weights if name in losses]
        if forgotten or not trained:
            raise ConfigurationError(
                f"expected losses with a weight ({', '.join(weights)}) from the objective, found "
                f"{', '.join(forgotten or losses) or 'none'} in steps of kind '{kind}'. Add each trained loss to "
                "`weights` and `units` of the objective; detach a number that is only reported; its name must not "
                "end in _loss."
            )
        if torch.is_grad_enabled() and kind not in self.checked_kinds and not hasattr(self, "reshard"):  # not FSDP's
            self.checked_kinds.add(kind)
            self._refuse_parameters_outside(losses)
        return losses

    def _refuse_parameters_outside(self, losses: Losses) -> None:
        """Refuse losses that depend on a learnable parameter outside this module."""
        held = {id(parameter) for parameter in self.parameters()}
        paths = {id(tensor): path for path, tensor in _learnable({"model": self.model, "objective": self.objective})}
        for leaf in _leaves(losses):
            # a tensor that no object holds is not learned, such as a time at which a schedule is differentiated
            if id(leaf) not in held and (isinstance(leaf, nn.Parameter) or id(leaf) in paths):
                raise ConfigurationError(
                    f"expected every learnable parameter in the trainable root, found "
                    f"{paths.get(id(leaf), 'one of shape')} {tuple(leaf.shape)} outside: it would have gradients, but "
                    "never be updated, averaged or saved. Make it an nn.Parameter of an nn.Module that is an attribute "
                    "of the model, the objective, the process or the schedule."
                )


def build_root(
    model: Any,
    objective: Any,
    shape: DataShape,
    *,
    generator: torch.Generator,
    stores: Mapping[str, Tensor],
    fixed_shapes: bool = False,
) -> TrainableRoot:
    """Build the model and the objective of two configurations, with initial values from `generator`.

    Args:
        stores: stores from which the objective is made, and those from which the initial weights are made, if any.
        fixed_shapes: see `Objective`.

    Raises:
        ConfigurationError: the data do not fit the model or the objective, or the objective lacks what its interface
            promises.
    """
    with Unset():
        module = model.build(
            shape, generator=generator, **{name: stores[name] for name in model.stores if name in stores}
        )
        made = objective.build(shape, **{name: stores[name] for name in objective.stores})
    known = {name for name, unit in made.units.items() if unit in get_args(Unit)}
    if not any(weight > 0 for weight in made.weights.values()) or made.weights.keys() - known:
        raise ConfigurationError(
            f"parameter 'objective': expected {type(made).__name__} to have a weight above 0 for at least one loss, "
            f"and a unit, tokens or examples, for each weight, found the weights {dict(made.weights)} and the units "
            f"{dict(made.units)}. Correct `weights` and `units` of the objective."
        )
    made.fixed_shapes = fixed_shapes
    made.attach(module)
    init_weights(made, generator)
    made.generative_model(module)  # a class that lacks methods is refused here, not after the training
    root = TrainableRoot(module, made)
    held = itertools.chain(root.named_parameters(), module.named_buffers("model"))  # an objective's buffer may be NaN
    if unset := [name for name, value in held if value.isnan().any()]:
        raise ConfigurationError(
            f"parameter 'model': expected initial values of every parameter, found none of {', '.join(unset[:3])}. "
            "Set them in the method init_weights(generator) of their module; build_on_meta calls those of a model."
        )
    return root


def _is_loss(pair: Any) -> bool:
    return isinstance(pair, tuple) and [isinstance(each, Tensor) and each.dim() == 0 for each in pair] == [True, True]


def _leaves(losses: Losses) -> Iterator[Tensor]:
    """Yield the tensors for which the backward pass of losses accumulates gradients."""
    waiting, seen = [value.grad_fn for value, _ in losses.values()], set[Any]()
    while waiting:
        if (node := waiting.pop()) is None or node in seen:
            continue
        seen.add(node)
        waiting += [each for each, _ in node.next_functions]
        if hasattr(node, "variable"):
            yield node.variable


def _learnable(roots: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of every learnable tensor that objects reach by attributes, containers and functions."""
    waiting, seen = list(roots.items()), set[int]()
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, ModuleType)):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.is_leaf and value.requires_grad:
                yield path, value
        elif isinstance(value, Mapping):
            waiting += [(f"{path}[{key!r}]", each) for key, each in value.items()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += [(f"{path}[{place}]", each) for place, each in enumerate(value)]
        elif isinstance(value, MethodType):
            waiting.append((path, value.__self__))
        elif isinstance(value, FunctionType):
            waiting += [(path, cell.cell_contents) for cell in value.__closure__ or ()]
        elif hasattr(value, "__dict__"):
            named = dict(vars(value))
            if isinstance(value, nn.Module):
                named |= named.pop("_parameters") | named.pop("_modules")
            waiting += [(f"{path}.{name}", each) for name, each in named.items()]
