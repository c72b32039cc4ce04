"""The engine `ray`: results, lost nodes and processes, versions, and addresses.

The slow tests use a cluster of two nodes on loopback (`make test-slow` installs Ray); the others a stand-in for the
package, in which tasks end in a random order.
"""

import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.latents.toy import TEXTS, ToyEncoderConfig, content, embedded, records
from tests.data.test_engines import conforms

from mm_ldlm.core import ConfigurationError, MMLDLMError, WorkerFailed, parse_kind
from mm_ldlm.data.engines import ENGINES
from mm_ldlm.data.latents import extract as module
from mm_ldlm.extras.ray import task as ray_task
from mm_ldlm.extras.ray.engine import _ATTEMPTS, RayEngine, RayEngineConfig


class RayError(Exception):
    """An error of Ray itself."""


class TaskError(RayError):
    """An error that a task raised on a node."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback of the node")
        self.cause = cause


class FakeRay:
    """Ray as far as the engine uses it: tasks end in a random order, several at a time."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=TaskError)

    def __init__(self, seed: int = 0, nodes: tuple[tuple[int, int], ...] = ((1, 0), (2, 0))) -> None:
        self.dice, self.sizes = random.Random(seed), nodes
        self.most, self.started, self.cancelled = 0, [], []  # type: ignore[var-annotated]

    def nodes(self) -> list[dict[str, Any]]:
        lost = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        return [lost, *({"Alive": True, "Resources": {"CPU": float(c), "GPU": float(g)}} for c, g in self.sizes)]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(c for c, _ in self.sizes)), "GPU": float(sum(g for _, g in self.sizes))}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.options = options

        def start(key: str, function: list[Any], versions: Any, folder: str, task: Any) -> int:
            self.started.append((function[0], task))
            return len(self.started) - 1

        return lambda _: SimpleNamespace(remote=start)

    def wait(self, running: list[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        self.most = max(self.most, len(running))
        if timeout:
            self.ended = self.dice.sample(running, self.dice.randint(1, len(running)))
        return self.ended[:num_returns], []

    def get(self, reference: int) -> Any:
        function, task = self.started[reference]
        try:
            return function(task)
        except RayError:
            raise
        except Exception as error:
            raise TaskError(error) from None

    def is_initialized(self) -> bool:
        return True

    def cancel(self, reference: int, *, force: bool) -> None:
        self.cancelled.append(reference)
        raise ConnectionError("the node is gone")


@given(count=st.integers(0, 30), seed=st.integers(0, 1000), ordered=st.booleans())
def test_every_result_comes_once_and_two_tasks_wait_for_each_place(count: int, seed: int, ordered: bool) -> None:
    ray = FakeRay(seed)
    found = list(RayEngine(ray, RayEngineConfig()).run(str, range(count), ordered=ordered))
    assert sorted(found) == [(number, str(number)) for number in range(count)]
    assert not ordered or found == sorted(found)
    assert ray.most == min(count, 2 * 3)


def test_the_engine_conforms_and_cancels_what_is_not_wanted() -> None:
    ray = FakeRay()
    conforms(RayEngine(ray, RayEngineConfig(max_retries=9)))
    assert ray.cancelled
    assert (ray.options["max_retries"], ray.options["retry_exceptions"]) == (9, False)


def test_places_have_what_a_task_needs(refuses: Any) -> None:
    ray = FakeRay(nodes=((4, 1), (8, 0)))
    engine = RayEngine(ray, RayEngineConfig())
    assert (engine.gpus, engine.size()) == (1, (2, 12, 1))
    assert dict(engine.run(str, range(5), ordered=False, cpus=2, gpus=1)) == {n: str(n) for n in range(5)}
    assert (ray.most, ray.options["num_cpus"], ray.options["num_gpus"]) == (2, 2, 1)
    with refuses(ConfigurationError, "9 CPU", "12"):
        list(engine.run(str, [1], ordered=True, cpus=9))


def raising(error: Exception) -> Callable[[Any], Any]:
    def function(task: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ConfigurationError("expected a cat, found a dog."), ConfigurationError), (ZeroDivisionError("a\nb"), WorkerFailed),
     (RayError("the node died\nlong"), WorkerFailed)],
)  # fmt: skip
def test_an_error_of_a_task_is_one_of_this_project(error: Exception, kind: type[MMLDLMError], refuses: Any) -> None:
    with refuses(kind, str(error).split("\n")[0]):
        list(RayEngine(FakeRay(), RayEngineConfig()).run(raising(error), [1], ordered=True))


def test_lost_nodes_are_waited_for_up_to_the_limit(monkeypatch: pytest.MonkeyPatch, refuses: Any) -> None:
    now = iter(range(1000, 2000, 10))
    monkeypatch.setattr("mm_ldlm.extras.ray.engine.time.monotonic", lambda: float(next(now)))
    ray, sizes = FakeRay(), iter([(), ((1, 0),)])

    def nothing(*_: Any, **__: Any) -> tuple[list[int], list[int]]:
        ray.sizes = next(sizes, ())
        return [], []

    monkeypatch.setattr(ray, "wait", nothing)
    with refuses(WorkerFailed, "1 CPU", "35 s"):
        list(RayEngine(ray, RayEngineConfig(wait_seconds=35)).run(str, [1], ordered=True))
    assert next(now) in (1070, 1080, 1090), "35 s after the last node was lost again"


# -- connection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["", "head", "head:0", "head:99999", "ray://head:10001", ":6379", "a b"])
def test_an_address_that_is_none_is_refused_in_parameters_and_in_the_environment(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"engine\.address"):
        parse_kind(ENGINES, {"kind": "ray", "address": address}, at="engine")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigurationError, match="RAY_ADDRESS"):
        RayEngineConfig()._connect(SimpleNamespace())


def test_the_connection_is_bounded_closed_and_leaves_signals_as_they_were(
    monkeypatch: pytest.MonkeyPatch, refuses: Any
) -> None:
    fake: Any = FakeRay()
    seen: list[Any] = []
    fake.is_initialized = lambda: False
    fake.shutdown = lambda: seen.append("shutdown")
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv(_ATTEMPTS, raising=False)
    before = signal.getsignal(signal.SIGTERM)

    def init(**options: Any) -> None:
        seen.append(options["address"])
        signal.signal(signal.SIGTERM, lambda *_: None)

    fake.init = init
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with RayEngineConfig().started() as engine:
            assert engine.size() == (2, 3, 0)
        assert seen == [address, "shutdown"]
        assert signal.getsignal(signal.SIGTERM) == before
        for error, kind in (
            (ConnectionError("none"), WorkerFailed),
            (RuntimeError("Version\nmismatch."), ConfigurationError),
        ):
            fake.init = lambda error=error, **_: raising(error)(None)
            with refuses(kind, address), RayEngineConfig().started():
                pass
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    monkeypatch.setattr("mm_ldlm.extras.ray.engine.time.sleep", lambda seconds: pytest.fail("it waits for longer"))
    with pytest.raises(WorkerFailed, match=address), RayEngineConfig(address=address, wait_seconds=0.1).started():
        pass
    assert seen == [address, "shutdown"], "a connection that was not made is not closed"


# -- on a node ---------------------------------------------------------------------------------------------------------


def test_a_node_with_other_versions_refuses_and_another_fetches_the_function_of_a_run_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetched: list[str] = []
    fake = SimpleNamespace(
        get=lambda name: fetched.append(name) or (lambda task: (name, task, os.getcwd())),
        util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7"),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_task, "_functions", {})
    here = os.getcwd()
    monkeypatch.chdir(here)  # so that the folder is restored
    mine = ray_task.versions()
    assert {"Python", *ray_task.PACKAGES} >= mine.keys() >= {"Python", "torch", "numpy"}
    for name in (*mine, "absent"):
        with pytest.raises(ConfigurationError, match=rf"10\.0\.0\.7: {name}"):
            ray_task.call("a", ["f"], {**mine, name: "0.0.1"}, str(tmp_path), 1)
    assert ray_task.call("a", ["f"], mine, "/no/such/folder", 1) == ("f", 1, here)
    assert ray_task.call("a", ["f"], mine, str(tmp_path), 2) == ("f", 2, here)
    assert ray_task.call("b", ["g"], mine, str(tmp_path), 3) == ("g", 3, str(tmp_path))
    assert fetched == ["f", "g"]
    assert list(ray_task._functions) == ["b"], "the encoder of the earlier run is released"


# -- a cluster of two nodes --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray import cloudpickle
    from tests.data import test_engines
    from tests.data.latents import toy
    from tests.extras.ray import nodes

    for each in (sys.modules[__name__], test_engines, toy):
        cloudpickle.register_pickle_by_value(each)  # the nodes cannot import tests
    with nodes.two_nodes() as found:
        yield found


@pytest.mark.slow
def test_a_node_that_is_killed_changes_no_byte_of_the_latents(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of the cluster: one of its nodes is gone afterwards."""
    from tests.extras.ray import nodes

    stored = records(tmp_path / "records", [f"{text} {number}" for number in range(20) for text in TEXTS])
    embedded(stored, tmp_path / "plain")
    real, written = module.Job.write, []

    def write(self: Any, number: int, *rest: Any) -> None:
        real(self, number, *rest)
        written.append(number)
        if len(written) == 30:
            cluster.remove_node(nodes.second_node(cluster), allow_graceful=False)

    monkeypatch.setattr(module.Job, "write", write)
    embedded(stored, tmp_path / "ray", ToyEncoderConfig(), engine=RayEngineConfig(address=cluster.address), processes=0)
    assert sorted(written) == list(range(115))
    assert content(tmp_path / "ray") == content(tmp_path / "plain")
