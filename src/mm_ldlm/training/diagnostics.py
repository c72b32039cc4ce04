"""placeholder"""

from __future__ import annotations

from typing import Any


class Diagnostics:
    def __init__(self, every: int) -> None:
        self.every = every
        self.written = ""

    def due(self, step: int) -> bool:
        return False

    def before_update(self, parts: Any) -> None: ...
    def after_update(self, parts: Any, *, applied: bool) -> None: ...
    def take(self) -> dict[str, float]:
        return {}

    def verify_freezing(self, parts: Any) -> None: ...
