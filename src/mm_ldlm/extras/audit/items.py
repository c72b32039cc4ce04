"""Rows of a collection as its readers yield them, and the refusals that the readers share."""

import importlib
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from mm_ldlm.core import SourceError, foreign_code, mask, show
from mm_ldlm.data.corpus.quarantine import BadRow
from mm_ldlm.extras.audit.config import AuditConfig


class Item(NamedTuple):
    """A row as the collection contains it; values that it lacks are None."""

    id: Any
    text: Any
    vector: Any


class Opened(NamedTuple):
    """A collection that is being read.

    Attributes:
        items: rows, or damaged rows.
        rows: number of rows of the collection; None if only reading all of them counts them.
    """

    items: Iterator[Item | BadRow]
    rows: int | None = None


def library(package: str, config: AuditConfig) -> Any:
    """Import the package that reads a collection; SourceError if it is not installed."""
    with foreign_code(lambda _: SourceError(
        f"audit.vectors: expected the package {package}, which reads {mask(config.vectors or '')}, found that it is "
        "not installed. Run pip install 'mm-ldlm[audit]'."
    ), ImportError):  # fmt: skip
        return importlib.import_module(package)


def columns_of(config: AuditConfig, found: Collection[str], *, key: str | None) -> list[str]:
    """Return the columns of text, vector and, if there is one, key of a table; SourceError for one that it lacks."""
    named = {"text_column": config.text_column, "vector_column": config.vector_column, "id_column": key}
    for option, name in named.items():
        if name is not None and name not in found:
            raise SourceError(
                f"table '{config.table}': expected a column '{name}', found {show([*found], 200)}. Set audit.{option} "
                "to one of them."
            )
    return [name for name in named.values() if name is not None]
