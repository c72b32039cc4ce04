"""Estimate of the memory that training needs, and the refusal of what cannot fit, before anything is allocated.

The estimate is low on purpose: parameters with their gradients, optimizer states and average, and half of the outputs
of the linear layers for one micro-batch (layers of the conditioning act on examples, not on tokens). What passes may
still be too large; what is refused does not fit.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.models.base import DataShape, count_parameters, sizes_only
from mm_ldlm.training.config import TrainingConfig

_FLOAT = 4
_GIB = 2**30
_LONGEST_SENTENCE = 512
_STATES_PER_TOKEN = 8
"""Vectors that a layer of an encoder keeps for a token: residual, queries, keys, values, and the wider inner layer"""
_CGROUP = Path("/sys/fs/cgroup/memory.max")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes that the ranks of one device need together."""

    parameters: int
    """Number of trained values of one replica"""
    states: int
    """Bytes of the parameters, gradients, optimizer states and average"""
    activations: int
    """Bytes that are kept for the backward pass of one micro-batch, coarsely"""
    tokens: int
    """Tokens of one micro-batch of one rank"""

    @property
    def bytes(self) -> int:
        return self.states + self.activations


def estimate(model: Any, shape: DataShape, training: TrainingConfig, *, tokens: float) -> Estimate:
    """Estimate the memory of one rank.

    Args:
        model: configuration of a kind of model; it is built without memory for its values.
        tokens: padded tokens of a global batch.

    Raises:
        ConfigurationError: the data do not fit the model.
    """
    try:
        with sizes_only(), torch.device("meta"):
            module = model.build(shape, generator=torch.Generator())
    except (RuntimeError, OverflowError) as error:  # a dimension beyond 64 bits
        raise ConfigurationError(
            f"parameter 'model': no model of this size can be built ({str(error).splitlines()[0]}). "
            "Lower its dimensions."
        ) from None
    world = training.launch.processes * training.launch.nodes
    count = count_parameters(module)
    # The weights, their gradients, two moments of AdamW (one of Muon), and the average.
    copies = 2 + (1 if training.optimizer.name == "muon" else 2) + (1 if training.ema.enabled else 0)
    states = count * copies * _FLOAT // (world if training.parallel == "fsdp" else 1)
    micro = max(1, int(tokens / (world * training.batch.accumulation)))
    width = _FLOAT if training.precision.autocast == "fp32" else 2  # auto may become bf16
    kept = _outputs(module) // 2 // (len(module.blocks) or 1 if _recomputes(model) else 1)
    return Estimate(parameters=count, states=states, activations=micro * kept * width, tokens=micro)


def refuse_beyond_memory(model: Any, shape: DataShape, training: TrainingConfig, *, tokens: float) -> Estimate:
    """Raise ConfigurationError if the estimate exceeds the whole memory of the device; return the estimate."""
    needed = estimate(model, shape, training, tokens=tokens)
    device, found = memory_of(training.device)
    ranks = training.launch.processes if device == "CPU" else 1
    if needed.bytes * ranks <= found:
        return needed
    of_model = needed.states * ranks > found
    raise ConfigurationError(
        f"parameter '{'model' if of_model else 'training.batch'}': training needs at least "
        f"{needed.bytes * ranks / _GIB:,.1f} GiB for {needed.parameters:,} parameters and {needed.tokens:,} tokens in "
        f"a micro-batch ({needed.states / _GIB:,.1f} GiB of weights, gradients, optimizer and average, "
        f"{needed.activations / _GIB:,.1f} GiB of activations, × {ranks} processes), found {found / _GIB:,.1f} GiB "
        f"({device}). "
        + ("Lower model.dim or model.depth, or shard it (training.parallel: fsdp)." if of_model else
           "Lower training.batch, or raise training.batch.accumulation.")
    )  # fmt: skip


def refuse_large_batch(encoder: Any) -> None:
    """Raise ConfigurationError if the hidden states of one batch of the encoder exceed the memory of the device.

    An encoder that computes elsewhere needs no memory here.
    """
    if encoder.device is None:
        return
    longest = encoder.max_length or _LONGEST_SENTENCE
    tokens = min(encoder.batch_tokens, encoder.batch_rows * longest)
    needed = tokens * (encoder.dim or 1) * _FLOAT * _STATES_PER_TOKEN
    device, found = memory_of(encoder.device)
    if needed > found:
        raise ConfigurationError(
            f"parameter 'encoder.batch_tokens': a batch of {tokens:,} tokens needs at least {needed / _GIB:,.1f} GiB "
            f"for its hidden states, found {found / _GIB:,.1f} GiB ({device}). Lower encoder.batch_tokens or "
            "encoder.batch_rows."
        )


def tokens_of_a_batch(training: TrainingConfig, lengths: npt.NDArray[np.int64]) -> float:
    """Return the number of tokens of a global batch of texts of these lengths, without pads.

    With `precision.compile` a batch has its full size also if there are fewer texts.
    """
    batch, filled = training.batch, training.precision.compile and len(lengths)
    if batch.tokens is not None:
        return batch.tokens if filled else min(batch.tokens, int(lengths.sum()))
    examples = batch.examples or 0
    return (examples if filled else min(examples, len(lengths))) * (float(lengths.mean()) if len(lengths) else 0.0)


def memory_of(device: str) -> tuple[str, int]:
    """Return what the memory belongs to, "CPU" or a GPU, and its bytes: all of it, whoever uses it now."""
    if device != "cpu" and torch.cuda.is_available():
        return "one GPU", int(torch.cuda.get_device_properties(0).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(_CGROUP.read_text())
    except (OSError, ValueError):  # no control groups, or "max"
        limit = whole
    return "CPU", min(whole, limit)


def smallest_shape(*, max_length: int, latent_dim: int | None, image_size: tuple[int, int, int]) -> DataShape:
    """Return the smallest shape that the data can have, before there are data: a vocabulary of one word."""
    dim = latent_dim or 1
    return DataShape(
        vocab_size=5, pad_id=0, mask_id=1, max_length=max_length, latent_dim=dim, state_dim=dim, image_size=image_size
    )


def _outputs(module: nn.Module) -> int:
    """Values that the linear layers of a model compute per token; layers of one value per example count as well."""
    return sum(layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear))


def _recomputes(model: Any) -> bool:
    return bool(getattr(model, "gradient_checkpointing", False))
