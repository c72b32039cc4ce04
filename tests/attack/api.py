"""Target: the Python API with arguments of wrong types, beyond every bound, or of strange texts.

Cases name a value by its position in these lists, because many values are not JSON: append new values at the end.
"""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np

from . import material
from .oracle import Wrong
from .results import check_result

TEXTS: tuple[Any, ...] = (
    "w1", "w1 w2 w3", ["w1", "w2 w3"], "", " ", [], [""], ["w1", ""], ["w1", None], None, 3, b"w1", ["\ud800"],
    "w1 \x00 w2", "w1 " * 5000,
    "w" * 100_000, "unknown words only", ["w1"] * 300, {"a": "w1"}, ("w1", "w2"), {"w1"}, iter(["w1", "w2"]),
    np.array(["w1", "w2"]),
    "[MASK]", "[PAD] [UNK]", "w1 [MASK] w2", "[MASK] " * 12, "[MASK] " * 13, "[MASK][MASK]", ["w1", ["w2"]],
    "\u202ew1", "🙂" * 50, object(), Path("x"),
    "no/such.npy", float("nan"), [float("nan")], range(3), True,
)  # fmt: skip
LATENTS: tuple[Any, ...] = (
    [[0.1] * 6], [0.1] * 6, [[0.0] * 6], [[7.0] * 6], [[1e20] * 6], [[1e38] * 6], [[1e39] * 6], [[float("nan")] * 6],
    [[float("inf")] * 6],
    [[0.1] * 5], [[[0.1] * 6]], [], None, "w1 w2", ["w1", "w2"], ["w1", 3], [["a"] * 6], [[None] * 6], {"a": 1}, 3,
    [[True] * 6], [[1] * 6],
    np.zeros((0, 6)), np.ones((2, 6), np.float16), np.ones((2, 6), complex), np.ones((2, 6), object),
    np.ones(6)[::-1], Path("/dev/null"), Path("."),
    "x.npy", [[10**400] * 6], b"123456", [[0.1] * 6] * 200, [[0.1] * 6, [0.2] * 5],
)  # fmt: skip
SEEDS: tuple[Any, ...] = (
    0,
    1,
    -1,
    2**31,
    2**63,
    2**64,
    10**30,
    None,
    1.5,
    1.0,
    True,
    "1",
    np.int64(3),
    np.float32(3),
    float("nan"),
    [1],
    np.array([1]),
)
COUNTS: tuple[Any, ...] = (
    1,
    2,
    0,
    -1,
    10**9,
    10**12,
    2**63,
    10**30,
    None,
    1.5,
    2.0,
    True,
    "4",
    np.int32(2),
    float("inf"),
    [2],
    b"2",
    "x",
)
SAMPLERS: tuple[Any, ...] = (
    None, "confidence", "ancestral", "nonsense", "", 3, True, {}, {"kind": "confidence"}, {"kind": "confidence",
    "steps": 0}, {"kind": None},
    {"kind": "confidence", "steps": 10**9}, {"kind": "confidence", "temperature": 1e30}, {"kind": "confidence",
    "temperature": 1e-30},
    {"kind": "confidence", "temperature": "x"}, {"kind": "confidence", "guidance": 1e30}, {"kind": "ancestral",
    "steps": 2, "temperature": 1e38},
    {"kind": "confidence", "nothing": 1}, {"kind": "os:abort"}, {"kind": "no.such.module:X"}, {"kind": "a" * 5000},
    {"kind": "\ud800"}, {1: 2},
    ["confidence"], object(), "autoregressive", "joint_states", {"kind": "blocks"}, {"kind": "uncertainty",
    "steps": 2}, "remdm_loop", dict,
    {"kind": "threshold", "threshold": 1e308}, {"kind": "confidence", "top_p": 0}, {"kind": "confidence", "top_k": 0},
    "ddpm_cache", "entropy",
    {"kind": "confidence", "guidance": -1e30}, {"kind": "confidence", "steps": 2.5},
)  # fmt: skip
LATENT_SAMPLERS: tuple[Any, ...] = (
    None, "ddim", "ddpm", "euler", "heun", "dpmpp_2m", "one_step", "nonsense", 3, {}, {"kind": "ddim", "steps": 0},
    {"kind": "ddim", "steps": 10**9},
    {"kind": "ddim", "guidance": 1e30}, {"kind": "ddim", "draws": 10**9}, {"kind": "ddim", "eta": 1e30},
    {"kind": "ddim", "eta": -1},
    {"kind": "ddim", "x": 1}, {"kind": "heun", "guidance": 1e38}, object(), ["ddim"], {"kind": "ddim",
    "guidance": float("nan")},
)  # fmt: skip
LENGTHS: tuple[Any, ...] = (
    "argmax",
    "sample",
    "top-2",
    "top-0",
    "top-1000000000",
    "x",
    "",
    1,
    12,
    13,
    0,
    -1,
    10**9,
    2**63,
    None,
    1.5,
    True,
    [3],
)
STRENGTHS: tuple[Any, ...] = (
    0,
    1,
    0.5,
    -0.1,
    1.1,
    None,
    "0.5",
    float("nan"),
    True,
    [0.5],
    1e-300,
    np.float32(0.5),
    10**30,
)
DEVICES: tuple[Any, ...] = (
    "cpu",
    "meta",
    "banana",
    "cuda",
    "cuda:99",
    "",
    3,
    True,
    "cpu:7",
    object(),
    "mps",
    "xla",
    "\ud800",
    None,
)
CHOICES: tuple[Any, ...] = ("x", "", None, 3, True, ["together"], "together", "latent_first", "text_first", "random",
"least_likely", "slerp", "lerp",
                            "truncate", "refuse", [], "\ud800")  # fmt: skip
FLAGS: tuple[Any, ...] = (True, False, None, 1, "yes", [])

METHODS: dict[str, dict[str, tuple[Any, ...]]] = {
    "invert": {"targets": LATENTS, "sampler": SAMPLERS, "steps": COUNTS, "length": LENGTHS, "reembed": FLAGS,
    "seed": SEEDS, "search": SAMPLERS},
    "embed": {"texts": TEXTS, "sampler": LATENT_SAMPLERS, "steps": COUNTS, "draws": COUNTS, "too_long": CHOICES,
    "seed": SEEDS},
    "generate": {"n": COUNTS, "order": CHOICES, "sampler": SAMPLERS, "latent_sampler": LATENT_SAMPLERS,
    "steps": COUNTS, "length": LENGTHS, "seed": SEEDS},
    "infill": {"texts": TEXTS, "latents": LATENTS, "sampler": SAMPLERS, "steps": COUNTS, "mask": TEXTS, "seed": SEEDS},
    "edit": {"sources": TEXTS, "targets": LATENTS, "strength": STRENGTHS, "which": CHOICES, "sampler": SAMPLERS,
    "steps": COUNTS, "seed": SEEDS},
    "interpolate": {"a": LATENTS, "b": LATENTS, "steps": COUNTS, "path": CHOICES, "sampler": SAMPLERS,
    "length": LENGTHS, "seed": SEEDS},
    "score": {"texts": TEXTS, "latents": LATENTS, "draws": COUNTS, "seed": SEEDS},
    "classify": {"items": LATENTS, "second": TEXTS, "too_long": CHOICES},
    "neighbours": {"latents": LATENTS, "store": LATENTS, "k": COUNTS},
    "encode": {"texts": TEXTS},
    "from_run": {"checkpoint": COUNTS, "device": DEVICES, "use_ema": FLAGS, "batch_tokens": COUNTS, "encoder": TEXTS},
    "copy": {"how": ("copy", "deepcopy", "pickle", "repr")},
}  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "invert": {"targets": [[0.4] * 6], "steps": 2},
    "embed": {"texts": ["w1 w2"], "steps": 2},
    "generate": {"n": 2, "steps": 2},
    "infill": {"texts": ["w1 [MASK] w3"], "steps": 2},
    "edit": {"sources": ["w1 w2 w3"], "targets": [[0.4] * 6], "steps": 2},
    "interpolate": {"a": [[0.4] * 6], "b": [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]], "steps": 2},
    "score": {"texts": ["w1 w2"], "draws": 2},
    "classify": {"items": ["w1 w2"]},
    "neighbours": {"latents": [[0.4] * 6], "store": np.eye(6, dtype=np.float32), "k": 2},
    "encode": {"texts": ["w1"]},
    "from_run": {},
    "copy": {},
}  # fmt: skip


def prepare() -> dict[str, Any]:
    """Models of three kinds: of texts and latents, of texts alone, and autoregressive."""
    from mm_ldlm.families.autoregressive.model import CausalConfig
    from mm_ldlm.families.autoregressive.objective import AutoregressiveConfig
    from mm_ldlm.inference import MMLDLM

    parts = material.module("inference/conftest.py")
    return {
        "multimodal": MMLDLM.from_run(material.run_folder(), encoder=material.encoder(), device="cpu"),
        "text": parts.make_text_model(),
        "causal": parts.make_text_model(
            objective=AutoregressiveConfig(), config=CausalConfig(dim=16, depth=1, heads=2)
        ),
    }


def generate(draw: random.Random) -> dict[str, Any]:
    """A method, and the places of one or two odd values among those of its arguments."""
    method = draw.choice(list(METHODS))
    odd = METHODS[method]
    names = draw.sample(list(odd), min(len(odd), draw.choice((1, 1, 2))))
    values = {name: draw.randrange(len(odd[name])) for name in names}
    return {
        "model": draw.choice(("multimodal", "multimodal", "multimodal", "text", "causal")),
        "method": method,
        "values": values,
    }


def run(parameters: dict[str, Any], folder: Path, models: dict[str, Any]) -> str:
    method = parameters["method"]
    odd = {name: METHODS[method][name][place] for name, place in parameters["values"].items()}
    model = models[parameters["model"]]
    if method == "copy":
        return _copied(model, odd["how"])
    if method == "from_run":
        from mm_ldlm.inference import MMLDLM

        model = MMLDLM.from_run(material.run_folder(), **odd)
        check_result(model.invert([[0.4] * 6], steps=2))
        return "success"
    result = getattr(model, method)(**{**GOOD[method], **odd})
    _refuse_nonsense(method, odd)
    check_result(result, own_words=_own_words(method, {**GOOD[method], **odd}))
    if method == "generate" and len(result) != odd.get("n", 2):
        raise Wrong("wrong result", f"generate(n={odd.get('n', 2)!r}) returned {len(result)} texts")
    return "success"


def _own_words(method: str, arguments: dict[str, Any]) -> str:
    """The text around the gaps of `infill`; it stays letter for letter, whatever else is written there."""
    mask = arguments.get("mask", "[MASK]")
    return str(arguments["texts"]).replace(mask, "") if method == "infill" and isinstance(mask, str) else ""


def _refuse_nonsense(method: str, odd: dict[str, Any]) -> None:
    """Raise `Wrong` if a value that is no integer was accepted as one."""
    for name in {"seed", "n", "k", "draws", "steps"} & odd.keys():
        value = odd[name]
        optional = value is None and name in ("steps", "draws") and method not in ("interpolate", "score")
        if not optional and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
            raise Wrong("accepted nonsense", f"{method}({name}={value!r}) was accepted")


def _copied(model: Any, how: str) -> str:
    if how == "repr":
        assert "MMLDLM" in repr(model)
        return "success"
    other = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda item: pickle.loads(pickle.dumps(item))}[
        how
    ](model)
    method, keys = ("generate", GOOD["generate"])
    one, two = (getattr(item, method)(**keys, seed=1) for item in (model, other))
    if one.texts != two.texts:
        raise Wrong("wrong result", f"a {how} of the model writes {two.texts}, the model {one.texts}")
    return "success"
