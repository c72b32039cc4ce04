"""Helpers that tests of several folders import: a tokenizer of letters, a progress bar that records, and a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest


class Letters:
    """A tokenizer with a token for each letter but spaces; its id is that of the letter."""

    base_fingerprint = "letters"

    def encode_base(self, texts: list[str]) -> tuple[Any, Any]:
        rows = [[ord(letter) for letter in text if letter != " "] for text in texts]
        return np.array([i for row in rows for i in row]), np.cumsum([0, *map(len, rows)])


class Bar:
    """A progress bar that keeps its options and the numbers of its updates in `shown`."""

    shown: ClassVar[dict[str, Any]] = {}

    def __init__(self, **options: Any) -> None:
        self.shown.clear()
        self.shown.update(options, rows=[])

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, rows: int) -> None:
        self.shown["rows"].append(rows)


def refused(kind: type[Exception], make: Callable[[], Any]) -> str:
    """The message of the error of exactly this class that `make` raises."""
    with pytest.raises(kind) as raised:
        make()
    assert type(raised.value) is kind
    return str(raised.value)
