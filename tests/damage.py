"""Damaged JSON documents, for the tests of everything that reads one: each value in turn replaced by wrong ones."""

import copy
from collections.abc import Iterator
from typing import Any

WRONG: tuple[Any, ...] = (None, True, -1, 2**63, 1.5, 1e308, "", "x", "../x", [], [None], {}, {"a": []})
"""Values of every type, and numbers that no count may have."""


def damaged(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield (what was changed, a copy): every value of a document replaced by each wrong one, and every key removed."""
    for path in _paths(document):
        for wrong in WRONG:
            yield f"{path}={wrong!r}", _changed(document, path, wrong)
        if path:
            yield f"{path} removed", _changed(document, path, _REMOVED)


_REMOVED = object()


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _paths(item, (*before, key))


def _changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    made = copy.deepcopy(document)
    place = made
    for key in path[:-1]:
        place = place[key]
    if value is _REMOVED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made
