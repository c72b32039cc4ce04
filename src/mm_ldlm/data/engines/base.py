"""The interface of engines, and the registry of their kinds."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from mm_ldlm.core import Kinds


class Engine(Protocol):
    """A started engine."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that its tasks can ask for."""
        ...

    def run(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], *, ordered: bool, cpus: int = 1, gpus: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Yield the position and the result of every task, in the order of the tasks if `ordered`, else as they end.

        Tasks are taken from the iterable as places become free, not all at once.

        Args:
            function: receives a task and returns its result. Every process has a copy of its own, which it keeps.
            cpus: cores that one task uses.
            gpus: GPUs that one task uses.

        Raises:
            MMLDLMError: the function raised it; the first error ends the run.
            WorkerFailed: the function raised another error, or a task was lost too often.
        """
        ...


class EngineConfig(Protocol):
    """Configuration of an engine; `ENGINES` lists the kinds."""

    @property
    def kind(self) -> str: ...

    @property
    def here(self) -> bool:
        """Whether tasks run in this process. A caller may then divide its work among processes of this host itself."""
        ...

    def missing(self) -> str | None:
        """Return an error message if this machine lacks what the engine needs, else None; starts nothing."""
        ...

    def started(self) -> contextlib.AbstractContextManager[Engine]:
        """Start the engine, and stop it when the block ends.

        Raises:
            ConfigurationError: it cannot be started as configured, or is not the one that this process expects.
            WorkerFailed: it does not answer.
        """
        ...


ENGINES = Kinds(
    what="engine",
    core={
        "local": "mm_ldlm.data.engines.local:LocalEngineConfig",
    },
    group="engines",
    interface=EngineConfig,
)
"""Engines that `ingestion.engine` and `embedding.engine` can choose."""
