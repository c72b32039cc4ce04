"""Fixtures of the training tests; the helpers are imported by name, here and by the processes that the tests start."""

from __future__ import annotations

import os
import queue
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.training import batches

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(autouse=True)
def _ranks_find_the_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class _Queue(queue.Queue):  # type: ignore[type-arg]
    def get(self, block: bool = True, timeout: float | None = 30.0) -> Any:
        return super().get(block, timeout)


@pytest.fixture(autouse=True)
def _a_batch_that_never_comes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "queue", SimpleNamespace(Queue=_Queue, Full=queue.Full))
