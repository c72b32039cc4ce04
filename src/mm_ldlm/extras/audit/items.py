"""Rows of a collection as its readers yield them, and the refusals that the readers share."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from mm_ldlm.core import mask, show
from mm_ldlm.data.corpus.sources import BadRow
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


def needs(package: str, config: AuditConfig) -> str:
    """Return the message about a package that a collection needs."""
    return (
        f"audit.vectors: expected the package {package}, which reads {mask(config.vectors or '')}, found that it is "
        "not installed. Run pip install 'mm-ldlm[audit]'."
    )


def no_column(config: AuditConfig, name: str, columns: list[str]) -> str:
    """Return the message about a column that a table does not have."""
    key = {config.text_column: "text_column", config.vector_column: "vector_column"}.get(name, "id_column")
    return (
        f"table '{config.table}': expected a column '{name}', found {show(columns, 200)}. Set audit.{key} to one of "
        "them."
    )
