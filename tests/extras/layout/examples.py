"""The older folder layout with known texts, for the conformance of all sources."""

import json
from pathlib import Path
from typing import Any


def layout(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    (folder / "texts/train").mkdir(parents=True, exist_ok=True)
    items = [{"text_path": f"texts/train/{number:08d}.txt"} for number in range(len(rows))]
    for row, item in zip(rows, items, strict=True):
        (folder / item["text_path"]).write_bytes(row["text"].encode())
    (folder / "train_data.json").write_text(json.dumps(items))
    return {"path": str(folder)}
