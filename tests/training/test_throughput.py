"""The numbers of a log line by hand: each is that of the steps since the line before, and no two are equal."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import throughput as module
from mm_ldlm.training.state import TrainingState
from mm_ldlm.training.throughput import Throughput


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def made(*, max_minutes: float | None = None, state: TrainingState | None = None) -> Any:
    plan = SimpleNamespace(epoch=lambda number: [(range(4), 10)])  # 40 padded tokens in a step of the mean size
    loader: Any = SimpleNamespace(waited=7.0, plan=plan)
    process = Process(RankInfo(world=2), torch.device("cpu"), None)
    return Throughput(loader, state or TrainingState(), process, max_steps=90, max_minutes=max_minutes)


def step(found: Any, *, tokens: int, rows: int, length: int) -> None:
    found.stepped(SimpleNamespace(tokens=tokens, examples=range(rows), length=length, epoch=0))


def test_a_line_has_the_numbers_of_its_own_steps(clock: list[float]) -> None:
    state = TrainingState(step=40, tokens=5_000, skipped=3, rollbacks=2, seconds=1_000.0)
    found = made(state=state)
    step(found, tokens=60, rows=4, length=20)
    clock[0] = 102.0
    step(found, tokens=30, rows=5, length=8)
    found.applied(2.0, True)
    found.applied(5.0, False)
    found.loader.waited, clock[0] = 8.0, 104.0
    assert found.line(0.25, flops_per_token=6e10) == pytest.approx({
        "lr": 0.25, "grad_norm": 3.5, "grad_norm_max": 5.0, "clipped": 0.5, "skipped": 3, "rollbacks": 2,
        "tokens": 5_000, "tokens_per_second": 22.5, "padding_fraction": 0.25, "seconds_per_step": 2.0,
        "waiting_fraction": 0.25, "seconds": 1_004.0, "seconds_left": 100.0, "tflops_per_second": 1.8,
    })  # fmt: skip
    state.step, clock[0] = 41, 104.0
    step(found, tokens=9, rows=1, length=12)
    clock[0] = 107.0
    second = found.line(0.125, flops_per_token=0.0)
    assert math.isnan(second.pop("grad_norm"))
    assert math.isnan(second.pop("grad_norm_max"))
    assert second == pytest.approx({
        "lr": 0.125, "clipped": 0.0, "skipped": 3, "rollbacks": 2, "tokens": 5_000, "tokens_per_second": 3.0,
        "padding_fraction": 0.25, "seconds_per_step": 3.0, "waiting_fraction": 0.0, "seconds": 1_007.0,
        "seconds_left": 49 * 40 * 4.0 / (40 + 12),
    })  # fmt: skip


def test_the_minutes_of_a_run_are_those_of_all_its_sessions(clock: list[float]) -> None:
    found = made(max_minutes=2.0, state=TrainingState(seconds=100.0))
    for seconds, over in ((0, False), (19, False), (21, True)):
        clock[0] = 100.0 + seconds
        assert found.out_of_time() is over
    assert found.state.seconds == 100.0, "asking counts nothing"
    found.count_seconds()
    found.count_seconds()
    assert found.state.seconds == 121.0
    assert found.out_of_time()
    assert not made().out_of_time()


def test_the_estimate_comes_once_and_ends_with_max_minutes(clock: list[float]) -> None:
    for max_minutes, left in ((None, 69.0), (1.0, 39.0)):
        clock[0] = 100.0
        found = made(max_minutes=max_minutes)
        estimates = []
        for number in range(1, 25):
            clock[0] += 1.0
            found.state.step = number
            step(found, tokens=40, rows=4, length=10)
            found.count_seconds()
            estimates += [(number, each) for each in [found.estimate()] if each]
        expected = {"seconds_left": left, "seconds_per_step": 1.0, "measured_steps": 20}
        assert estimates == [(21, expected)], "the 21st step, because the first one is not measured"


def test_before_a_step_was_measured_nothing_is_estimated(clock: list[float]) -> None:
    found = made()
    clock[0] = 190.0  # the first step compiles and opens everything
    step(found, tokens=40, rows=4, length=10)
    assert found.estimate() is None
    assert "seconds_left" not in found.line(0.1, flops_per_token=0.0)


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 PCIe", 756e12), ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12),
     ("NVIDIA A10G", 70e12), ("NVIDIA A10", 125e12), ("NVIDIA L40S", 362e12), ("NVIDIA L4", 121e12), ("Radeon", None),
     ("NVIDIA B200", 2250e12), ("NVIDIA H200 NVL", 835e12), ("NVIDIA H200", 989e12), ("NVIDIA H100 NVL", 835e12),
     ("NVIDIA L40", 181e12), ("NVIDIA GeForce RTX 4090", 165e12), ("NVIDIA A40", 150e12), ("NVIDIA A30", 165e12),
     ("Tesla T4", 65e12)],
)  # fmt: skip
def test_the_peak_of_a_gpu_is_that_of_the_first_fitting_name(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert module.peak_flops(torch.device("cuda")) == peak
    assert module.peak_flops(torch.device("cpu")) is None


def test_the_utilisation_is_that_of_all_devices(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peak_flops", lambda device: 1e12)
    found = made()
    step(found, tokens=60, rows=4, length=25)
    clock[0] = 102.0
    line = found.line(0.1, flops_per_token=1e10)
    assert (line["tflops_per_second"], line["flops_utilisation"]) == pytest.approx((0.5, 0.25)), "of two ranks"


@pytest.mark.parametrize(("max_minutes", "left"), [(None, 80.0), (1.0, 50.0), (10.0, 80.0), (0.1, 0.0)])
def test_the_remaining_time_ends_with_the_first_limit(
    max_minutes: float | None, left: float, clock: list[float]
) -> None:
    state = TrainingState(step=10)
    found = made(max_minutes=max_minutes, state=state)
    for _ in range(2):
        clock[0] += 5.0
        step(found, tokens=40, rows=4, length=50)  # five times the mean size
    assert found.line(0.1, flops_per_token=0.0)["seconds_left"] == pytest.approx(left)


def test_steps_that_were_skipped_count_among_the_steps_and_not_in_the_mean_norm(clock: list[float]) -> None:
    """Of four steps two were applied, and one of these was clipped."""
    found = made()
    for number in range(4):
        clock[0] += 2.0
        step(found, tokens=10, rows=1, length=10)
        if number in (1, 2):
            found.applied(3.0 * number, number == 2)
    line = found.line(0.1, flops_per_token=0.0)
    assert (line["clipped"], line["grad_norm"], line["seconds_per_step"]) == (0.25, 4.5, 2.0)
