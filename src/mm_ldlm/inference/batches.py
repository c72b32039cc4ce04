"""Batches of a request: the rows of a request in batches of similar length, several at a time on a CPU.

The randomness of a row depends only on its number in the request and on the seed, so that batching changes no result.
What the model returns is checked here, once, for all requests.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from tqdm import tqdm

from mm_ldlm.core.config import PositiveInt, check
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.core.messages import show
from mm_ldlm.data.batching import batches_by_length, lanes_of, side_by_side
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.generation import GenerativeModel

MOST_LOGITS = 48_000_000
"""Largest number of logits of the model calls at one time; a float64 distribution takes eight bytes for each."""
MOST_TOKENS = 8192
"""Default number of tokens of a batch, where the vocabulary permits it"""
MOST_TOKENS_CPU = 1024
"""The same on a CPU, where small batches pad less, fit the caches, and are computed side by side"""
BYTES_PER_TOKEN, BYTES_PER_LOGIT = 160, 12
"""Of a token that is written: ids and statistics as Python numbers and in about twelve tensors; of a logit of a batch:
float32, and a float64 distribution"""

Values = Mapping[str, Any]
"""Name → a tensor (B, ...), or a list of B items, for the B rows of a batch"""
Result = TypeVar("Result")


class Batches:
    """The batches of requests to one model.

    Args:
        batch_tokens: number of tokens of one batch including pads; None chooses it by the device and the vocabulary.
    """

    def __init__(self, model: GenerativeModel, *, batch_tokens: int | None = None) -> None:
        vocab_size = model.shape.vocab_size
        if batch_tokens is None:
            most = MOST_TOKENS_CPU if model.device.type == "cpu" else MOST_TOKENS
            batch_tokens = max(256, min(most, MOST_LOGITS // vocab_size))
        self.model, self.batch_tokens = model, check(batch_tokens, PositiveInt, name="batch_tokens")
        refuse_beyond_memory(self.batch_tokens * vocab_size * BYTES_PER_LOGIT, f"batch_tokens {self.batch_tokens:,}")
        compute_after_forks()

    def divide(self, lengths: Sequence[int]) -> list[list[int]]:
        """Divide the rows of a request with texts of these lengths into batches."""
        return [batch.tolist() for batch in batches_by_length(lengths, max_tokens=self.batch_tokens)]

    def results(
        self, work: Callable[[list[int]], Result], batches: Sequence[list[int]], doing: str
    ) -> Iterable[Result]:
        """Return an iterator of `work(batch)`, with a progress bar on a terminal after two seconds.

        The caller consumes it within `model.evaluating()`. Threads compute several batches at a time on a CPU.
        """
        lanes = min(lanes_of(self.model.device), MOST_LOGITS // (self.batch_tokens * self.model.shape.vocab_size))
        made = side_by_side(work, batches, lanes=lanes)
        return tqdm(made, total=len(batches), desc=doing, unit="batch", disable=None, delay=2.0, leave=False)

    def joined(self, batches: Sequence[Any], results: Sequence[Values]) -> dict[str, Any]:
        """Join the values of the batches in the order of the request: tensors to arrays (n, ...), lists to lists.

        Raises:
            SamplingError: a number is not finite; the message names the rows, and a damaged weight if there is one.
        """
        order = np.argsort(np.concatenate(batches))
        found: dict[str, Any] = {}
        for name in results[0]:
            parts = [values[name] for values in results]
            if isinstance(parts[0], Tensor):
                found[name] = torch.cat(parts).cpu().numpy()[order]
                self.check_finite(found[name], name)
            else:
                items = [item for part in parts for item in part]
                found[name] = [items[place] for place in order]
        return found

    def check_finite(self, values: np.ndarray, name: str) -> None:
        """Raise SamplingError unless all values (n, ...) that the model returned for n inputs are finite."""
        rows = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
        if rows.size:
            weight = _bad_weight(self.model)
            cause = "its weights are finite. Check these inputs (the size of their latents) and the sampler (guidance, "
            cause = f"{cause}t_max)." if weight is None else f"{weight}. Choose another checkpoint."
            raise SamplingError(
                f"expected finite {name.replace('_', ' ')} from the model, found others for {len(rows)} of "
                f"{len(values)} inputs (rows {show(rows[:8].tolist())}); {cause}"
            )

    def generator(self, rows: Sequence[int] | range, seed: int) -> RowGenerator:
        """Make the generator for these rows of the request."""
        return RowGenerator(seed, torch.tensor(list(rows), dtype=torch.int64, device=self.model.device))

    def padded(self, rows: Sequence[Sequence[int]], *, length: int | None = None) -> Tensor:
        """Pad rows of ids to an int64 tensor (B, L) with [PAD] after the end of each row."""
        out = np.full((len(rows), length or max(map(len, rows))), self.model.shape.pad_id, dtype=np.int64)
        for index, row in enumerate(rows):
            out[index, : len(row)] = row
        return torch.from_numpy(out).to(self.model.device)

    def masks(self, lengths: Sequence[int]) -> list[list[int]]:
        """Make a canvas of masks for each length."""
        return [[self.model.shape.mask_id] * length for length in lengths]


def refuse_texts_beyond_memory(count: int, *, tokens: int, numbers: int = 0) -> None:
    """Raise SamplingError if `count` texts of `tokens` tokens, with `numbers` numbers each, exceed the free memory."""
    needed = count * (1_000 + tokens * BYTES_PER_TOKEN + 8 * numbers)
    refuse_beyond_memory(needed, f"{count:,} texts of up to {tokens:,} tokens")


def refuse_beyond_memory(needed: int, request: str) -> None:
    """Raise SamplingError if a request needs more bytes than the machine has free."""
    free = psutil.virtual_memory().available
    if needed > free:
        raise SamplingError(
            f"expected a request that fits the {free / 1e9:.1f} GB of free memory, found one of about "
            f"{needed / 1e9:,.1f} GB ({request}). Request less at once."
        )


@functools.cache
def compute_after_forks() -> None:
    """Let processes that are forked from this one compute with one thread.

    The threads of OpenMP do not survive a fork, and the first parallel region of the new process would wait for them
    for ever.
    """
    os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))


def _bad_weight(model: GenerativeModel) -> str | None:
    """Name the first tensor of the model that contains a number that is not finite; None if there is none."""
    for module in (value for value in vars(model).values() if isinstance(value, nn.Module)):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point() and (count := int((~torch.isfinite(tensor)).sum())):
                return f"the tensor '{name}' of this run contains {count:,} numbers that are not finite"
    return None
