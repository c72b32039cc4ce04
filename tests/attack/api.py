"""Target: the Python API with arguments of wrong types, beyond every bound, of strange texts, and of odd files.

Cases name a value by its place in these lists, because many values are not JSON.
"""

import copy
import io
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.core.registry import contributed

from . import material
from .damage import damage_bytes
from .oracle import Wrong, check_result

DIM = 384
"""Of the latents of the quick run"""
TEXTS: tuple[Any, ...] = (
    "the dog", ["the dog", "a cat sat"], "", " ", [], [""], ["the dog", ""], ["the dog", None], None, 3, b"dog",
    ["\ud800"], "the \x00 dog", "the " * 5000, "w" * 100_000, "zzz qqq xxx", ["the dog"] * 300, {"a": "dog"},
    {"the dog"}, iter(["the dog", "a cat"]), np.array(["the dog", "a cat"]), "[MASK]", "[PAD] [UNK]",
    "the [MASK] dog", "[MASK] " * 12, "[MASK] " * 90, "[MASK][MASK]", ["the", ["dog"]], "\u202edog", "🙂" * 50,
    object(), Path("x"), "no/such.npy", float("nan"), [float("nan")], range(3), True, memoryview(b"ab"),
    memoryview(bytes(6)).cast("B", (2, 3)),
)  # fmt: skip
LATENTS: tuple[Any, ...] = (
    *([[value] * DIM] for value in (0.05, 0.0, 7.0, 1e20, 1e38, 1e39, float("nan"), float("inf"), "a", None, True, 1, 10**400)),
    [0.05] * DIM, [[0.05] * 5], [[[0.05] * DIM]], [], None, "the dog", ["the dog", 3], {"a": 1}, 3,
    np.zeros((0, DIM)), np.ones((2, DIM), np.float16), np.ones((2, DIM), complex), np.ones((2, DIM), object),
    np.ones(DIM)[::-1], Path("/dev/null"), Path("."), "x.npy", b"123456", [[0.05] * DIM] * 200,
    [[0.05] * DIM, [0.2] * 5], memoryview(np.ones((2, DIM), np.float32)), memoryview(np.ones((2, DIM))),
)  # fmt: skip
SEEDS: tuple[Any, ...] = (
    0, -1, 2**31, 2**63, 2**64, 10**30, None, 1.5, 1.0, True, "1", np.int64(3), np.float32(3), float("nan"), [1],
    np.array([1]),
)  # fmt: skip
COUNTS: tuple[Any, ...] = (
    1, 2, 0, -1, 10**9, 10**12, 2**63, 10**30, None, 1.5, 2.0, True, "4", np.int32(2), float("inf"), [2], b"2", "x",
)  # fmt: skip
SAMPLERS: tuple[Any, ...] = (
    None, "confidence", "ancestral", "nonsense", "", 3, True, {}, {"kind": None}, {"kind": "os:abort"}, dict,
    {"kind": "no.such.module:X"}, {"kind": "a" * 5000}, {"kind": "\ud800"}, {1: 2}, ["confidence"], object(),
    *contributed("text_samplers"), "ddpm_cache", "entropy", "ddim", "heun", "dpmpp_2m", "one_step",
    *({"kind": "confidence", name: value} for name, value in (
        ("steps", 0), ("steps", 10**9), ("steps", 2.5), ("temperature", 1e30), ("temperature", 1e-30),
        ("temperature", "x"), ("guidance", 1e30), ("nothing", 1), ("top_p", 0), ("top_k", 0),
    )),
    *({"kind": "ddim", name: value} for name, value in (
        ("steps", 0), ("steps", 10**9), ("guidance", 1e30), ("draws", 10**9), ("eta", -1), ("guidance", float("nan")),
    )),
)  # fmt: skip
LENGTHS: tuple[Any, ...] = (
    "argmax", "sample", "top-2", "x", "", 1, 12, 10**9, 0, -1, 2**63, None, 1.5, True, [3],
)  # fmt: skip
CHOICES: tuple[Any, ...] = (
    "x", "", None, 3, True, 0.5, -0.1, 1.1, "0.5", float("nan"), 1e-300, np.float32(0.5), 10**30, ["together"],
    "together", "latent_first", "random", "slerp", "truncate", "\ud800",
)  # fmt: skip
DEVICES: tuple[Any, ...] = ("cpu", "meta", "banana", "cuda:99", "", 3, True, "cpu:7", object(), "mps", "\ud800", None)
FLAGS: tuple[Any, ...] = (True, False, None, 1, "yes", [])
FILES = ("header", "bytes", "value", "type", "shape", "npz")
"""Ways to make an odd `.npy` file"""

METHODS: dict[str, dict[str, tuple[Any, ...]]] = {
    "invert": {"targets": LATENTS, "sampler": SAMPLERS, "steps": COUNTS, "length": LENGTHS, "reembed": FLAGS,
               "seed": SEEDS, "search": SAMPLERS, "samples": COUNTS},
    "embed": {"texts": TEXTS, "sampler": SAMPLERS, "steps": COUNTS, "draws": COUNTS, "too_long": CHOICES, "ids": LATENTS, "seed": SEEDS},
    "generate": {"n": COUNTS, "order": CHOICES, "sampler": SAMPLERS, "latent_sampler": SAMPLERS, "steps": COUNTS,
                 "length": LENGTHS, "seed": SEEDS},
    "infill": {"texts": TEXTS, "latents": LATENTS, "sampler": SAMPLERS, "steps": COUNTS, "mask": TEXTS, "seed": SEEDS},
    "edit": {"sources": TEXTS, "targets": LATENTS, "strength": CHOICES, "sampler": SAMPLERS},
    "interpolate": {"a": LATENTS, "b": LATENTS, "steps": COUNTS, "length": LENGTHS, "seed": SEEDS},
    "score": {"texts": TEXTS, "latents": LATENTS, "ids": LATENTS, "draws": COUNTS, "seed": SEEDS},
    "neighbours": {"latents": LATENTS, "store": LATENTS, "k": COUNTS},
    "encode": {"texts": TEXTS},
    "from_run": {"checkpoint": COUNTS, "device": DEVICES, "use_ema": FLAGS, "batch_tokens": COUNTS, "encoder": TEXTS},
    "copy": {"how": ("copy", "deepcopy", "pickle", "repr")},
    "file": {"how": FILES * 3},
}  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "invert": {"targets": [[0.05] * DIM], "steps": 2}, "embed": {"texts": ["the dog"], "steps": 2},
    "generate": {"n": 2, "steps": 2}, "infill": {"texts": ["the [MASK] sat"], "steps": 2},
    "edit": {"sources": ["the dog sat"], "targets": [[0.05] * DIM], "steps": 2},
    "interpolate": {"a": [[0.05] * DIM], "b": [[0.05, -0.05] * (DIM // 2)], "steps": 2},
    "score": {"texts": ["the dog"], "draws": 2}, "encode": {"texts": ["the dog"]},
    "neighbours": {"latents": [[0.05] * DIM], "store": np.eye(DIM, dtype=np.float32), "k": 2},
}  # fmt: skip
_HEADER = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }"
HEADERS = (
    *(_HEADER % ("<f4", "False", shape) for shape in ("(1000000000000, 384)", "(-1, 384)", "1152", "(3, 384.0)", "(0, 384)")),
    *(_HEADER % (kind, "False", "(3, 384)") for kind in ("|O", "<U999999999", ">c16", "<M8[ns]")), "[1, 2]", "",
    _HEADER % ("<f4", "1", "(3, 384)"), "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 384)", "\x00" * 90,
    "(" * 3000, "__import__('os').abort()",
)  # fmt: skip
VALUES = (0.0, 1e-30, 1e10, 1e20, 3e38, 1e39, 1e300, float("nan"), float("inf"), -float("inf"))
TYPES = ("float16", "float64", "int8", "uint64", "bool", "complex64", "U3", "datetime64[s]", "object", "longdouble")
SHAPES = ((DIM,), (1, DIM), (0, DIM), (3, 5), (DIM, 3), (1, 1, DIM), (), (0,), (3, 0))


def prepare() -> Any:
    """Load the model of the quick run."""
    return material.model()


def generate(draw: random.Random) -> dict[str, Any]:
    """A method, and the places of one or two odd values among those of its arguments."""
    method = draw.choice(list(METHODS))
    odd = METHODS[method]
    names = draw.sample(list(odd), min(len(odd), draw.choice((1, 1, 2))))
    values = {name: draw.randrange(len(odd[name])) for name in names}
    return {"method": method, "values": values, "draw": draw.randrange(2**32)}


def run(parameters: dict[str, Any], folder: Path, model: Any) -> str:
    method = parameters["method"]
    odd = {name: METHODS[method][name][place] for name, place in parameters["values"].items()}
    if method == "copy":
        return _copied(model, odd["how"])
    if method == "from_run":
        model = type(model).from_run(material.runs() / material.run_name(), **odd)
        method, odd = "invert", {}
    if method == "file":
        (folder / "x.npy").write_bytes(npy(odd["how"], random.Random(parameters["draw"])))
        method, odd = "invert", {"targets": folder / "x.npy"}
    arguments = {**GOOD[method], **odd}
    result = getattr(model, method)(**arguments)
    for name in {"seed", "n", "k", "draws", "steps", "samples"} & odd.keys():
        value = odd[name]
        optional = value is None and name in ("steps", "draws") and method not in ("interpolate", "score")
        if not optional and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
            raise Wrong("accepted nonsense", f"{method}({name}={value!r}) was accepted")
    mask = arguments.get("mask", "[MASK]")
    around = method == "infill" and isinstance(mask, str)  # the text around the gaps stays verbatim
    check_result(result, own_words=str(arguments["texts"]).replace(mask, "") if around else "")
    if method == "generate" and len(result) != arguments["n"]:
        raise Wrong("wrong result", f"generate(n={arguments['n']!r}) returned {len(result)} texts")
    return "success"


def _copied(model: Any, how: str) -> str:
    if how == "repr":
        assert "MMLDLM" in repr(model)
        return "success"
    ways: dict[str, Any] = {"copy": copy.copy, "deepcopy": copy.deepcopy}
    other = ways[how](model) if how in ways else pickle.loads(pickle.dumps(model))
    one, two = (each.generate(**GOOD["generate"], seed=1).texts for each in (model, other))
    if one != two:
        raise Wrong("wrong result", f"a {how} of the model writes {two}, the model {one}")
    return "success"


def npy(how: str, draw: random.Random) -> bytes:
    """Bytes of an odd `.npy` file of three latents."""
    array: Any = np.random.default_rng(draw.randrange(2**32)).normal(size=(3, DIM)).astype(np.float32)
    match how:
        case "header":
            header, version = (
                draw.choice(HEADERS).encode("latin-1"),
                draw.choice((b"\x01\x00", b"\x02\x00", b"\x09\x00")),
            )
            length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
            return b"\x93NUMPY" + version + draw.choice((length, b"\xff" * len(length))) + header + bytes(12 * DIM)
        case "value":
            array = array.astype(draw.choice((np.float32, np.float64)))
            with np.errstate(over="ignore"):
                array[(0,) if draw.random() < 0.5 else (0, 2)] = draw.choice(VALUES)
        case "type":
            kind = draw.choice(TYPES)
            array = np.zeros((3, DIM), kind) if kind[0] in "Udo" else array.astype(kind)
        case "shape":
            array = np.full(draw.choice(SHAPES), np.float32(0.3))
    sink = io.BytesIO()
    if how == "npz":
        np.savez(sink, a=array)
    else:
        np.save(sink, array, allow_pickle=True)
    return damage_bytes(sink.getvalue(), draw) if how == "bytes" else sink.getvalue()
