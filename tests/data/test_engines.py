"""Engines: every result once with its position, and tasks that are taken only when there is room for them."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core import EncoderError
from mm_ldlm.data.engines import ENGINES

HERE = [kind for kind in ENGINES if ENGINES.load(kind)().here]
"""Engines that need nothing but this host; those of a cluster run the same properties in their slow tests."""


def conforms(engine: Any, *, refusal: type[Exception] = EncoderError) -> None:
    """Assert what every engine promises."""
    for ordered, count in itertools.product((True, False), (0, 1, 7, 40)):
        found = list(engine.run(square, range(count), ordered=ordered))
        assert sorted(found) == [(number, number * number) for number in range(count)]
        assert not ordered or found == sorted(found)
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(10_000):
            taken.append(number)
            yield number

    results = engine.run(square, tasks(), ordered=True)
    assert next(results) == (0, 0)
    assert len(taken) < 1000
    results.close() if hasattr(results, "close") else None
    for others in (0, 40):
        with pytest.raises(refusal, match=r"^expected a cat, found 3\.$"):
            list(engine.run(refuse, [*[0] * others, 3], ordered=False))


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> None:
    if number == 3:
        raise EncoderError(f"expected a cat, found {number}.")


@pytest.mark.parametrize("kind", HERE)
def test_an_engine_gives_every_result_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # its processes import this module
    config = ENGINES.load(kind)()
    with config.started() as engine:
        conforms(engine)
