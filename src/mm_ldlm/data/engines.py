"""Engines: where tasks run that do not depend on one another, on this host (`local`) or on a Ray cluster (`ray`).

A task is a value that a function receives, and the function returns its result: neither reads or writes files of the
data folder. Only the caller reads the inputs and writes the results, so that only its host needs that folder, and a
task that is lost can be computed again anywhere.

This module has the interface, the registry and the engine of this host; the engine of a Ray cluster registers from
`extras/ray`. Nothing here depends on what is computed.
"""

import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, ClassVar, Protocol

from mm_ldlm.core import Kinds, WorkerFailed, config

FEW = 16
"""Tasks that this process computes before it starts others, which takes seconds"""
MOST = 8
"""Processes at most: with more of them, merging the results of ingestion is the limit, and each takes memory"""


class Engine(Protocol):
    """A started engine."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that its tasks can ask for."""

    def run(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], *, ordered: bool, cpus: int = 1, gpus: int = 0
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield the position and the result of every task, in the order of the tasks if `ordered`, else as they end.

        Tasks are taken from the iterable as places become free, not all at once. Whoever stops before the last result
        closes the generator, which ends the processes (`contextlib.closing`).

        Args:
            function: receives a task and returns its result. Every process has its own copy, which it keeps.
            cpus: cores that one task uses.
            gpus: GPUs that one task uses.

        Raises:
            MMLDLMError: the function raised it; the first error ends the run.
            WorkerFailed: the function raised another error, or a task was lost too often.
        """


class EngineConfig(Protocol):
    """Configuration of an engine; `ENGINES` lists the kinds."""

    @property
    def here(self) -> bool:
        """Whether tasks run on this host. A caller may then divide its work among processes of this host itself."""

    def started(self) -> contextlib.AbstractContextManager[Engine]:
        """Start the engine, and stop it when the block ends.

        Raises:
            ConfigurationError: it cannot be started as configured, or is not the one that this process expects.
            WorkerFailed: it does not answer.
        """


def count_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """Runs the first tasks one after another in this process, and further ones on up to `MOST` cores of this host."""

    gpus = 0

    def run(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], *, ordered: bool, cpus: int = 1, gpus: int = 0
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield the position and the result of every task, in the order of the tasks."""
        numbered, cores = enumerate(tasks), count_cores()
        for position, task in itertools.islice(numbered, FEW if cores > 1 else None):
            yield position, function(task)
        first = next(numbered, None)
        if first is not None:
            yield from _in_processes(function, itertools.chain([first], numbered), processes=min(cores, MOST))


def _in_processes(
    function: Callable[[Any], Any], tasks: Iterable[tuple[int, Any]], *, processes: int
) -> Generator[tuple[int, Any], None, None]:
    """Yield the results in order; each process has two tasks at most, one that runs and one that waits.

    The processes are new interpreters: a fork would copy locks that threads of this process hold.
    """
    waiting: collections.deque[tuple[int, Future[Any]]] = collections.deque()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(function,)) as pool:
        try:
            for position, task in tasks:
                waiting.append((position, pool.submit(_call, task)))
                if len(waiting) == 2 * processes:
                    position, found = waiting.popleft()
                    yield position, found.result()
            for position, found in waiting:
                yield position, found.result()
        except BrokenProcessPool:
            raise WorkerFailed(
                "a process that computed tasks was killed, perhaps for lack of memory. Repeat the command, which "
                "continues with what is missing; `taskset -c 0` before it keeps everything in one process."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_function: Callable[[Any], Any]
"""What a process of `_in_processes` calls for each task"""


def _prepare(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _call(task: Any) -> Any:
    return _function(task)


@config
class LocalEngineConfig:
    """The work is done on this host."""

    here: ClassVar[bool] = True
    kind: str = "local"

    def started(self) -> contextlib.AbstractContextManager[LocalEngine]:
        return contextlib.nullcontext(LocalEngine())


ENGINES = Kinds(
    what="engine",
    core={
        "local": "mm_ldlm.data.engines:LocalEngineConfig",
    },
    group="engines",
    interface=EngineConfig,
)
"""Engines that `ingestion.engine` and `embedding.engine` can choose."""
