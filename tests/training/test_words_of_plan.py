"""The limits of a training in the log, the memory of a GPU, and the ends of a session, word for word."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from torch import nn

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, WorkerFailed
from mm_ldlm.training import memory, plan, session
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.status import write_status


def training(**options: Any) -> TrainingConfig:
    return parse(
        TrainingConfig, {"batch": {"examples": 64}, "device": "cpu", "max_steps": 200, **options}, at="training"
    )


@pytest.mark.parametrize(
    ("steps", "first", "level", "words"),
    [
        ({"max_steps": 2000, "epochs": 9000, "max_tokens": 4000}, "max_steps", logging.WARNING,
         "training.max_steps ends the training after 2000 steps (max_steps 2,000; max_tokens 5,000,000: 4,000 steps; "
         "epochs 3: 9,000 steps). To train all epochs, set training.max_steps to null"),
        ({"epochs": 1200}, "epochs", logging.INFO,
         "training.epochs ends the training after 1200 steps (epochs 3: 1,200 steps)"),
        ({"max_steps": 2000, "max_tokens": 1999}, "max_tokens", logging.INFO,
         "training.max_tokens ends the training after 1999 steps (max_tokens 5,000,000: 1,999 steps; max_steps 2,000)"),
        ({"max_steps": 2000, "epochs": 2000}, "max_steps", logging.INFO,
         "training.max_steps ends the training after 2000 steps (max_steps 2,000; epochs 3: 2,000 steps)"),
    ],
    ids=["cut epochs", "epochs alone", "tokens", "both at once"],
)  # fmt: skip
def test_the_limits_are_listed_from_the_first_to_the_last(
    steps: dict[str, int], first: str, level: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plan._report_end(training(max_steps=2000, epochs=3, max_tokens=5_000_000), steps, first)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, words)]


# -- memory ------------------------------------------------------------------------------------------------------------


class Kind:
    """A kind of model with two blocks; its linear layers have 5 + 7 + 11 outputs for a token."""

    def __init__(self, *, recomputes: bool = False) -> None:
        self.gradient_checkpointing = recomputes

    def build(self, shape: Any, *, generator: torch.Generator) -> nn.Module:
        module = nn.Module()
        module.blocks = nn.ModuleList([nn.Linear(3, 5, bias=False), nn.Linear(3, 7, bias=False)])
        module.head = nn.Linear(3, 11, bias=False)
        module.norm = nn.LayerNorm(3)
        return module


@pytest.mark.parametrize(("recomputes", "kept"), [(False, 11), (True, 5)])
def test_the_estimate_is_its_formula(recomputes: bool, kept: int) -> None:
    """Half of 23 outputs for each of 100 tokens of a micro-batch; those of one of two blocks if they are recomputed."""
    given = training(launch={"processes": 2, "nodes": 3}, batch={"examples": 64, "accumulation": 4})
    found = memory.estimate(Kind(recomputes=recomputes), helpers.SHAPE, given, tokens=2400.0)
    values = 3 * 23 + 6
    assert found == memory.Estimate(parameters=values, states=values * 5 * 4, activations=100 * kept * 4, tokens=100)
    assert found.bytes == found.states + found.activations
    sharded = training(launch={"processes": 2, "nodes": 3}, parallel="fsdp")
    assert memory.estimate(Kind(), helpers.SHAPE, sharded, tokens=0).states == values * 5 * 4 // 6
    assert memory.estimate(Kind(), helpers.SHAPE, sharded, tokens=0).tokens == 1, "of the shortest text"


def test_the_memory_of_a_gpu_is_that_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=5000.0))
    assert [memory.memory_of(device)[0] for device in ("auto", "cuda", "cuda:1", "cpu")] == [*["one GPU"] * 3, "CPU"]
    assert memory.memory_of("auto") == ("one GPU", 5000)
    needed = memory.estimate(Kind(), helpers.SHAPE, training(), tokens=64).bytes
    for device, total, fits in (("cuda", needed, True), ("cuda", needed - 1, False)):
        monkeypatch.setattr(memory, "memory_of", lambda given, total=total: ("one GPU", total))
        four = training(launch={"processes": 4}, device=device)
        with nullcontext() if fits else pytest.raises(ConfigurationError, match=r"× 1 processes\), found .* \(one GPU"):
            assert memory.refuse_beyond_memory(Kind(), helpers.SHAPE, four, tokens=256).bytes == needed


def test_an_encoder_that_computes_elsewhere_needs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda device: ("CPU", 0))
    encoder = SimpleNamespace(device=None, dim=9, max_length=9, batch_tokens=9, batch_rows=9)
    memory.refuse_large_batch(encoder)
    encoder.device = "cpu"
    with pytest.raises(ConfigurationError, match=r"a batch of 9 tokens needs"):
        memory.refuse_large_batch(encoder)


def test_the_smallest_shape_has_the_sizes_that_the_parameters_give() -> None:
    found = memory.smallest_shape(max_length=33, latent_dim=17, image_size=(2, 4, 3))
    assert (found.vocab_size, found.pad_id, found.mask_id, found.max_length) == (5, 0, 1, 33)
    assert (found.latent_dim, found.state_dim, found.image_size) == (17, 17, (2, 4, 3))
    assert memory.smallest_shape(max_length=33, latent_dim=None, image_size=(2, 4, 3)).latent_dim == 1


# -- the session -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tracking", "sends"),
    [({"tracking_uri": "u", "run_id": "r"}, True), ({"tracking_uri": "u"}, False), ({"run_id": "r"}, False),
     ({}, False)],
    ids=["both", "no run", "no address", "none"],
)  # fmt: skip
def test_the_log_of_the_run_is_followed_by_its_sinks(
    tracking: dict[str, str], sends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(session, "MlflowSink", lambda *given: ("mlflow", *given))
    monkeypatch.setattr(session, "ProgressSink", lambda *given: ("progress", *given))
    monkeypatch.setattr(session, "Follower", lambda *given: seen.append(given) or nullcontext())
    monkeypatch.setattr(session, "launch", lambda *_, **__: write_status(tmp_path / "run", "paused", 3))
    (tmp_path / "run").mkdir()
    spec = helpers.spec(max_steps=77).to_dict() | {"tracking": tracking}
    with pytest.raises(WorkerFailed, match=r"^training of run was stopped before its first checkpoint\. The same"):
        session.run_session(spec, tmp_path)
    sinks = [("progress", 77), *[("mlflow", "u", "r")] * sends]
    assert seen == [(tmp_path / "run" / "training_log.jsonl", sinks)]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_session_that_is_ended_says_how_it_continues_and_ends(
    end: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def launch(*_: Any, **__: Any) -> None:
        raise end

    monkeypatch.setattr(session, "launch", launch)
    with pytest.raises(end):
        session.run_session(helpers.spec().to_dict(), tmp_path)
    warning = "training of run was interrupted before its first checkpoint. The same command starts again from the "
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{warning}beginning."
    ]
