"""Loading of weights: copy the tensors of a checkpoint into a module, plain or sharded, and check that they match."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from mm_ldlm.core import CheckpointError
from mm_ldlm.distributed.parallel import assign


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers by name that belong to a checkpoint: what a module keeps without learning it."""
    kept = module.state_dict().keys()
    return {name: value for name, value in module.named_buffers() if name in kept}


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Everything of a module that a checkpoint holds, by name: parameters, shared ones once, and persistent buffers."""
    return {**dict(module.named_parameters()), **persistent_buffers(module)}


def finite(tensor: Tensor, *, or_infinite: bool = False) -> Tensor:
    """Return whether all entries are finite, 0-D bool; with `or_infinite` only NaN is refused."""
    if not tensor.is_floating_point():
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    return ~torch.isnan(tensor).any() if or_infinite else torch.isfinite(tensor).all()


def refuse_non_finite(
    tensors: Mapping[str, Tensor], path: Path, *, remedy: str, or_infinite: Collection[str] = ()
) -> None:  # fmt: skip
    """Raise CheckpointError if a tensor contains NaN or infinity: training from it cannot recover.

    Args:
        or_infinite: names of tensors that may contain infinity (buffers, where it can stand for "none yet").
    """
    wrong = [name for name, value in tensors.items() if not bool(finite(value, or_infinite=name in or_infinite))]
    if wrong:
        raise CheckpointError(
            f"{path}: expected finite numbers, found NaN or infinity in {len(wrong)} of {len(tensors)} tensors, the "
            f"first of them {wrong[0]}. {remedy}"
        )


def load_tensors(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors by name into `targets`, in place; every rank must call it if these are sharded.

    Args:
        path: file that the tensors were read from, for the error.

    Raises:
        CheckpointError: names or shapes differ.
    """
    shapes = [
        f"{name}: expected {tuple(target.shape)}, found {tuple(tensors[name].shape)}"
        for name, target in targets.items()
        if name in tensors and tensors[name].shape != target.shape
    ]
    differing = {
        "Missing": sorted(set(targets) - set(tensors)), "Unknown": sorted(set(tensors) - set(targets)), "Shapes": shapes
    }  # fmt: skip
    if any(differing.values()):
        words = [
            f"{kind} ({len(names)}): {'; '.join(names[:3])}{' …' * (len(names) > 3)}."
            for kind, names in differing.items()
            if names
        ]
        raise CheckpointError(
            f"{path} does not fit this model. {' '.join(words)} Use the configuration that the checkpoint was trained "
            "with, or choose another checkpoint."
        )
    for name, target in targets.items():
        assign(target, tensors[name])
