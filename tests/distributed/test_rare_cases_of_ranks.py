"""Rare cases of ranks, hosts and logs: one byte, a rank of a second host, an empty variable, a file that is none."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.launcher import api

import mm_ldlm
from mm_ldlm.distributed import collectives, environment, failure, forked, launch, logs, master, parallel, shared_memory
from mm_ldlm.distributed import process as processes
from mm_ldlm.distributed.environment import Hosts, RankInfo
from mm_ldlm.distributed.forked import run_forked
from mm_ldlm.distributed.launch import LaunchConfig
from mm_ldlm.distributed.process import Process, joined
from mm_ldlm.errors import WorkerFailed

CPU = torch.device("cpu")

# -- ranks -------------------------------------------------------------------------------------------------------------


def test_one_byte_and_none_are_gathered_like_many() -> None:
    def work(process: Process) -> list[Any]:
        found = [collectives.gather_bytes(data, device=CPU) for data in (b"x"[process.rank :], b"ab"[: 1 + process.rank])]
        return [[list(data) for data in each] for each in found]

    assert run_forked(work, processes=2, seconds=60) == [[[120], []], [[97], [97, 98]]]


def test_the_first_rank_of_another_host_is_not_the_main_one() -> None:
    made = [Process(RankInfo(rank=rank, local_rank=rank % 2, world=4, local_world=2), CPU, None) for rank in range(4)]
    assert [process.is_main for process in made] == [True, False, False, False]
    assert [process.rank for process in made] == [0, 1, 2, 3]
    assert {process.world for process in made} == {4}


@pytest.mark.parametrize("error", [RuntimeError("refused\nmore"), dist.DistNetworkError("refused\nmore")])
def test_a_store_that_cannot_be_reached_is_a_lost_rank(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "MASTER_ADDR": "head", "MASTER_PORT": 7}.items():
        monkeypatch.setenv(name, str(value))

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(dist, "TCPStore", fail)
    with pytest.raises(WorkerFailed) as raised, joined(device="cpu", timeout_minutes=2):
        pass
    assert str(raised.value) == (
        "rank 1 of 2 could not join the others at head:7 within 2 minutes (refused). Check that every host was started, "
        "that the address is that of the first host, and that the port is open between the hosts."
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "none"])
def test_a_single_rank_wraps_and_exchanges_nothing(strategy: str) -> None:
    inner = torch.nn.Linear(1, 1)
    made = parallel.Parallel(inner, Process(RankInfo(), CPU, None), strategy=strategy)
    assert (made.strategy, made.module, made.gradient_scale) == ("none", inner, 1.0)


def test_memory_is_shared_by_ranks_that_are_all_on_this_host() -> None:
    def work(process: Process) -> list[bool]:
        found = []
        for world, local in ((2, 2), (4, 2), (2, 1)):
            info = dataclasses.replace(process.rank_info, world=world, local_world=local)
            found.append(shared_memory.shared_memory(dataclasses.replace(process, rank_info=info), elements=1) is None)
        return found

    assert run_forked(work, processes=2, seconds=60) == [False, True, True]


@pytest.mark.parametrize(("size", "fits"), [(4095, False), (4096, True), (4097, False)])
def test_memory_of_another_size_is_not_that_of_the_group(size: int, fits: bool, tmp_path: Path) -> None:
    (tmp_path / "memory").write_bytes(bytes(4096))
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = shared_memory._mapped(str(tmp_path / "memory"), size)
    assert (found is not None) == fits
    if found is not None:
        found.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# -- forked ranks ------------------------------------------------------------------------------------------------------


def test_a_single_forked_rank_needs_no_port_and_leaves_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    run_forked(lambda process: 0, processes=1, seconds=60)  # what is opened once
    monkeypatch.setattr(forked, "_store", lambda seconds: pytest.fail("a port was opened"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert run_forked(lambda process: process.world, processes=1, seconds=60) == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_store_of_forked_ranks_is_reached_from_this_machine_alone() -> None:
    found = forked._store(5.0)
    assert found.host == "127.0.0.1"
    assert found.port > 0


def test_a_rank_ends_with_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Context:
        @staticmethod
        def Pipe(*, duplex: bool) -> Any:  # noqa: N802
            assert not duplex
            return [SimpleNamespace(close=lambda: made.append("closed"))] * 2

        @staticmethod
        def Process(**given: Any) -> Any:  # noqa: N802
            made.append(given)
            raise OSError("enough")

    monkeypatch.setattr(forked.multiprocessing, "get_context", lambda kind: Context if kind == "fork" else None)
    with pytest.raises(OSError, match="enough"):
        run_forked(print, processes=1, seconds=5)
    given, *closed = made
    work, _, variables, rank = given["args"]
    assert (given["target"], given["daemon"], work, rank) == (forked._rank, True, print, 0)
    assert variables["WORLD_SIZE"] == "1"
    assert closed == ["closed", "closed"]


def test_a_rank_that_ended_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last wait begins after the end of the time, and takes none."""
    clock, waited, joins = [100.0], list[Any](), list[int]()

    def wait(objects: list[Any], timeout: float) -> list[Any]:
        waited.append((sorted(each for each in objects if isinstance(each, int)), timeout))
        clock[0] += 7.0
        ready = [each for each in objects if isinstance(each, int)][:1]
        return ready if timeout > 0 else []

    ranks: list[Any] = [
        SimpleNamespace(sentinel=number, exitcode=0, join=lambda number=number: joins.append(number))
        for number in (11, 12, 13)
    ]
    monkeypatch.setattr(forked, "wait", wait)
    monkeypatch.setattr(forked, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with pytest.raises(WorkerFailed, match="no result within 10 s"):
        forked._first_result("the pipe of results", ranks, 10.0)  # type: ignore[arg-type]
    assert waited == [([11, 12, 13], 10.0), ([12, 13], 3.0), ([13], 0.0)]
    assert joins == [11, 12]


def test_a_handler_of_another_language_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot restore a handler that it did not set."""
    monkeypatch.setattr(forked.signal, "getsignal", lambda number: None)
    monkeypatch.setattr(forked.signal, "signal", lambda *given: pytest.fail("the handler was replaced"))
    with forked._interrupts_deferred():
        pass


# -- variables and failures --------------------------------------------------------------------------------------------


def test_variables_that_are_given_are_the_only_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"NNODES": "2", "NODE_RANK": "1", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert (environment.hosts({}), environment.rank_info({}), environment.counts_hosts({})) == (Hosts(), RankInfo(), False)
    assert (environment.hosts().nodes, environment.rank_info().rank, environment.counts_hosts()) == (2, 1, True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"SLURM_NTASKS": None}, RankInfo()), ({"SLURM_NTASKS": "1"}, RankInfo()),
     ({"MASTER_ADDR": ""}, RankInfo(1, 0, 2, 1, "gpu03", 10000, 0, "", False)),
     ({"SLURM_STEP_TASKS_PER_NODE": "2,3(x2)"}, RankInfo(1, 0, 2, 2, "gpu03", 10000, 0, "", False))],
)  # fmt: skip
def test_tasks_of_slurm_with_few_variables(changes: dict[str, str | None], expected: RankInfo) -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "gpu[03-04]"} | changes
    assert environment.rank_info({name: value for name, value in slurm.items() if value is not None}) == expected


def test_the_place_of_an_error_is_where_it_was_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where it was caught: the innermost call counts."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    try:
        json.loads("{")
    except ValueError as error:
        failure.record(error)
    found = failure.first_failure(tmp_path, since=0.0)
    assert found is not None
    assert found.location.startswith("decoder.py:")
    assert f"JSONDecodeError ({found.location}): Expecting property name" in str(found)


# -- logs --------------------------------------------------------------------------------------------------------------


def test_the_newest_launches_are_those_that_began_last_whatever_their_names(tmp_path: Path) -> None:
    for name, age in (("z", 400), ("a", 100), ("m", 300), ("b", 200)):
        (tmp_path / name / "attempt_0").mkdir(parents=True)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    logs.remove_old(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_log_that_cannot_be_opened_does_not_keep_the_others_long(tmp_path: Path) -> None:
    place = tmp_path / "job" / "attempt_0" / "0"
    (place / "stderr.log").mkdir(parents=True)
    (place / "stdout.log").write_text("x" * 11)
    other = tmp_path / "job" / "attempt_1" / "3"
    other.mkdir(parents=True)
    (other / "stderr.log").write_text("y" * 30)
    logs.shorten(tmp_path, largest=10)
    assert [(path.stat().st_size, path.with_name(f"{path.name}.1").read_text()) for path in
            (place / "stdout.log", other / "stderr.log")] == [(0, "x" * 5), (0, "y" * 5)]  # fmt: skip


def test_appending_leaves_the_other_flags_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w") as out:
        fcntl.fcntl(out, fcntl.F_SETFL, fcntl.fcntl(out, fcntl.F_GETFL) | os.O_NONBLOCK)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out)
        logs.append_output()
        flags = fcntl.fcntl(out, fcntl.F_GETFL)
        assert flags & os.O_APPEND
        assert flags & os.O_NONBLOCK


# -- the first host ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "warned"), [([True, True], False), ([False, True], False), ([False, False], True)])
def test_one_of_several_addresses_of_the_first_host_suffices(
    ours: list[bool], warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = {f"10.0.0.{number}": mine for number, mine in enumerate(ours)}
    monkeypatch.setattr(master.interfaces, "interface_of", lambda address: "eth0" if held[address] else None)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (one, 7)) for one in held])
    checked: list[int] = []
    monkeypatch.setattr(master, "_refuse_taken", checked.append)
    master.probe("head:7", node_rank=0, seconds=5)
    assert checked == [7]
    words = (
        "this host is the first one (NODE_RANK 0), but head is not an address of it; the other hosts must reach it there"
    )
    assert caplog.messages == ([words] if warned else [])


@pytest.mark.parametrize("endpoint", ["head:²", "[]:7", "head:+7", "head: 7", "head:65536"])
def test_a_port_has_digits_and_a_host_a_name(endpoint: str) -> None:
    with pytest.raises(WorkerFailed) as error:
        master.probe(endpoint, node_rank=1, seconds=5)
    assert str(error.value) == (
        f"expected the first host as HOST:PORT, found {endpoint!r}. Set MASTER_ADDR and MASTER_PORT, or "
        "training.launch.rendezvous."
    )


def test_a_name_that_cannot_be_resolved_for_any_reason_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no sockets here")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(WorkerFailed) as error:
        master.probe("head:7", node_rank=1, seconds=5)
    assert str(error.value) == (
        "expected the name or the address of the first host, found 'head' (port 7), which this host cannot resolve (no "
        "sockets here). Correct MASTER_ADDR or training.launch.rendezvous."
    )


def test_a_host_tries_again_at_its_own_pace_and_closes_what_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept, done = [50.0], list[float](), list[Any]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def connect(address: Any, *, timeout: float) -> Any:
        done.append((address, timeout))
        if len(done) < 4:
            raise ConnectionRefusedError(111, "Connection refused")
        return SimpleNamespace(close=lambda: done.append("closed"))

    monkeypatch.setattr(master, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    monkeypatch.setattr(socket, "create_connection", connect)
    master.probe("head:7", node_rank=2, seconds=3.0, every=0.25)
    assert slept == [0.25] * 3
    assert done == [(("head", 7), 3.0)] * 4 + ["closed"]


# -- the launcher ------------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What PyTorch's launcher receives, and the variables of the workers; nothing is started."""
    found: dict[str, Any] = {}

    def start(config: Any, program: str) -> Any:
        return lambda *given: found.update(program=program, given=given, path=os.environ["PYTHONPATH"])

    monkeypatch.setattr(api, "LaunchConfig", lambda **given: found.update(given))
    monkeypatch.setattr(api, "elastic_launch", start)
    monkeypatch.setattr(launch.logs, "bounded", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(launch.master, "probe", lambda *_, **__: pytest.fail("there is no other host"))
    yield found


def test_a_single_host_meets_nobody_whatever_addresses_are_set(launched: dict[str, Any], tmp_path: Path) -> None:
    config = LaunchConfig(rendezvous="head:7", address="10.0.0.7", node_rank=0, processes=2)
    launch.launch("m", ["--x"], config=config, log_directory=tmp_path)
    assert (launched["rdzv_endpoint"], launched["local_addr"]) == ("localhost:0", "127.0.0.1")
    assert (launched["program"], launched["given"]) == (sys.executable, ("-u", "-m", "m", "--x"))


@pytest.mark.parametrize("before", [None, "", "/one", "/one::/two"])
def test_the_workers_find_the_package_and_not_the_present_folder(
    before: str | None, launched: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty part of the path is the folder that a process runs in."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    launch.launch("m", [], config=LaunchConfig(), log_directory=tmp_path)
    parts = [part for part in (before or "").split(":") if part]
    assert launched["path"].split(":") == [str(Path(mm_ldlm.__file__).resolve().parents[1]), *parts]
    assert os.environ.get("PYTHONPATH") == before


def test_the_first_log_is_the_first_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("c", "a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stderr.log").write_text(f"of {name}\n")
    real = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: iter(sorted(real(self, pattern), reverse=True)))
    assert launch._last_line(tmp_path, 0.0) == ": of a"


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_rank_that_no_signal_ended_is_reported_with_its_exit_code(code: int, tmp_path: Path) -> None:
    item = SimpleNamespace(exitcode=code, local_rank=0, timestamp=1)
    error = SimpleNamespace(failures={5: item}, get_first_failure=lambda: (5, item))
    found = launch._worker_failed(error, tmp_path, 0.0, LaunchConfig(max_restarts=1))
    assert str(found) == (
        f"rank 5 ended with exit code {code}.\nThe logs of all ranks are in {tmp_path}\n(after 1 restarts)"
    )


def test_the_end_of_a_parent_is_a_signal_that_a_rank_handles() -> None:
    assert processes._PR_SET_PDEATHSIG == 1
    assert signal.SIGTERM in launch._HANDLED_SIGNALS
