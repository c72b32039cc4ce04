"""Batches that are computed side by side: the results of one lane, an encoder of one lane, and a bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.inference import batching

Lanes = Callable[[int], None]


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Lanes:
    """Set the number of lanes."""
    return lambda number: monkeypatch.setattr(batching, "lanes_of", lambda device: number)


def test_the_number_of_lanes_changes_no_bit(model: Any, unit_latents: Any, lanes: Lanes) -> None:
    model._engine.writer.batch_tokens = model._engine.latents.batch_tokens = 20
    texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9", "w2 w3", "w1 w1 w1 w1"]

    def everything() -> list[Any]:
        plain = model.invert(unit_latents(9), length="sample", seed=3)
        found = model.invert(unit_latents(9), search=SearchConfig(candidates=2, rounds=1), seed=3)
        edited = model.edit(texts, targets=unit_latents(5), strength=0.5, seed=3)
        scores, vectors = model.score(texts, draws=3, seed=3), model.embed(texts, seed=3)
        written = [part for made in (plain, found, edited) for part in (made.tokens, made.log_probs, made.model_calls)]
        return [*written, found.cosines, found.encoder_calls, scores.draw_nll, vectors.latents]

    lanes(1)
    one = everything()
    lanes(3)
    for alone, beside in zip(one, everything(), strict=True):
        assert alone == beside if isinstance(alone, tuple) else (alone == beside).all()


def test_an_encoder_is_called_by_one_lane_at_a_time(build: Any, unit_latents: Any, lanes: Lanes) -> None:
    class Watched:
        dim, busy, calls = 6, False, 0

        def encode(self, texts: Any) -> Any:
            assert not self.busy
            self.busy, self.calls = True, self.calls + 1
            time.sleep(0.005)
            self.busy = False
            return np.eye(6, dtype=np.float32)[[len(text) % 6 for text in texts]]

    model = build(encoder=Watched())
    model._engine.writer.batch_tokens = 12
    lanes(4)
    model.invert(unit_latents(8), search=SearchConfig(candidates=2, rounds=1), seed=0)
    assert model.encoder.calls >= 8


@pytest.mark.parametrize(("batch_tokens", "expected"), [(1000, 2), (2000, 1), (10, 9), (10_000, 0)])
def test_the_logits_of_all_lanes_are_bounded(
    batch_tokens: int, expected: int, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(batching, "side_by_side", lambda work, batches, *, lanes: seen.append(lanes) or batches)
    lanes(9)
    model: Any = SimpleNamespace(device=torch.device("cpu"), shape=SimpleNamespace(vocab_size=24_000))
    list(batching.in_batches(len, [5, 5], model=model, batch_tokens=batch_tokens, doing="x"))
    assert seen == [expected]


def test_the_progress_of_a_request_counts_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches differ in size, so that their number says little; the bar names what is done, only on a terminal."""
    seen: dict[str, Any] = {"done": 0}

    class Bar:
        def __init__(self, **options: Any) -> None:
            seen.update(options)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            seen["closed"] = True

        def update(self, count: int = 1) -> None:
            seen["done"] += count

    monkeypatch.setattr(batching, "tqdm", Bar)
    model: Any = SimpleNamespace(device=torch.device("cpu"), shape=SimpleNamespace(vocab_size=30))
    found = []
    for batch, result in batching.in_batches(sum, [2, 5, 1, 1, 3], model=model, batch_tokens=5, doing="guessing"):
        assert seen["done"] == len(found)
        assert result == sum(batch)
        found += batch
    assert found == [1, 4, 0, 2, 3]
    assert seen == {
        "total": 5, "desc": "guessing", "unit": "text", "disable": None, "delay": 2.0, "leave": False, "done": 5,
        "closed": True,
    }  # fmt: skip
