"""The door of requests: hostile arguments are answered or refused by name, and every collection of texts or vectors fits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.inference.runs import DIM, LATENTS, MULTIMODAL, make, text_run, write_run

from mm_ldlm.core import MMLDLMError, SamplingError
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.arguments import array_of, texts_of, vectors_of
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.search import SearchConfig

HUGE = 10**9


class Unfriendly:
    """An object whose conversions raise."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ValueError("no")

    __array__ = __len__ = __iter__ = __float__ = __int__ = __index__ = __str__ = __repr__ = __eq__ = _refuse
    __hash__ = object.__hash__


ANYTHING = [
    None, True, False, 0, 1, -1, 2, 1.5, float("nan"), float("inf"), 1e-45, 1e30, HUGE, 2**63, 10**40, "", "x", "4",
    "[MASK]", "w1 w2", "\ud800", "meta", b"w1", [], [None], [""], ["w1", 2], {}, {"kind": "ddim"}, {"kind": None},
    {1: 2}, set(), object(), type, len, Path("/nowhere"), np.float64("nan"), np.int64(1), np.array(3), np.zeros(0),
    np.zeros((0, DIM)), np.zeros((2, DIM)), np.ones((2, DIM)) * 1e20, np.full((2, DIM), np.nan), np.ones((2, DIM), "O"),
    np.ones((2, DIM), complex), np.ones((2, DIM), bool), np.array(["a"]), np.ones((1, 1, DIM)), torch.ones(2, DIM),
    torch.ones(2, DIM, dtype=torch.bool), torch.ones(2, DIM, device="meta"), torch.ones((), device="meta"),
    torch.ones(2, DIM).to_sparse(), np.zeros(2, [("a", "f4")]), [[1.0] * DIM, [1.0]], [[[1]]], [10**400], range(3),
    memoryview(np.ones((2, DIM), np.float32)), memoryview(b"w1"), pd.DataFrame({"a": [1]}), pa.table({"a": ["w1"]}),
    pa.array([None, "w1"]), pd.Series(["w1", None]), np.ma.masked_greater(LATENTS, 0.5), Unfriendly(), [Unfriendly()],
]  # fmt: skip
SAMPLERS = [
    {"kind": "confidence", "steps": "4"}, {"kind": "confidence", "steps": HUGE}, {"kind": "ancestral", "steps": 2**63},
    {"kind": "confidence", "steps": 2, "temperature": 1e-45}, {"kind": "ancestral", "temperature": 1e300},
    {"kind": "confidence", "steps": 2, "guidance": 1e30}, {"kind": "ddim", "steps": 2, "guidance": 1e30},
    {"kind": "ddim", "steps": 2, "guidance": 1000.0}, {"kind": "confidence", "steps": 2, "guidance": 1000.0},
    {"kind": "ddim", "draws": HUGE}, {"kind": "ddim", "steps": HUGE}, {"kind": "ddim", "t_max": 1e-300, "steps": 2},
    {"kind": "ddpm", "steps": 2, "t_max": float("nan")}, {"kind": "blocks"}, {"kind": "os:path"}, {"kind": "x.y:Z"},
    {"kind": "threshold", "steps": 2, "threshold": -1}, {"kind": "confidence", "steps": 2, "top_k": 10**40},
    {"kind": "blocks", "block_length": HUGE, "inner": {"kind": "confidence", "steps": 1}},
    {"kind": "threshold", "steps": 2, "threshold": 1e30}, {"kind": "ddpm", "steps": 2}, {"steps": 2}, SearchConfig,
    DdimConfig, "confidence", "ancestral", "ddim", "one_step", "nope",
]  # fmt: skip
LENGTHS = ["argmax", "sample", "longest", 5, 12, 13, HUGE, 2**63, -3]
SEARCHES = [
    SearchConfig(candidates=2), SearchConfig(candidates=2, rounds=1, beam=3), "search", {"candidates": 2},
    {"candidates": HUGE}, {"rounds": HUGE}, {"beam": HUGE}, {"lengths": HUGE}, {"candidates": 2, "lengths": 99},
    {"temperature": 1e-45}, {"rounds": 2, "calls": 6}, {"calls": HUGE},
]  # fmt: skip
TEXTS = ["w1 w2", ["w1", "w2 w3"], ["w1 [MASK]"], "unknown words", ["w1 " * 40], ["w1\0"], ["w1"] * 3]
IDS = [[[1, 2]], [[1, 2], [3]], [[]], [[21]], [[22]], [[23]], [[2**70]], [[1.0]], np.array([[1, 2]]), [[True]], ["ab"],
       memoryview(np.array([[3, 4]]))]  # fmt: skip
HOW: dict[str, Any] = {"seed": [], "steps": [3], "sampler": SAMPLERS}
COMMON = {**HOW, "length": LENGTHS}
METHODS: dict[str, dict[str, Any]] = {
    "invert": {"targets": [LATENTS, *TEXTS, "x.npy"], "search": SEARCHES, "reembed": [], "samples": [2], "keep": ["all"], "calls": [9],
               **COMMON},
    "embed": {"texts": TEXTS, "ids": IDS, "draws": [2], "too_long": ["truncate"], **HOW},
    "generate": {"n": [2], "order": ["together", "latent_first"], "latent_sampler": SAMPLERS, **COMMON},
    "infill": {"texts": TEXTS, "latents": [LATENTS], "mask": ["w1"], **HOW},
    "edit": {"sources": TEXTS, "targets": [LATENTS, *TEXTS], "strength": [0.3], **HOW},
    "interpolate": {"a": [LATENTS, *TEXTS], "b": [LATENTS, *TEXTS], **COMMON},
    "score": {"texts": TEXTS, "ids": IDS, "latents": [LATENTS], "draws": [2], "seed": []},
    "neighbours": {"latents": [LATENTS], "store": [LATENTS], "k": [2]},
    "encode": {"texts": TEXTS},
}  # fmt: skip
GOOD = {
    "targets": LATENTS, "texts": ["w1", "w2 w3"], "n": 2, "sources": ["w1", "w2 w3"],
    "a": LATENTS, "b": LATENTS[::-1], "latents": LATENTS, "store": LATENTS,
}  # fmt: skip


def answers_or_refuses(call: Callable[[], Any]) -> Any:
    """Call; anything but a result or an error of the project in a bounded message of a few lines fails the test."""
    try:
        return call()
    except MMLDLMError as error:
        message = str(error)
        assert 1 <= len(message.splitlines()) <= 3, message
        assert len(message) < 1500, message[:1500]
        assert message.replace("\n", " ").isprintable()
        return error


@st.composite
def requests(draw: Any) -> tuple[str, dict[str, Any]]:
    """A method and its arguments: most of them valid, one or two hostile."""
    name = draw(st.sampled_from(sorted(METHODS)))
    options = METHODS[name]
    hostile = draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=2, unique=True))
    choices = {key: [*options[key], *options[key], *ANYTHING] for key in hostile}
    values = {key: values[draw(st.integers(0, len(values) - 1))] for key, values in choices.items()}
    needed = {key: GOOD[key] for key in options if key in GOOD and (key != "latents" or name == "neighbours")}
    few = {"steps": 2} if "steps" in options and name != "interpolate" else {}
    return name, needed | few | values


MODELS: dict[str, MMLDLM] = {"latents": make(), "texts": text_run()}


@settings(max_examples=400, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(request=requests(), which=st.sampled_from(["latents", "latents", "texts"]))
def test_every_request_answers_or_refuses(request: tuple[str, dict[str, Any]], which: str) -> None:
    name, arguments = request
    answers_or_refuses(lambda: getattr(MODELS[which], name)(**arguments))


@pytest.mark.parametrize("option", ["path", "device", "checkpoint", "use_ema", "batch_tokens", "encoder"])
def test_loading_answers_or_refuses(option: str, tmp_path: Path) -> None:
    run_folder = write_run(tmp_path / "run", model=MMDIT_SMALL)
    accepted = {
        "path": [], "device": [None], "checkpoint": [], "use_ema": [], "batch_tokens": [None],
        "encoder": [None],
    }  # fmt: skip
    extra = {
        "device": ["banana", "cuda:99", torch.device("meta")],
        "path": ["x" * 5000, "a\0b", b"x"],
        "batch_tokens": [HUGE],
    }
    for value in [*ANYTHING, *extra.get(option, [])]:
        arguments = {"path": run_folder, "device": "cpu", option: value}
        found = answers_or_refuses(lambda arguments=arguments: MMLDLM.from_run(**arguments))
        if isinstance(value, str | type(None)) or option in ("path", "device", "encoder"):
            simple = isinstance(value, str | type(None))
            assert isinstance(found, MMLDLMError) or (simple and value in accepted[option]), (option, value)


@pytest.mark.parametrize(("arguments", "named"), [
    ({"seed": -1}, ["seed", -1]), ({"seed": 1.5}, ["seed", 1.5]), ({"steps": 0}, ["steps", 0]),
    ({"steps": 10_001}, ["steps", 10_001]), ({"samples": True}, ["samples", True]), ({"keep": "bets"}, ["keep", "bets", "best"]),
    ({"length": "longest"}, ["length", "longest"]), ({"length": 13}, [13, 12]), ({"reembed": "yes"}, ["reembed", "yes"]),
    ({"sampler": "confidnece"}, ["confidnece", "confidence"]), ({"search": {"candidates": 0}}, ["search.candidates", 0]),
    ({"targets": np.ones((2, 5))}, [DIM, (2, 5)]), ({"targets": ["w1", ""]}, ["targets[1]"]),
    ({"targets": np.full((3, DIM), np.inf)}, [3]), ({"targets": LATENTS * 1e7}, [4]), ({"targets": b"w1"}, ["bytes"]),
    ({"calls": 7, "samples": 2}, ["calls", 8, 7]), ({"calls": 0}, ["calls", 0]), ({"search": {"calls": 3}}, ["calls", 4, 3]),
])  # fmt: skip
def test_a_refusal_names_the_argument_and_the_value(
    arguments: dict[str, Any], named: list[Any], model: MMLDLM, refuses: Any
) -> None:
    error = type(answers_or_refuses(lambda: model.invert(**{"targets": LATENTS, **arguments})))
    assert issubclass(error, MMLDLMError)
    with refuses(error, *named):
        model.invert(**{"targets": LATENTS, **arguments})


@pytest.mark.parametrize("make_texts", [
    list, tuple, iter, pd.Series, pd.Index, np.array, lambda texts: np.array(texts, object), pa.array,
    lambda texts: pa.chunked_array([texts]), lambda texts: (text for text in texts),
    lambda texts: pd.Series(texts, dtype="string"),
])  # fmt: skip
def test_texts_may_be_in_any_collection_that_has_an_order(make_texts: Any, model: MMLDLM) -> None:
    texts = ["w1 w2", "w3"]
    assert texts_of(make_texts(texts)) == texts
    assert model.invert(make_texts(texts)).sources == tuple(texts)
    assert texts_of("w1 w2") == ["w1 w2"]


@pytest.mark.parametrize("make_latents", [
    np.asarray, torch.from_numpy, lambda z: torch.from_numpy(z).to(torch.bfloat16).float(), lambda z: z.astype(np.float64),
    lambda z: z.tolist(), memoryview, lambda z: pd.Series(list(z)), lambda z: pa.array(z.tolist()), iter,
    lambda z: [*z], lambda z: np.ma.masked_greater(z, 2.0), lambda z: pd.DataFrame(z), lambda z: z.astype(np.int64),
])  # fmt: skip
def test_vectors_may_be_in_any_collection_of_numbers(make_latents: Any, model: MMLDLM) -> None:
    expected = model.invert(LATENTS)
    assert model.invert(make_latents(LATENTS)).tokens == expected.tokens
    assert model.invert(make_latents(LATENTS[:1])).tokens == expected.tokens[:1]


def test_one_vector_is_one_row_and_bfloat16_is_converted() -> None:
    assert vectors_of(LATENTS[0], dim=DIM).shape == (1, DIM)
    assert array_of(torch.ones(2, 3, dtype=torch.bfloat16), name="x").dtype == np.float32
    assert array_of(torch.ones(2, 3, dtype=torch.int16), name="x").dtype == np.int16


@pytest.mark.parametrize("which", ["vocab_size", "mask_id", "pad_id", -1])
def test_ids_that_are_no_words_are_refused(which: str | int, model: MMLDLM) -> None:
    with pytest.raises(SamplingError, match="ids"):
        model.score(["w1"], ids=[[which if isinstance(which, int) else getattr(model.tokenizer, which)]])


def test_files_of_vectors_are_read_or_refused(
    model: MMLDLM, tmp_path: Path, unit_latents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("good.npy", unit_latents(3))
    assert (
        model.invert("good.npy").tokens == model.invert(Path("good.npy")).tokens == model.invert(unit_latents(3)).tokens
    )
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    Path("text.npy").write_text("w1")
    Path("cut.npy").write_bytes(Path("good.npy").read_bytes()[:-5])
    for name in ("none.npy", "objects.npy", "text.npy", "cut.npy", tmp_path):
        with pytest.raises(SamplingError, match=Path(name).name):
            model.invert(Path(name))


def test_what_no_machine_can_do_is_refused_before_it_is_begun(model: MMLDLM, refuses: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Free", (), {"available": 10**7}))
    for call in (
        lambda: model.generate(10**5, length=3), lambda: model.invert(np.repeat(LATENTS, 5000, axis=0)),
        lambda: model.invert(LATENTS, search={"candidates": 4, "rounds": 1000}),
        lambda: model.invert(LATENTS, samples=1000, temperature=1.0),
        lambda: model.interpolate(LATENTS, LATENTS, steps=5000), lambda: model.embed(["w1"] * 100, draws=10_000),
        lambda: model.score(["w1"] * 100, draws=10_000), lambda: make(MMDIT_SMALL, MULTIMODAL, batch_tokens=10**6),
    ):  # fmt: skip
        with pytest.raises(SamplingError, match="GB"):
            call()
    assert len(model.generate(2, length=3)) == 2


MMDIT_SMALL = {"kind": "mmdit", "dim": 8, "depth": 1, "heads": 2, "latent_tokens": 2}
