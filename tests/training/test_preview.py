"""The sentence that is shown while a model learns: it changes no digit, has its interval, and ends no training."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from mm_ldlm.training.tracker import Silent

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.training import build, preview
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.data import open_data
from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.preview import task_of
from mm_ldlm.training.session import run_session
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.state import random_states
from mm_ldlm.training.worker import train

EVERY_STEP = 1e-9


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    helpers.write_stores(root)
    (root / "runs").mkdir()
    return root


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "MOST", float("inf"))


def planned(stores: Path, **training: Any) -> TrainingSpec:
    """A spec with dropout in the model, so that the global generator is used in training."""
    return helpers.planned(stores, model={"dropout": 0.1}, **training)


def trained(stores: Path, root: Path, **training: Any) -> Path:
    """Train in a root of its own; return the log."""
    found = train(planned(stores, **training), root=root, data=open_data(planned(stores), stores / "runs"))
    return found.directory / "training_log.jsonl"


def made(stores: Path, *, rank: int = 0, world: int = 2, **training: Any) -> Any:
    """The preview of a rank."""
    spec = planned(stores, **{"show_every_seconds": 60, **training})
    data = open_data(spec, stores / "runs")
    root = build._trainable_root(spec, data, stores / "runs", None, Silent())
    process = Process(RankInfo(rank=rank, world=world), torch.device("cpu"), None)
    return build._preview(spec, data, root, process, Silent())


def test_the_same_digits_with_and_without_a_sentence_in_every_step(stores: Path, tmp_path: Path) -> None:
    quiet = trained(stores, tmp_path / "quiet", max_steps=4)
    shown = trained(stores, tmp_path / "shown", max_steps=4, show_every_seconds=EVERY_STEP)
    for name in ("model", "ema", "optimizer"):
        a, b = (helpers.tensors(log.parent, 4, name) for log in (quiet, shown))
        assert helpers.same_bits(a, b), name
    a, b = (folder.tensors(folder.find(log.parent), "rng_state_rank0.safetensors") for log in (quiet, shown))
    assert helpers.same_bits(a, b)
    losses = [[line["loss"] for line in read_metrics(log)] for log in (quiet, shown)]
    assert losses[0] == losses[1]

    assert not [event for event in read_events(quiet) if "preview" in event["event"]]
    events = read_events(shown, "preview")
    assert [event["step"] for event in events] == [1, 2, 3, 4]
    assert len({event["original"] for event in events}) == 1, "always the same sentence"
    assert all(set(event["text"].split()) <= {f"w{i}" for i in range(3, helpers.VOCAB)} for event in events)


def test_no_random_number_of_the_training_is_used_and_its_mode_is_restored(stores: Path) -> None:
    shows = made(stores)
    shows.root.train()
    before, first = random_states(torch.device("cpu")), shows._texts(tokenizer(shows))
    assert helpers.same_bits(before, random_states(torch.device("cpu")))
    assert all(module.training for module in shows.root.modules())
    assert all(parameter.grad is None for parameter in shows.root.parameters())
    random.random()
    torch.rand(1)
    assert shows._texts(tokenizer(shows)) == first, "the same weights write the same text"


def tokenizer(shows: Any) -> Any:
    return preview.TextTokenizer.load(shows._folder)


def test_the_rebuilt_sentence_is_one_of_the_validation_split_of_median_length(stores: Path) -> None:
    shows = made(stores)
    lengths = shows.source.lengths
    data = open_data(planned(stores), stores / "runs")
    assert data.validation is not None
    assert lengths.tolist() == data.validation.lengths.tolist() != data.train.lengths.tolist()
    assert (shows.every, shows.seed) == (60, planned(stores).seed)
    assert lengths[shows._row[0]] == np.sort(lengths)[len(lengths) // 2]
    original, _ = shows._texts(tokenizer(shows))
    assert len(original.split()) == lengths[shows._row[0]]


def test_only_the_first_rank_shows_and_only_where_a_text_can_be_written(stores: Path) -> None:
    assert made(stores) is not None
    assert made(stores, rank=1) is None
    assert made(stores, show_every_seconds=None) is None
    assert made(stores, parallel="fsdp") is None, "a sharded model needs all ranks"
    assert made(stores, parallel="fsdp", world=1) is not None, "a single rank shards nothing"
    spec = planned(stores, show_every_seconds=60)
    process = Process(RankInfo(), torch.device("cpu"), None)
    without = dataclasses.replace(open_data(spec, stores / "runs"), folders={})
    assert build._preview(spec, without, torch.nn.Module(), process, Silent()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uses", "orders", "task"),
    [
        ("l2t t2l unconditional", ("text_first",), "l2t"), ("unconditional score", (), "unconditional"),
        ("t2l unconditional", ("together", "latent_first"), None), ("t2l", (), None), ("classify", (), None),
    ],
)  # fmt: skip
def test_what_is_shown_follows_from_the_capabilities(uses: str, orders: tuple[str, ...], task: str | None) -> None:
    able: Any = frozenset(uses.split())
    assert task_of(Capabilities(uses=able, joint_orders=orders, trained_as="a test")) == task


def test_an_untrained_length_is_that_of_the_sentence(stores: Path) -> None:
    shows = made(stores, objective={"length_weight": 0.0})
    original, text = shows._texts(tokenizer(shows))
    assert len(text.split()) == len(original.split())


def test_an_error_is_recorded_once_and_the_training_goes_on(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def fail(self: Any, length: int) -> list[int]:
        calls.append(length)
        raise torch.OutOfMemoryError("no memory for a sentence")

    monkeypatch.setattr(preview.Preview, "_write", fail)
    log = trained(stores, tmp_path, max_steps=4, show_every_seconds=EVERY_STEP)
    (event,) = read_events(log, "preview_failed")
    assert event["reason"] == "OutOfMemoryError: no memory for a sentence"
    assert len(calls) == 1
    assert read_metrics(log)[-1]["step"] == 4
    assert not read_events(log, "preview")


def test_the_interval_is_kept_and_grows_with_the_time_that_a_sentence_takes(
    stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "MOST", 0.01)
    now, costs, shown = [0.0], [0.1], []
    shows = made(stores)
    monkeypatch.setattr(preview, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shows.tracker = SimpleNamespace(event=lambda step, kind, **words: shown.append((step, kind, words["seconds"])))

    def write(tokenizer: Any) -> tuple[None, str]:
        now[0] += costs[0]
        return None, "a text"

    monkeypatch.setattr(shows, "_texts", write)
    for step, seconds in enumerate((1, 30, 59, 61, 62, 120, 123)):
        now[0] = seconds
        shows(step, last=False)
    assert [step for step, *_ in shown] == [0, 4, 6], "at 1, 62 and 123 seconds"
    costs[0] = 2.0
    for step, seconds in ((10, 200), (11, 300), (12, 401), (13, 403)):
        now[0] = seconds
        shows(step, last=False)
    assert [step for step, *_ in shown[3:]] == [10, 13], "two seconds are one hundredth of 200"
    shows(14, last=True)
    assert shown[-1] == (14, "preview", pytest.approx(2.0))


@pytest.mark.slow
def test_two_processes_show_once_and_train_to_the_same_digits(stores: Path) -> None:
    logs = []
    for name, every in (("two_quiet", None), ("two_shown", 0.001)):
        spec = planned(stores, max_steps=4, launch={"processes": 2}, run_name=name, show_every_seconds=every)
        run_session(spec.to_dict(), stores / "runs")
        logs.append(stores / "runs" / name / "training_log.jsonl")
    for name in ("model", "ema", "optimizer"):
        assert helpers.same_bits(*(helpers.tensors(log.parent, 4, name) for log in logs)), name
    assert not read_events(logs[0], "preview")
    assert [event["step"] for event in read_events(logs[1], "preview")] == [1, 4]


@pytest.mark.parametrize(
    ("task", "has_length", "refused", "most", "expected"),
    [
        ("l2t", False, None, 200, 200), ("unconditional", False, None, 200, preview.LONGEST),
        ("unconditional", False, None, 20, 20), ("l2t", True, None, 200, 90), ("unconditional", True, None, 200, 64),
        ("l2t", True, "not trained", 200, 7), ("l2t", True, None, 50, 50),
    ],
)  # fmt: skip
def test_the_canvas_has_the_most_probable_length_within_its_limit(
    task: Any, has_length: bool, refused: str | None, most: int, expected: int
) -> None:
    """Every length but 90 has the probability 0, and the sentence has 7 tokens."""
    shows = preview.Preview.__new__(preview.Preview)
    shows.task = task
    asked: list[tuple[str, ...]] = []

    def refuse(length: str, task: str, *, order: str) -> str | None:
        asked.append((length, task, order))
        return refused

    shows.capabilities = SimpleNamespace(refuse_length=refuse)  # type: ignore[assignment]
    log_probs = torch.full((1, 200), -torch.inf)
    log_probs[0, 89] = 0.0
    model: Any = SimpleNamespace(
        has_length=has_length, shape=SimpleNamespace(max_length=most),
        length_log_probs=lambda latents, *, rows: log_probs[:rows],
    )  # fmt: skip
    latents = torch.zeros(1, 3) if task == "l2t" else None
    generator = preview.RowGenerator(0, torch.zeros(1, dtype=torch.int64))
    assert shows._length(model, latents, 7, generator) == expected
    assert asked == [("sample", task, "text_first" if task == "unconditional" else "")] * has_length
