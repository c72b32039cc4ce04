"""Rates, the remaining time and the limit of minutes, on a clock that the test moves."""

import dataclasses
from pathlib import Path

import pytest
from tests.training import task

from mm_ldlm.training import throughput as module
from mm_ldlm.training.throughput import Throughput


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.mark.parametrize("minutes", [None, 3])
def test_the_remaining_time_includes_what_steps_do_beside(minutes: int | None, clock: Clock, tmp_path: Path) -> None:
    """Steps take 2 ms for each padded token; the first one compiles, and every sixth validates and saves for a second."""
    run = task.built(task.spec(max_steps=400, max_minutes=minutes), tmp_path)
    measured = Throughput(run.loader, run.learner.state, run.config)
    assert "seconds_left" not in measured.line(0.1)
    ends: list[float] = []
    for number, planned in enumerate(run.loader.plan.first(60)):
        padded = len(planned.examples) * planned.length
        clock.now += 0.002 * padded + (50.0 if number == 0 else 1.0 if number % 6 == 0 else 0.0)
        run.learner.state.drawn(planned)
        measured.stepped(planned)
        ends.append(clock.now)
    left = measured.line(0.1)["seconds_left"]
    assert left == pytest.approx((400 - 60) * (ends[-1] - ends[0]) / 59 if minutes is None else 180 - (ends[-1] - 100))


def test_a_line_counts_what_happened_since_the_last_one(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = task.built(task.spec(), tmp_path)
    monkeypatch.setattr(module, "peak_flops", lambda device: 1e9)
    run.loader.process = dataclasses.replace(run.loader.process, world=2)
    measured = Throughput(run.loader, run.learner.state, run.config)
    for norm in (2.0, 4.0):
        tokens = padded = 0
        for planned in run.loader.plan.first(4):
            clock.now += 0.5
            run.loader.waited += 0.125
            measured.stepped(planned)
            measured.applied(norm, True)
            tokens, padded = tokens + planned.tokens, padded + len(planned.examples) * planned.length
        measured.flops_per_token = 1e6
        line = measured.line(0.1)
        assert line["tokens_per_second"] == pytest.approx(tokens / 2)
        assert (line["seconds_per_step"], line["waiting_fraction"]) == pytest.approx((0.5, 0.25))
        assert line["padding_fraction"] == pytest.approx(1 - tokens / padded)
        assert line["tflops_per_second"] == pytest.approx(padded / 2 * 1e-6)
        assert (line["grad_norm"], line["grad_norm_max"], line["clipped"], line["lr"]) == (norm, norm, 1.0, 0.1)
        assert line["flops_utilisation"] == pytest.approx(line["tflops_per_second"] * 1e12 / (2 * 1e9))
    assert line["seconds"] == pytest.approx(4.0)


def test_minutes_count_over_sessions(clock: Clock, tmp_path: Path) -> None:
    run = task.built(task.spec(max_minutes=2), tmp_path)
    run.learner.state.seconds = 90.0
    measured = Throughput(run.loader, run.learner.state, run.config)
    clock.now += 29
    assert not measured.out_of_time()
    clock.now += 2
    assert measured.out_of_time()
