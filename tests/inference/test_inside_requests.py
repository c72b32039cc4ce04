"""Inside a request: what each step receives, in every branch; no value equals a default or another value."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.latents import LatentWriter
from mm_ldlm.sampling.config import SearchConfig
from scripted import ABLE, MASK, Scripted, engine

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import editing, inverting, memory
from mm_ldlm.inference.writing import Writer
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

RAW = np.array([[3.0, 1.0], [5.0, 2.0]], np.float32)
STANDARD = [[2.0, 0.0], [4.0, 1.0]]
SAMPLER, STEPS, SEED = text_sampler("margin", steps=5, temperature=0.75), 6, 7
CHOSEN = SAMPLER.override(steps=STEPS)
UNCONDITIONAL = Scripted().default_sampler(conditional=False)
HOW: dict[str, Any] = {"sampler": SAMPLER, "steps": STEPS, "seed": SEED}


class Steps:
    """The steps of a request, in order: each name with its arguments; tensors as lists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.taken = monkeypatch, list[tuple[str, dict[str, Any]]]()

    def watch(self, place: Any, *names: str) -> None:
        for name in names:
            self.monkeypatch.setattr(place, name, self._watched(name, getattr(place, name)))

    def _watched(self, name: str, function: Any) -> Any:
        signature = inspect.signature(function)

        def watched(*given: Any, **named: Any) -> Any:
            found = signature.bind(*given, **named).arguments
            self.taken.append((name, {key: plain(value) for key, value in found.items()}))
            return function(*given, **named)

        return watched

    def __getitem__(self, name: str) -> dict[str, Any]:
        (found,) = [arguments for step, arguments in self.taken if step == name]
        return found

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.taken]


def plain(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


@pytest.fixture
def made() -> Engine:
    return engine(batch_tokens=100)


@pytest.fixture
def steps(made: Engine, monkeypatch: pytest.MonkeyPatch) -> Steps:
    found = Steps(monkeypatch)
    found.watch(made.writer, "lengths", "write", "write_likeliest_length", "search", "starting_canvases")
    found.watch(made.latents, "generate")
    found.watch(editing, "remask")
    return found


# -- infill and edit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False])
def test_an_infilling(given: bool, made: Engine, steps: Steps) -> None:
    texts = ["w1 [MASK] w3", "w4 [MASK] [MASK]"]
    found = editing.infill(made, texts, latents=RAW if given else None, mask="[MASK]", **HOW)
    assert steps.taken == [
        ("write", {"canvases": [[1, MASK, 3], [4, MASK, MASK]], "latents_nd": STANDARD if given else None,
                   "sampler": CHOSEN, "seed": SEED})
    ]  # fmt: skip
    assert found.sources == tuple(texts)
    assert (found.cosines, found.encoder_calls.tolist()) == (None, [0, 0]), "no text is embedded"
    assert plain(found.latents) == (RAW.tolist() if given else None)
    assert found.tokens == (((1, 1, 3), (4, 3, 3)) if given else ((1, 1, 3), (4, 2, 2)))
    assert found.texts == (("w1 w1 w3", "w4 w3 w3") if given else ("w1 w1 w3", "w4 w2 w2"))


@pytest.mark.parametrize("reembed", [True, False])
def test_an_edit(reembed: bool, made: Engine, steps: Steps) -> None:
    sources = ["w5 w6 w7", "w8 w9"]
    found = editing.edit(made, sources, targets=RAW, strength=1.0, which="random", reembed=reembed, **HOW)
    masked = [[MASK] * 3, [MASK] * 2]
    assert steps["remask"] == {
        "writer": made.writer, "ids": [[5, 6, 7], [8, 9]], "latents_nd": STANDARD, "strength": 1.0, "which": "random",
        "seed": SEED,
    }  # fmt: skip
    assert steps["write"] == {"canvases": masked, "latents_nd": STANDARD, "sampler": CHOSEN, "seed": SEED}
    assert (found.tokens, found.sources) == (((3, 3, 3), (3, 3)), tuple(sources))
    assert (found.cosines is not None, found.encoder_calls.tolist()) == (reembed, [int(reembed)] * 2)
    assert found.latents.tolist() == RAW.tolist()


# -- invert and interpolate --------------------------------------------------------------------------------------------


def inverted(made: Engine, **more: Any) -> Any:
    return inverting.invert(made, RAW, **{"length": "sample", "search": None, "reembed": False, **HOW, **more})


@pytest.mark.parametrize("search", [None, SearchConfig(), {"rounds": 0, "remask_ratio": 0.9}])
def test_an_inversion_at_one_length(search: Any, made: Engine, steps: Steps) -> None:
    """A search of one candidate and no rounds is no search."""
    inverted(made, search=search)
    assert steps.names == ["lengths", "write"]
    assert steps["lengths"] == {"length": "sample", "latents_nd": STANDARD, "rows": 2, "seed": SEED}
    assert {**steps["write"], "canvases": 0} == {
        "canvases": 0, "latents_nd": STANDARD, "sampler": CHOSEN, "seed": SEED
    }  # fmt: skip
    assert steps["write"]["canvases"] == made.masks(
        made.writer.lengths("sample", torch.tensor(STANDARD), rows=2, seed=7)
    )


def test_an_inversion_at_the_most_probable_lengths(made: Engine, steps: Steps) -> None:
    inverted(made, length="top-2")
    assert steps.names[0] == "write_likeliest_length"
    assert steps.taken[0][1] == {"lengths": 2, "latents_nd": STANDARD, "rows": 2, "sampler": CHOSEN, "seed": SEED}
    writes = [named for name, named in steps.taken if name == "write"]
    assert [(each["seed"], each["sampler"], each["latents_nd"]) for each in writes] == [(SEED, CHOSEN, STANDARD)] * 2


@pytest.mark.parametrize("search", [{"candidates": 2}, {"candidates": 1, "rounds": 1}])
def test_an_inversion_by_search(search: dict[str, int], made: Engine, steps: Steps) -> None:
    config = SearchConfig(**search)
    found = inverted(made, search=config, length="argmax")
    assert steps.names == ["lengths", "starting_canvases", "search"]
    assert steps["lengths"] == {"length": "argmax", "latents_nd": STANDARD, "rows": 2, "seed": SEED}
    assert steps["starting_canvases"] == {"latents_nd": STANDARD, "first": [2, 4], "config": config}
    named = steps["search"]
    assert [[len(canvas) for canvas in row] for row in named["canvases"]] == [[2] * config.candidates,
                                                                           [4] * config.candidates]  # fmt: skip
    cosines = named["cosines"]([[1], [1, 1]], [1, 0])
    np.testing.assert_allclose(cosines, [(5 + 2) / np.sqrt(2 * 29), (2 * 3 + 1) / np.sqrt(5 * 10)])
    assert {key: named[key] for key in ("latents_nd", "sampler", "config", "seed")} == {
        "latents_nd": STANDARD, "sampler": CHOSEN, "config": config, "seed": SEED
    }  # fmt: skip
    assert found.cosines is not None
    assert (found.encoder_calls > 0).all()


def test_of_several_texts_each_belongs_to_its_own_source(made: Engine) -> None:
    found = inverting.invert(
        made, ["w1 w2", "w3"], length=2, search=None, reembed=True, samples=2, keep="all", **HOW
    )  # fmt: skip
    assert found.sources == ("w1 w2", "w1 w2", "w3", "w3")
    assert (found.rows.tolist(), found.samples.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert found.latents.tolist() == [[2, 1], [2, 1], [1, 1], [1, 1]]


def test_a_search_may_try_every_length_that_the_run_has_learned(made: Engine) -> None:
    assert len(inverted(made, search={"candidates": 2, "lengths": 9}, length=3)) == 2
    with pytest.raises(SamplingError, match=r"search\.lengths: expected at most 9, .* found 10"):
        inverted(made, search={"candidates": 2, "lengths": 10}, length=3)


@pytest.mark.parametrize("reembed", [True, False])
def test_a_path_is_inverted_as_it_was_asked(reembed: bool, made: Engine, steps: Steps) -> None:
    ends = {"steps": 2, "path": "lerp", "sampler": SAMPLER, "length": 3, "reembed": reembed, "seed": SEED}
    found = inverting.interpolate(made, RAW[:1], RAW[1:], **ends)  # type: ignore[arg-type]
    assert steps["write"] == {"canvases": [[MASK] * 3] * 2, "latents_nd": STANDARD, "sampler": SAMPLER, "seed": SEED}
    assert steps["lengths"] == {"length": 3, "latents_nd": STANDARD, "rows": 2, "seed": SEED}
    assert (found.written.cosines is not None) == reembed
    assert (found.pairs.tolist(), found.fractions.tolist()) == ([0, 0], [0, 1])
    with pytest.raises(SamplingError, match=r"steps \(with the two ends\) must be at least 2, found 1"):
        inverting.interpolate(made, RAW[:1], RAW[1:], **{**ends, "steps": 1})


# -- generate ----------------------------------------------------------------------------------------------------------

TEXTS_ALONE = dataclasses.replace(ABLE, joint_orders=(), reads_latents=False)


def generated(made: Engine, **more: Any) -> Any:
    options = {"order": "text_first", "latent_sampler": "ddim", "length": "sample", "steps": None, "sampler": None}
    return inverting.generate(made, 3, **{**options, "seed": SEED, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, UNCONDITIONAL),
        ({"steps": STEPS}, UNCONDITIONAL.override(steps=STEPS)),
        ({"sampler": "margin"}, text_sampler("margin", steps=7, temperature=0.5)),
        ({"sampler": SAMPLER, "steps": STEPS}, CHOSEN),
    ],
)
def test_texts_alone_are_generated_with_the_default_for_texts_from_noise(
    given: Any, expected: Any, made: Engine, steps: Steps
) -> None:
    made.capabilities = TEXTS_ALONE
    found = generated(made, **given)
    assert steps.names == ["lengths", "write"]
    assert steps["lengths"] == {"length": "sample", "latents_nd": None, "rows": 3, "seed": SEED}
    lengths = made.writer.lengths("sample", None, rows=3, seed=SEED)
    assert steps.taken[1][1] == {"canvases": made.masks(lengths), "latents_nd": None, "sampler": expected, "seed": SEED}
    assert (found.latents, found.cosines, found.sources) == (None, None, (None,) * 3)


@pytest.mark.parametrize("order", ["text_first", "latent_first", "together"])
@pytest.mark.parametrize("number", [None, 11])
def test_texts_with_latents_are_generated_with_the_samplers_of_the_request(
    order: str, number: int | None, made: Engine, steps: Steps
) -> None:
    latent = latent_sampler("ddim", steps=13, draws=1)
    generated(made, order=order, latent_sampler=latent, steps=number, length=4)
    assert steps.taken[0] == (
        "generate",
        {"n": 3, "order": order, "writer": made.writer, "length": 4, "seed": SEED,
         "latent": latent if number is None else latent.override(steps=number),
         "text": text_sampler("ancestral", steps=number or 13, temperature=0.5) if order == "together"
         else UNCONDITIONAL if number is None else UNCONDITIONAL.override(steps=number)},
    )  # fmt: skip


def test_a_request_for_texts_alone_is_refused_by_its_size(made: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made.capabilities = TEXTS_ALONE
    monkeypatch.setattr(memory, "free_bytes", lambda: 3.0 * (1_000 + 4 * 160 + 4 * 2 * 4))
    assert len(generated(made, length=4)) == 3
    monkeypatch.setattr(memory, "free_bytes", lambda: 3.0 * (1_000 + 4 * 160 + 4 * 2 * 4) - 1)
    with pytest.raises(SamplingError, match="generate: 3 texts of up to 4 tokens"):
        generated(made, length=4)


@pytest.mark.parametrize("orders", [(), ("text_first", "together")])
def test_lengths_that_rank_texts_and_orders_of_another_run_are_refused(orders: Any, made: Engine) -> None:
    made.capabilities = dataclasses.replace(ABLE, joint_orders=orders)
    with pytest.raises(SamplingError, match="length 'top-2' ranks texts instead of drawing them"):
        generated(made, length="top-2")
    assert len(generated(made, length="top-1")) == 3
    if orders:
        with pytest.raises(SamplingError, match="in the order 'latent_first'"):
            generated(made, order="latent_first")


@pytest.mark.parametrize("order", ["text_first", "latent_first", "together"])
@pytest.mark.parametrize("need_lengths", [True, False])
def test_every_step_of_an_order_has_the_seed_and_the_samplers_of_the_request(
    order: str, need_lengths: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = Scripted()
    model.latents_need_lengths = need_lengths
    writer, latents = Writer(model, batch_tokens=100), LatentWriter(model, batch_tokens=100)
    found = Steps(monkeypatch)
    found.watch(writer, "lengths", "write")
    found.watch(latents, "given_texts", "given_lengths", "_together")
    text, latent = SAMPLER, latent_sampler("ddim", steps=4)
    latents.generate(3, order, writer, text, latent, "argmax", SEED)
    names = {
        "together": ["lengths", "_together"],
        "text_first": ["lengths", "write", "given_texts"],
        "latent_first": [*(["lengths", "given_lengths"] if need_lengths else ["given_lengths", "lengths"]), "write"],
    }  # fmt: skip
    assert found.names == names[order]
    for name, given in found.taken:
        assert given["seed"] == SEED, name
        assert given.get("config", latent) == latent
        assert given.get("sampler", text) == text
    conditional = order == "latent_first" and not need_lengths
    drawn = [[2.0, 2.0]] * 3 if not need_lengths else [[4.0, 4.0]] * 3
    assert found["lengths"] == {
        "length": "argmax", "latents_nd": drawn if conditional else None, "rows": 3, "seed": SEED
    }  # fmt: skip
    if order == "together":
        assert found["_together"] == {"lengths": [3, 3, 3], "text": text, "latent": latent, "seed": SEED}
    else:
        assert found["write"]["latents_nd"] == (drawn if order == "latent_first" else None)
        assert found["write"]["canvases"] == [[MASK] * (2 if conditional else 3)] * 3
