"""Target: files and arrays of vectors, given to the model that writes texts of them, and as latents of a layout."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from . import material
from .damage import damage_bytes
from .oracle import Wrong
from .results import check_result

HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 6), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 6), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 6), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3, 6), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 6)",
    "{'descr': '<U999999999', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<f4', 'fortran_order': 1, 'shape': (3, 6), }",
    "{'descr': '<f4', 'shape': (3, 6), }", "{'descr': '<f4', 'fortran_order': False, 'shape': 18, }", "[1, 2]", "",
    "\x00" * 90, "(" * 3000,
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 6.0), }",
    "{'descr': '>c16', 'fortran_order': False, 'shape': (1, 6), }",
    "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1, 6), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 6), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999, 6), }", "__import__('os').abort()",
)  # fmt: skip
VALUES = (0.0, 1e-30, 1e5, 1e10, 1e20, 1e30, 3e38, 1e39, 1e300, float("nan"), float("inf"), -float("inf"), -1e20)
TYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int64",
    "uint64",
    "bool",
    "complex64",
    "U3",
    "S3",
    "datetime64[s]",
    "object",
    "longdouble",
)
SHAPES = ((6,), (1, 6), (3, 6), (0, 6), (3, 5), (3, 7), (6, 3), (1, 1, 6), (), (0,), (1,), (2, 3, 6), (3, 0))
HOW = ("header", "bytes", "value", "value", "value", "type", "shape", "npz", "container", "path", "none")
USES = (
    "invert_file",
    "invert_file",
    "invert_array",
    "neighbours",
    "edit",
    "interpolate",
    "score",
    "classify",
    "layout",
    "layout",
)


def prepare() -> Any:
    """Load the model of the undamaged run."""
    from mm_ldlm.extras.layout import source as layout  # noqa: F401
    from mm_ldlm.inference import MMLDLM

    return MMLDLM.from_run(material.run_folder(), encoder=material.encoder(), device="cpu")


def generate(draw: random.Random) -> dict[str, Any]:
    return {"how": draw.choice(HOW), "use": draw.choice(USES), "draw": draw.randrange(2**32)}


def run(parameters: dict[str, Any], folder: Path, model: Any) -> str:
    draw = random.Random(parameters["draw"])
    file = folder / "vectors.npy"
    raw, array = make(parameters["how"], draw)
    file.write_bytes(raw)
    use = parameters["use"]
    if use == "layout":
        return _of_layout(raw, folder)
    given: Any = file
    if parameters["how"] == "path":
        given = draw.choice(
            (folder, folder / "no.npy", Path("/dev/zero"), folder / ("x" * 300), str(folder / "no.npy"), Path(""))
        )
    elif use != "invert_file":
        given = array
    texts = ["w1 w2 w3"] * (len(array) if _is_table(array) else 1)
    match use:
        case "neighbours":
            result = model.neighbours(given, np.eye(6, dtype=np.float32), k=2)
        case "edit":
            result = model.edit("w1 w2 w3", targets=given, seed=1)
        case "interpolate":
            result = model.interpolate(given, given, steps=2)
        case "score":
            result = model.score(texts, latents=given, draws=2)
        case "classify":
            result = model.classify(given)
        case _:
            result = model.invert(given, steps=2, seed=1)
    check_result(result)
    return "success"


def make(how: str, draw: random.Random) -> tuple[bytes, Any]:
    """Bytes of a `.npy` file, and the array that it would contain."""
    array: Any = np.random.default_rng(draw.randrange(2**32)).normal(size=(3, 6)).astype(np.float32)
    array /= np.linalg.norm(array, axis=1, keepdims=True)
    match how:
        case "header":
            header = draw.choice(HEADERS).encode("latin-1")
            version = draw.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
            length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
            if draw.random() < 0.2:
                length = b"\xff" * len(length)
            return b"\x93NUMPY" + version + length + header + bytes(72), array
        case "bytes":
            return damage_bytes(_npy(array), draw), array
        case "value":
            value = draw.choice(VALUES)
            array = array.astype(draw.choice((np.float32, np.float64)))
            with np.errstate(over="ignore"):
                array[(0,) if draw.random() < 0.5 else (0, 2)] = value
                array = array * draw.choice((1, 1, 7, 1e4)) if draw.random() < 0.3 else array
        case "type":
            name = draw.choice(TYPES)
            array = np.zeros((3, 6), name) if name in ("U3", "S3", "datetime64[s]", "object") else array.astype(name)
        case "shape":
            array = np.zeros(draw.choice(SHAPES), np.float32) + np.float32(0.3)
        case "npz":
            sink = io.BytesIO()
            np.savez(sink, a=array)
            return sink.getvalue(), array
        case "container":
            array = draw.choice((array.tolist(), [array[0], array[1][:3]], None, {"a": 1}, "x", 3, [[None] * 6],
            [["a"] * 6], [[10**400] * 6],
                                 b"x", iter([1]), [array, array], {1, 2}, object, [[True] * 6], ["w1 w2", 3], [""],
                                 []))  # fmt: skip
            return _npy(np.zeros((1, 6), np.float32)), array
    return _npy(array), array


def _is_table(array: Any) -> bool:
    try:
        return np.ndim(array) == 2
    except ValueError:  # rows of different lengths
        return False


def _npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array, allow_pickle=True)
    return sink.getvalue()


def _of_layout(raw: bytes, folder: Path) -> str:
    """Read a folder layout whose second latent is the damaged file."""
    from mm_ldlm.core.config import parse_kind
    from mm_ldlm.data.corpus.sources import SOURCES, BadRow, Opening, Unusable
    from mm_ldlm.extras.own_vectors.store import VectorStore

    root = folder / "layout"
    listed = []
    for i in range(3):
        for kind in ("texts", "latents"):
            (root / kind / "train").mkdir(parents=True, exist_ok=True)
        names = {"text_path": f"texts/train/{i:08d}.txt", "latent_path": f"latents/train/{i:08d}.npy"}
        (root / names["text_path"]).write_text(f"text {i}")
        (root / names["latent_path"]).write_bytes(raw if i == 1 else _npy(np.ones(6, np.float32)))
        listed.append(names)
    (root / "train_data.json").write_text(json.dumps(listed))
    config = parse_kind(SOURCES, {"kind": "layout", "path": str(root), "latents": True}, at="source")
    rows = list(config.open(Opening(0, 10_000)).rows())
    if len(rows) != 3:
        raise Wrong("lost row", f"three rows were written, {len(rows)} were read")
    if isinstance(rows[0], BadRow) or isinstance(rows[2], BadRow):
        raise Wrong("wrong row", "the rows beside the damaged one are whole")
    if not isinstance(rows[1], BadRow):
        try:
            vector = VectorStore(6, folder).accept(rows[1].vector)
        except Unusable:
            return "quarantine"
        if vector.shape != (6,) or vector.dtype != np.float32 or not np.isfinite(vector).all():
            raise Wrong("no vector", repr(vector)[:300])
    return "success"
