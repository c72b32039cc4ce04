"""What a user gave is shown in messages on one line, shortened, and without credentials; in warnings, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import ABLE, SHAPE, Scripted, Shift, Words, engine

from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.families.classification import requests as classifying
from mm_ldlm.inference import MMLDLM, editing, inputs, inverting, loading
from mm_ldlm.sampling.lengths import how_many_lengths

SECRET = "s3cret"
HOSTILE = f"https://me:{SECRET}@host/w1\nsecond line " + "x" * 300
HOW: dict[str, Any] = {"sampler": None, "steps": None, "seed": 0}
RAW = np.array([[3.0, 1.0]], np.float32)


def invert(**more: Any) -> Any:
    return inverting.invert(
        engine(), RAW, **{"length": 3, "search": None, "reembed": False, **HOW, **more}
    )  # fmt: skip


def interpolate(**more: Any) -> Any:
    given: dict[str, Any] = {
        "steps": 3, "path": "lerp", "sampler": None, "length": 3, "reembed": False, "seed": 0, **more
    }  # fmt: skip
    return inverting.interpolate(engine(), RAW, RAW, **given)


def edit(**more: Any) -> Any:
    given: dict[str, Any] = {"targets": RAW, "strength": 0.5, "which": "random", "reembed": False, **HOW, **more}
    return editing.edit(engine(), ["w1"], **given)


def classify(**more: Any) -> Any:
    return classifying.classify(engine(), ["w1"], second=None, **more)


SHAPED: Any = SHAPE
LONG = 400
"""Characters of a message that has at most one value, of 60 to 200 characters, beside its own words"""
MESSAGES: dict[str, Any] = {
    "a text that is not Unicode": lambda: inputs.check_texts([HOSTILE + "\ud800"]),
    "a text that is none": lambda: inputs.check_texts([[HOSTILE]]),  # type: ignore[list-item]
    "a text without tokens": lambda: inputs.check_lengths([0], [HOSTILE], max_length=9),
    "a text that is too long": lambda: inputs.check_lengths([10], [HOSTILE], max_length=9),
    "ids that are no list": lambda: inputs.check_tokens(HOSTILE, ["a"], shape=SHAPED),
    "texts that are no list": lambda: inputs.check_tokens([[1]], HOSTILE, shape=SHAPED),
    "a text of ids that is none": lambda: inputs.check_tokens([[1]], [[HOSTILE]], shape=SHAPED),
    "a row of ids that is none": lambda: inputs.check_tokens([HOSTILE], ["a"], shape=SHAPED),
    "an id that is none": lambda: inputs.check_tokens([[HOSTILE]], ["a"], shape=SHAPED),
    "an integer": lambda: inputs.check_integer(HOSTILE, name="n"),
    "a seed": lambda: invert(seed=HOSTILE),
    "a number of samples": lambda: invert(samples=HOSTILE),
    "a number of steps": lambda: invert(steps=HOSTILE),
    "a flag": lambda: invert(reembed=HOSTILE),
    "what is kept": lambda: invert(keep=HOSTILE),
    "a length": lambda: invert(length=HOSTILE),
    "a path between latents": lambda: interpolate(path=HOSTILE),
    "steps between latents": lambda: interpolate(steps=HOSTILE),
    "a strength": lambda: edit(strength=HOSTILE),
    "which tokens": lambda: edit(which=HOSTILE),
    "a path": lambda: inputs.check_path([HOSTILE]),
    "an array of texts": lambda: inputs.check_array([[HOSTILE]], what="latents"),
    "a store": lambda: editing.neighbours(RAW, HOSTILE, k=1),
    "a mask": lambda: editing.infill(engine(), ["w1"], latents=None, mask=[HOSTILE], **HOW),  # type: ignore[arg-type]
    "a mask that is missing": lambda: editing.infill(engine(), ["w1"], latents=None, mask=HOSTILE, **HOW),
    "a text without a mask": lambda: editing.infill(engine(), [HOSTILE], latents=None, mask="[MASK]", **HOW),
    "an encoder": lambda: MMLDLM(Scripted(), ABLE, Words(), Shift(), HOSTILE),  # type: ignore[arg-type]
    "a treatment of long texts": lambda: classify(too_long=HOSTILE),
    "a run": lambda: loading.load_run(HOSTILE),
    "a run that is no path": lambda: loading.load_run([HOSTILE]),  # type: ignore[arg-type]
    "a flag of a run": lambda: loading.load_run("run", use_ema=HOSTILE),  # type: ignore[arg-type]
    "a device": lambda: loading._device([HOSTILE]),
    "a file of vectors": lambda: inputs.read_npy(HOSTILE, dim=2),
    "a number of lengths": lambda: how_many_lengths(HOSTILE),
}


@pytest.mark.parametrize("place", MESSAGES)
def test_a_message_shows_a_value_on_one_line_shortened_and_without_credentials(place: str) -> None:
    with pytest.raises((MMLDLMError, ValueError)) as error:
        MESSAGES[place]()
    message = str(error.value)
    assert "\n" not in message
    assert SECRET not in message
    assert len(message) < (LONG if place not in ("a run", "a file of vectors", "a text without tokens") else 1300)


def test_a_text_that_is_not_utf8_is_named_by_its_file_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(MMLDLMError, match=r"two\\nlines\.txt.*cannot be read as UTF-8 text") as error:
        inputs.read_texts(path)
    assert "\n" not in str(error.value)


def test_a_warning_of_unknown_words_shows_the_texts_in_the_same_way(caplog: Any) -> None:
    texts = [HOSTILE, "w1", f"{HOSTILE} zebra"]
    inputs.warn_of_unknown([[22], [1], [1, 22]], texts, unk_id=22)
    (message,) = caplog.messages
    assert message.startswith("2 of 3 texts contain words outside this model's vocabulary; it reads them as [UNK]: ")
    assert "\n" not in message
    assert SECRET not in message
    assert len(message) < LONG
