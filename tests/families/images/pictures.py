"""Small pictures, sources of them, and ingestion of these sources."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mm_ldlm.core import parse
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import ingest
from mm_ldlm.data.store import ShardStore


def picture(seed: int, *shape: int) -> Any:
    """Random pixels, uint8."""
    return np.random.default_rng(seed).integers(0, 256, shape or (6, 5, 3)).astype(np.uint8)


def encoded(pixels: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.squeeze(pixels)).save(file, kind, **options)
    return file.getvalue()


def folder_of(root: Path, rows: list[dict[str, Any]], files: dict[str, bytes]) -> dict[str, Any]:
    """A source of images with a caption file."""
    folder = root / "pictures"
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "image_folder", "path": str(folder / "captions.jsonl"), "meta_columns": ["label"]}


def tar_of(path: Path, members: list[tuple[str, bytes | None]]) -> dict[str, Any]:
    """A source of a tar; a member without content is a link."""
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if data is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            member.size = len(data or b"")
            archive.addfile(member, io.BytesIO(data or b""))
    return {"kind": "webdataset", "path": str(path), "meta_columns": ["label"]}


def ingested(
    root: Path, *sources: dict[str, Any], name: str = "records", seed: int = 0
) -> tuple[list[dict[str, Any]], Any]:
    """The records of sources as rows, and the report; rows are conserved."""
    config = {
        "sources": list(sources), "splits": {"validation": 0.2, "test": 0.2}, "max_bad_fraction": 1.0,
        "length": {"min_words": 1},
    }  # fmt: skip
    made = ingest(
        parse(IngestionConfig, config, at="ingestion"),
        seed=seed, workspace=root / name, quarantine=root / f"{name}_quarantine",
    )  # fmt: skip
    for manifest, folder in zip(made[:2], (name, f"{name}_quarantine"), strict=True):
        manifest.write(root / folder)
    report = made[2]
    assert report["rows_in"] == report["accepted"] + report["duplicates"] + report["quarantined"]
    return ShardStore.open(root / name).table(slice(None)).to_pylist(), report
