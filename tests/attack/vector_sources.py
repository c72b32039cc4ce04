"""Sources with a vector for each text: tables, text files with .npy files, and the folder layout with latents."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .damage import HOSTILE, damage_bytes, damage_file
from .line_sources import Made
from .oracle import Written, Wrong

DIM = 3
VECTOR_DAMAGE = (
    "none", "cells", "cells", "cells", "rows", "shape", "type", "npy_bytes", "npy_file", "table_bytes", "latent_bytes",
    "latent_file", "token_bytes", "token_file", "ids",
)  # fmt: skip
_CELLS: tuple[Any, ...] = (
    *HOSTILE, [0.5], [0.5] * 4, [1, 2, None], [1, 2, "3"], [[1, 2, 3]], [1e39, 0, 0], [float("nan"), 1, 2],
    [float("-inf")] * 3, [10**400, 0, 0], "[1,2", "[1,,2]", "[1e999,0,0]", "{1,2,3", "[]", "[1 2 3] x",
)  # fmt: skip


def vector_of(number: int) -> list[float]:
    """Return the vector of the text with this number."""
    return [number + 1.0, 2.0 * number, -float(number)]


def make_vectors(damage: str, draw: random.Random, folder: Path) -> Made:
    """Texts "number N" with vectors that follow from N; `check_vectors` compares them with those of the records."""
    count = draw.randint(4, 12)
    texts = [f"number {i}" for i in range(count)]
    written = Written(0, count, whole=None, required=set())
    layout = damage.startswith(("latent", "token")) or damage == "ids" or (damage == "none" and draw.random() < 0.3)
    if layout:
        return _layout(damage, draw, folder / "layout", texts), written
    if damage in ("rows", "shape", "type") or damage.startswith("npy") or (damage == "none" and draw.random() < 0.5):
        return _npy(damage, draw, folder / "t.txt", texts), written
    cells: list[Any] = [vector_of(i) for i in range(count)]
    if damage == "cells":
        for _ in range(draw.randint(1, 3)):
            cells[draw.randrange(count)] = draw.choice(_CELLS)
    kind = draw.choice(("jsonl", "csv"))
    path = folder / f"t.{kind}"
    if kind == "jsonl":
        lines = [json.dumps({"text": text, "v": cell}) for text, cell in zip(texts, cells, strict=True)]
    else:
        quoted = [json.dumps(cell).replace('"', '""') for cell in cells]
        lines = ["text,v", *(f'{text},"{cell}"' for text, cell in zip(texts, quoted, strict=True))]
    raw = ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    path.write_bytes(damage_bytes(raw, draw) if damage == "table_bytes" else raw)
    if damage == "table_bytes":
        written.high = 10**3
    return {"kind": draw.choice((kind, "table")), "path": str(path), "vector_column": "v"}, written


def _npy(damage: str, draw: random.Random, path: Path, texts: list[str]) -> dict[str, Any]:
    path.write_text("\n".join(texts))
    found: Any = np.array([vector_of(i) for i in range(len(texts))], draw.choice((np.float32, np.float64, np.int64)))
    if damage == "rows":
        found = found[: draw.randrange(len(texts))] if draw.random() < 0.5 else np.concatenate([found, found])
    elif damage == "shape":
        found = draw.choice((found[0], found[:, None], found[:, :2], found.reshape(-1)))
    elif damage == "type":
        found = draw.choice((found.astype(str), found.astype(complex), found.astype(bool), found.astype(object)))
    np.save(path.with_suffix(".npy"), found, allow_pickle=True)
    if damage == "npy_bytes":
        raw = path.with_suffix(".npy").read_bytes()
        path.with_suffix(".npy").write_bytes(damage_bytes(raw, draw))
    elif damage == "npy_file":
        damage_file(path.with_suffix(".npy"), draw)
    return {"kind": "text", "path": str(path), "vectors": draw.choice(("beside", str(path.with_suffix(".npy"))))}


def _layout(damage: str, draw: random.Random, root: Path, texts: list[str]) -> dict[str, Any]:
    for i, _ in enumerate(texts):
        for part in ("texts", "tokens", "latents"):
            (root / part / "train").mkdir(parents=True, exist_ok=True)
        (root / f"texts/train/{i:08d}.txt").write_text(texts[i])
        np.savez(root / f"tokens/train/{i:08d}.npz", input_ids=np.array([101, 2193, 1014 + i, 102]))
        np.save(root / f"latents/train/{i:08d}.npy", np.array(vector_of(i), np.float32))
    chosen = draw.randrange(len(texts))
    path = root / (
        f"tokens/train/{chosen:08d}.npz" if damage.startswith("token") else f"latents/train/{chosen:08d}.npy"
    )
    if damage.endswith("bytes"):
        path.write_bytes(damage_bytes(path.read_bytes(), draw))
    elif damage.endswith("file"):
        damage_file(path, draw)
    elif damage == "ids":
        ids = draw.choice(([], [-1], [2**40], [[1, 2]], [0.5], [101, 102], [30522], [2193] * 10**4))
        np.savez(root / f"tokens/train/{chosen:08d}.npz", input_ids=np.array(ids))
    return {"kind": "layout", "path": str(root), "latents": True, "tokens": draw.random() < 0.7 or damage == "ids"}


def check_vectors(damage: str, texts: Sequence[str], vectors_nd: Any) -> None:
    """Raise `Wrong` if a text has the vector of another one, or one that is not finite."""
    if len(texts) != len(vectors_nd):
        raise Wrong("lost vector", f"{len(texts)} records, {len(vectors_nd)} vectors")
    if not np.isfinite(vectors_nd).all():
        raise Wrong("vector not finite", repr(vectors_nd)[:300])
    exact = damage in ("none", "rows", "shape", "token_bytes", "token_file", "ids")  # no number was changed
    for text, vector in zip(texts, vectors_nd.tolist(), strict=True):
        number = re.fullmatch(r"number (\d+)", text)
        if exact and (number is None or vector != vector_of(int(number[1]))):
            raise Wrong("foreign vector", f"{text!r} has {vector}")
