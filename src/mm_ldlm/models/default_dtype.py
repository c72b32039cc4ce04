"""float32 as the default type of new tensors, whatever the program around has set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock, _inside, _outside = threading.Lock(), [0], [torch.float32]


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Make float32 the default type of new tensors; the previous default returns at the end.

    A notebook that sets `torch.set_default_dtype(torch.float64)` would otherwise mix both types in one product. The
    default belongs to the process, so the first thread that comes in sets it and the last one restores it.
    """
    with _lock:
        if _inside[0] == 0:
            _outside[0] = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
        _inside[0] += 1
    try:
        yield
    finally:
        with _lock:
            _inside[0] -= 1
            if _inside[0] == 0:
                torch.set_default_dtype(_outside[0])
