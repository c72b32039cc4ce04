"""Forked ranks: they form a group, and neither an error nor a lost or slow rank can hold up this process."""

from __future__ import annotations

import datetime
import gc
import multiprocessing.process
import os
import random
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import collectives, forked
from mm_ldlm.distributed.forked import _store, run_forked
from mm_ldlm.distributed.process import Process


@pytest.fixture(autouse=True)
def _interrupts_are_heard() -> Iterator[None]:
    """A shell starts the commands of its background with interrupts ignored."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


def test_the_ranks_form_a_group_and_the_first_one_answers() -> None:
    def work(process: Process) -> list[float]:
        together = collectives.sum_(torch.tensor([1.0, 10.0 * process.rank]))
        return [process.world, process.rank, torch.get_num_threads(), *together.tolist()]

    assert run_forked(work, processes=2, seconds=60) == [2, 0, 1, 2.0, 10.0]
    assert run_forked(work, processes=1, seconds=60) == [1, 0, 1, 1.0, 0.0]


def test_the_store_of_the_ranks_waits_no_longer_than_they_may_take() -> None:
    assert _store(7.0).timeout == datetime.timedelta(seconds=7)


def test_what_the_ranks_change_ends_with_them() -> None:
    def work(process: Process) -> int:
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        os.environ["RANK_WAS_HERE"] = "1"
        return os.getpid()

    torch.manual_seed(5)
    states = torch.get_rng_state(), str(np.random.get_state()), random.getstate()  # noqa: NPY002
    threads, environment = torch.get_num_threads(), dict(os.environ)
    other = run_forked(work, processes=1, seconds=60)
    assert other != os.getpid()
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (str(np.random.get_state()), random.getstate())  # noqa: NPY002
    assert (threads, environment) == (torch.get_num_threads(), dict(os.environ))


@pytest.mark.parametrize("failing", [0, 1])
def test_the_error_of_any_rank_ends_all_of_them_at_once(failing: int) -> None:
    def work(process: Process) -> None:
        if process.rank == failing:
            raise ValueError("no such text")
        collectives.barrier()  # for a rank that never comes

    started = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"^ValueError: no such text$"):
        run_forked(work, processes=2, seconds=50)
    assert time.monotonic() - started < 40


def test_a_lost_rank_and_a_slow_one_are_reported_and_killed() -> None:
    def lost(process: Process) -> None:
        if process.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(WorkerFailed, match="ended with exit code -9"):
        run_forked(lost, processes=2, seconds=50)

    def slow(process: Process) -> None:
        time.sleep(60)

    started = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"no result within 0\.3 s"):
        run_forked(slow, processes=1, seconds=0.3)
    assert time.monotonic() - started < 30


def test_the_limit_is_one_for_all_ranks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every four seconds a rank ends, and the first one never answers."""
    clock, waited = [100.0], []

    def wait(objects: list[Any], timeout: float) -> list[Any]:
        waited.append(timeout)
        clock[0] += min(4.0, timeout)
        return [next(each for each in objects if isinstance(each, int))] if timeout >= 4 else []

    ranks: list[Any] = [SimpleNamespace(sentinel=number, exitcode=0, join=lambda: None) for number in range(5)]
    monkeypatch.setattr(forked, "wait", wait)
    monkeypatch.setattr(forked, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with pytest.raises(WorkerFailed, match="no result within 10 s"):
        forked._first_result("the pipe of results", ranks, 10.0)  # type: ignore[arg-type]
    assert waited == [10.0, 6.0, 2.0]


def test_no_rank_is_left_when_this_process_is_interrupted() -> None:
    def work(process: Process) -> None:
        time.sleep(0.2)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_forked(work, processes=1, seconds=50)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_interrupt_between_two_forks_ends_the_processes_that_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, made = os.fork, []

    def interrupted() -> int:
        pid = fork()
        if pid:
            made.append(pid)
            os.kill(os.getpid(), signal.SIGINT)
        return pid

    monkeypatch.setattr(os, "fork", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_forked(lambda process: time.sleep(60), processes=2, seconds=50)
    assert signal.getsignal(signal.SIGINT) is handler
    assert made
    for pid in made:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_a_second_interrupt_does_not_keep_the_processes_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    kill, sent = multiprocessing.process.BaseProcess.kill, []

    def interrupted(one: Any) -> None:
        kill(one)
        sent.append(one.pid)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "kill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_forked(lambda process: process.rank, processes=2, seconds=50)
    assert len(sent) == 2
    for pid in sent:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_a_process_that_cannot_be_started_is_reported_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, made = os.fork, []

    def second_fails() -> int:
        if made:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        made.append(fork())
        return int(made[0])

    monkeypatch.setattr(os, "fork", second_fails)
    with pytest.raises(WorkerFailed, match=r"no process could be started \(Resource temporarily unavailable\)"):
        run_forked(lambda process: time.sleep(60), processes=2, seconds=50)
    with pytest.raises(ChildProcessError):
        os.waitpid(made[0], os.WNOHANG)


def _raises(process: Process) -> None:
    raise ValueError("no such text")


def _is_lost(process: Process) -> None:
    os._exit(3)


@pytest.mark.parametrize(("work", "words"), [(_raises, "no such text"), (_is_lost, "exit code 3")])
def test_an_error_of_a_rank_that_is_kept_keeps_no_file_open(work: Any, words: str) -> None:
    """An error refers to the frames that it passed, and those to the process."""

    def fail() -> WorkerFailed:
        with pytest.raises(WorkerFailed, match=words) as caught:
            run_forked(work, processes=1, seconds=60)
        return caught.value

    fail()  # opens what stays open once
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept = [fail() for _ in range(2)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(kept) == 2
