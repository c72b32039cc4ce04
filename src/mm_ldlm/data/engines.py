"""Engines: where tasks run that do not depend on one another, in this process (`local`) or on a Ray cluster (`ray`).

A task is a value that a function receives, and the function returns its result: neither reads or writes files of the
data folder. Only the caller reads the inputs and writes the results, so that only its host needs that folder, and a
task that is lost can be computed again anywhere.

This module has the interface, the registry and the engine of this process; the engine of a Ray cluster registers from
`extras/ray`. Nothing here depends on what is computed.
"""

import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from typing import Any, ClassVar, Protocol

from mm_ldlm.core import Kinds, config


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
    """Runs the tasks one after another in this process."""

    gpus = 0

    def run(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], *, ordered: bool, cpus: int = 1, gpus: int = 0
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield the position and the result of every task, in the order of the tasks."""
        for position, task in enumerate(tasks):
            yield position, function(task)


@config
class LocalEngineConfig:
    """The work is done in this process."""

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
