"""The `Tracker` protocol: receives the metrics and events of a loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Tracker(Protocol):
    """Records metrics by step, and events."""

    def metrics(self, step: int, values: Mapping[str, Any]) -> None: ...

    def event(self, step: int, kind: str, **words: Any) -> None:
        """Record an event: a skipped step, a checkpoint, a rollback."""
        ...

    def close(self) -> None: ...


class Silent:
    """Records nothing; used on every rank but the first."""

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        return None

    def event(self, step: int, kind: str, **words: Any) -> None:
        return None

    def close(self) -> None:
        return None
