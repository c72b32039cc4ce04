"""Precision of a loaded model: float32, or bf16 products where they are wanted."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mm_ldlm.core import Precision
from mm_ldlm.distributed.device import multiplies_bf16


def set_precision(model: nn.Module, precision: Precision) -> Precision:
    """Compute with this precision whenever a method of the model is called; return the precision, which is not auto."""
    device = next(model.parameters()).device
    if precision == "fp32" or (precision == "auto" and not multiplies_bf16(device)):
        return "fp32"
    for name in {"forward", *dir(type(model))} - ({*dir(nn.Module)} - {"forward"}):
        if not name.startswith("_") and inspect.ismethod(method := getattr(model, name)):
            setattr(model, name, _in_bf16(method, device.type))
    return "bf16"


def _in_bf16(method: Callable[..., Any], device: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def computed(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return method(*args, **kwargs)

    return computed
