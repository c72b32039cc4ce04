"""The interface of a store that ingestion fills in step with the records, from what sources contain besides texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from mm_ldlm.data.store import Manifest, Shard


class SideStore(Protocol):
    """A store with one row for each record; ingestion sends copies of it to its workers."""

    @property
    def workspace(self) -> Path:
        """Folder of the store."""
        ...

    @property
    def most_rows(self) -> int:
        """Largest number of rows of a shard that fits in memory."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides which values are accepted."""
        ...

    def accept(self, value: Any) -> Any:
        """Return the value of a row (`Row.vector`) as it is stored.

        Raises:
            Unusable: the row goes to quarantine.
        """
        ...

    def table(self, ids: Sequence[str], values: Sequence[Any]) -> pa.Table:
        """Return the rows of n records as a table; the values were accepted."""
        ...

    def commit(self, shards: Sequence[Shard], *, records: Manifest) -> None:
        """Write the manifest of the finished store of these records."""
        ...
