"""Target: sources of several files (layout, vectors) and paths that no reader can read.

A family with sources of several files has `DAMAGE` and `MAKERS` for their kinds in `tests/families/NAME/attack.py`.
"""

import importlib
import json
import os
import random
import re
import socket
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import sources
from .damage import HOSTILE, damage_bytes, damage_document, damage_file, stored, texts
from .oracle import Written, Wrong
from .sources import Made

SECRET = "a secret of another folder"
DIM = 3
DAMAGE: dict[str, tuple[str, ...]] = {
    "layout": (
        "none", "escape", "escape", "link", "unlisted", "list_json", "list_json", "list_bytes", "missing_text",
        "bad_text", "zip", "zip_bytes", "zip_twice", "zip_escape", "zip_backslash", "listed_twice",
    ),
    "vectors": ("none", "cells", "cells", "cells", "tensor", "rows", "shape", "type", "npy", "npy", "table_bytes"),
    "path": ("missing", "folder", "fifo", "link_loop", "not_utf8", "socket", "empty_file", "twice", "below", "odd_name"),
}  # fmt: skip
CELLS: tuple[Any, ...] = (
    *HOSTILE, [0.5], [0.5] * 4, [1, 2, None], [1, 2, "3"], [[1, 2, 3]], [1e39, 0, 0], [float("nan"), 1, 2],
    [float("-inf")] * 3, [10**400, 0, 0], "[1,2", "[1,,2]", "[1e999,0,0]", "{1,2,3", "[]", "[1 2 3] x",
)  # fmt: skip
BELOW = (
    "x" * 255, "x" * 300, "/".join(["x" * 200] * 25), "\ud800.txt", "\0.txt", "*", "[a-", "**/*.txt", "no/*.txt", "[" * 100,
    "*" * 50, "good.txt/a/file.txt", "a[1].txt",
)  # fmt: skip
ODD_NAMES = (
    "~/x.txt", "", " ", ".", "..", "/", "file:///etc/hostname", "http://127.0.0.1:9/x.txt", "/dev/null", "/dev/zero",
    "/dev/urandom", "/dev/tty", "/proc/self/mem", "/dev/stdin",
)  # fmt: skip


def prepare() -> Any:
    """Load what the cases need."""
    return sources.prepare()


def generate(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(list(DAMAGE))
    return {"kind": kind, "damage": draw.choice(DAMAGE[kind]), "draw": draw.randrange(2**32)}


def run(parameters: dict[str, Any], folder: Path, _: Any) -> str:
    kind, damage, draw = parameters["kind"], parameters["damage"], random.Random(parameters["draw"])
    if kind != "vectors":
        source, written = MAKERS[kind](damage, draw, folder)
        return sources.ingested(folder, source, written, {})
    from mm_ldlm.data.encoders.base import side_store
    from mm_ldlm.data.store import ShardStore
    from mm_ldlm.extras.own_vectors.encoder import PrecomputedEncoderConfig

    store = side_store(PrecomputedEncoderConfig(name="mine", dim=DIM, normalised=False), folder / "records")
    source, written = make_vectors(damage, draw, folder)
    ending = sources.ingested(folder, source, written, {}, side=store)
    texts = ShardStore.open(folder / "records", "records").gather("text", slice(None)).to_pylist()
    vectors = ShardStore.open(folder / "records" / "vectors", "vectors").fixed("vector")
    check_vectors(damage, texts, vectors.take(slice(None)))
    return ending


# -- layout and paths --------------------------------------------------------------------------------------------------


def make_layout(damage: str, draw: random.Random, folder: Path) -> Made:
    """A layout folder or .zip, and a secret next to it that nothing inside may reach."""
    (folder / "secret.txt").write_text(SECRET)
    root, rows = folder / "layout", texts(draw, fewest=3, most=12)
    lists: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for i, row in enumerate(rows):
        split = "train" if i < 3 else draw.choice(list(lists))
        name = f"texts/{split}/{len(lists[split]):08d}.txt"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(row, encoding="utf-8")
        lists[split].append({"text_path": name, "meta": json.dumps({"n": i})})
    written = Written.of([stored(row) for row in rows])
    written.forbidden = {SECRET, socket.gethostname()}
    chosen = draw.choice(lists["train"])
    first = root / chosen["text_path"]
    match damage:
        case "escape":
            outside = ("/etc/hostname", "../secret.txt", "texts/../../secret.txt", str(folder / "secret.txt"))
            chosen["text_path"] = draw.choice((*outside, "texts/train/", ".", "", "a\x00b", "x" * 300, "\ud800"))
            written.high += 1  # the file whose name was replaced may be counted as well
        case "link":
            first.unlink()
            first.symlink_to(
                draw.choice(("/etc/hostname", str(folder / "secret.txt"), "../../../secret.txt", first.name))
            )
        case "unlisted":
            (root / "texts/train/99999999.txt").write_text("a text that no list names")
            written.low, written.high, written.whole = len(rows) + 1, len(rows) + 1, None
        case "missing_text":
            first.unlink()
        case "bad_text":
            damage_file(first, draw)
            written.whole = None
        case "listed_twice":
            lists["test"].append(dict(chosen))
            written.low = written.high = len(rows) + 1
    if damage not in ("none", "zip"):
        written.required = set()
    for split, listed in lists.items():
        (root / f"{split}_data.json").write_text(json.dumps(listed))
    if damage.startswith("list_"):
        (damage_document if damage == "list_json" else damage_file)(root / "train_data.json", draw)
        written.unknown(0, 10**3)
    if damage.startswith("zip"):
        root = _zip(root, folder / "layout.zip", damage, draw, written)
    return {"kind": "layout", "path": str(root)}, written


def _zip(root: Path, path: Path, damage: str, draw: random.Random, written: Written) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(file for file in root.rglob("*") if file.is_file()):
            archive.write(file, file.relative_to(root).as_posix())
        more = {"zip_twice": "texts/train/00000000.txt", "zip_escape": "../../escaped.txt",
                "zip_backslash": "texts\\train\\00000099.txt"}.get(damage)  # fmt: skip
        if more:
            archive.writestr(more, SECRET if damage == "zip_escape" else "one more member")
            written.whole, written.high = None, written.high + 1
    if damage == "zip_bytes":
        path.write_bytes(damage_bytes(path.read_bytes(), draw))
        written.unknown(0, 10**3)
    return path


def make_path(damage: str, draw: random.Random, folder: Path) -> Made:
    """A source whose path is missing, special, endless or not a name at all."""
    good, path = folder / "good.txt", folder / "source.txt"
    good.write_text("one good text\n")
    found: Any = str(path)
    match damage:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link_loop":
            path.symlink_to("source.txt")
        case "not_utf8":
            found = os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")
            Path(found).write_bytes(b"a text\n")
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind("source.txt")
        case "empty_file":
            path.write_bytes(draw.choice((b"", b"\n", b"\n\n\n", b" \n", b"\xef\xbb\xbf")))
        case "twice":
            found = [str(good), str(good), str(folder / "*.txt")]
        case "below":
            found = f"{folder}/{draw.choice(BELOW)}"
        case "odd_name":
            found = draw.choice(ODD_NAMES)
    kinds = ("text", "text", "jsonl", "csv", "parquet", "arrow", "disk", *(kind for kind in MAKERS if kind != "path"))
    return {"kind": draw.choice(kinds), "path": found}, Written(0, 10**6)


MAKERS: dict[str, Any] = {"layout": make_layout, "path": make_path}
for _file in sorted(Path(__file__).parents[1].glob("families/*/attack.py")):
    _family = importlib.import_module(f"tests.families.{_file.parent.name}.attack")
    DAMAGE |= _family.DAMAGE
    MAKERS |= _family.MAKERS


# -- vectors -----------------------------------------------------------------------------------------------------------


def vector_of(number: int) -> list[float]:
    """Return the vector of the text with this number."""
    return [number + 1.0, 2.0 * number, -float(number)]


def make_vectors(damage: str, draw: random.Random, folder: Path) -> Made:
    """Texts "number N" with vectors that follow from N; `check_vectors` compares them with those of the records."""
    count = draw.randint(4, 12)
    names, cells = [f"number {i}" for i in range(count)], [vector_of(i) for i in range(count)]
    written = Written(0, count)
    if damage in ("rows", "shape", "type", "npy") or (damage == "none" and draw.random() < 0.3):
        return _npy(
            damage, draw, folder / "t.txt", names, np.array(cells, draw.choice((np.float32, np.int64)))
        ), written
    if damage == "tensor" or (damage == "none" and draw.random() < 0.5):
        table = pa.table({"text": names, "v": sources.tensor(cells) if damage == "tensor" else cells})
        kind = draw.choice(("parquet", "arrow"))
        path = folder / f"t.{kind}"
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            sources.write_arrow(table, path, draw)
        written.required = set(names)
        return {"kind": kind, "path": str(path), "vector_column": "v"}, written
    odd: list[Any] = [draw.choice(CELLS) if damage == "cells" and draw.random() < 0.2 else cell for cell in cells]
    path = folder / "t.jsonl"
    lines = [json.dumps({"text": name, "v": cell}) for name, cell in zip(names, odd, strict=True)]
    raw = ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    path.write_bytes(damage_bytes(raw, draw) if damage == "table_bytes" else raw)
    written.high = 10**3 if damage == "table_bytes" else count
    return {"kind": draw.choice(("jsonl", "table")), "path": str(path), "vector_column": "v"}, written


def _npy(damage: str, draw: random.Random, path: Path, names: list[str], found: Any) -> dict[str, Any]:
    path.write_text("\n".join(names))
    if damage == "rows":
        found = found[: draw.randrange(len(names))] if draw.random() < 0.5 else np.concatenate([found, found])
    elif damage == "shape":
        found = draw.choice((found[0], found[:, None], found[:, :2], found.reshape(-1)))
    elif damage == "type":
        found = found.astype(draw.choice((str, complex, bool, object)))
    np.save(path.with_suffix(".npy"), found, allow_pickle=True)
    if damage == "npy":
        damage_file(path.with_suffix(".npy"), draw)
    return {"kind": "text", "path": str(path), "vectors": draw.choice(("beside", str(path.with_suffix(".npy"))))}


def check_vectors(damage: str, texts: Sequence[str], vectors_nd: Any) -> None:
    """Raise `Wrong` if a text has the vector of another one, or one that is not finite."""
    if len(texts) != len(vectors_nd):
        raise Wrong("lost vector", f"{len(texts)} records, {len(vectors_nd)} vectors")
    if not np.isfinite(vectors_nd).all():
        raise Wrong("vector not finite", repr(vectors_nd)[:300])
    for text, vector in zip(texts, vectors_nd.tolist(), strict=True):
        number = re.fullmatch(r"number (\d+)", text)
        if damage in ("none", "tensor", "rows", "shape") and (number is None or vector != vector_of(int(number[1]))):
            raise Wrong("foreign vector", f"{text!r} has {vector}")
