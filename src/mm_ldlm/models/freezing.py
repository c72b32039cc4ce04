"""Freezing of parts, and the check that frozen parameters stay as they are and all others are trained."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from mm_ldlm.core.errors import FreezingError
from mm_ldlm.core.messages import nearest
from mm_ldlm.models.parts import tagged_parameters


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


# -- the check ----------------------------------------------------------------------------------------------------


class FreezingSnapshot:
    """Snapshot of the frozen parameters at the start of training, and record of the gradients seen since.

    Frozen parameters are copied on their device. For the others only whether a gradient was seen is kept.
    """

    def __init__(self, root: nn.Module) -> None:
        self.values: dict[str, Tensor] = {
            name: parameter.detach().clone()
            for name, _, parameter in tagged_parameters(root)
            if not parameter.requires_grad
        }
        self.had_gradient: set[str] = set()

    def observe(self, root: nn.Module) -> None:
        """Record which parameters have a non-zero gradient. Call after a backward pass, before gradients are cleared.

        The call synchronises with the host once; parameters already recorded are not checked again.
        """
        waiting = [
            (name, parameter.grad)
            for name, _, parameter in tagged_parameters(root)
            if parameter.grad is not None and name not in self.had_gradient
        ]
        if waiting:
            nonzero = torch.stack([(gradient != 0).any() for _, gradient in waiting]).tolist()
            self.had_gradient.update(name for (name, _), seen in zip(waiting, nonzero, strict=True) if seen)


def verify_parameter_freezing(
    root: nn.Module,
    snapshot: FreezingSnapshot,
    *,
    check_gradients: bool = True,
    idle_parts: Collection[str] = frozenset(),
) -> None:
    """Compare what is trained and what is frozen with a snapshot taken before the first step.

    `idle_parts` have no loss by configuration (a weight of 0) and need no gradient. With `check_gradients=False`
    (before the first step) only frozen parameters are checked. At the start adaLN-Zero makes the gradients inside the
    blocks exactly 0: observe a later step.

    Raises:
        FreezingError: a frozen parameter moved, became trainable or had a gradient; a trainable one had none.
    """
    faults = []
    for name, part, parameter in tagged_parameters(root):
        before = snapshot.values.get(name)
        moved = before is not None and not torch.equal(before.to(parameter.device), parameter.detach())
        seen = name in snapshot.had_gradient
        if moved:
            faults.append(f"{name} ({part}) is frozen and has moved")
        if before is not None and parameter.requires_grad:
            faults.append(f"{name} ({part}) was frozen at the start and is trainable now")
        if before is None and not parameter.requires_grad:
            faults.append(f"{name} ({part}) was trainable at the start and is frozen now")
        if before is not None and seen:
            faults.append(f"{name} ({part}) is frozen and had a gradient")
        excused = part.occasional or part.name in idle_parts
        if check_gradients and before is None and parameter.requires_grad and not seen and not excused:
            faults.append(f"{name} ({part}) is trainable and has had no gradient")
    if faults:
        shown = "\n  ".join(faults[:10]) + (f"\n  … and {len(faults) - 10} more" if len(faults) > 10 else "")
        raise FreezingError(f"{len(faults)} faults: parameters are not trained or frozen as configured:\n  {shown}")
