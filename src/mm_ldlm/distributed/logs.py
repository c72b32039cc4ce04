"""Logs of the ranks: kept for the newest launches, and bounded in size while they are written.

The elastic launcher makes a folder for each launch, with `attempt_N/LOCAL_RANK/stdout.log` and `stderr.log`. A file
that grows beyond its limit is emptied, and its last part is kept beside it as `stderr.log.1`.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

_INTERVAL = 5.0
"""Seconds between two checks of the sizes"""
_FILES = "*/attempt_*/*/std*.log"


def remove_old(directory: Path, *, keep: int) -> None:
    """Remove the folders of all but the newest `keep` launches."""
    launches = {path.parent for path in directory.glob("*/attempt_*")}
    for folder in sorted(launches, key=lambda path: path.stat().st_mtime_ns, reverse=True)[keep:]:
        shutil.rmtree(folder, ignore_errors=True)


def shorten(directory: Path, *, largest: int) -> None:
    """Empty every log of more than `largest` bytes; its last half of that size is kept under the name NAME.1.

    Lines that a rank writes while the log is copied are kept as well; a line that it writes between the second
    reading and the emptying is lost.
    """
    for path in directory.glob(_FILES):
        with contextlib.suppress(OSError), path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size > largest:
                file.seek(size - largest // 2)
                kept = path.with_name(f"{path.name}.1")
                kept.write_bytes(file.read())
                meanwhile = file.read()
                file.truncate(0)
                with kept.open("ab") as rest:
                    rest.write(meanwhile)


@contextlib.contextmanager
def bounded(directory: Path, *, largest: int, interval: float = _INTERVAL) -> Iterator[None]:
    """Keep the logs below `directory` at most `largest` bytes long until the block ends."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(interval):
            shorten(directory, largest=largest)

    thread = threading.Thread(target=watch, name="logs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=10)
        shorten(directory, largest=largest)
