"""Trial steps: which trainings are measured, on which texts and processes, and what the estimate is made from."""

from __future__ import annotations

import dataclasses
import importlib
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.helpers import SHAPE, data, spec
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm.core.config import parse, to_dict
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.forked import run_forked
from mm_ldlm.distributed.process import Process
from mm_ldlm.models.base import DataShape
from mm_ldlm.training import trial
from mm_ldlm.training.config import TrainingConfig

TRAINING = {"max_steps": 950, "batch": {"examples": 6, "length_multiple": 1}, "device": "cpu",
            "launch": {"processes": 2}, "optimizer": {"warmup_steps": 5}}  # fmt: skip


def training(**changed: Any) -> TrainingConfig:
    return parse(TrainingConfig, TRAINING | changed, at="training")


def typed(root: Path, **changed: Any) -> dict[str, Any]:
    tiny = spec(model={"token_vectors": "random"})
    tokenizer = TokenizerConfig(path=str(root / "tokenizer.json"), max_length=4, reduce_vocabulary=True)
    encoder = SimpleNamespace(device="auto", dim=8)
    sections = {"model": tiny.model, "objective": tiny.objective, "encoder": encoder, "tokenizer": tokenizer}
    return {**sections, "training": training(**changed)}


@pytest.fixture
def records(tmp_path: Path) -> ShardStore:
    """Eight texts of 1, 2, 3, 4 words in turn, and one that is longer than the model; 40 training examples."""
    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, **{f"w{i}": i for i in range(3, 23)}}
    base = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    base.add_special_tokens(["[PAD]", "[MASK]", "[UNK]"])
    base.save(str(tmp_path / "tokenizer.json"))
    texts = [" ".join(["w4", "w5", "w6", "w7"][: 1 + i % 4]) for i in range(8)] + ["w4 w5 w6 w7 w4 w5"]
    writer = StoreWriter(tmp_path / "records", kind="records", schema=RECORD_SCHEMA)
    count = len(texts)
    writer.append(
        {"id": [str(i) for i in range(count)], "text": texts, "source": ["s"] * count, "split": ["train"] * count,
         "meta": ["{}"] * count}
    )  # fmt: skip
    writer.finish(meta={"splits": {"train": 40}})
    return ShardStore.open(tmp_path / "records", "records")


# -- what is measured --------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The processes and the limit of each measurement, whose steps take half a second."""
    found: list[tuple[int, float]] = []

    def answer(work: Any, *, processes: int, seconds: float) -> dict[str, float]:
        found.append((processes, seconds))
        return {"per_step": 0.5, "measured": 3}

    monkeypatch.setattr(trial, "importlib", SimpleNamespace(import_module=lambda name: None))  # it takes seconds
    monkeypatch.setattr(trial, "run_forked", answer)
    return found


def test_the_seconds_are_those_of_the_steps_that_the_limits_allow(
    records: ShardStore, tmp_path: Path, asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = lambda **changed: trial.measure(records, typed(tmp_path, **changed), seed=0, fewest_steps=200)  # noqa: E731
    assert measure() == trial.Trial(475.0, 950, 0.5, measured=3, processes=2)
    assert measure(max_minutes=2.0).seconds == 120.0  # type: ignore[union-attr]
    # 40 examples of lengths 1 to 4: seven batches of six in each epoch, the last one smaller.
    assert measure(max_steps=None, epochs=50).steps == 350  # type: ignore[union-attr]
    # The nine texts have 24 tokens, because the longest is cut; four times these and the first four ones have 106.
    assert measure(max_steps=None, max_tokens=106 * 45, batch={"examples": 1}).steps == 45 * 40  # type: ignore[union-attr]
    assert measure(max_steps=300, batch={"examples_per_device": 3}).steps == 300  # type: ignore[union-attr]
    monkeypatch.setenv("NPROC_PER_NODE", "3")
    assert measure().processes == 3  # type: ignore[union-attr]
    assert asked == [(2, trial.LONGEST)] * 5 + [(3, trial.LONGEST)]


def test_short_and_large_trainings_are_not_measured(
    records: ShardStore, tmp_path: Path, asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trial.measure(records, typed(tmp_path, max_steps=199), seed=0, fewest_steps=200) is None
    monkeypatch.setattr(trial, "MOST_PARAMETERS", 1000)
    assert trial.measure(records, typed(tmp_path), seed=0, fewest_steps=200) is None
    monkeypatch.undo()
    monkeypatch.setattr("mm_ldlm.training.memory.memory_of", lambda device: ("CPU", 1000))
    with pytest.raises(ConfigurationError, match="training needs at least"):
        trial.measure(records, typed(tmp_path), seed=0, fewest_steps=200)
    monkeypatch.undo()
    monkeypatch.setattr(trial, "MOST_EXAMPLES", 39)
    assert trial.measure(records, typed(tmp_path), seed=0, fewest_steps=200) is None
    records.manifest.meta["splits"]["train"] = 0
    assert trial.measure(records, typed(tmp_path), seed=0, fewest_steps=200) is None
    assert asked == []


# -- the sample --------------------------------------------------------------------------------------------------------


def test_the_sample_has_the_lengths_and_the_vocabulary_of_the_texts(records: ShardStore, tmp_path: Path) -> None:
    config = typed(tmp_path)["tokenizer"]
    texts, shape = trial.sample_of(records, config, latent_dim=8)
    assert [len(ids) for ids in texts] == [1, 2, 3, 4, 1, 2, 3, 4, 4]
    assert shape == DataShape(vocab_size=7, pad_id=0, mask_id=1, max_length=4, latent_dim=8)
    whole = dataclasses.replace(config, reduce_vocabulary=False)
    assert trial.sample_of(records, whole, latent_dim=8)[1].vocab_size == 23
    source = trial.Sample(texts, shape=shape, rows=20)
    assert source.lengths.tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 4, 1, 2, 3, 4, 1, 2, 3, 4, 4, 1, 2]
    rows = np.array([2, 19])
    assert (source.tokens(rows, length=4)[:, 2:] == [[texts[2][2], 0], [0, 0]]).all()
    assert np.array_equal(source.field("latents", rows), source.field("latents", np.array([2, 1])))
    assert source.field("latents", rows).shape == (2, 8)


def test_a_vocabulary_grows_as_a_power_of_the_corpus() -> None:
    closed = np.tile(np.arange(50), 10)
    assert trial.extrapolated(closed, factor=100.0) == 50
    new_words = np.arange(500)
    assert trial.extrapolated(new_words, factor=4.0) == 2000
    root = np.concatenate([np.resize(np.arange(1000), 5000), np.arange(1000, 1414), np.zeros(4586, np.int64)])
    assert trial.extrapolated(root, factor=16.0) == pytest.approx(4 * 1414, rel=0.01)  # grows as the square root


# -- the steps ---------------------------------------------------------------------------------------------------------

RATES = {"often": 1e-3, "sometimes": 3e-3, "rare": 1.0}
DRAWS = {"often": list(range(45)), "sometimes": list(range(45, 60)), "rare": [60, 61, 62, 63]}


class Planned:
    """A rank whose clock advances by the rate of the kind for each padded token; the first two steps are slower."""

    def __init__(self, *_: Any) -> None:
        self.now, self.draws = 0.0, []
        self.loader = SimpleNamespace(plan=SimpleNamespace(epoch=lambda number: BATCHES))

    def draws_by_kind(self, batch: Any) -> dict[str, list[int]]:
        return DRAWS

    def step(self, batch: Any, *, draw: int) -> None:
        kind = next(kind for kind, draws in DRAWS.items() if draw in draws)
        slow = {0: 5.0, 1: 0.03}.get(len(self.draws), 0.0)
        self.now += RATES[kind] * trial.padded(batch) + slow
        self.draws.append(draw)


BATCHES = [(np.arange(20), length) for length in (8, 12, 4, 8, 8, 8, 8, 8, 28)]


def test_the_kinds_of_steps_count_as_often_as_they_occur_and_slow_first_steps_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = Planned()
    monkeypatch.setattr(trial, "_Rank", lambda *_: rank)
    monkeypatch.setattr(trial.time, "perf_counter", lambda: rank.now)
    found = trial.trial_steps(None, None, SimpleNamespace(world=1))  # type: ignore[arg-type]
    # 0.19, 0.72, 0.08 and 0.48 s: the first sum above one second ends the measurement.
    assert rank.draws == [0, 0, 46, 2, 48]
    assert found["measured"] == 4
    assert found["per_step"] == pytest.approx((45 * 1e-3 + 15 * 3e-3) / 60 * 20 * 92 / 9)
    monkeypatch.setattr(trial, "SECONDS", 0.1)
    rank = Planned()
    found = trial.trial_steps(None, None, SimpleNamespace(world=1))  # type: ignore[arg-type]
    assert found == {"per_step": pytest.approx(0.19 / 160 * 20 * 92 / 9), "measured": 1}, "one long step is enough"


def test_modes_that_follow_each_other_in_the_training_all_occur() -> None:
    """In the mode `sequential` the number of the step decides the mode."""
    planned = spec(objective={"mode": "sequential", "sequential_steps": 50}, max_steps=600)
    rank = trial._Rank(planned, data(), Process(RankInfo(), torch.device("cpu"), None))
    draws = rank.draws_by_kind(rank.loader.plan.epoch(0)[0])
    kinds = planned.objective.modes
    assert set(draws) == set(kinds)
    assert all(kinds[draw // 50 % len(kinds)] == kind for kind, found in draws.items() for draw in found)
    assert min(len(found) for found in draws.values()) >= 0.1 * trial.DRAWS
    assert max(draw for found in draws.values() for draw in found) < 600


def test_the_anomaly_mode_of_the_training_is_that_of_its_trial_steps() -> None:
    sample = dataclasses.replace(data(), validation=None)
    for chosen in (True, False):
        planned = spec(precision={"detect_anomaly": chosen})

        def work(process: Any, planned: Any = planned) -> bool:
            trial._Rank(planned, sample, process)
            return torch.is_anomaly_enabled()

        assert run_forked(work, processes=1, seconds=60) == chosen


def test_every_process_computes_its_part_of_a_real_step_and_this_process_keeps_its_random_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.0)
    states = torch.get_rng_state(), str(np.random.get_state()), random.getstate()  # noqa: NPY002
    planned = spec(model={"token_vectors": "encoder"}, objective={"mode": "mixed"}, seed=3)
    sample = dataclasses.replace(
        data(), validation=None, token_vectors=np.zeros((SHAPE.vocab_size, SHAPE.latent_dim or 0), np.float32)
    )

    def work(process: Any) -> dict[str, Any]:
        rank = trial._Rank(planned, sample, process)
        batch = rank.loader.plan.epoch(0)[0]
        before = [p.detach().clone() for p in rank.stepper.root.parameters()]
        rank.step(batch, draw=0)
        moved = sum(not torch.equal(a, b) for a, b in zip(before, rank.stepper.root.parameters(), strict=True))
        part = len(rank.loader.make(rank._planned(batch))[0].tokens_BL)
        return {"part": part, "whole": len(batch[0]), "moved": moved, **trial.trial_steps(planned, sample, process)}

    importlib.import_module("torch._dynamo")  # as `measure` does, so that not every rank imports it
    found = run_forked(work, processes=2, seconds=60)
    assert (found["whole"], found["part"], found["measured"]) == (16, 8, 1)
    assert found["moved"] > 10
    assert 0 < found["per_step"] < 30
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (str(np.random.get_state()), random.getstate())  # noqa: NPY002
    assert to_dict(planned.training)["launch"]["processes"] == 1
