"""The checkpoint writer: writes in a background thread, one checkpoint at a time, and keeps its error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents


class Writer:
    """Writes checkpoints, updates `latest` and `best`, and applies retention.

    `report` is called (from the thread) with (step, seconds, error or None) after each checkpoint.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep_last: int,
        keep_every: int | None,
        background: bool,
        report: Callable[[int, float, CheckpointError | None], None],
    ) -> None:
        self.directory, self.background, self.report = directory, background, report
        self.keep_last, self.keep_every = keep_last, keep_every
        self._thread: threading.Thread | None = None
        self.failed: CheckpointError | None = None

    def save(self, step: int, contents: Contents, *, best: bool) -> None:
        """Start writing a checkpoint after the previous one is written. The tensors must not be changed elsewhere."""
        self.wait()
        if not self.background:
            self._write(step, contents, best)
            return
        self._thread = threading.Thread(target=self._write, args=(step, contents, best), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the current checkpoint is written or has failed (see `failed`)."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, step: int, contents: Contents, best: bool) -> None:
        started = time.perf_counter()
        self.failed = None
        try:
            path = folder.write(self.directory, step, contents)
            folder.point(self.directory, "latest", path)
            if best:
                folder.point(self.directory, "best", path)
            folder.apply_retention(self.directory, last=self.keep_last, every=self.keep_every)
        except (CheckpointError, OSError) as error:
            self.failed = error if isinstance(error, CheckpointError) else CheckpointError(str(error))
        self.report(step, time.perf_counter() - started, self.failed)
