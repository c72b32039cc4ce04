"""Estimates of the memory that a request needs, compared with what is free before anything is allocated."""

from __future__ import annotations

import resource
from pathlib import Path

from mm_ldlm.core.errors import SamplingError

BYTES_PER_TOKEN = 160
"""Of a token of a text that is written: ids and statistics as Python numbers and in about twelve tensors"""
BYTES_PER_TEXT = 1_000
"""Of a text itself: strings, results and the canvas, without its tokens"""
BYTES_PER_LOGIT = 12
"""Of a logit of a batch: float32, and a float64 distribution"""
GB = 1e9


def refuse_texts(count: int, *, tokens: int, numbers: int = 0, what: str) -> None:
    """Raise SamplingError if `count` texts of `tokens` tokens, with `numbers` float32 each, do not fit the memory."""
    _refuse(
        count * (BYTES_PER_TEXT + tokens * BYTES_PER_TOKEN + 4 * numbers),
        f"{what}: {count:,} texts of up to {tokens:,} tokens",
        "Request fewer or shorter texts at once.",
    )


def refuse_numbers(count: int, *, what: str) -> None:
    """Raise SamplingError if `count` float64 numbers do not fit the memory."""
    _refuse(8 * count, f"{what}: {count:,} numbers", "Request less at once.")


def refuse_batch(batch_tokens: int, *, vocab_size: int) -> None:
    """Raise SamplingError if the logits of one batch do not fit the memory."""
    _refuse(
        batch_tokens * vocab_size * BYTES_PER_LOGIT,
        f"batch_tokens {batch_tokens:,} with a vocabulary of {vocab_size:,} words",
        "Set a smaller batch_tokens, or None for the default.",
    )


def free_bytes() -> float:
    """Return the free memory of the host, within the limits of this process and of its control group."""
    found = [float("inf")]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            found.append(limit - pages * resource.getpagesize())
    except (OSError, ValueError, IndexError):
        pass  # not Linux: nothing is known, and only what exceeds the address space is refused
    try:
        group = Path("/sys/fs/cgroup")
        whole, used = ((group / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        found.append(float(int(whole) - int(used)))
    except (OSError, ValueError):
        pass  # no control group, or one without a limit ("max")
    return max(0.0, min(*found, float(2**47)))


def _refuse(needed: int, request: str, remedy: str) -> None:
    free = free_bytes()
    if needed > free:
        raise SamplingError(
            f"{request}: expected a request that fits the {free / GB:.1f} GB of free memory, found one of about "
            f"{needed / GB:,.1f} GB. {remedy}"
        )
