"""What Ray is given: the options of the connection, the arguments of a task, and what happens to it at the end."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mm_ldlm
from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.extras.ray import engine as ray_engine
from mm_ldlm.extras.ray import task as ray_task
from mm_ldlm.extras.ray.engine import RayEngine, RayEngineConfig


class Ray:
    """Ray with one node of two cores, in which every task ends at once; it notes what it is given."""

    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}), RayTaskError=None)
    exceptions.RayTaskError = type("RayTaskError", (exceptions.RayError,), {})

    def __init__(self, *, connected: bool = True) -> None:
        self.connected, self.started, self.waited, self.cancelled = connected, [], [], []  # type: ignore[var-annotated]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2.0}}]

    def put(self, value: Any) -> Any:
        return ("put", value)

    def remote(self, **_: Any) -> Any:
        def start(*given: Any) -> int:
            self.started.append(given)
            return len(self.started) - 1

        return lambda function: SimpleNamespace(remote=start, function=function)

    def wait(self, running: list[int], **options: Any) -> tuple[list[int], list[int]]:
        self.waited.append((len(running), options))
        return running[: options["num_returns"]], []

    def get(self, reference: int) -> Any:
        return f"result {reference}"

    def is_initialized(self) -> bool:
        return self.connected

    def cancel(self, reference: int, **options: Any) -> None:
        self.cancelled.append((reference, options))
        raise ConnectionError("the node is gone")


def test_a_task_is_given_the_run_the_function_the_versions_and_the_folder() -> None:
    ray = Ray()
    found = list(RayEngine(ray, RayEngineConfig()).run(str, ["a", "b", "c"], ordered=True))
    assert found == [(0, "result 0"), (1, "result 1"), (2, "result 2")]
    (key,) = {given[0] for given in ray.started}
    assert [given[1:] for given in ray.started] == [
        ([("put", str)], ray_task.versions(), os.getcwd(), task) for task in "abc"
    ]
    list(RayEngine(ray, RayEngineConfig()).run(str, ["d"], ordered=True))
    assert ray.started[-1][0] != key, "every run has a key of its own"
    assert ray.waited[:2] == [(3, {"num_returns": 1, "timeout": 10.0}), (3, {"num_returns": 3, "timeout": 0})]


@pytest.mark.parametrize("connected", [True, False])
def test_tasks_that_are_not_needed_any_more_are_ended_while_there_is_a_connection(connected: bool) -> None:
    """Without one, Ray would start a cluster on this host; a node that is gone is no further error."""
    ray = Ray(connected=connected)
    ray.wait = lambda running, **options: (running[:1], [])  # type: ignore[method-assign]
    results = RayEngine(ray, RayEngineConfig()).run(str, range(9), ordered=True)
    assert next(results) == (0, "result 0")
    results.close()  # type: ignore[attr-defined]
    assert ray.cancelled == ([(reference, {"force": True}) for reference in (1, 2, 3)] if connected else [])


def test_the_connection_has_this_package_and_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv(ray_engine._ATTEMPTS, raising=False)
    given: list[Any] = []
    RayEngineConfig()._connect(SimpleNamespace(init=lambda **options: given.append(options)))
    assert given == [{
        "address": "auto", "log_to_driver": False, "logging_level": logging.ERROR,
        "runtime_env": {"py_modules": [str(Path(mm_ldlm.__file__).parent)]},
    }]  # fmt: skip
    assert ray_engine._ATTEMPTS not in os.environ


def test_the_traceback_of_a_node_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ray = Ray()
    error = ray.exceptions.RayTaskError("Traceback of the node")
    error.cause = KeyError("a")

    def get(reference: int) -> Any:
        raise error

    ray.get = get  # type: ignore[method-assign]
    with pytest.raises(WorkerFailed, match=r"^task 0 failed on the Ray cluster: KeyError: 'a'\nThe traceback"):
        list(RayEngine(ray, RayEngineConfig()).run(str, [1], ordered=True))
    assert caplog.messages == ["Traceback of the node"]
    assert caplog.records[0].levelname == "ERROR"


@pytest.mark.parametrize(
    ("seconds", "timeout", "attempts"), [(60.0, 5.0, 3), (1.5, 1.5, 2), (1.0, 1.0, 2), (0.5, 0.5, 1)]
)
def test_the_head_is_tried_once_a_second_until_the_time_is_over(
    seconds: float, timeout: float, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt takes no time; with 60 seconds the third one succeeds."""
    now, tried = [100.0], []

    def connect(place: Any, *, timeout: float) -> Any:
        tried.append((place, timeout))
        if len(tried) < 3:
            raise ConnectionRefusedError(111, "refused")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(socket, "create_connection", connect)
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda pause: now.__setitem__(0, now[0] + pause))
    monkeypatch.setattr(ray_engine, "time", clock)
    if attempts < 3:
        with pytest.raises(WorkerFailed, match=rf"at head, port 6379, within {seconds:g} s \(refused\)\. Start it by"):
            ray_engine._wait_for_head("head", 6379, seconds=seconds)
    else:
        ray_engine._wait_for_head("head", 6379, seconds=seconds)
    assert tried == [(("head", 6379), timeout)] * attempts
    assert now[0] == 100.0 + attempts - 1


@pytest.mark.parametrize(
    ("address", "place"),
    [("head:6379", ("head", 6379)), ("[::1]:1", ("::1", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65535)),
     ("head:65536", None), ("head:0", None), ("head:-1", None), ("head:6a", None), ("[]:1", None), ("a/b:1", None),
     ("auto", None)],
)  # fmt: skip
def test_an_address_is_a_host_and_a_port(address: str, place: Any) -> None:
    assert ray_engine._parts(address) == place


def test_the_connection_says_how_large_the_cluster_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake: Any = Ray(connected=False)
    fake.init, fake.shutdown = (lambda **_: None), (lambda: None)
    fake.cluster_resources = lambda: {"CPU": 12.5, "GPU": 3.0}
    fake.nodes = lambda: [{"Alive": True}, {"Alive": False}, {"Alive": True}]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(RayEngineConfig, "missing", lambda self: None)
    with caplog.at_level("INFO"), RayEngineConfig().started() as engine:
        assert engine.gpus == 3
    assert caplog.messages == ["connected to a Ray cluster of 2 node(s), 12.5 CPUs, 3 GPUs"]


ORDERS = ("first to last", "last to first", "all at once")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["failed", "lost"])
@pytest.mark.parametrize("place", range(4))
def test_a_task_is_named_by_its_own_number_in_whatever_order_tasks_end(
    place: int, kind: str, order: str, ordered: bool
) -> None:
    """The nodes of a cluster differ in speed: a later task may end before the ones that results wait for."""
    ray = Ray()
    error = {"failed": ray.exceptions.RayTaskError, "lost": ray.exceptions.RayError}[kind]("gone")
    error.cause = KeyError("a")

    def wait(running: list[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        if order == "all at once":
            return running, []
        return [min(running) if order == "first to last" else max(running)], []

    def get(reference: int) -> Any:
        if reference == place:
            raise error
        return reference

    ray.wait, ray.get = wait, get  # type: ignore[assignment, method-assign]
    found: list[Any] = []
    with pytest.raises(WorkerFailed, match=rf"^task {place} (failed|was lost 4 times) on the Ray cluster"):
        found.extend(RayEngine(ray, RayEngineConfig()).run(str, range(4), ordered=ordered))
    assert all(position == value != place for position, value in found)
