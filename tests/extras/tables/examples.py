"""Tables with known rows, for the conformance of all sources."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[dict[str, Any]]


def _table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows) if rows else pa.table({"text": pa.array([], pa.string())})


def parquet(folder: Path, rows: Rows) -> dict[str, Any]:
    pq.write_table(_table(rows), folder / "rows.parquet", row_group_size=3)
    return {"path": str(folder / "rows.parquet")}


def arrow(folder: Path, rows: Rows) -> dict[str, Any]:
    found = _table(rows)
    with pa.ipc.new_file(str(folder / "rows.arrow"), found.schema) as writer:
        writer.write_table(found, max_chunksize=3)
    return {"path": str(folder / "rows.arrow")}


def disk(folder: Path, rows: Rows) -> dict[str, Any]:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(_table(rows)).save_to_disk(str(folder / "set"))
    return {"path": str(folder / "set")}


def hub(folder: Path, rows: Rows) -> dict[str, Any]:
    """A folder of files, which the library reads as it reads a data set of the hub."""
    parquet(folder, rows)
    return {"dataset": str(folder), "splits": {"train": "hash"}}


def csv(folder: Path, rows: Rows) -> dict[str, Any]:
    cells = [list(rows[0]) if rows else ["text"], *([str(value) for value in row.values()] for row in rows)]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in line) + "\n" for line in cells]
    (folder / "rows.csv").write_bytes("".join(quoted).encode())
    return {"path": str(folder / "rows.csv")}
