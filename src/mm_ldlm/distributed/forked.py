"""Ranks that are forked from this process, for a short task on the CPU of this host.

They share the memory of this process, so that they import nothing again. Their changes of threads, environment and
random generators end with them. A forked process must not use a pool of threads of its parent: each has one thread.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.distributed as dist

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import interfaces
from mm_ldlm.distributed.process import Process, die_with_parent, joined

HOST = "127.0.0.1"


def run_forked(work: Callable[[Process], Any], *, processes: int, seconds: float) -> Any:
    """Run `work` in forked processes that form a process group; return its result on rank 0.

    Args:
        work: receives the rank; its result is converted to JSON.
        seconds: the ranks are killed after so many seconds.

    Raises:
        WorkerFailed: a rank failed or was lost, a process could not be started, or the time was over.
    """
    started: list[Any] = []
    context = multiprocessing.get_context("fork")
    try:
        store = _store(seconds) if processes > 1 else None
        results, send = context.Pipe(duplex=False)
    except (dist.DistError, RuntimeError, OSError) as error:
        raise WorkerFailed(f"no process group could be made ({type(error).__name__}: {error})") from None
    environment = _environment(processes, port=0 if store is None else store.port)
    try:
        with _interrupts_deferred():
            for rank in range(processes):
                one = context.Process(target=_rank, args=(work, send, environment, rank), daemon=True)
                try:
                    one.start()
                except OSError as error:
                    raise WorkerFailed(f"no process could be started ({error.strerror or error})") from None
                started.append(one)
        return _first_result(results, started, seconds)
    finally:
        with _interrupts_deferred():
            for one in started:
                one.kill()
            for one in started:
                one.join()
                one.close()
            results.close()
            send.close()


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the context: in the middle of a fork it would lose the process."""
    usual, late = signal.getsignal(signal.SIGINT), []
    if usual is None or threading.current_thread() is not threading.main_thread():
        yield  # Python's handlers run in the main thread only
        return
    signal.signal(signal.SIGINT, lambda *_: late.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if late:
            signal.raise_signal(signal.SIGINT)


def _store(seconds: float) -> dist.TCPStore:
    """Open the store in which the ranks find each other, at a free port."""
    timeout = datetime.timedelta(seconds=seconds)
    return dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=timeout)


def _environment(processes: int, *, port: int) -> dict[str, str]:
    """Return the variables that a rank reads (`distributed.environment.rank_info`), except its own number."""
    found = {
        "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    interface = interfaces.interface_of(HOST)
    return found if interface is None else found | {"GLOO_SOCKET_IFNAME": interface}


def _first_result(results: Connection, ranks: list[Any], seconds: float) -> Any:
    """Wait for the result of rank 0, or for the first rank that fails."""
    deadline, running = time.monotonic() + seconds, {rank.sentinel: rank for rank in ranks}
    while True:
        ready = wait([results, *running], timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise WorkerFailed(f"no result within {seconds:g} s")
        if results in ready:
            message = json.loads(results.recv_bytes())
            if "error" in message:
                raise WorkerFailed(message["error"])
            return message["result"]
        for sentinel in ready:
            assert isinstance(sentinel, int)
            rank = running.pop(sentinel)
            rank.join()
            if rank.exitcode:
                raise WorkerFailed(f"a process ended with exit code {rank.exitcode}")


def _rank(work: Callable[[Process], Any], send: Connection, environment: dict[str, str], rank: int) -> None:
    """Join the group and call `work`, in a forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which kills the ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})

    def answer(**message: Any) -> None:
        send.send_bytes(json.dumps(message).encode())

    try:
        with joined(device="cpu", timeout_minutes=1, threads=1) as process:
            try:
                result = work(process)
                if process.is_main:
                    answer(result=result)
            except Exception as error:  # the parent reports it; the other ranks fail when this one leaves the group
                answer(error=f"{type(error).__name__}: {error}"[:1000])
    except WorkerFailed as error:
        answer(error=str(error))
