"""Progress of loops that take long: a bar on a terminal, and elsewhere (files, CI) a line of the log every minute."""

import logging
import sys
from typing import Any

from tqdm import tqdm

log = logging.getLogger(__name__)

QUIET_SECONDS = 60.0
"""Seconds between two lines of a log"""


class _Lines(tqdm):
    """Progress in lines of the log."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None:  # the end clears a bar by an empty one
            log.info(str(self))


def shown(items: Any = None, *, total: int | None = None, **options: Any) -> Any:
    """Wrap an iterator, or count by `update`, with the options of tqdm; nothing is shown in the first seconds."""
    if sys.stderr.isatty():
        return tqdm(items, total=total, delay=2.0, leave=False, **options)
    line = "{desc}: {n:,} {unit}" if total is None else "{desc}: {n:,} of {total:,} {unit}, {remaining} left"
    options |= {"bar_format": line, "delay": QUIET_SECONDS, "mininterval": QUIET_SECONDS, "miniters": 0}
    return _Lines(items, total=total, leave=False, **options)
