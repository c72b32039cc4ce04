"""Batches of a request of any size: texts sorted by length, under a budget of tokens, several at a time on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from tqdm import tqdm

from mm_ldlm.core.batching import batches_by_length, lanes_of, side_by_side
from mm_ldlm.objectives.generation import GenerativeModel

MOST_LOGITS = 48_000_000
"""Largest number of logits of the model calls at one time; a float64 distribution takes eight bytes for each."""
MOST_TOKENS = 8192
"""Default number of tokens of a batch, where the vocabulary permits it"""
MOST_TOKENS_CPU = 1024
"""The same on a CPU, where small batches pad less, fit the caches, and are computed side by side"""

Result = TypeVar("Result")


def default_batch_tokens(vocab_size: int, device: torch.device) -> int:
    """Return the default number of tokens of a batch, including pads."""
    most = MOST_TOKENS_CPU if device.type == "cpu" else MOST_TOKENS
    return max(256, min(most, MOST_LOGITS // vocab_size))


def in_batches(
    work: Callable[[list[int]], Result],
    lengths: Sequence[int],
    *,
    model: GenerativeModel,
    batch_tokens: int,
    doing: str,
) -> Iterator[tuple[list[int], Result]]:
    """Yield each of `batches_by_length` with `work(batch)`, with a progress bar on a terminal after two seconds.

    On a CPU, `work` is called for several batches at a time, in threads. Batching does not change samples: the sample
    of a text depends only on its number in the request.
    """
    batches = [batch.tolist() for batch in batches_by_length(lengths, max_tokens=batch_tokens)]
    lanes = min(lanes_of(model.device), MOST_LOGITS // (batch_tokens * model.shape.vocab_size))
    with tqdm(total=len(lengths), desc=doing, unit="text", disable=None, delay=2.0, leave=False) as bar:
        for batch, result in zip(batches, side_by_side(work, batches, lanes=lanes), strict=True):
            yield batch, result
            bar.update(len(batch))
