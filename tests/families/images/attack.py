"""Attack on sources of images: damaged files, names that leave the folder, and members that are no files."""

import io
import json
import random
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

from tests.attack.damage import HOSTILE, damage_bytes, damage_file, stored, texts
from tests.attack.oracle import Written
from tests.attack.sources import Made

DAMAGE: dict[str, tuple[str, ...]] = {
    "image_folder": ("none", "image", "image", "escape", "caption", "bomb", "missing"),
    "webdataset": ("none", "bytes", "names", "link", "json"),
}


def make_images(damage: str, draw: random.Random, folder: Path) -> Made:
    rows = texts(draw, most=6)
    lines: list[dict[str, Any]] = [{"image": f"{i}.png", "text": row} for i, row in enumerate(rows)]
    for line in lines:
        (folder / line["image"]).write_bytes(_png(draw))
    written, chosen = Written.of([stored(row) for row in rows]), draw.choice(lines)
    path = folder / chosen["image"]
    match damage:
        case "image":
            damage_file(path, draw)
        case "escape":
            chosen["image"] = draw.choice(("/etc/hostname", "../x.png", "\x00", "x" * 300, "", ".", "\ud800"))
        case "caption":
            chosen[draw.choice(("text", "image"))] = draw.choice(HOSTILE)
            written.whole = None
        case "bomb":
            path.write_bytes(_bomb())
        case "missing":
            path.unlink()
    written.required = written.required if damage == "none" else set()
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return {"kind": "image_folder", "path": str(folder / "captions.jsonl")}, written


def make_tar(damage: str, draw: random.Random, folder: Path) -> Made:
    rows, path = texts(draw, most=6), folder / "samples.tar"
    written = Written.of([stored(row) for row in rows])
    members: list[tuple[str, bytes]] = []
    for i, row in enumerate(rows):
        members += [(f"{i:04d}.png", _png(draw)), (f"{i:04d}.txt", row.encode())]
    if damage == "json":
        members.append((f"{len(rows) - 1:04d}.json", json.dumps(draw.choice(HOSTILE)).encode()))
        written.whole = None
    if damage == "names":
        odd = ("../../x.png", "/etc/x.png", "x.png", "a" * 300 + ".png", ".png", "0000.PNG", "a\\b.png")
        members.append((draw.choice(odd), _png(draw)))
    with tarfile.open(path, draw.choice(("w", "w:gz"))) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if damage == "link":
            link = tarfile.TarInfo("0009.png")
            link.type, link.linkname = (
                draw.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)),
                "/etc/hostname",
            )
            archive.addfile(link)
    written.high += damage in ("names", "link")
    written.required = written.required if damage == "none" else set()
    if damage == "bytes":
        path.write_bytes(damage_bytes(path.read_bytes(), draw))
        written.unknown(0, 10**3)
    return {"kind": "webdataset", "path": str(path)}, written


def _png(draw: random.Random) -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    Image.new(draw.choice(("L", "RGB", "P", "RGBA", "1")), (4, 4), draw.randrange(2)).save(sink, "png")
    return sink.getvalue()


def _bomb() -> bytes:
    """A PNG of a few kilobytes that would decode to gigabytes."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(10**6))), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


MAKERS = {"image_folder": make_images, "webdataset": make_tar}
