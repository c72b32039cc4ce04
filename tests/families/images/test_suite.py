"""Evaluation of images: the labels in captions, pictures of the report, and a whole run on the digits."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mm_ldlm.families.images.sources import CAPTIONS, NAMES
from mm_ldlm.families.images.suite import ImagesSuite, label_in, pictures


@given(name=st.sampled_from(NAMES), other=st.sampled_from(NAMES), form=st.sampled_from(CAPTIONS))
def test_a_caption_has_a_label_if_it_contains_exactly_one(name: str, other: str, form: str) -> None:
    caption = form.format(name)
    assert label_in(caption, NAMES) == label_in(f"  {caption.upper()} ", NAMES) == name
    assert label_in(f"{caption} or {other}", NAMES) == (name if name == other else None)
    assert label_in(form.format(f"{name}s"), NAMES) is None, "only whole words"


@given(shape=st.sampled_from([(3, 5, 1), (4, 2, 3)]), seed=st.integers(0, 99))
def test_pictures_show_the_pixels(shape: tuple[int, ...], seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (3, *shape))
    found = pictures((pixels / 255).reshape(3, -1), ["a", "b", "c"], shape, count=2)
    assert [picture["caption"] for picture in found] == ["a", "b"]
    for picture, expected in zip(found, pixels, strict=False):
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["png"])))).reshape(shape)
        np.testing.assert_array_equal(shown, expected)


@pytest.mark.slow
def test_a_run_on_the_digits_is_sampled_scored_and_reported(run_kedro: Callable[..., Any], workshop: Path) -> None:
    """Few steps: the scores are low, but every number, figure and picture is there."""
    run_kedro("run", "--env=digits+test", "--params=data=data/digits")
    (path,) = (workshop / "data/digits").rglob("08_reporting/metrics.json")
    numbers = json.loads(path.read_text())
    assert numbers["images.classifier_accuracy"] > 0.9
    assert {headline.key for headline in ImagesSuite().headlines({})} <= numbers.keys()
    assert all(0 <= numbers[key] <= 1 for key in numbers if key.endswith((".accuracy", ".attested", ".agreement")))
    (report,) = (workshop / "data/digits").rglob("08_reporting/report.html")
    assert report.read_text().count("data:image/png;base64,") > 20
