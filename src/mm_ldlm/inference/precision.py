"""Precision in which texts and latents are sampled: float32, or bf16 products. Likelihoods are always float32."""

import copy
import functools
import inspect
from typing import Any

import torch
from torch import nn

from mm_ldlm.core import Precision
from mm_ldlm.distributed.device import multiplies_bf16
from mm_ldlm.objectives.generation import GenerativeModel

PASSED_ON = {"length_logits", *dir(nn.Module)} - {"forward"}
"""Attributes of a model that stay as they are: all that modules have, and lengths, which are parts of likelihoods"""


def resolved(precision: Precision, device: torch.device) -> Precision:
    """Replace `auto` by bf16 if the device is faster with it, otherwise by fp32."""
    if precision != "auto":
        return precision
    return "bf16" if multiplies_bf16(device) else "fp32"


def in_precision(made: GenerativeModel, precision: Precision) -> GenerativeModel:
    """Return a generative model with the same weights that computes in fp32 or bf16."""
    if precision == "fp32":
        return made
    half = copy.copy(made)
    half.model = InBf16(made.model)
    return half


class InBf16:
    """A model whose own methods compute under autocast; everything else is the model's."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__getattr__("forward")(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        computes = name not in PASSED_ON and inspect.ismethod(found)
        return functools.partial(self._computed, found) if computes else found

    def _computed(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(next(self._model.parameters()).device.type, torch.bfloat16):
            return method(*args, **kwargs)
