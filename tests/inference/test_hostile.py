"""Every public method with hostile values of every argument: a result, or one MMLDLMError of at most three lines."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.core.errors import MMLDLMError, SamplingError
from mm_ldlm.inference import MMLDLM
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.registry import text_sampler

DIM = 6
LATENTS = np.eye(2, DIM, dtype=np.float32)
HUGE = 10**9


class Unfriendly:
    """An object whose conversions raise."""

    def _refuse(self, *_, **__):
        raise ValueError("no")

    __array__ = __len__ = __iter__ = __float__ = __int__ = __index__ = __str__ = __repr__ = __eq__ = _refuse
    __hash__ = object.__hash__


ANYTHING = [
    None, True, False, 0, 1, -1, 2, 1.5, float("nan"), float("inf"), 1e-45, 1e30, HUGE, 2**63, 10**40, "", "x", "4",
    "[MASK]", "w1 w2", "\ud800", "meta", b"w1", [], [None], [""], ["w1", 2], {}, {"kind": "ddim"}, {"kind": None},
    {1: 2}, set(), object(), type, len, Path("/nowhere"), np.float64("nan"), np.int64(1), np.array(3), np.zeros(0),
    np.zeros((0, DIM)), np.zeros((2, DIM)), np.ones((2, DIM)) * 1e20, np.full((2, DIM), np.nan), np.ones((2, DIM), "O"),
    np.ones((2, DIM), complex), np.ones((2, DIM), bool), np.array(["a"]), np.ones((1, 1, DIM)), torch.ones(2, DIM),
    torch.ones(2, DIM, dtype=torch.bool), torch.ones(2, DIM, device="meta"), torch.ones(2, DIM).to_sparse(),
    np.zeros(2, [("a", "f4")]), [[1.0] * DIM, [1.0]], [[[1]]], [10**400], range(3), (i for i in [1]), Unfriendly(),
    [Unfriendly()],
]  # fmt: skip
SAMPLERS = [
    {"kind": "confidence", "steps": "4"}, {"kind": "confidence", "steps": HUGE}, {"kind": "ancestral", "steps": 2**63},
    {"kind": "confidence", "steps": 2, "temperature": 1e-45}, {"kind": "ancestral", "temperature": 1e300},
    {"kind": "confidence", "steps": 2, "guidance": 1e30}, {"kind": "ddim", "steps": 2, "guidance": 1e30},
    {"kind": "ddim", "draws": HUGE}, {"kind": "ddim", "steps": HUGE}, {"kind": "ddim", "t_max": 1e-300, "steps": 2},
    {"kind": "heun", "steps": 2, "t_max": float("nan")}, {"kind": "blocks"}, {"kind": "autoregressive"},
    {"kind": "self_correction"}, {"kind": "joint_states", "steps": 2}, {"kind": "os:path"}, {"kind": "x.y:Z"},
    {"kind": "threshold", "steps": 2, "threshold": -1}, {"kind": "confidence", "steps": 2, "top_k": 10**40},
    {"kind": "blocks", "block_length": HUGE, "inner": {"kind": "confidence", "steps": 1}},
    {"kind": "remdm_cap", "steps": 2, "eta": 1e30}, {"kind": "ddpm", "steps": 2}, {"steps": 2}, SearchConfig,
    DdimConfig, "confidence", "ancestral", "ddim", "heun", "nope",
]  # fmt: skip
LENGTHS = ["argmax", "sample", "top-3", f"top-{HUGE - 1}", "top-0", "top-x", 5, 12, 13, HUGE, 2**63, -3]
SEARCHES = [
    SearchConfig(candidates=2), SearchConfig(candidates=2, rounds=1, beam=3), "search", {"candidates": 2},
    {"candidates": HUGE}, {"rounds": HUGE}, {"beam": HUGE}, {"lengths": HUGE}, {"temperature": 1e-45},
]  # fmt: skip
TEXTS = ["w1 w2", ["w1", "w2 w3"], ["w1 [MASK]"], "unknown words", ["w1 " * 40], ["w1\0"], ["w1"] * 3]
IDS = [[[1, 2]], [[1, 2], [3]], [[]], [[21]], [[23]], [[2**70]], [[1.0]], np.array([[1, 2]]), [[True]], ["ab"]]
HOW = {"seed": [], "steps": [3], "sampler": SAMPLERS}
COMMON = {**HOW, "length": LENGTHS}
METHODS = {
    "invert": {"targets": [LATENTS, *TEXTS, "x.npy"], "search": SEARCHES, "reembed": [], **COMMON},
    "embed": {"texts": TEXTS, "draws": [2], "too_long": ["truncate"], **HOW},
    "embed_tokens": {"ids": IDS, "texts": TEXTS, "draws": [2], **HOW},
    "generate": {"n": [2], "order": ["together", "latent_first"], "latent_sampler": SAMPLERS, **COMMON},
    "infill": {"texts": TEXTS, "latents": [LATENTS], "mask": ["w1"], **HOW},
    "edit": {"sources": TEXTS, "targets": [LATENTS, *TEXTS], "strength": [0.3], "which": ["random"], **HOW},
    "interpolate": {"a": [LATENTS, *TEXTS], "b": [LATENTS, *TEXTS], "path": ["lerp"], **COMMON},
    "score": {"texts": TEXTS, "latents": [LATENTS], "draws": [2], "seed": []},
    "score_tokens": {"ids": IDS, "texts": TEXTS, "latents": [LATENTS], "draws": [2], "seed": []},
    "classify": {"items": [LATENTS, *TEXTS], "second": TEXTS, "too_long": ["truncate"]},
    "classify_tokens": {"ids": IDS, "texts": TEXTS, "second": IDS},
    "classify_latents": {"latents": [LATENTS], "sources": TEXTS},
    "neighbours": {"latents": [LATENTS], "store": [LATENTS], "k": [2]},
    "encode": {"texts": TEXTS},
}
GOOD = {
    "targets": LATENTS, "texts": ["w1", "w2 w3"], "ids": [[1], [2, 3]], "n": 2, "sources": ["w1", "w2 w3"],
    "a": LATENTS, "b": LATENTS[::-1], "items": ["w1"], "latents": LATENTS, "store": LATENTS, "steps": 2, "draws": 1,
    "search": None, "second": None, "sampler": None, "latent_sampler": "ddim", "strength": 0.5, "which": "random",
    "order": "text_first", "length": 3, "mask": "[MASK]", "too_long": "truncate", "path": "slerp", "k": 1,
    "reembed": False, "seed": 0,
}  # fmt: skip
NEEDED = {"targets", "texts", "ids", "n", "sources", "a", "b", "items", "store"}
LATENT_METHODS = ("classify_latents", "neighbours")


def call_of(name, options, **hostile):
    """The arguments of a call that is valid but for `hostile`."""
    needed = {key: GOOD[key] for key in options if key in NEEDED or (key == "latents" and name in LATENT_METHODS)}
    few = {"steps": 2} if "steps" in options and name != "interpolate" else {}
    return needed | few | hostile


def refuses_or_answers(call):
    """Call; anything but a result or an error of the project in at most three lines fails the test."""
    try:
        return call()
    except MMLDLMError as error:
        message = str(error)
        assert 1 <= len(message.splitlines()) <= 3, message
        assert len(message) < 1200, message[:1200]
        return error


@st.composite
def requests(draw, methods):
    """A method and its arguments: most of them valid, one or two hostile."""
    name = draw(st.sampled_from(sorted(methods)))
    options = methods[name]
    hostile = draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=2, unique=True))
    chosen = {key: draw(st.sampled_from([*options[key], *options[key], *ANYTHING])) for key in hostile}
    return name, call_of(name, options, **chosen)


@pytest.fixture(scope="module")
def models(parts):
    return {"latents": parts.make(), "texts": parts.make_text_model(), "causal": parts.make_causal()}


@pytest.fixture(scope="module")
def image_model(parts):
    return parts.make_images()


@pytest.fixture(scope="module")
def classifiers(parts):
    return {pairs: parts.make_classifier(pairs=pairs) for pairs in (False, True)}


@settings(max_examples=250, derandomize=True, deadline=None)
@given(request=requests(METHODS), which=st.sampled_from(["latents", "latents", "latents", "texts", "causal"]))
def test_every_method_answers_or_refuses(request, which, models):
    name, arguments = request
    refuses_or_answers(lambda: getattr(models[which], name)(**arguments))


IMAGES = [np.zeros((1, 4, 4, 1)), np.zeros((0, 4, 4, 1)), np.zeros((2, 5, 4, 1)), np.full((1, 4, 4, 1), 255)]
IMAGE_METHODS = {
    "draw": {"captions": TEXTS, **HOW},
    "draw_tokens": {"ids": IDS, "captions": TEXTS, **HOW},
    "caption": {"images": IMAGES, **COMMON},
    "generate": {"n": [2], "steps": [3], "length": LENGTHS, "seed": []},
}
IMAGE_GOOD = {"captions": ["w3", "w4"], "ids": [[3], [4]], "images": IMAGES[0], "n": 2}


@settings(max_examples=80, derandomize=True, deadline=None)
@given(data=st.data())
def test_every_method_of_images_answers_or_refuses(data, image_model):
    name = data.draw(st.sampled_from(sorted(IMAGE_METHODS)))
    options = IMAGE_METHODS[name]
    key = data.draw(st.sampled_from(sorted(options)))
    value = data.draw(st.sampled_from([*options[key], *options[key], *ANYTHING]))
    needed = {key: value for key, value in IMAGE_GOOD.items() if key in options} | {"steps": 2}
    refuses_or_answers(lambda: getattr(image_model.images, name)(**needed | {key: value}))


CLASSIFIED = {"classify": METHODS["classify"], "classify_tokens": METHODS["classify_tokens"]}


@settings(max_examples=60, derandomize=True, deadline=None)
@given(request=requests(CLASSIFIED), pairs=st.booleans())
def test_classification_answers_or_refuses(request, pairs, classifiers):
    name, arguments = request
    refuses_or_answers(lambda: getattr(classifiers[pairs], name)(**arguments))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("path", [None, 3, "", "/nowhere", "x" * 5000, "a\0b", "\ud800", b"x", Unfriendly()]),
        ("device", ["meta", "banana", "cuda:99", 3, True, "", 1.5, torch.device("meta"), Unfriendly()]),
        ("checkpoint", [None, True, 1.5, -1, "x", "../latest", HUGE, Unfriendly()]),
        ("use_ema", [None, 1, "yes", Unfriendly()]),
        ("batch_tokens", [0, -1, 1.5, "4", True, HUGE * 1000, Unfriendly()]),
        ("encoder", [3, "minilm", object()]),
    ],
)
def test_loading_answers_or_refuses(option, values, run_folder):
    for value in values:
        arguments = {"path": run_folder, "device": "cpu", option: value}
        found = refuses_or_answers(lambda arguments=arguments: MMLDLM.from_run(**arguments))
        assert isinstance(found, MMLDLMError), (option, found)


def test_a_copy_is_independent_and_writes_the_same(run_folder, parts, unit_latents):
    model = MMLDLM.from_run(run_folder, encoder=parts.BagEncoder(), device="cpu")
    before = model.invert(unit_latents(2), steps=2)
    for copied in (copy.deepcopy(model), copy.copy(model)):
        assert copied.invert(unit_latents(2), steps=2).tokens == before.tokens
        assert copied.encoder is model.encoder
        for parameter in copied.model.model.parameters():
            parameter.zero_()
        assert model.invert(unit_latents(2), steps=2).tokens == before.tokens


def test_a_masked_number_is_no_number(model):
    with pytest.raises(SamplingError, match=r"latents: expected numbers alone, found 2 that are masked\. Remove"):
        model.invert(np.ma.masked_greater(LATENTS, 0.5))
    assert len(model.invert(np.ma.masked_greater(LATENTS, 2.0))) == 2


def test_another_default_type_of_torch_changes_no_result(run_folder):
    """A notebook may compute in float64; its own default stays."""

    def results():
        model = MMLDLM.from_run(run_folder)
        texts = model.generate(2, order="together"), model.invert(LATENTS)
        return str((texts, model.embed(["w1 w2"]).latents.tolist(), model.score(["w1 w2"]).token_nll.tolist()))

    expected = results()
    torch.set_default_dtype(torch.float64)
    try:
        assert results() == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_pickling_is_refused_with_what_to_do_instead(model):
    with pytest.raises(SamplingError, match=r"Give the other process the path .* MMLDLM\.from_run"):
        pickle.dumps(model)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate(10**9, length=3), r"generate: 1,000,000,000 texts .* GB of free memory, .* about"),
        (lambda m: m.generate(1, length=13), "at most 12 tokens"),
        (lambda m: m.invert(LATENTS, length="top-13"), "at most 'top-12', the number of lengths .* found 'top-13'"),
        (lambda m: m.invert(LATENTS, search=SearchConfig(candidates=2, lengths=13)), "at most 12, .* found 13"),
        (lambda m: m.invert(LATENTS, steps=10_001), "steps must be at most 10,000, found 10001"),
        (lambda m: m.embed("w1", draws=10_001), "draws must be at most 10,000"),
        (lambda m: m.score("w1", draws=10_001), "draws must be at most 10,000"),
        (lambda m: m.interpolate(LATENTS, LATENTS, steps=10_001), "must be at most 10,000"),
        (lambda m: m.invert(LATENTS, search={"candidates": 1001}), "search.candidates.*less than or equal to 1000"),
        (lambda m: m.invert(LATENTS, seed=2**63), "seed must be at most"),
        (lambda m: m.invert(LATENTS, seed=-1), "seed must be at least 0"),
        (lambda m: m.invert(LATENTS, sampler=text_sampler("blocks", inner={"kind": "confidence"}), length=10**12),
         "invert: 2 texts of up to 1,000,000,000,000 tokens: .* GB of free memory"),
    ],
)  # fmt: skip
def test_what_no_machine_can_do_is_refused_with_the_bound_or_the_estimate(call, message, model):
    with pytest.raises(MMLDLMError, match=message):
        call(model)


def test_the_bounds_themselves_are_accepted(model):
    assert len(model.invert(LATENTS[:1], length="top-12", steps=1))
    assert len(model.score("w1", draws=40).draw_nll) == 40
    assert text_sampler("confidence", steps=10_000, guidance=1000.0, temperature=1e-4).steps == 10_000
    assert len(model.generate(1, steps=1, length=12, seed=2**63 - 1))
