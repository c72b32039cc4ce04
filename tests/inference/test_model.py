"""What enters and leaves the model: unusual latents, unknown words, truncation, paths, neighbours and infinite numbers."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.runs import DIM, LATENTS, BagEncoder, make

from mm_ldlm.core import SamplingError
from mm_ldlm.data.latents.recognition import Signature, unit
from mm_ldlm.extras.editing.interpolation import slerp
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.model import _warn
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS, latent_sampler

Request = Callable[[MMLDLM, Any], Any]
REQUESTS: dict[str, Request] = {
    "invert": lambda model, z: model.invert(z, steps=2),
    "invert of a length": lambda model, z: model.invert(z, steps=2, length=4),
    "search": lambda model, z: model.invert(z, search={"candidates": 2, "rounds": 1}),
    "generate": lambda model, z: model.generate(2, steps=2),
    "generate together": lambda model, z: model.generate(2, steps=2, order="together", length=3),
    "embed": lambda model, z: model.embed(["w1", "w2"], steps=2),
    "infill": lambda model, z: model.infill(["w1 [MASK]"] * len(z), latents=z, steps=2),
    "edit": lambda model, z: model.edit(["w1 w2 w3"] * len(z), targets=z, steps=2),
    "interpolate": lambda model, z: model.interpolate(z, LATENTS[::-1], steps=2),
    "interpolate to": lambda model, z: model.interpolate(LATENTS, z, steps=2),
    "score": lambda model, z: model.score(["w1 w2"] * len(z), latents=z, draws=2),
}


@pytest.fixture
def broken() -> Callable[[float], MMLDLM]:
    """`broken(value)`: the model with this value in one of its weights."""

    def make_broken(value: float) -> MMLDLM:
        copied = make()
        weight = next(p for name, p in copied.model.model.named_parameters() if name.startswith("blocks.0."))
        weight.view(-1)[0] = value
        return copied

    return make_broken


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", REQUESTS)
def test_pitfall_33_a_model_that_returns_other_than_finite_numbers_gives_no_result(
    name: str, value: float, broken: Callable[[float], MMLDLM]
) -> None:
    with pytest.raises(SamplingError, match="rows"):
        REQUESTS[name](broken(value), LATENTS)


@pytest.mark.parametrize("kind", [*TEXT_SAMPLERS, *LATENT_SAMPLERS])
def test_pitfall_33_every_sampler_refuses_numbers_that_are_not_finite(
    kind: str, model: MMLDLM, broken: Callable[[float], MMLDLM]
) -> None:
    if kind in LATENT_SAMPLERS:
        with pytest.raises(SamplingError, match="finite"):
            broken(float("nan")).embed(["w1", "w2 w3"], sampler=latent_sampler(kind))
        return
    sampler = model.text_sampler(kind, None)
    if model.capabilities.sampler_refusal(sampler, "l2t", given_latent=True) is None:
        with pytest.raises(SamplingError, match=r"finite|the sampler wrote|nan"):
            broken(float("nan")).invert(LATENTS, sampler=sampler, length=5)


@pytest.mark.parametrize("scale", [1e20, -1e30])
@pytest.mark.parametrize("name", ["invert", "infill", "edit", "interpolate", "interpolate to", "score"])
def test_latents_far_from_all_training_data_are_refused_by_their_row(name: str, scale: float, model: MMLDLM) -> None:
    far = LATENTS.copy()
    far[1] *= scale
    with pytest.raises(SamplingError, match=r"1 of 4 .*\(row 1: "):
        REQUESTS[name](model, far)


@pytest.mark.parametrize("name", ["invert", "infill", "edit", "score"])
def test_unusual_latents_are_measured_and_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each is warned of once in a process."""
    _warn.cache_clear()
    model, given = make(typical=(0.2, 3.0)), LATENTS.copy()
    given[2:] *= [[50], [0.02]]
    with caplog.at_level(logging.WARNING):
        made = REQUESTS[name](model, given)
        (warning,) = [record.getMessage() for record in caplog.records if "unlike those" in record.getMessage()]
        caplog.clear()
        REQUESTS[name](model, LATENTS)
        REQUESTS[name](model, given)
    assert "2 of 4" in warning
    assert "rows 2, 3" in warning
    assert not [record for record in caplog.records if "unlike those" in record.getMessage()]
    if name == "invert":
        assert np.digitize(made.latent_norms, (0.2, 3.0)).tolist() == [1, 1, 2, 0]


def test_altered_latents_are_warned_of_and_others_than_the_encoders_are_refused(
    caplog: pytest.LogCaptureFixture, refuses: Any
) -> None:
    drawn = unit(np.random.default_rng(0).normal(size=(2000, DIM)) * (np.arange(DIM) < DIM - 1))
    model, own, noised = make(), drawn[:4], drawn[:4].copy()
    model.normaliser = dataclasses.replace(model.normaliser, signature=Signature.of(drawn[:1500], drawn[1500:]))
    noised[:, -1] = 0.3
    with caplog.at_level(logging.WARNING):
        model.invert(own, steps=1)
        assert not caplog.messages
        model.invert(noised, steps=1)
        assert "noise" in caplog.messages[0]
    assert [model.recognise(x).kind for x in (own, noised, 9 * own)] == ["own", "noised", "scaled"]
    with refuses(SamplingError, "4", "9", "Divide"):
        model.invert(9 * own)
    together = np.concatenate([drawn[:40], 9 * own])
    assert len(model.invert(together, steps=1)) == 44, "few among many of one request"
    model.writer.numbers = [*range(40), *range(4)]
    with refuses(SamplingError, "4", "9", "Divide"):
        model.invert(together, steps=1)  # the second of two requests, as if it were alone
    model.writer.numbers, model.strict = None, False
    assert len(model.invert(9 * own, steps=1)) == 4


def test_unknown_words_are_counted_and_warned_of(model: MMLDLM, caplog: pytest.LogCaptureFixture) -> None:
    texts, expected = ["w1 w2", "w1 news", "all of it news"], [0.0, 0.5, 1.0]
    with caplog.at_level(logging.WARNING):
        for made in (
            model.embed(texts, steps=1), model.score(texts, draws=1), model.invert(texts, steps=1),
            model.edit(texts, targets=LATENTS[:1], strength=1.0, steps=1),
        ):  # fmt: skip
            assert made.unknown.tolist() == expected
            assert "2 of 3 texts" in caplog.messages[-1]
    assert model.generate(2, steps=1).unknown is None
    assert model.infill("news ___ w1 w2", mask="___", steps=1).unknown.tolist() == [0.25], "the mark is not a word"


def test_pitfall_42_a_text_that_is_too_long_is_refused_or_truncated_on_request(model: MMLDLM, refuses: Any) -> None:
    long = " ".join(["w1"] * 13)
    with refuses(SamplingError, "13", "12", "texts[1]"):
        model.embed(["w1", long])
    truncated = model.embed(["w1", long], too_long="truncate")
    assert np.allclose(truncated.latents, model.embed(["w1", " ".join(["w1"] * 12)]).latents)

    encoder = BagEncoder()
    vars(encoder).update(max_length=5, count_tokens=lambda texts: [len(text.split()) for text in texts])
    short = make(encoder=encoder)
    for call in (short.encode, short.invert, lambda texts: short.neighbours(texts, LATENTS, k=1)):
        with refuses(SamplingError, "13", "5", "[1]", "1 of 2"):
            call(["w1", long])
    assert encoder.calls == 0
    assert short.encode(["w1", long], too_long="truncate").shape == (2, DIM)
    assert short.invert(LATENTS, length=6, reembed=True).cosines is not None, "texts of the model are not refused"


# --- paths and neighbours ---------------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.floats(0, 6), st.floats(0.01, 3.1), st.floats(0.1, 9), st.floats(0.1, 9))
def test_a_great_circle_interpolates_the_angle_and_the_norm_separately(
    fraction: float, start: float, turn: float, first: float, last: float
) -> None:
    def at(angle: float, norm: float) -> Any:
        return np.array([[norm * np.cos(angle), norm * np.sin(angle)]])

    found = slerp(at(start, first), at(start + turn, last), fraction)
    np.testing.assert_allclose(found, at(start + fraction * turn, (1 - fraction) * first + fraction * last), atol=1e-6)


def test_a_path_is_straight_where_its_own_ends_are_parallel() -> None:
    starts = np.array([[2.0, 0.0], [1.0, 1.0], [3.0, 0.0], [0.0, 0.0]])
    ends = np.array([[0.0, 6.0], [3.0, 3.0], [-1.0, 0.0], [0.0, 2.0]])
    np.testing.assert_allclose(slerp(starts, ends, 0.25)[1:3], (0.75 * starts + 0.25 * ends)[1:3])
    for row in range(4):
        alone = slerp(starts[row : row + 1], ends[row : row + 1], 0.25)
        np.testing.assert_allclose(slerp(starts, ends, 0.25)[row], alone[0])


def test_neighbours_are_those_of_a_full_comparison(
    model: MMLDLM, refuses: Any, write_dataset: Any, tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    store = (draw.normal(size=(50, DIM)) * draw.uniform(0.1, 9, size=(50, 1))).astype(np.float32)
    queries = 3 * draw.normal(size=(5, DIM)).astype(np.float32)
    cosines = (queries @ store.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(store, axis=1)
    order = np.argsort(-cosines, axis=1)[:, :7]
    found = model.neighbours(queries, store, k=7)
    assert found.rows.tolist() == order.tolist()
    np.testing.assert_allclose(found.cosines, np.take_along_axis(cosines, order, axis=1), rtol=1e-5)
    assert found.to_frame()["rank"].tolist() == [*range(1, 8)] * 5
    texts, splits = [f"w{row % 20} w{row // 20}" for row in range(50)], ["train", "test"] * 25
    write_dataset(tmp_path, texts, splits, latents=store)
    among = model.neighbours(queries, tmp_path / "dataset", k=7)
    assert (among.rows.tolist(), [*map(list, among.texts)]) == (order.tolist(), np.array(texts)[order].tolist())
    with refuses(SamplingError, 50, 51):
        model.neighbours(queries, store, k=51)


# --- devices ----------------------------------------------------------------------------------------------------------


def test_vectors_of_the_encoder_are_checked(model: MMLDLM) -> None:
    for made in (LATENTS[:1], LATENTS[:2] * np.nan, LATENTS[:2, :3], torch.ones(2, DIM, device="meta"), None):
        with pytest.raises(SamplingError):
            make(encoder=SimpleNamespace(dim=DIM, encode=lambda sentences, made=made: made)).encode(["w1", "w2"])
