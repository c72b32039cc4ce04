"""Sources of captioned images with known captions, for the conformance of all sources."""

import json
import os
from pathlib import Path
from typing import Any

from tests.families.images.pictures import encoded, picture, tar_of


def image_folder(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    named = [{**row, "image": f"{number}.png"} for number, row in enumerate(rows)]
    for number, row in enumerate(named):
        (folder / row["image"]).write_bytes(encoded(picture(number)))
        os.utime(folder / row["image"], (0, 0))  # a description has the times of images
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named))
    return {"path": str(folder / "captions.jsonl")}


def webdataset(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    members: list[tuple[str, bytes | None]] = []
    for number, row in enumerate(rows):
        members += [(f"{number}.png", encoded(picture(number))), (f"{number}.json", json.dumps(row).encode())]
    return {"path": tar_of(folder / "rows.tar", members)["path"]}
