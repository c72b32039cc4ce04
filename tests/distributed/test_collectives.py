"""Defaults of the collectives, records of failures, and the variables of forked ranks, as a whole."""

from __future__ import annotations

import json
import socket
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.distributed.forked import run_forked

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import collectives, environment, failure, forked, interfaces, logs, master
from mm_ldlm.distributed import process as processes
from mm_ldlm.distributed.failure import Failure
from mm_ldlm.distributed.process import Process


def test_sums_maxima_and_broadcasts_are_in_place_and_from_the_first_rank() -> None:
    def work(process: Process) -> list[Any]:
        given = [torch.tensor([process.rank + 1.0, -process.rank]) for _ in range(3)]
        calls = (collectives.sum_, collectives.max_, collectives.broadcast)
        same = [call(tensor) is tensor for call, tensor in zip(calls, given, strict=True)]
        return [same, [tensor.tolist() for tensor in given], collectives.world(), collectives.active()]

    assert run_forked(work, processes=2, seconds=60) == [
        [True] * 3, [[3.0, -1.0], [2.0, 0.0], [1.0, 0.0]], 2, True
    ]  # fmt: skip
    for call in (collectives.sum_, collectives.max_, collectives.broadcast):
        tensor = torch.tensor([5.0])
        assert call(tensor) is tensor
        assert tensor.tolist() == [5.0]
    collectives.barrier()
    assert collectives.gather_bytes(b"\x00\xff", device=torch.device("cpu")) == [b"\x00\xff"]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_the_record_of_a_failure_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The elastic agent reads the message, the call stack and the seconds; the launcher reads the rest."""
    given = {"RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 4, "TORCHELASTIC_ERROR_FILE": tmp_path / "deep" / "er.json"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(failure.environment, "host_name", lambda: "host-b")
    now = [1_800_000_000.75]
    monkeypatch.setattr(failure, "time", SimpleNamespace(time=lambda: now[0]))
    try:
        raise ValueError("too far\n")
    except ValueError as raised:
        error = raised
    failure.note(error, step=7)
    now[0] += 20.0
    failure.record(error)
    message = json.loads((tmp_path / "deep" / "er.json").read_text())["message"]
    line = traceback.extract_tb(error.__traceback__)[-1].lineno
    assert message == {
        "message": "too far",
        "extraInfo": {
            "py_callstack": "".join(traceback.format_exception(error)),
            "timestamp": "1800000020",
            "mm_ldlm": {
                "rank": 3, "local_rank": 1, "host": "host-b", "step": 7, "error_class": "ValueError",
                "message": "too far", "location": f"test_collectives.py:{line}", "is_ours": False,
                "time": 1_800_000_000.75, "log": "",
            },
        },
    }  # fmt: skip
    found = Failure(**{**message["extraInfo"]["mm_ldlm"], "log": "logs/job/attempt_0/1/stderr.log"})
    assert str(found) == (
        f"rank 3 on host-b failed at step 7: ValueError (test_collectives.py:{line}): too far\nThe log of that rank is "
        "logs/job/attempt_0/1/stderr.log; those of all ranks of this host are in logs/job/attempt_0"
    )


@pytest.mark.parametrize(("since", "first"), [(0.0, 5), (10.0, 5), (10.5, 6), (11.5, None)])
def test_the_first_of_several_records_since_a_moment_is_found(since: float, first: int | None, tmp_path: Path) -> None:
    for rank, seconds in ((7, 11.0), (5, 10.0), (6, 10.75)):
        plain = {"rank": rank, "local_rank": 0, "host": "h", "step": None, "error_class": "E", "message": "m",
                 "location": "a.py:1", "is_ours": False, "time": seconds}  # fmt: skip
        (tmp_path / str(rank)).mkdir()
        text = json.dumps({"message": {"extraInfo": {"mm_ldlm": plain}}})
        (tmp_path / str(rank) / "error.json").write_text(text)
    found = failure.first_failure(tmp_path, since=since)
    assert (None if found is None else found.rank) == first


# -- ranks and hosts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interface", ["lo", None])
def test_forked_ranks_meet_at_this_machine(interface: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked.interfaces, "interface_of", lambda address: interface if address == "127.0.0.1" else "x")
    found = forked._environment(3, port=29411)
    assert found.pop("GLOO_SOCKET_IFNAME", None) == interface
    assert found == {
        "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29411",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    info = environment.rank_info({**found, "RANK": "2", "LOCAL_RANK": "2"})
    assert info == environment.RankInfo(2, 2, 3, 3, "127.0.0.1", 29411, 0, "", True)


@pytest.mark.parametrize(("seconds", "timeout"), [(300.0, 5.0), (2.0, 2.0), (0.0, 0.1)])
def test_one_connection_takes_no_longer_than_the_whole_time(
    seconds: float, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def connect(address: Any, *, timeout: float) -> Any:
        asked.append((address, timeout))
        raise OSError("no route") if seconds == 0 else KeyboardInterrupt

    monkeypatch.setattr(socket, "create_connection", connect)
    words = r"does not answer at head, port 7, within 0 s \(no route\)"
    with pytest.raises(WorkerFailed if seconds == 0 else KeyboardInterrupt, match=words if seconds == 0 else None):
        master._wait("head", 7, seconds=seconds, every=1.0)
    assert asked == [(("head", 7), timeout)]


def test_the_file_of_errors_and_the_name_of_the_host_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert environment.error_file() is None
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "a/file")
    assert environment.error_file() == "a/file"
    assert environment.host_name() == socket.gethostname()


@pytest.mark.parametrize(
    ("env", "counts"),
    [({"NNODES": ""}, False), ({"NNODES": "1"}, True), ({"WORLD_SIZE": ""}, False), ({"WORLD_SIZE": "2"}, True),
     ({"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, False), ({"NNODES": "2", "LOCAL_RANK": "0"}, True)],
    ids=str,
)  # fmt: skip
def test_a_number_of_hosts_is_set_by_a_variable_with_a_value(env: dict[str, str], counts: bool) -> None:
    assert environment.counts_hosts(env) is counts


@pytest.mark.parametrize(("variable", "value"), [("SLURM_STEP_NODELIST", "a"), ("SLURM_PROCID", "1")])
def test_a_slurm_task_needs_its_number_and_the_list_of_hosts(variable: str, value: str) -> None:
    whole = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "a"}
    assert environment.rank_info(whole).world == 2
    assert environment.rank_info({name: each for name, each in whole.items() if name != variable}).world == 1
    assert whole[variable] == value


@pytest.mark.parametrize(
    ("endpoint", "host", "port"), [("head:29411", "head", 29411), ("[::1]:7", "::1", 7), ("head:", "head", 1)]
)
def test_the_address_towards_a_host_is_asked_for_without_a_connection(
    endpoint: str, host: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system chooses the address when a socket for datagrams is connected; of several ways the first counts."""
    asked: list[Any] = []

    class Probe:
        def __init__(self, *kind: Any) -> None:
            asked.append(kind)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            asked.append("closed")

        def connect(self, there: Any) -> None:
            asked.append(there)

        def getsockname(self) -> Any:
            return ("10.0.0.9", 5)

    def ways(*given: Any, **named: Any) -> Any:
        asked.append((given, named))
        return [(number, socket.SOCK_DGRAM, 17, "", (f"there{number}", port)) for number in (2, 10)]

    monkeypatch.setattr(
        interfaces, "socket", SimpleNamespace(getaddrinfo=ways, socket=Probe, SOCK_DGRAM=socket.SOCK_DGRAM)
    )
    assert interfaces.address_towards(endpoint) == "10.0.0.9"
    assert asked == [
        ((host, port), {"type": socket.SOCK_DGRAM}), (2, socket.SOCK_DGRAM, 17), ("there2", port), "closed"
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), [("first\nsecond", "first"), ("", "RuntimeError"), (" \n ", "RuntimeError")])
def test_an_error_without_words_has_its_name(text: str, line: str) -> None:
    assert processes._first_line(RuntimeError(text)) == line


def test_the_logs_of_a_launch_that_fails_are_bounded_too(tmp_path: Path) -> None:
    place = tmp_path / "job" / "attempt_0" / "0"
    place.mkdir(parents=True)

    def ends() -> None:
        with logs.bounded(tmp_path, largest=10, interval=1e3):
            (place / "stderr.log").write_text("x" * 11)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ends()
    assert (place / "stderr.log").stat().st_size == 0
    assert (place / "stderr.log.1").read_text() == "x" * 5
    assert not [thread for thread in threading.enumerate() if thread.name == "logs"]
