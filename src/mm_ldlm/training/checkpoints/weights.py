"""Loading of weights: copy the tensors of a checkpoint into a module, plain or sharded, and check that they match."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.distributed.parallel import assign


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers by name that belong to a checkpoint: what a module keeps without learning it."""
    kept = module.state_dict().keys()
    return {name: value for name, value in module.named_buffers() if name in kept}


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Everything of a module that a checkpoint holds, by name: parameters, shared ones once, and persistent buffers."""
    return {**dict(module.named_parameters()), **persistent_buffers(module)}


def refuse_non_finite(tensors: Mapping[str, Tensor], path: Path, *, remedy: str) -> None:
    """Raise CheckpointError if a tensor contains NaN or infinity: training from such weights cannot recover."""
    wrong = [name for name, t in tensors.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    if wrong:
        raise CheckpointError(
            f"{path}: expected finite weights, found NaN or infinity in {len(wrong)} of {len(tensors)} tensors, the "
            f"first of them {wrong[0]}. {remedy}"
        )


def load_parameters(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors by name into the `saved_tensors` of a module; every rank must call it if the module is sharded.

    Args:
        path: file that the tensors were read from, for the error.

    Raises:
        CheckpointError: Names or shapes differ from those of the module.
    """
    load_tensors(saved_tensors(module), tensors, path)


def load_tensors(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors by name into `targets`, in place, like `load_parameters`."""
    missing, unknown = sorted(set(targets) - set(tensors)), sorted(set(tensors) - set(targets))
    shapes = [
        f"{name}: expected {tuple(target.shape)}, found {tuple(tensors[name].shape)}"
        for name, target in targets.items()
        if name in tensors and tensors[name].shape != target.shape
    ]
    if missing or unknown or shapes:
        raise CheckpointError(
            f"{path} does not fit this model. Missing: {missing or 'none'}. Unknown: {unknown or 'none'}. "
            f"Shapes: {'; '.join(shapes) or 'equal'}. Use the configuration that the checkpoint was trained with, or "
            "choose another checkpoint."
        )
    for name, target in targets.items():
        assign(target, tensors[name])
