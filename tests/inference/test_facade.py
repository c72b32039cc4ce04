"""The facade hands every argument on under its own name, and a copy or a loaded run lacks none of its parts."""

from __future__ import annotations

import copy
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from mm_ldlm.families.classification import requests as classifying
from mm_ldlm.families.images.requests import ImageWriter
from mm_ldlm.inference import MMLDLM, api, editing, embedding, inverting, scoring

# method → (module and name of the function that it calls, the arguments that it passes by their place)
HANDED_ON = {
    "invert": (inverting, "invert", ("targets",)),
    "embed_tokens": (embedding, "embed", ("ids", "texts")),
    "generate": (inverting, "generate", ("n",)),
    "infill": (editing, "infill", ("texts",)),
    "edit": (editing, "edit", ("sources",)),
    "interpolate": (inverting, "interpolate", ("a", "b")),
    "score_tokens": (scoring, "score", ("ids", "texts")),
    "classify": (classifying, "classify", ("items",)),
    "classify_tokens": (classifying, "tokens", ("ids", "texts")),
    "classify_latents": (classifying, "latents", ("latents", "sources")),
}
METHODS = {"embed": "embed_tokens", "score": "score_tokens"}
"""Methods that tokenise texts first, and what they call then."""


SAMPLER = "sampler=null steps=null seed=0"
REQUESTS = {
    MMLDLM.from_run: "encoder=null checkpoint=latest use_ema=true device=null batch_tokens=null",
    MMLDLM.invert: f"{SAMPLER} length=argmax search=null reembed=false samples=1 keep=best",
    MMLDLM.embed: "sampler=ddim steps=null draws=null too_long=refuse seed=0",
    MMLDLM.embed_tokens: "sampler=ddim steps=null draws=null seed=0",
    MMLDLM.generate: f"{SAMPLER} order=text_first latent_sampler=ddim length=sample",
    MMLDLM.infill: f"{SAMPLER} latents=null mask=[MASK]",
    MMLDLM.edit: f"{SAMPLER} strength=0.5 which=least_likely reembed=false",
    MMLDLM.interpolate: "steps=5 path=slerp sampler=null length=argmax reembed=false seed=0",
    MMLDLM.score: "latents=null draws=16 seed=0", MMLDLM.score_tokens: "latents=null draws=16 seed=0",
    MMLDLM.classify: "second=null too_long=refuse", MMLDLM.neighbours: "k=5",
    ImageWriter.draw: "sampler=ddim steps=null seed=0", ImageWriter.draw_tokens: "sampler=ddim steps=null seed=0",
    ImageWriter.caption: f"{SAMPLER} length=argmax", ImageWriter.generate: "steps=50 length=sample seed=0",
}  # fmt: skip


def arguments(name: str, *left_out: str) -> dict[str, Any]:
    """A value of its own for each argument of a method, unlike every default."""
    names = [each for each in inspect.signature(getattr(MMLDLM, name)).parameters if each not in ("self", *left_out)]
    return {each: f"value of {each}" for each in names}


@pytest.mark.parametrize("name", HANDED_ON)
def test_every_argument_of_a_request_is_handed_on(name: str, model: MMLDLM, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, places = HANDED_ON[name]
    seen: dict[str, Any] = {}

    def asked(engine: Any, *args: Any, **keys: Any) -> str:
        assert engine is model._engine
        seen.update(zip(places, args, strict=True), **keys)
        return "the answer"

    monkeypatch.setattr(module, function, asked)
    given = arguments(name)
    assert getattr(model, name)(**given) == "the answer"
    assert seen == given


@pytest.mark.parametrize("name", METHODS)
def test_every_argument_of_a_request_on_texts_is_handed_on(
    name: str, model: MMLDLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(model, METHODS[name], lambda ids, texts, **keys: seen.update(ids=ids, texts=texts, **keys))
    given = arguments(name, "texts", "too_long")
    getattr(model, name)(["w3 w4", "w5"], **given)
    assert seen == {"ids": [[3, 4], [5]], "texts": ["w3 w4", "w5"], **given}


def test_every_argument_of_a_loaded_run_is_handed_on(model: MMLDLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    parts = SimpleNamespace(
        model=model.model, capabilities=model.capabilities, tokenizer=model.tokenizer, normaliser="normaliser",
        image_normaliser="of images", load_encoder=lambda: SimpleNamespace(dim=6), no_encoder="a reason",
    )  # fmt: skip
    monkeypatch.setattr(api, "load_run", lambda path, **keys: seen.update(path=path, **keys) or parts)
    given = arguments("from_run", "encoder", "batch_tokens")
    found = MMLDLM.from_run(**given, batch_tokens=321)
    assert seen == given
    assert (found.parts, found.normaliser, found.image_normaliser) == (parts, "normaliser", "of images")
    assert (found.batch_tokens, found.encoder.dim) == (321, 6)
    parts.load_encoder = None
    assert MMLDLM.from_run(**given).no_encoder == "a reason"
    own = SimpleNamespace(dim=6, encode=None)
    assert MMLDLM.from_run(**given, encoder=own).encoder is own


def test_a_copy_lacks_nothing(model: MMLDLM) -> None:
    whole = MMLDLM(
        model.model, model.capabilities, model.tokenizer, model.normaliser, batch_tokens=321,
        load_encoder=lambda: SimpleNamespace(dim=6), image_normaliser="of images",
    )  # fmt: skip
    whole.parts = "parts"  # type: ignore[assignment]
    made = copy.deepcopy(whole)
    for name in ("capabilities", "tokenizer", "normaliser", "image_normaliser", "parts", "batch_tokens", "device"):
        assert getattr(made, name) == getattr(whole, name), name
    assert made.no_encoder is None
    assert made.encoder.dim == 6
    without = MMLDLM(model.model, model.capabilities, model.tokenizer, model.normaliser, no_encoder="a reason")
    assert copy.copy(without).no_encoder == "a reason"


def test_captions_are_written_given_their_images(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The length and the words of a caption depend on its image; the steps and the seed are those of the request."""
    images, seen = parts.make_images(), list[Any]()
    writer = images.images
    monkeypatch.setattr(
        writer._captions, "lengths",
        lambda length, latents, *, rows, seed: seen.append((length, latents, rows, seed)) or [2, 3],
    )  # fmt: skip
    write = writer._captions.write
    monkeypatch.setattr(
        writer._captions, "write", lambda canvases, **keys: seen.append(keys) or write(canvases, **keys)
    )
    pixels = np.random.default_rng(0).random((2, *writer.size)).astype(np.float32)
    found = writer.caption(pixels, sampler="ancestral", steps=3, length="sample", seed=5)
    vectors = torch_of(writer, pixels)
    (length, latents, rows, seed), keys = seen
    assert (length, rows, seed, keys["seed"]) == ("sample", 2, 5, 5)
    assert latents.tolist() == keys["latents_nd"].tolist() == vectors
    assert (keys["sampler"].kind, keys["sampler"].steps) == ("ancestral", 3)
    assert [len(row) for row in found.tokens] == [2, 3]
    assert writer.caption(pixels, seed=5).model_calls.max() <= images.model.default_sampler(conditional=True).steps


def torch_of(writer: Any, pixels: Any) -> list[list[float]]:
    found: list[list[float]] = ((pixels.reshape(2, -1) - 0.5) / 0.25).astype(np.float32).tolist()
    return found


@pytest.mark.parametrize("method", REQUESTS, ids=lambda method: method.__qualname__)
def test_every_argument_of_a_request_has_its_default(method: Any) -> None:
    found = {name: p.default for name, p in inspect.signature(method).parameters.items() if p.default is not p.empty}
    pairs = (option.partition("=") for option in REQUESTS[method].split())
    assert found == {name: value if value == "[MASK]" else yaml.safe_load(value) for name, _, value in pairs}
