"""What the engines report, word for word: the size of the cluster, the task that failed, and what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, EncoderError, WorkerFailed
from mm_ldlm.data.engines.base import ENGINES
from mm_ldlm.data.engines.local import LocalEngineConfig
from mm_ldlm.extras.ray import engine as ray_engine
from mm_ldlm.extras.ray import task as ray_task
from mm_ldlm.extras.ray.engine import RayEngine, RayEngineConfig

START = (
    "Start one by `ray start --head` and `ray start --address=HEAD:6379` on the other nodes, and run this command on a "
    "node of it; or set RAY_ADDRESS or the engine's address."
)
INSTALL = "`pip install -c constraints.txt -e '.[ray]'` in the project's folder"


class RayError(Exception):
    pass


class TaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback of the node")
        self.cause = cause


class Ray:
    """Ray with these nodes, whose tasks end one after another, in the order in which they were started."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=TaskError)

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.found, self.tasks, self.functions = list(nodes), list[Any](), list[Any]()

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": each} for each in self.found]

    def cluster_resources(self) -> dict[str, float]:
        names = {name for each in self.found for name in each}
        return {name: sum(each.get(name, 0) for each in self.found) for name in names}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **_: Any) -> Any:
        def start(key: str, function: list[Any], versions: Any, folder: str, task: Any) -> int:
            self.tasks.append((function[0], task))
            return len(self.tasks) - 1

        return lambda function: self.functions.append(function) or SimpleNamespace(remote=start)

    def wait(self, running: list[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return [min(running)], []

    def get(self, reference: int) -> Any:
        function, task = self.tasks[reference]
        return function(task)

    def is_initialized(self) -> bool:
        return False


def failing(task: Any) -> Any:
    if isinstance(task, Exception):
        raise task
    return task


def results(tasks: list[Any], *, ordered: bool = True, **options: Any) -> list[Any]:
    return list(RayEngine(Ray({"CPU": 2.0}), RayEngineConfig(**options)).run(failing, tasks, ordered=ordered))


@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TaskError(KeyError("a")), "failed on the Ray cluster: KeyError: 'a'"),
        (TaskError(ValueError("one.\ntwo")), "failed on the Ray cluster: ValueError: one"),
        (TaskError(ValueError("\n  one. \n")), "failed on the Ray cluster: ValueError: one"),
        (TaskError(AssertionError()), "failed on the Ray cluster: AssertionError: AssertionError"),
        (RayError("gone.\nlong"), "was lost 6 times on the Ray cluster (RayError: gone)"),
        (RayError(""), "was lost 6 times on the Ray cluster (RayError: RayError)"),
    ],
)  # fmt: skip
def test_the_task_that_failed_is_named_by_its_position(
    place: int, ordered: bool, error: Exception, message: str
) -> None:
    tasks: list[Any] = ["fine"] * 5
    tasks[place] = error
    with pytest.raises(WorkerFailed) as raised:
        results(tasks, ordered=ordered, max_retries=5)
    ends = {
        TaskError: "\nThe traceback of the node is in the log of this command.",
        RayError: ". Every node has logs in `session_latest/logs` of Ray's folder. Repeat the command, which continues "
                  "with what is missing.",
    }  # fmt: skip
    assert str(raised.value) == f"task {place} {message}{ends[type(error)]}"


def test_an_error_of_the_project_is_raised_as_it_is() -> None:
    error = EncoderError("expected a cat\nfound a dog")
    with pytest.raises(EncoderError) as raised:
        results(["fine", TaskError(error)])
    assert raised.value is error


def test_the_nodes_run_the_function_that_compares_versions_first() -> None:
    ray = Ray({"CPU": 2.0})
    assert list(RayEngine(ray, RayEngineConfig()).run(str, [5], ordered=True)) == [(0, "5")]
    assert ray.functions == [ray_task.call]


def test_a_task_that_no_node_can_hold_is_refused_with_the_size_of_the_cluster() -> None:
    engine = RayEngine(Ray({"CPU": 4.0, "GPU": 1.0}, {"CPU": 3.5}, {"CPU": 2.0}), RayEngineConfig())
    with pytest.raises(ConfigurationError) as error:
        list(engine.run(str, [1], ordered=True, cpus=5, gpus=2))
    assert str(error.value) == (
        "a task needs 5 CPU(s) and 2 GPU(s) of one Ray cluster, which has 3 node(s) with 9.5 CPUs and 1 GPUs together. "
        "Start a larger node, or lower embedding.threads."
    )


def test_a_cluster_without_cores_and_gpus_has_none() -> None:
    engine = RayEngine(Ray({}), RayEngineConfig())
    assert (engine.size(), engine.gpus, engine._places(1, 0)) == ((1, 0, 0), 0, 0)
    assert RayEngine(Ray({"CPU": 2.0, "GPU": 3.0}), RayEngineConfig()).gpus == 3


@pytest.mark.parametrize(
    ("cpus", "gpus", "places"),
    [(1, 0, 7), (2, 0, 3), (4, 0, 1), (5, 0, 0), (0, 1, 3), (1, 1, 3), (2, 1, 3), (4, 1, 1), (1, 2, 1), (1, 3, 0)],
)
def test_a_place_has_all_that_a_task_needs_on_one_node(cpus: int, gpus: int, places: int) -> None:
    ray = Ray({"CPU": 4.9, "GPU": 2.0}, {"CPU": 3.0, "GPU": 1.0})
    assert RayEngine(ray, RayEngineConfig())._places(cpus, gpus) == places


def test_nodes_that_can_hold_other_tasks_only_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs are gone; cores alone do not help a task that needs both."""
    now = iter(range(0, 1000, 5))
    monkeypatch.setattr(ray_engine, "time", SimpleNamespace(monotonic=lambda: 1.0 + next(now)))
    ray: Any = Ray({"CPU": 8.0})
    ray.wait = lambda running, **_: ([], running)
    with pytest.raises(WorkerFailed) as error:
        RayEngine(ray, RayEngineConfig(wait_seconds=12.5))._ended(["a task"], 2, 1)
    assert str(error.value) == (
        "no node of the Ray cluster has had 2 CPU(s) and 1 GPU(s) for 12.5 s: the nodes were lost (`ray status`). "
        "Start them again and repeat the command, which continues with what is missing."
    )
    assert next(now) == 20, "four times: from 0 to 15 s"


@pytest.mark.parametrize("ordered", [True, False])
def test_no_task_is_left_out_while_the_nodes_are_away(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there at the start and lost then; Ray starts the tasks that wait when they are back."""
    engine = RayEngine(Ray({"CPU": 2.0}), RayEngineConfig())
    counts = iter([2])
    monkeypatch.setattr(engine, "_places", lambda cpus, gpus: next(counts, 0))
    assert list(engine.run(failing, "abcde", ordered=ordered)) == list(enumerate("abcde"))


# -- the connection ----------------------------------------------------------------------------------------------------


def test_the_head_that_does_not_answer_is_named_with_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(ray_engine.socket, "create_connection", refuse)
    with pytest.raises(WorkerFailed) as error:
        ray_engine._wait_for_head("10.0.0.7", 6380, seconds=0.5)
    assert str(error.value) == (
        "the head of the Ray cluster does not answer at 10.0.0.7, port 6380, within 0.5 s (Connection refused). "
        "Start it by `ray start --head --port=6380`, and check the address and the firewall: `nc -vz 10.0.0.7 6380`."
    )


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ConnectionError("no session.\nlong"), WorkerFailed,
         "expected a running Ray cluster at auto, found none (no session). " + START),
        (ConnectionError(), WorkerFailed,
         "expected a running Ray cluster at auto, found none (ConnectionError). " + START),
        (RuntimeError("Version mismatch:\n  Python 3.11\n  Python 3.12."), ConfigurationError,
         "this process cannot join the Ray cluster at auto: Version mismatch: Python 3.11 Python 3.12. Python and Ray "
         f"must have the same versions on every node: {INSTALL}."),
    ],
)  # fmt: skip
def test_a_cluster_that_cannot_be_joined_is_named_with_the_reason(
    error: Exception, kind: type, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(kind) as raised:
        RayEngineConfig()._connect(SimpleNamespace(init=init))
    assert str(raised.value) == message


def test_an_address_of_another_kind_is_refused_where_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:1")
    with pytest.raises(ConfigurationError) as error:
        RayEngineConfig()._connect(SimpleNamespace())
    assert str(error.value) == (
        "the variable RAY_ADDRESS: expected HOST:PORT of the head of a Ray cluster, found 'ray://head:1'. Set it to "
        "that, or unset it on a node of the cluster."
    )
    with pytest.raises(ConfigurationError) as error:
        parse_kind(ENGINES, {"kind": "ray", "address": "ray://head:1"}, at="engine")
    assert str(error.value) == (
        "parameter 'engine.address': expected auto or HOST:PORT of the head of a Ray cluster, found 'ray://head:1'; "
        "`kedro run` has to run on a node of the cluster, and not as a client (ray://)."
    )


def test_a_missing_package_and_a_second_connection_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else name)
    with pytest.raises(ConfigurationError) as error, RayEngineConfig().started():
        pass
    assert str(error.value) == RayEngineConfig().missing() == (
        f"the engine ray needs the package 'ray', which is not installed. Install it on every host: {INSTALL}."
    )  # fmt: skip
    monkeypatch.setattr(RayEngineConfig, "missing", lambda self: None)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(ConfigurationError) as error, RayEngineConfig().started():
        pass
    assert str(error.value) == (
        "expected no connection to a Ray cluster in this process, found one. Close it by ray.shutdown()."
    )


@pytest.mark.parametrize("fault", ["none", "in the block", "while connecting"])
def test_a_connection_ends_with_its_block_whatever_handles_signals(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that was not set from Python is None, and cannot be set again."""
    calls: list[Any] = []
    fake: Any = Ray({"CPU": 1.0})
    fake.shutdown = lambda: calls.append("shutdown")
    fake.init = lambda **_: calls.append("init")
    if fault == "while connecting":
        fake.init = failing_init
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(RayEngineConfig, "missing", lambda self: None)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: calls.append(handler))
    if fault == "none":
        with RayEngineConfig().started():
            assert calls == ["init"]
    else:
        with pytest.raises((ZeroDivisionError, ConfigurationError)), RayEngineConfig().started():
            raise ZeroDivisionError
    assert calls == ([] if fault == "while connecting" else ["init", "shutdown"])


def failing_init(**_: Any) -> None:
    raise RuntimeError("no")


# -- the nodes and the registry ----------------------------------------------------------------------------------------


def test_every_package_that_differs_on_a_node_is_named_with_both_versions() -> None:
    here = {"Python": "3.11.1", "torch": "2.0", "numpy": "1.9", "tokenizers": "0.1"}
    there = {"Python": "3.12.0", "torch": "2.0", "tokenizers": "0.2"}
    with pytest.raises(ConfigurationError) as error:
        ray_task.refuse_other_versions(here, there, node="10.0.0.7")
    assert str(error.value) == (
        "expected the same packages on every node of the Ray cluster, found on 10.0.0.7: Python 3.12.0 (here 3.11.1), "
        f"numpy missing (here 1.9), tokenizers 0.2 (here 0.1). Install them from one file everywhere: {INSTALL}."
    )


def test_a_node_compares_its_own_versions_with_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7"))
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_task, "_functions", {})
    monkeypatch.setattr(ray_task, "versions", lambda: {"Python": "3.12.0", "numpy": "1.9"})
    with pytest.raises(ConfigurationError, match=r"found on 10\.0\.0\.7: Python 3\.12\.0 \(here 3\.11\.1\)\. Install"):
        ray_task.call("a", ["f"], {"Python": "3.11.1"}, "/no/such/folder", 1)
    assert ray_task._functions == {}


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("datasketch", "torch"):
            raise importlib.metadata.PackageNotFoundError(name)
        return f"version of {name}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(ray_task.platform, "python_version", lambda: "3.11.1")
    found = {name: f"version of {name}" for name in ("numpy", "tokenizers", "transformers")}
    assert ray_task.versions() == {"Python": "3.11.1", **found}


def test_only_the_local_engine_works_in_this_process() -> None:
    local, ray = LocalEngineConfig(), RayEngineConfig()
    assert (local.kind, local.here, local.missing()) == ("local", True, None)
    assert (ray.kind, ray.here) == ("ray", False)
    with local.started() as engine:
        assert engine.gpus == 0
        taken = engine.run(str, iter([4, 5]), ordered=False, cpus=9, gpus=9)
        assert list(taken) == [(0, "4"), (1, "5")]
