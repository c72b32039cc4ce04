"""What each request asks the run for: the use, the lengths that it has learned, and the words that it can write."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scripted import ABLE, Scripted, engine

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import editing, embedding, inputs, inverting, scoring
from mm_ldlm.objectives.capabilities import Capabilities

RAW = np.array([[3.0, 1.0], [5.0, 2.0]], np.float32)
HOW: dict[str, Any] = {"sampler": None, "steps": None, "seed": 0}
ORDERS = ("together", "latent_first", "text_first")


def invert(made: Any, targets: Any = RAW, *, length: Any = "argmax") -> Any:
    return inverting.invert(made, targets, length=length, search=None, reembed=False, **HOW)


def interpolate(made: Any, a: Any = RAW, b: Any = RAW, *, length: Any = "argmax") -> Any:
    return inverting.interpolate(
        made, a, b, steps=3, path="lerp", sampler=None, length=length, reembed=False, seed=0
    )  # fmt: skip


def generate(made: Any, *, order: Any = "text_first", length: Any = "sample") -> Any:
    return inverting.generate(made, 2, order=order, latent_sampler="ddim", length=length, **HOW)


def edit(made: Any, sources: Any = "w1 w2", targets: Any = RAW[:1]) -> Any:
    return editing.edit(made, sources, targets=targets, strength=0.5, which="random", reembed=False, **HOW)


def able(**changes: Any) -> Capabilities:
    return dataclasses.replace(ABLE, **changes)


REQUESTS: dict[str, Any] = {
    "l2t": invert,
    "interpolate": interpolate,
    "unconditional": generate,
    "edit": edit,
    "infill": lambda m: editing.infill(m, "w1 [MASK]", latents=None, mask="[MASK]", **HOW),
    "infill_given_latent": lambda m: editing.infill(m, "w1 [MASK]", latents=RAW[:1], mask="[MASK]", **HOW),
    "t2l": lambda m: embedding.embed(m, [[1]], ["a"], draws=None, **{**HOW, "sampler": "ddim"}),
    "score": lambda m: scoring.score(m, [[1]], ["a"], latents=None, draws=1, seed=0),
    "score_given_latent": lambda m: scoring.score(m, [[1]], ["a"], latents=RAW[:1], draws=1, seed=0),
}


@pytest.mark.parametrize("use", REQUESTS)
def test_each_request_needs_its_own_use_and_no_other(use: Any) -> None:
    """A path is written by inversions, which are a use of their own."""
    needed = {use, "l2t"} if use == "interpolate" else {use}
    REQUESTS[use](engine(capabilities=able(uses=frozenset(needed))))
    for missing in needed:
        made = engine(capabilities=able(uses=ABLE.uses - {missing}))
        with pytest.raises(SamplingError) as error:
            REQUESTS[use](made)
        assert str(error.value) == made.capabilities.refusal(missing)
        assert made.model.asked == []  # type: ignore[attr-defined]


LEARNED_BY: list[tuple[Any, str, dict[str, Any]]] = [
    (invert, "l2t", {}), (interpolate, "l2t", {}),
    (generate, "unconditional", {"joint_orders": (), "reads_latents": False}),
    *((lambda m, length, order=order: generate(m, order=order, length=length), order, {}) for order in ORDERS),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "where", "changes"), LEARNED_BY, ids=[where for _, where, _ in LEARNED_BY])
def test_lengths_that_were_not_learned_are_refused_for_their_own_use_or_order(
    ask: Any, where: str, changes: dict[str, Any]
) -> None:
    places = {"l2t", "unconditional", "interpolate", "infill", "edit", *ORDERS}
    only = engine(capabilities=able(untrained_lengths={where: f"no lengths of {where}"}, **changes))
    for length in ("argmax", "sample"):
        with pytest.raises(SamplingError, match=f"^no lengths of {where}$"):
            ask(only, length=length)
    ask(only, length=3)
    others = engine(capabilities=able(untrained_lengths=dict.fromkeys(places - {where}, "no lengths"), **changes))
    for length in ("argmax", "sample"):
        ask(others, length=length)


WARNING = "1 of 2 texts contain words outside this model's vocabulary; "


@pytest.mark.parametrize(
    ("ask", "effect"),
    [
        (lambda m, texts: invert(m, texts), inputs.ENCODED),
        (lambda m, texts: edit(m, targets=texts, sources=["w3", "w4"]), inputs.ENCODED),
        (lambda m, texts: edit(m, sources=texts), inputs.EDITED),
        (lambda m, texts: interpolate(m, texts, RAW), inputs.ENCODED),
        (lambda m, texts: interpolate(m, RAW, texts), inputs.ENCODED),
        (lambda m, texts: editing.infill(m, [f"{text} _" for text in texts], latents=None, mask="_", **HOW),
         inputs.INFILLED),
    ],
)  # fmt: skip
def test_words_that_the_model_does_not_know_are_warned_of_wherever_they_are(
    ask: Any, effect: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(engine(), ["w1 w2", "w5 w6"])
    assert not caplog.messages
    ask(engine(), ["w1 w2", "zebra w6"])
    shown = "'zebra w6 _'" if effect == inputs.INFILLED else "'zebra w6'"
    assert caplog.messages == [f"{WARNING}{effect}: {shown}"]


@pytest.mark.parametrize("texts", [("w1", "w2"), iter(["w1", "w2"]), np.array(["w1", "w2"]), {"w1": 0, "w2": 0}.keys()])
def test_texts_may_be_in_any_collection_that_has_an_order(texts: Any) -> None:
    assert inputs.check_texts(texts) == ["w1", "w2"]


@pytest.mark.parametrize("joint", [True, False])
def test_the_samplers_of_a_generation_are_checked_whether_or_not_it_draws_latents(joint: bool) -> None:
    made = engine(capabilities=able() if joint else able(joint_orders=(), reads_latents=False))
    for bad in ({"order": "nope"}, {"latent_sampler": "nope"}, {"sampler": "nope"}, {"steps": 0}, {"seed": -1}):
        given = {"order": "text_first", "latent_sampler": "ddim", "length": 3, **HOW, **bad}
        with pytest.raises(Exception, match=r"nope|steps must be at least 1|seed must be at least 0"):
            inverting.generate(made, 2, **given)
    assert made.model.asked == []  # type: ignore[attr-defined]


def test_a_request_leaves_what_it_was_given_as_it_was() -> None:
    """Latents, ids and texts of the caller are used again."""
    raw, ids, texts = RAW.copy(), [[1, 2], [3]], ["w1 w2", "w3"]
    made = engine(batch_tokens=100, model=Scripted())
    invert(made, raw)
    interpolate(made, raw, raw[::-1])
    edit(made, texts, raw)
    editing.infill(made, ["w1 _", "_"], latents=raw, mask="_", **HOW)
    embedding.embed(made, ids, texts, draws=2, **{**HOW, "sampler": "ddim"})
    scoring.score(made, ids, texts, latents=raw, draws=2, seed=0)
    editing.neighbours(raw, raw, k=2)
    assert raw.tolist() == RAW.tolist()
    assert (ids, texts) == ([[1, 2], [3]], ["w1 w2", "w3"])
