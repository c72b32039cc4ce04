"""The engine `ray`: tasks on the nodes of a Ray cluster that is running already.

Ray computes a task again, on another node, if its process or its node is lost; `max_retries` bounds that. An error of
the task itself is not repeated. The package `mm_ldlm` of this process is sent to the nodes; other packages are compared
by version (`ray_task`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import mm_ldlm
from mm_ldlm.core import (
    ConfigurationError,
    Duration,
    MMLDLMError,
    NonNegativeInt,
    WorkerFailed,
    config,
    reason_of,
    refuse_if,
    show,
)
from mm_ldlm.extras.ray import task as ray_task

log = logging.getLogger(__name__)

_ADDRESS = "RAY_ADDRESS"
_ATTEMPTS = "RAY_gcs_server_port_wait_time_s"
"""Variable of Ray: attempts to reach the head, of about 40 s each; 20 by default."""
_CHECK = 10.0
"""Seconds without a result after which the nodes are counted"""


@config
class RayEngineConfig:
    """Tasks run on a Ray cluster; this process runs on one of its nodes and alone reads and writes the data folder.

    Attributes:
        address: "auto" for the cluster of the variable RAY_ADDRESS, else the one that runs on this host; or
            "host:port" of its head.
        wait_seconds: longest time to wait for the head, and for a node when none is left.
        max_retries: number of times that a task is computed again after its process or its node was lost.
    """

    kind: str = "ray"
    address: str = "auto"
    wait_seconds: Duration = 60.0
    max_retries: NonNegativeInt = 3

    def __post_init__(self) -> None:
        refuse_if(
            self.address != "auto" and _parts(self.address) is None,
            f"expected auto or HOST:PORT of the head of a Ray cluster, found {show(self.address)}; `kedro run` has "
            "to run on a node of the cluster, and not as a client (ray://)",
            "address",
        )

    @property
    def here(self) -> bool:
        return False

    def missing(self) -> str | None:
        if importlib.util.find_spec("ray") is None:
            return (
                "the engine ray needs the package 'ray', which is not installed. Install it on every host: "
                f"{ray_task.INSTALL}."
            )
        return None

    @contextlib.contextmanager
    def started(self) -> Iterator[RayEngine]:
        """Connect to the cluster, and disconnect when the block ends."""
        import ray

        before = signal.getsignal(signal.SIGTERM)
        self._connect(ray)
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's handler would end this process with another exit code
        try:
            engine = RayEngine(ray, self)
            log.info("connected to a Ray cluster of %d node(s), %g CPUs, %d GPUs", *engine.size())
            yield engine
        finally:
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        address = os.environ.get(_ADDRESS, "auto") if self.address == "auto" else self.address
        parts = _parts(address)
        if parts is None and address != "auto":
            raise ConfigurationError(
                f"the variable {_ADDRESS}: expected HOST:PORT of the head of a Ray cluster, found {show(address)}. "
                "Set it to that, or unset it on a node of the cluster."
            )
        os.environ.setdefault(_ATTEMPTS, "1")
        try:
            if parts is not None:
                _wait_for_head(*parts, seconds=self.wait_seconds)
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"py_modules": [str(Path(mm_ldlm.__file__).parent)]},
            )
        except OSError as error:  # such as a ConnectionError of Ray
            raise WorkerFailed(
                f"expected a running Ray cluster at {address}, found none ({reason_of(error)}). Start one by `ray "
                "start --head` and `ray start --address=HEAD:6379` on the other nodes, and run this command on a node "
                "of it; or set RAY_ADDRESS or the engine's address, and check the firewall (`nc -vz HOST PORT`)."
            ) from None
        except (RuntimeError, ValueError) as error:  # among others: other versions of Python or Ray
            raise ConfigurationError(
                f"this process cannot join the Ray cluster at {address}: {reason_of(error)}. Python and Ray must "
                f"have the same versions on every node: {ray_task.INSTALL}."
            ) from None


class RayEngine:
    """A connection to a Ray cluster."""

    def __init__(self, ray: Any, options: RayEngineConfig) -> None:
        self._ray, self._options = ray, options

    @property
    def gpus(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def size(self) -> tuple[int, float, int]:
        """Return the number of nodes, of cores and of GPUs."""
        resources = self._ray.cluster_resources()
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        return nodes, resources.get("CPU", 0), int(resources.get("GPU", 0))

    def run(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], *, ordered: bool, cpus: int = 1, gpus: int = 0
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield the position and the result of every task; at most two tasks for each place in the cluster wait."""
        ray = self._ray
        if not self._places(cpus, gpus):
            nodes, cores, devices = self.size()
            raise ConfigurationError(
                f"a task needs {cpus} CPU(s) and {gpus} GPU(s) of one Ray cluster, which has {nodes} node(s) with "
                f"{cores:g} CPUs and {devices} GPUs together. Start a larger node, or lower embedding.threads."
            )
        remote = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_retries=self._options.max_retries, retry_exceptions=False,
            scheduling_strategy="SPREAD",
        )(ray_task.call)  # fmt: skip
        shared = (uuid.uuid4().hex, [ray.put(function)], ray_task.versions(), os.getcwd())
        waiting, more = enumerate(tasks), True
        running: dict[Any, int] = {}
        done: dict[int, Any] = {}
        following = 0
        try:
            while True:
                while more and len(running) + len(done) < 2 * max(1, self._places(cpus, gpus)):
                    position, task = next(waiting, (-1, None))
                    more = position >= 0
                    if more:
                        running[remote.remote(*shared, task)] = position
                if not running:
                    return
                for reference in self._ended(list(running), cpus, gpus):
                    position = running.pop(reference)
                    done[position] = self._result(reference, position)
                gap = next(position for position in itertools.count(following) if position not in done)
                for position in range(following, gap) if ordered else sorted(done):
                    following = position + 1
                    yield position, done.pop(position)
        finally:
            if ray.is_initialized():  # without a connection, Ray would start a cluster here
                for reference in running:
                    with contextlib.suppress(Exception):
                        ray.cancel(reference, force=True)

    def _places(self, cpus: int, gpus: int) -> int:
        """Return how many tasks of this size can run at the same time."""
        found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        each = [
            min(int(node.get(name, 0)) // count for name, count in (("CPU", cpus), ("GPU", gpus)) if count)
            for node in found
        ]
        return sum(each)

    def _ended(self, running: list[Any], cpus: int, gpus: int) -> list[Any]:
        """Wait until at least one task has ended. Raise WorkerFailed if no node is left for too long."""
        alone: float | None = None
        while True:
            ended, _ = self._ray.wait(running, num_returns=1, timeout=_CHECK)
            if ended:
                more, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
                return list(more)
            now = time.monotonic()
            alone = None if self._places(cpus, gpus) else alone or now
            if alone is not None and now - alone > self._options.wait_seconds:
                raise WorkerFailed(
                    f"no node of the Ray cluster has had {cpus} CPU(s) and {gpus} GPU(s) for "
                    f"{self._options.wait_seconds:g} s: the nodes were lost (`ray status`). Start them again and "
                    "repeat the command, which continues with what is missing."
                )

    def _result(self, reference: Any, position: int) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, MMLDLMError):
                raise cause from None
            log.error("%s", error)
            raise WorkerFailed(
                f"task {position} failed on the Ray cluster ({reason_of(cause or error)}). The traceback is in the log "
                "of this command, and every node has logs in `session_latest/logs` of Ray's folder. Repeat the "
                "command, which continues with what is missing."
            ) from None


def _parts(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    if not host.strip("[]") or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]"), int(port)


def _wait_for_head(host: str, port: int, *, seconds: float) -> None:
    """Wait until the head of the cluster accepts a connection; Ray itself waits for many minutes."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=min(5.0, seconds)).close()
            return
        except OSError:
            if time.monotonic() + 1 > deadline:
                raise
            time.sleep(1)
