"""A real Ray cluster of two nodes on loopback: lost processes and nodes, errors of tasks, versions.

`make test-slow` installs Ray (the extra `ray`) and runs these tests.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
import ray_nodes
from mm_ldlm.core.errors import ConfigurationError, EncoderError, WorkerFailed
from mm_ldlm.extras.ray import task as ray_task
from mm_ldlm.extras.ray.engine import RayEngine, RayEngineConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes cannot import this file
    with ray_nodes.two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def engine(cluster: Any) -> Iterator[RayEngine]:
    """An engine on both nodes; the last test that uses it ends one of them."""
    before = signal.getsignal(signal.SIGTERM)
    with RayEngineConfig(address=cluster.address, max_retries=2, wait_seconds=20).started() as engine:
        assert signal.getsignal(signal.SIGTERM) is before
        yield engine


def slow_square(number: int) -> tuple[int, str]:
    import ray

    time.sleep(0.5)
    return number * number, ray.util.get_node_ip_address()


def test_both_nodes_work_and_the_order_is_that_of_the_tasks(engine: RayEngine) -> None:
    found = list(engine.run(slow_square, range(12), ordered=True))
    assert [(position, value) for position, (value, _) in found] == [(number, number**2) for number in range(12)]
    assert {node for _, (_, node) in found} == {"127.0.0.2", "127.0.0.3"}
    assert engine.size() == (2, 2.0, 0)


def test_a_process_that_dies_once_loses_nothing(engine: RayEngine, tmp_path: Path) -> None:
    def once(number: int) -> int:
        marker = tmp_path / f"{number}"
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert sorted(engine.run(once, range(3), ordered=False)) == [(number, number) for number in range(3)]


def test_a_process_that_always_dies_ends_the_run_after_the_retries(engine: RayEngine, tmp_path: Path) -> None:
    def always(number: int) -> int:
        with (tmp_path / "starts").open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
        return number

    with pytest.raises(WorkerFailed, match=r"task 0 was lost 3 times on the Ray cluster \(WorkerCrashedError"):
        list(engine.run(always, [7], ordered=True))
    assert len((tmp_path / "starts").read_text()) == 3


def test_an_error_of_a_task_is_raised_here_and_not_repeated(engine: RayEngine, tmp_path: Path) -> None:
    def refused(number: int) -> int:
        with (tmp_path / "starts").open("a") as file:
            file.write("x")
        raise EncoderError("expected a cat, found a dog.")

    with pytest.raises(EncoderError, match=r"^expected a cat, found a dog\.$"):
        list(engine.run(refused, [1], ordered=True))
    assert (tmp_path / "starts").read_text() == "x"


def test_other_versions_on_a_node_are_refused(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_task, "versions", lambda: {"Python": "2.7.0"})
    with pytest.raises(ConfigurationError, match=r"found on 127\.0\.0\.\d: Python \d.*\(here 2.7.0\)"):
        list(engine.run(abs, [1], ordered=True))


def test_a_node_that_dies_half_way_loses_nothing(engine: RayEngine, cluster: Any) -> None:
    found = []
    for position, (value, _) in engine.run(slow_square, range(16), ordered=False):
        found.append((position, value))
        if len(found) == 6:
            cluster.remove_node(ray_nodes.second_node(cluster), allow_graceful=False)
    assert sorted(found) == [(number, number**2) for number in range(16)]


def test_a_second_connection_is_refused(engine: RayEngine, cluster: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"found one\. Close it by ray\.shutdown"):
        RayEngineConfig(address=cluster.address).started().__enter__()
