"""`MMLDLM`: the promises that all requests share."""

import copy
import functools
import inspect
import multiprocessing
import pickle
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inference.runs import BagEncoder, compute_forked, make

from mm_ldlm import MMLDLM
from mm_ldlm.core import SamplingError, registry
from mm_ldlm.inference import api
from mm_ldlm.objectives.capabilities import USES
from mm_ldlm.sampling.denoising import denoising_loop
from mm_ldlm.sampling.registry import TEXT_SAMPLERS, text_sampler
from mm_ldlm.sampling.search import SearchConfig

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9", "w2 w3", "w1 w1 w1 w1"]
MASKED = ["w1 [MASK] w3", "[MASK]", "w5 [MASK] [MASK] w8 w9", "w2 [MASK]", "[MASK] w1 w1 w1"]
Request = Callable[[MMLDLM, Any], Any]
REQUESTS: dict[str, Request] = {
    "invert": lambda model, z: model.invert(z, seed=3),
    "invert, drawn": lambda model, z: model.invert(z, sampler=text_sampler("ancestral", steps=5), length="sample", seed=3),
    "invert, several": lambda model, z: model.invert(z, length="sample", samples=3, keep="all", seed=3),
    "inversion by search=True": lambda model, z: model.invert(z, search=True, temperature=0.5, seed=3),
    "inversion within calls": lambda model, z: model.invert(z, calls=12, seed=3),
    "search": lambda model, z: model.invert(z, search=SearchConfig(candidates=2, rounds=1, infill=0.5, lengths=2), seed=3),
    "infill": lambda model, z: model.infill(MASKED, seed=3),
    "infill given latents": lambda model, z: model.infill(MASKED, latents=z, seed=3),
    "edit": lambda model, z: model.edit(TEXTS, targets=z, seed=3),
    "edit, all words": lambda model, z: model.edit(TEXTS, targets=z, strength=1.0, reembed=True, seed=3),
    "interpolate": lambda model, z: model.interpolate(z, z[::-1], steps=3, seed=3),
    "embed": lambda model, z: model.embed(TEXTS, draws=2, seed=3),
    "score": lambda model, z: model.score(TEXTS, draws=3, seed=3),
    "score given latents": lambda model, z: model.score(TEXTS, latents=z, draws=3, seed=3),
    **{
        f"generate, {order}": functools.partial(lambda model, z, order: model.generate(5, order=order, seed=3), order=order)
        for order in ("text_first", "latent_first", "together")
    },
}  # fmt: skip


def flat(result: Any) -> dict[str, Any]:
    """The fields of a result and of the results in it."""
    found: dict[str, Any] = {}
    for field in fields(result):
        value = getattr(result, field.name)
        found |= flat(value) if is_dataclass(value) else {field.name: value}
    return found


def same(one: Any, other: Any, *, exactly: bool = False) -> None:
    for name, value in flat(one).items():
        again = flat(other)[name]
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not exactly:
            np.testing.assert_allclose(again, value, rtol=2e-4, atol=2e-5, err_msg=name)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(again, value, err_msg=name)
        else:
            assert again == value, name


@pytest.fixture(scope="module")
def small() -> MMLDLM:
    """The run of `model` with a text or two in a batch."""
    return make(batch_tokens=7)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_size_of_batches_and_the_number_of_lanes_change_no_result(
    name: str, model: MMLDLM, small: MMLDLM, unit_latents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, latents = REQUESTS[name], unit_latents(5)
    whole, parts = request(model, latents), request(small, latents)
    same(whole, parts)
    monkeypatch.setattr("mm_ldlm.inference.writer.lanes_of", lambda device: 3)
    same(parts, request(small, latents), exactly=True)
    if "embed" not in name and "score" not in name:
        assert len(whole.to_frame())


@pytest.mark.parametrize("order", ["invert", "text_first", "latent_first", "together"])
def test_the_first_texts_of_a_request_are_those_of_a_shorter_one(order: Any, model: MMLDLM, unit_latents: Any) -> None:
    def texts(count: int, seed: int) -> tuple[str, ...]:
        if order == "invert":
            sampler = text_sampler("ancestral", steps=5)
            return model.invert(unit_latents(5)[:count], sampler=sampler, length="sample", seed=seed).texts
        return model.generate(count, order=order, seed=seed).texts

    assert texts(2, 3) == texts(5, 3)[:2]
    assert len({tuple(len(text.split()) for text in texts(5, seed)) for seed in range(3, 7)}) > 1, "other lengths too"
    assert len({len(text.split()) for text in texts(5, 3)}) > 1, "each of its own length"


EMPTY: dict[str, Request] = {
    "invert": lambda model, none: model.invert(none, samples=2, keep="all", reembed=True),
    "search": lambda model, none: model.invert(none, search=True),
    "encode": lambda model, none: model.encode(none),
    "embed": lambda model, none: model.embed(none),
    "neighbours": lambda model, none: model.neighbours(none, np.eye(3, model.dim), k=2),
    "score": lambda model, none: model.score(none),
    "score given latents": lambda model, none: model.score(none, latents=none),
    "infill": lambda model, none: model.infill(none),
    "edit": lambda model, none: model.edit(none, targets=none),
    "interpolate": lambda model, none: model.interpolate(none, none),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_list_has_an_empty_result(name: str, model: MMLDLM) -> None:
    result = EMPTY[name](model, [])
    if name == "encode":
        assert result.shape == (0, model.dim)
    else:
        assert len(result.to_frame()) == len(getattr(result, result.main)) == 0
        assert set(result.to_frame().columns) >= {*EMPTY_COLUMNS.get(name, ())}


EMPTY_COLUMNS = {"invert": ("text", "cosine", "sample"), "score": ("nll",), "neighbours": ("row", "text")}


def test_every_text_sampler_that_fits_the_run_writes_texts(model: MMLDLM, unit_latents: Any) -> None:
    written = set()
    for kind in TEXT_SAMPLERS:
        chosen = model.text_sampler(kind, None)
        reason = model.capabilities.sampler_refusal(chosen, "l2t", given_latent=True)
        if reason is not None:
            with pytest.raises(SamplingError) as raised:
                model.invert(unit_latents(2), sampler=chosen)
            assert str(raised.value) == reason
            continue
        written.add(kind)
        made = model.invert(unit_latents(2), sampler=chosen, length=5)
        assert [len(row) for row in made.tokens] == [5, 5]
        assert (made.log_probs <= 0).all()
        assert (made.model_calls >= 1).all()
    assert {*TEXT_SAMPLERS.core} <= written


def test_a_family_or_another_package_adds_requests(model: MMLDLM, monkeypatch: pytest.MonkeyPatch) -> None:
    added = {"shout": f"{__name__}:shout", "loudness": f"{__name__}:loudness"}
    monkeypatch.setattr(api, "REQUESTS", registry.Registry("request", added, group="requests"))
    monkeypatch.setitem(
        __import__("sys").modules, __name__, __import__("types").SimpleNamespace(shout=shout, loudness=loudness)
    )
    assert {"shout", "loudness", "invert"} <= set(dir(model))
    assert model.shout("w1", times=2) == "W1! W1!"
    assert model.loudness == model.max_length
    for missing in ("whisper", "_shout"):
        with pytest.raises(AttributeError, match=missing):
            getattr(model, missing)


def shout(model: MMLDLM, text: str, *, times: int) -> str:
    return " ".join([model.texts.__self__.tokenizer.decode(model.tokenizer.encode([text])[0]).upper() + "!"] * times)


loudness = property(lambda model: model.max_length)


@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_is_loaded_again_and_not_copied(twice: Callable[[Any], Any], model: MMLDLM) -> None:
    with pytest.raises(SamplingError, match="from_run"):
        twice(model)


@pytest.mark.parametrize("default", ["float64", "float16", "meta"])
def test_the_defaults_of_torch_change_no_result(default: str, run_folder: Path, unit_latents: Any) -> None:
    """A notebook may compute in float64 or on another device; its own defaults stay."""

    def results() -> list[Any]:
        model = MMLDLM.from_run(run_folder, encoder=BagEncoder(), device="cpu")
        return [
            REQUESTS[name](model, unit_latents(5))
            for name in ("search", "edit", "embed", "score", "generate, together")
        ]

    expected = results()
    set_default: Any = torch.set_default_device if default == "meta" else torch.set_default_dtype
    set_default(default if default == "meta" else getattr(torch, default))
    try:
        found = results()
        assert torch.empty(0).device.type == ("meta" if default == "meta" else "cpu")
        assert torch.get_default_dtype() == (torch.float32 if default == "meta" else getattr(torch, default))
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    for one, other in zip(expected, found, strict=True):
        same(one, other, exactly=True)


@pytest.mark.parametrize("own", [None, 2])
def test_a_process_that_is_forked_after_a_request_computes(own: int | None) -> None:
    """The threads of OpenMP do not survive a fork; a parallel region of the new process would wait for them for ever,
    also if it sets a number of threads itself.
    """
    process = multiprocessing.get_context("spawn").Process(target=compute_forked, args=(own,))  # without our threads
    process.start()
    process.join(120)
    process.kill()
    assert process.exitcode == 0


def test_an_encoder_is_loaded_once_and_called_by_one_lane_at_a_time(
    unit_latents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(BagEncoder):
        busy = False

        def encode(self, sentences: Any) -> Any:
            assert not self.busy
            self.busy = True
            found = super().encode(sentences)
            self.busy = False
            return found

    def load() -> BagEncoder:
        loaded.append(Watched())
        time.sleep(0.1)
        return loaded[-1]

    loaded: list[BagEncoder] = []
    monkeypatch.setattr("mm_ldlm.inference.writer.lanes_of", lambda device: 4)
    model = MMLDLM(replace(make().parts, load_encoder=load), batch_tokens=12)
    assert len(model.invert(unit_latents(8), search=SearchConfig(candidates=2, rounds=1))) == 8
    assert len(loaded) == 1


def test_the_way_from_a_request_to_the_loop_is_straight(model: MMLDLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mm-ldlm invert` to the denoising loop in at most seven functions of the package, the command included."""
    frames = list[inspect.FrameInfo]()
    watched = lambda *given, **named: frames.extend(inspect.stack()) or denoising_loop(*given, **named)  # noqa: E731
    monkeypatch.setattr("mm_ldlm.sampling.orders.denoising_loop", watched)
    monkeypatch.setattr("mm_ldlm.inference.writer.lanes_of", lambda device: 1)
    model.invert(np.eye(1, 6, dtype=np.float32))
    ours = [frame for frame in frames if "/mm_ldlm/" in frame.filename]
    assert len(ours) + 1 + 1 <= 7, "the command before them, and the loop after them"


@pytest.mark.parametrize("use", [use for use in USES if use not in ("search",)])
def test_each_request_needs_its_own_use(use: str, model: MMLDLM, unit_latents: Any) -> None:
    calls = {
        "l2t": "invert", "t2l": "embed", "unconditional": "generate, text_first", "infill": "infill",
        "infill_given_latent": "infill given latents", "edit": "edit", "interpolate": "interpolate", "score": "score",
        "score_given_latent": "score given latents",
    }  # fmt: skip
    if use not in calls:
        return
    able = replace(model.capabilities, uses=model.capabilities.uses - {use})
    less = make()
    less.capabilities = able
    with pytest.raises(SamplingError) as raised:
        REQUESTS[calls[use]](less, unit_latents(5))
    assert str(raised.value) == able.refusal(use)
