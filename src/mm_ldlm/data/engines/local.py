"""The engine `local`: tasks in this process, one after another."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mm_ldlm.core import config


class LocalEngine:
    """Runs one task after another in this process."""

    gpus = 0

    def run(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], *, ordered: bool, cpus: int = 1, gpus: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Yield the position and the result of every task, in the order of the tasks."""
        for position, task in enumerate(tasks):
            yield position, function(task)


@config
class LocalEngineConfig:
    """The work is done on this host."""

    kind: str = "local"

    @property
    def here(self) -> bool:
        return True

    def missing(self) -> str | None:
        return None

    def started(self) -> contextlib.AbstractContextManager[LocalEngine]:
        return contextlib.nullcontext(LocalEngine())
