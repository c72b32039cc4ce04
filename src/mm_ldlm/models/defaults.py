"""float32 and the CPU as the defaults of new tensors, whatever the program around has set."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

_lock, _inside, _outside = threading.Lock(), [0], [torch.float32]


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Make float32 and the CPU the defaults of new tensors; the previous defaults return at the end.

    A notebook that sets `torch.set_default_dtype(torch.float64)` would otherwise mix both types in one product, and one
    that sets `torch.set_default_device("meta")` would compute nothing. The default type belongs to the process, so the
    first thread that comes in sets it and the last one restores it; each thread has its own default device.
    """
    with _lock:
        if _inside[0] == 0:
            _outside[0] = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
        _inside[0] += 1
    try:
        elsewhere = torch.get_default_device().type != "cpu"
        with torch.device("cpu") if elsewhere else nullcontext():
            yield
    finally:
        with _lock:
            _inside[0] -= 1
            if _inside[0] == 0:
                torch.set_default_dtype(_outside[0])
