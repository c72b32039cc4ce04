"""The folder layout, images with captions, tars, and paths that no reader can read."""

from __future__ import annotations

import io
import json
import os
import random
import socket
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from .damage import HOSTILE, damage_bytes, damage_file, damage_json, files_below, write_json
from .line_sources import Made
from .oracle import Written
from .texts import stored, texts

SECRET = "a secret of another folder"
LAYOUT_DAMAGE = (
    "none", "escape", "escape", "link", "unlisted", "list_json", "list_json", "list_bytes", "missing_text",
    "bad_text", "zip", "zip_bytes",
    "zip_twice", "zip_escape", "lists_gone", "listed_twice", "huge_text",
)  # fmt: skip
PATH_DAMAGE = (
    "missing", "folder", "fifo", "link_loop", "long_name", "long_path", "not_utf8", "surrogate", "nul", "glob",
    "glob_empty", "socket",
    "endless_device", "empty_device", "empty_file", "twice", "link", "brackets", "home", "unreadable_folder",
)  # fmt: skip
IMAGE_DAMAGE = ("none", "image_bytes", "image_bytes", "escape", "caption", "bomb", "missing")
TAR_DAMAGE = ("none", "bytes", "truncate", "names", "compressed", "links", "json")


def make_layout(damage: str, draw: random.Random, folder: Path) -> Made:
    """A layout folder or .zip, and a secret beside it that nothing inside may reach."""
    (folder / "secret.txt").write_text(SECRET)
    root = folder / "layout"
    rows = texts(draw.randint(3, 12), draw)
    lists: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for i, row in enumerate(rows):
        split = "train" if i < 3 else draw.choice(list(lists))
        name = f"texts/{split}/{len(lists[split]):08d}.txt"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(row, encoding="utf-8")
        lists[split].append({"text_path": name, "meta": json.dumps({"n": i})})
    good = {stored(row) for row in rows}
    written = Written(len(rows), len(rows), whole=set(good), required=set(good), forbidden={SECRET, _hostname()})
    chosen = draw.choice(lists["train"])
    first = root / chosen["text_path"]
    if damage == "escape":
        chosen["text_path"] = draw.choice(("/etc/hostname", "../secret.txt", "texts/../../secret.txt",
        str(folder / "secret.txt"),
                                           "texts/train/", ".", "", "a\x00b", "x" * 300, "\ud800",
                                           "texts//train/./00000000.txt"))  # fmt: skip
        written.required.clear()
        written.high += 1  # the file whose name was replaced may be counted as well
    elif damage == "link":
        first.unlink()
        first.symlink_to(draw.choice(("/etc/hostname", str(folder / "secret.txt"), "../../../secret.txt", first.name)))
        written.required.clear()
    elif damage == "unlisted":
        (root / "texts/train/99999999.txt").write_text("a text that no list names")
        written.low = written.high = len(rows) + 1
        written.whole = None
    elif damage == "missing_text":
        first.unlink()
        written.required.clear()
    elif damage == "bad_text":
        damage_file(first, draw, draw.choice(("folder", "fifo", "random", "empty", "link_loop", "zeros")))
        written.whole, written.required = None, set()
    elif damage == "huge_text":
        first.write_bytes(b"word " * 1_000_000)
        written.whole, written.required = None, set()
    elif damage == "listed_twice":
        lists["test"].append(dict(chosen))
        written.low = written.high = len(rows) + 1
    for split, listed in lists.items():
        if damage != "lists_gone":
            (root / f"{split}_data.json").write_text(json.dumps(listed))
    path = root / "train_data.json"
    if damage == "list_json":
        write_json(path, damage_json(lists["train"], draw), draw)
        written.low, written.high, written.whole, written.required = 0, 10**3, None, set()
    elif damage == "list_bytes":
        damage_file(path, draw)
        written.low, written.high, written.whole, written.required = 0, 10**3, None, set()
    if damage.startswith("zip"):
        root = _zip(root, folder / "layout.zip", damage, draw, written)
    return {"kind": "layout", "path": str(root)}, written


def _zip(root: Path, path: Path, damage: str, draw: random.Random, written: Written) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files_below(root):
            archive.write(file, file.relative_to(root).as_posix())
        if damage == "zip_twice":
            archive.writestr("texts/train/00000000.txt", "the second member of this name")
            written.whole, written.required = None, set()
            written.high += 1
        if damage == "zip_escape":
            archive.writestr("../../escaped.txt", SECRET)
    if damage == "zip_bytes":
        path.write_bytes(damage_bytes(path.read_bytes(), draw))
        written.low, written.high, written.whole, written.required = 0, 10**3, None, set()
    return path


def make_path(damage: str, draw: random.Random, folder: Path) -> Made:
    """A text source whose path is missing, special, endless or not a name at all."""
    good = folder / "good.txt"
    good.write_text("one good text\n")
    path: Any = str(folder / "source.txt")
    written = Written(0, 10**6)
    match damage:
        case "folder":
            Path(path).mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link_loop":
            Path(path).symlink_to("source.txt")
        case "link":
            Path(path).symlink_to(good)
        case "long_name":
            path = str(folder / ("x" * draw.choice((255, 256, 300)) + ".txt"))
        case "long_path":
            path = str(folder / "/".join(["x" * 200] * 25))
        case "not_utf8":
            raw = os.fsencode(folder) + b"/caf\xe9.txt"
            with open(raw, "wb") as file:
                file.write(b"a text\n")
            path = os.fsdecode(raw) if draw.random() < 0.5 else str(folder / "*.txt")
        case "surrogate":
            path = str(folder) + "/\ud800.txt"
        case "nul":
            path = str(folder) + "/a\x00.txt"
        case "glob":
            path = draw.choice(
                (
                    str(folder / "*"),
                    str(folder / "[a-"),
                    str(folder / "**/*.txt"),
                    "[" * 100,
                    "*" * 50,
                    "//**"[:1] + "*.no",
                )
            )
        case "glob_empty":
            path = str(folder / "no/*.txt")
        case "socket":
            server = socket.socket(socket.AF_UNIX)
            server.bind("source.txt")
            server.close()
        case "endless_device":
            path = draw.choice(("/dev/zero", "/dev/urandom", "/dev/tty", "/proc/self/mem", "/dev/stdin"))
        case "empty_device":
            path = "/dev/null"
        case "empty_file":
            Path(path).write_bytes(draw.choice((b"", b"\n", b"\n\n\n", b" \n", b"\xef\xbb\xbf")))
        case "twice":
            path = [str(good), str(good), str(folder / "*.txt")]
        case "brackets":
            Path(folder / "a[1].txt").write_text("a text in brackets\n")
            path = str(folder / "a[1].txt")
        case "home":
            path = draw.choice(("~/x.txt", "", " ", ".", "..", "/", "file:///etc/hostname", "http://127.0.0.1:9/x.txt"))
        case "unreadable_folder":
            path = str(good / "below" / "a" / "file.txt")
    kind = draw.choice(
        ("text", "text", "jsonl", "csv", "parquet", "arrow", "disk", "layout", "image_folder", "webdataset")
    )
    return {"kind": kind, "path": path}, written


def make_images(damage: str, draw: random.Random, folder: Path) -> Made:
    rows = texts(draw.randint(2, 6), draw)
    lines: list[dict[str, Any]] = []
    for i, row in enumerate(rows):
        (folder / f"{i}.png").write_bytes(png(draw))
        lines.append({"image": f"{i}.png", "text": row})
    good = {stored(row) for row in rows}
    written = Written(len(rows), len(rows), whole=set(good), required=set(good))
    chosen = draw.choice(lines)
    path = folder / chosen["image"]
    if damage != "none":
        written.required = set()
    if damage == "image_bytes":
        damage_file(path, draw)
    elif damage == "escape":
        chosen["image"] = draw.choice(("/etc/hostname", "../x.png", "\x00", "x" * 300, "", ".", "\ud800"))
    elif damage == "caption":
        chosen[draw.choice(("text", "image"))] = draw.choice(HOSTILE)
        written.whole = None
    elif damage == "bomb":
        path.write_bytes(_bomb())
    elif damage == "missing":
        path.unlink()
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return {"kind": "image_folder", "path": str(folder / "captions.jsonl")}, written


def make_tar(damage: str, draw: random.Random, folder: Path) -> Made:
    rows = texts(draw.randint(2, 6), draw)
    path = folder / "samples.tar"
    good = {stored(row) for row in rows}
    written = Written(len(rows), len(rows), whole=set(good), required=set(good) if damage == "none" else set())
    with tarfile.open(path, "w:gz" if damage == "compressed" else "w") as archive:
        for i, row in enumerate(rows):
            add(archive, f"{i:04d}.png", png(draw))
            add(archive, f"{i:04d}.txt", row.encode())
            if damage == "json" and i == 0:
                add(archive, f"{i:04d}.json", json.dumps(draw.choice(HOSTILE)).encode())
                written.whole, written.low = None, len(rows)
        if damage == "names":
            add(
                archive,
                draw.choice(("../../x.png", "/etc/x.png", "x.png", "a" * 300 + ".png", ".png", "0000.PNG")),
                png(draw),
            )
            written.high += 1
        if damage == "links":
            link = tarfile.TarInfo("0009.png")
            link.type, link.linkname = (
                draw.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)),
                "/etc/hostname",
            )
            archive.addfile(link)
            written.low = written.high = len(rows) + 1
    if damage in ("bytes", "truncate"):
        path.write_bytes(damage_bytes(path.read_bytes(), draw, "truncate" if damage == "truncate" else None))
        written = Written(0, 10**3)
    return {"kind": "webdataset", "path": str(path)}, written


def png(draw: random.Random) -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    Image.new(draw.choice(("L", "RGB", "P", "RGBA", "1")), (4, 4), draw.randrange(2)).save(sink, "png")
    return sink.getvalue()


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _bomb() -> bytes:
    """A PNG of a few kilobytes that would decode to gigabytes."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(10**6)))
        + chunk(b"IEND", b"")
    )


def _hostname() -> str:
    try:
        return Path("/etc/hostname").read_text().strip()
    except OSError:
        return SECRET
