"""Opening of an MLflow run within a bounded time, on the server that was named or else in a local database.

MLflow itself retries a request seven times and waits up to two minutes for each (MLFLOW_HTTP_REQUEST_MAX_RETRIES,
MLFLOW_HTTP_REQUEST_TIMEOUT, read at every request); `settings.py` sets both lower unless the user set them. The limit
here holds for every kind of store: a server that answers a byte per second, a locked database.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mm_ldlm.app.tracking.mlflow import load, open_run, resolve_uri
from mm_ldlm.core.credentials import mask
from mm_ldlm.core.errors import TrackingError
from mm_ldlm.core.messages import reason_of

log = logging.getLogger(__name__)
T = TypeVar("T")

LONGEST = 12.0
"""Seconds for one exchange with a tracking server."""
LONGEST_LOCAL = 120.0
"""Seconds for a database in a file, whose tables MLflow creates first; it waits only for locks, and those for 5 s."""
LOCAL = "sqlite:///data/mlflow_local.db"
"""Database of the runs whose tracking store did not answer, relative to the project's root."""


def within(call: Callable[[], T], *, seconds: float = LONGEST) -> T:
    """Return what `call` returns, if it does so within `seconds`.

    A call that takes longer is left in a daemon thread; the timeouts of MLflow end it.

    Raises:
        TrackingError: it took longer, or it raised an exception; the message contains the reason on one line.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="tracking", daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    if errors:
        raise TrackingError(reason_of(errors[0])) from None
    raise TrackingError(f"no answer within {seconds:g} s")


def longest(uri: str) -> float:
    """Seconds to wait for the store at `uri`."""
    return LONGEST_LOCAL if uri.startswith("sqlite:") else LONGEST


def open_somewhere(uri: str, *, root: Path, **run: Any) -> tuple[str, str] | None:
    """Open a run at `uri`, or else in the local database; return its address and its id, or None where both fail.

    A run does not end because its tracking store is unavailable: the log in the run folder is complete without MLflow.

    Args:
        root: the project's root, from which relative databases are resolved.
        run: the arguments of `tracking.mlflow.open_run`.
    """
    load()
    failures = []
    for place in dict.fromkeys([uri, LOCAL]):
        try:
            opened = _open(place, root, run)
        except TrackingError as error:
            failures.append(f"{mask(place)}: {error}")
            run["parent"] = None  # it is in the store that did not answer
            continue
        if failures:
            log.warning(
                "MLflow cannot open %s; this run is recorded in %s instead. Show it by `mlflow ui "
                "--backend-store-uri %s`, or set tracking.uri to a store that answers",
                "; ".join(failures), LOCAL, opened[0],
            )  # fmt: skip
        return opened
    log.warning("this run is not tracked, because no store could be opened (%s)", "; ".join(failures))
    return None


def _open(place: str, root: Path, run: Mapping[str, Any]) -> tuple[str, str]:
    def call() -> tuple[str, str]:
        resolved = resolve_uri(place, root=root)
        return resolved, open_run(resolved, **run)

    return within(call, seconds=longest(place))
