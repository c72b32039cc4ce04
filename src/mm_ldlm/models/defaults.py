"""float32, the CPU and, after a fork, one thread as the defaults of torch, whatever the program around has set."""

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

_lock, _inside, _outside = threading.Lock(), [0], [(torch.float32, 1)]
# A process is forked while no other thread holds the lock; in the new process that thread could not release it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextmanager
def plain_defaults(threads: int | None = None) -> Iterator[None]:
    """Make float32 and the CPU the defaults of new tensors, and compute with this number of threads.

    The previous defaults return at the end. The number of threads determines how sums are split and thus their last
    bits; None leaves it as it is.

    A notebook that sets `torch.set_default_dtype(torch.float64)` would otherwise mix both types in one product, and one
    that sets `torch.set_default_device("meta")` would compute nothing. The default type, and the number of threads of
    threads that begin later, belong to the process, so the first thread that comes in keeps them and the last one
    restores them; each thread has its own default device.

    A process that was forked from one that has computed uses one thread, even if it has chosen more.
    """
    if os.getpid() != _first_process():
        torch.set_num_threads(1)
    before = torch.get_num_threads()
    with _lock:
        if _inside[0] == 0:
            _outside[0] = torch.get_default_dtype(), before
            torch.set_default_dtype(torch.float32)
        _inside[0] += 1
    if threads is not None:
        _set_threads(threads)
    try:
        elsewhere = torch.get_default_device().type != "cpu"
        with torch.device("cpu") if elsewhere else nullcontext():
            yield
    finally:
        with _lock:
            _inside[0] -= 1
            if _inside[0] == 0:
                torch.set_default_dtype(_outside[0][0])
            if threads is not None:
                _set_threads(before if _inside[0] else _outside[0][1])


def _set_threads(count: int) -> None:
    """Set the number of threads of a computation: one in a process that was forked from one that has computed."""
    torch.set_num_threads(count if os.getpid() == _first_process() else 1)


@functools.cache
def _first_process() -> int:
    """Return the process that computes first, and let those that are forked from it compute with one thread.

    The threads of OpenMP do not survive a fork, and the first parallel region of the new process would wait for them
    for ever.
    """
    os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))
    return os.getpid()
