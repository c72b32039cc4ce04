"""The seam between a loop and whoever keeps its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Tracker(Protocol):
    """Keeps numbers by step, and events that are words."""

    def metrics(self, step: int, values: Mapping[str, Any]) -> None: ...

    def event(self, step: int, kind: str, **words: Any) -> None:
        """Something happened that is not a number: a skip, a checkpoint, a roll-back."""
        ...

    def close(self) -> None: ...


class Silent:
    """Keeps nothing: for every rank but the first."""

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        return None

    def event(self, step: int, kind: str, **words: Any) -> None:
        return None

    def close(self) -> None:
        return None
