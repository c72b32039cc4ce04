"""What tests of single parts of a training share: one process, and a tracker that keeps what it receives."""

from __future__ import annotations

from typing import Any

import torch
from mm_ldlm.training.tracker import Silent

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process

ALONE = Process(RankInfo(), torch.device("cpu"), None)


class Heard(Silent):
    def __init__(self) -> None:
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.lines: list[tuple[int, dict[str, Any]]] = []

    def event(self, step: int, kind: str, **more: Any) -> None:
        self.events.append((step, kind, more))

    def metrics(self, step: int, values: Any) -> None:
        self.lines.append((step, dict(values)))
