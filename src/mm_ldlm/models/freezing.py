"""Freezing of parts, and the check that frozen parameters stay as they are."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from mm_ldlm.core import FreezingError, nearest
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
            FreezingError: a frozen parameter moved or became trainable, or a trainable one was frozen.
        """
        faults = []
        for name, part, parameter in tagged_parameters(root):
            before = self.values.get(name)
            if before is not None and not torch.equal(before.to(parameter.device), parameter.detach()):
                faults.append(f"{name} ({part}) is frozen and has moved")
            if (before is None) is not parameter.requires_grad:
                was, now = ("trainable", "frozen") if before is None else ("frozen", "trainable")
                faults.append(f"{name} ({part}) was {was} at the start and is {now} now")
        if faults:
            shown = "\n  ".join(faults[:10]) + (f"\n  … and {len(faults) - 10} more" if len(faults) > 10 else "")
            raise FreezingError(f"{len(faults)} faults: parameters are not trained or frozen as configured:\n  {shown}")
