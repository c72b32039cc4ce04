"""First rows of a table for kedro-viz: values that JSON has, long vectors shortened."""

import math
from typing import Any

from kedro_datasets._typing import TablePreview

PREVIEW_ROWS = 20
_NUMBERS = 8


def preview_of(table: Any) -> TablePreview:
    """Show an Arrow table; long vectors and lists are shortened, with their length."""
    rows = [[_short(value) for value in row.values()] for row in table.to_pylist()]
    return TablePreview({"index": list(range(len(rows))), "columns": table.column_names, "data": rows})


def _short(value: Any) -> Any:
    if isinstance(value, list):
        head = ", ".join(f"{item:.3g}" if isinstance(item, float) else str(item) for item in value[:_NUMBERS])
        return f"[{head}, …] ({len(value)})" if len(value) > _NUMBERS else f"[{head}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
