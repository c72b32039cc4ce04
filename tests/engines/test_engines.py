"""Engines: positions and order of results, bounded numbers of tasks, and what a Ray cluster is refused for."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, EncoderError, WorkerFailed
from mm_ldlm.data.engines.base import ENGINES
from mm_ldlm.data.engines.local import LocalEngineConfig
from mm_ldlm.extras.ray import engine as ray_engine
from mm_ldlm.extras.ray import task as ray_task
from mm_ldlm.extras.ray.engine import RayEngine, RayEngineConfig


def test_the_local_engine_runs_in_order_and_takes_a_task_when_it_runs_it() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(9):
            taken.append(number)
            yield number

    with LocalEngineConfig().started() as engine:
        results = engine.run(lambda number: number * number, tasks(), ordered=True)
        assert [next(results) for _ in range(3)] == [(0, 0), (1, 1), (2, 4)]
    assert taken == [0, 1, 2]


# -- scheduling on Ray, with a stand-in for the package ----------------------------------------------------------------


class _RayError(Exception):
    pass


class _TaskError(_RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback of the node")
        self.cause = cause


class _Ray:
    """Ray as far as the engine uses it: tasks end in a random order, several at a time."""

    exceptions = SimpleNamespace(RayError=_RayError, RayTaskError=_TaskError)

    def __init__(self, seed: int = 0, cpus: tuple[int, ...] = (1, 2)) -> None:
        self.dice, self.cpus = random.Random(seed), cpus
        self.most, self.results, self.cancelled = 0, {}, []  # type: ignore[var-annotated]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": float(cpus)}} for cpus in self.cpus]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(self.cpus))}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.options = options

        def start(key: str, function: list[Any], versions: Any, folder: str, task: Any) -> int:
            reference = len(self.results)
            self.results[reference] = (function[0], task)
            return reference

        return lambda _: SimpleNamespace(remote=start)

    def wait(self, running: list[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        self.most = max(self.most, len(running))
        if timeout:
            self.ended = self.dice.sample(running, self.dice.randint(1, len(running)))
            return self.ended[:num_returns], []
        return self.ended, []

    def get(self, reference: int) -> Any:
        function, task = self.results[reference]
        try:
            return function(task)
        except _RayError:
            raise
        except Exception as error:
            raise _TaskError(error) from None

    def is_initialized(self) -> bool:
        return True

    def cancel(self, reference: int, *, force: bool) -> None:
        self.cancelled.append(reference)


@given(count=st.integers(0, 30), seed=st.integers(0, 1000), ordered=st.booleans())
def test_every_result_comes_once_with_its_position(count: int, seed: int, ordered: bool) -> None:
    ray = _Ray(seed)
    found = list(RayEngine(ray, RayEngineConfig()).run(str, range(count), ordered=ordered))
    assert sorted(found) == [(number, str(number)) for number in range(count)]
    assert not ordered or found == sorted(found)
    assert ray.most == min(count, 2 * 3), "two tasks wait for each place"


def test_tasks_wait_for_the_results_that_are_taken() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    ray = _Ray()
    results = RayEngine(ray, RayEngineConfig()).run(str, tasks(), ordered=True)
    next(results)
    assert len(taken) <= 6
    results.close()  # type: ignore[attr-defined]
    assert 0 < len(ray.cancelled) < len(taken)
    assert ray.options["max_retries"] == 3
    assert ray.options["retry_exceptions"] is False


def raising(error: Exception) -> Callable[[Any], Any]:
    def function(task: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (EncoderError("expected a cat"), EncoderError, "^expected a cat$"),
        (ZeroDivisionError("a\nb"), WorkerFailed, "task 0 failed on the Ray cluster: ZeroDivisionError: a\n"),
        (
            _RayError("the node died\nlong"),
            WorkerFailed,
            r"lost 4 times on the Ray cluster \(_RayError: the node died\)",
        ),
    ],
)
def test_errors_of_tasks_are_those_of_this_project(error: Exception, expected: type, words: str) -> None:
    with pytest.raises(expected, match=words) as caught:
        list(RayEngine(_Ray(), RayEngineConfig()).run(raising(error), [1], ordered=True))
    assert len(str(caught.value).splitlines()) <= 3


def test_a_cluster_without_nodes_is_waited_for_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, now, waits = _Ray(), itertools.count(), itertools.count()
    monkeypatch.setattr(ray_engine.time, "monotonic", lambda: float(next(now)))

    def nothing(*_: Any, **__: Any) -> tuple[list[int], list[int]]:
        assert next(waits) < 100, "the wait does not end"
        ray.cpus = ()
        return [], []

    monkeypatch.setattr(ray, "wait", nothing)
    with pytest.raises(WorkerFailed, match=r"no node of the Ray cluster has had 1 CPU\(s\) and 0 GPU\(s\) for 5 s"):
        list(RayEngine(ray, RayEngineConfig(wait_seconds=5)).run(str, [1], ordered=True))


def test_a_task_that_no_node_can_hold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"needs 3 CPU\(s\) and 0 GPU\(s\) of one.*2 node\(s\) with 3 CPUs"):
        list(RayEngine(_Ray(), RayEngineConfig()).run(str, [1], ordered=True, cpus=3))


# -- refusals before a run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["", "head", "head:", "head:0", "head:99999", "ray://head:10001", ":6379", "a b"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'engine.address'.*expected auto or HOST:PORT"):
        parse_kind(ENGINES, {"kind": "ray", "address": address}, at="engine")


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"needs the package 'ray'.*pip install .*\[ray\]"):
        RayEngineConfig().started().__enter__()


def test_a_head_that_does_not_answer_is_waited_for_in_bounded_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]  # bound and not listening: connections are refused
        with pytest.raises(WorkerFailed, match=rf"does not answer at 127.0.0.1, port {port}, within 0.1 s"):
            ray_engine._wait_for_head("127.0.0.1", port, seconds=0.1)


@pytest.mark.parametrize("address", ["ray://head:10001", "local", ""])
def test_an_address_of_another_kind_in_the_environment_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigurationError, match=r"the variable RAY_ADDRESS: expected HOST:PORT"):
        RayEngineConfig()._connect(SimpleNamespace())


def test_a_node_with_other_versions_is_refused() -> None:
    mine = ray_task.versions()
    ray_task.refuse_other_versions(mine, dict(mine), node="10.0.0.7")
    other = {**mine, "torch": "1.0"}
    del other["numpy"]
    torch = mine["torch"].replace("+", ".")
    with pytest.raises(ConfigurationError, match=rf"found on 10.0.0.7: torch 1.0 \(here {torch}\), numpy missing"):
        ray_task.refuse_other_versions(mine, other, node="10.0.0.7")


@pytest.mark.parametrize("name", ["Python", "torch", "numpy", "tokenizers", "transformers", "datasketch"])
def test_each_package_that_may_change_a_result_has_one_version(name: str) -> None:
    mine = ray_task.versions()
    assert name in mine
    for other in ({**mine, name: "0.1"}, {key: value for key, value in mine.items() if key != name}):
        with pytest.raises(ConfigurationError, match=rf"found on n: {name} (0\.1|missing) \(here"):
            ray_task.refuse_other_versions(mine, other, node="n")
    ray_task.refuse_other_versions(mine, {**mine, "more": "1"}, node="n")


class _Gpus(_Ray):
    """A node with four cores and a GPU, one with eight cores and none, and one that was lost."""

    def nodes(self) -> list[dict[str, Any]]:
        found = [(4.0, 1.0, True), (8.0, 0.0, True), (64.0, 8.0, False)]
        return [{"Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus, alive in found]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 12.0, "GPU": 3.0}


def test_every_option_reaches_ray_and_places_have_what_a_task_needs() -> None:
    ray = _Gpus()
    engine = RayEngine(ray, RayEngineConfig(max_retries=9))
    assert (engine.gpus, engine.size()) == (3, (2, 12.0, 3))
    assert [engine._places(cpus, gpus) for cpus, gpus in ((1, 0), (2, 0), (3, 0), (1, 1), (5, 1))] == [12, 6, 3, 1, 0]
    assert dict(engine.run(str, range(5), ordered=False, cpus=2, gpus=1)) == {n: str(n) for n in range(5)}
    assert ray.most <= 2, "two tasks for the only place"
    assert ray.options == {
        "num_cpus": 2, "num_gpus": 1, "max_retries": 9, "retry_exceptions": False, "scheduling_strategy": "SPREAD",
    }  # fmt: skip
    with pytest.raises(WorkerFailed, match="task 0 was lost 10 times"):
        list(engine.run(raising(_RayError("gone")), [1], ordered=True))


def test_a_cluster_that_lost_all_nodes_is_waited_for_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [71.5, 70.0, 60.0, 50.0, 41.0, 30.0, 20.0, 10.0, 0.0]
    alive = [False, False, False, False, False, True, False, False, False]

    def monotonic() -> float:
        assert times, "the wait does not end"
        return times.pop()

    monkeypatch.setattr("mm_ldlm.extras.ray.engine.time", SimpleNamespace(monotonic=monotonic))
    ray = SimpleNamespace(
        wait=lambda running, **_: ([], running),
        nodes=lambda: [{"Alive": alive.pop(), "Resources": {"CPU": 4.0}}],
    )
    engine = RayEngine(ray, RayEngineConfig(wait_seconds=30))
    with pytest.raises(WorkerFailed, match="no node of the Ray cluster has had 1 CPU"):
        engine._ended(["a task"], 1, 0)
    assert not times, "30 s after the last node was lost, and not after the first one was"


def test_a_node_fetches_the_function_of_a_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def get(reference: str) -> Callable[[Any], Any]:
        fetched.append(reference)
        return lambda task: (reference, task, os.getcwd())

    here = os.getcwd()
    fake = SimpleNamespace(get=get, util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7"))
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_task, "_functions", {})
    monkeypatch.chdir(here)
    mine = ray_task.versions()
    with pytest.raises(ConfigurationError, match=r"found on 10\.0\.0\.7: torch"):
        ray_task.call("a", ["f"], {**mine, "torch": "1.0"}, str(tmp_path), 1)
    assert ray_task.call("a", ["f"], mine, "/no/such/folder", 1) == ("f", 1, here)
    assert ray_task.call("a", ["f"], mine, str(tmp_path), 2) == ("f", 2, here)
    assert ray_task.call("b", ["g"], mine, str(tmp_path), 3) == ("g", 3, str(tmp_path))
    assert fetched == ["f", "g"]
    assert list(ray_task._functions) == ["b"], "the encoder of the earlier run is given back"


@pytest.mark.parametrize(
    ("address", "variable", "expected"),
    [("auto", None, "auto"), ("auto", "head:6379", "head:6379"), ("other:1", "head:6379", "other:1")],
)
def test_the_address_of_the_cluster_is_that_of_the_parameters_or_of_the_variable(
    address: str, variable: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv(ray_engine._ATTEMPTS, raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    monkeypatch.setattr(ray_engine, "_wait_for_head", lambda *place, seconds: seen.append((place, seconds)))
    fake = SimpleNamespace(init=lambda **given: seen.append((given["address"], os.environ[ray_engine._ATTEMPTS])))
    RayEngineConfig(address=address, wait_seconds=7)._connect(fake)
    waited = [((expected.split(":")[0], int(expected.split(":")[1])), 7.0)] if ":" in expected else []
    assert seen == [*waited, (expected, "1")]
    assert ray_engine._ATTEMPTS not in os.environ


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (ConnectionError("none\nmore"), WorkerFailed, r"running Ray cluster at auto, found none \(none\)"),
        (RuntimeError("Version\nmismatch."), ConfigurationError, "at auto: Version mismatch. Python and Ray"),
        (ValueError("bad"), ConfigurationError, "at auto: bad"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_explained(
    error: Exception, expected: type, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**given: Any) -> None:
        raise error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(ray_engine._ATTEMPTS, "9")
    with pytest.raises(expected, match=words):
        RayEngineConfig()._connect(SimpleNamespace(init=init))
    assert os.environ[ray_engine._ATTEMPTS] == "9", "the user's own value stays"


def test_the_connection_is_closed_and_the_signal_handler_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fake: Any = _Gpus()
    fake.is_initialized = lambda: False
    fake.init = lambda **given: signal.signal(signal.SIGTERM, lambda *_: None) and None
    fake.shutdown = lambda: calls.append("shutdown")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(RayEngineConfig, "missing", lambda self: None)
    before = signal.getsignal(signal.SIGTERM)
    with RayEngineConfig().started() as engine:
        assert (engine.gpus, calls) == (3, [])
        assert signal.getsignal(signal.SIGTERM) == before
    assert calls == ["shutdown"]
    fake.is_initialized = lambda: True
    with pytest.raises(ConfigurationError, match="no connection to a Ray cluster"), RayEngineConfig().started():
        pass
    assert calls == ["shutdown"], "that of someone else stays open"


def test_a_package_that_is_installed_and_a_head_that_answers_are_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert RayEngineConfig().missing() is None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        ray_engine._wait_for_head("127.0.0.1", listener.getsockname()[1], seconds=5)
        connection, _ = listener.accept()
        assert connection.recv(1) == b"", "the trial connection is closed again"
        connection.close()


def test_a_connection_of_another_thread_leaves_the_signals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python sets signal handlers in the main thread only."""
    calls: list[str] = []
    fake: Any = _Gpus()
    fake.is_initialized, fake.init = (lambda: False), (lambda **given: calls.append("init"))
    fake.shutdown = lambda: calls.append("shutdown")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(RayEngineConfig, "missing", lambda self: None)

    def connect() -> None:
        with RayEngineConfig().started():
            calls.append("used")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(connect).result()
    assert calls == ["init", "used", "shutdown"]
