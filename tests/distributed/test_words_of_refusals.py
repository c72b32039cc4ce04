"""Refusals of ranks, hosts and launches in full: each value at its place, and what to do."""

from __future__ import annotations

import errno
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mm_ldlm.core.errors import ConfigurationError, MMLDLMError, WorkerFailed
from mm_ldlm.distributed import environment, failure, forked, launch, master
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.failure import Failure
from mm_ldlm.distributed.launch import LaunchConfig
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process, joined


def said(kind: type[MMLDLMError], call: Any) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NNODES": "0"}, "expected at least 1 in NNODES, found 0. Correct or unset it."),
        ({"NPROC_PER_NODE": "0"}, "expected at least 1 in NPROC_PER_NODE, found 0. Correct or unset it."),
        ({"NNODES": "3", "NODE_RANK": "3"}, "expected a number from 0 to 2 of this host among 3 in NODE_RANK, found 3. "
         "Set it on every host, or correct NNODES."),
        ({"NODE_RANK": "-2"}, "expected a number from 0 of this host in NODE_RANK, found -2. Set it on every host, or "
         "correct NNODES."),
        ({"NNODES": "two"}, "expected a whole number in the environment variable NNODES, found 'two'. Correct or unset "
         "it."),
        ({"NNODES": "2", "SLURM_JOB_NODELIST": "[1]"}, "expected a SLURM node list, found '[1]'. Set MASTER_ADDR to "
         "the name of the first host."),
    ],
)  # fmt: skip
def test_variables_of_hosts_are_refused_in_full(env: dict[str, str], words: str) -> None:
    assert said(ConfigurationError, lambda: environment.hosts(env)) == words


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_beyond_its_group_is_refused_in_full(rank: int) -> None:
    given = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "4"}
    assert said(ConfigurationError, lambda: environment.rank_info(given)) == (
        f"expected RANK in 0..3 with WORLD_SIZE=4, found {rank}. Unset both, or start the worker with torchrun, which "
        "sets them."
    )


def test_launches_are_refused_in_full() -> None:
    one = LaunchConfig(node_rank=4)
    assert said(ConfigurationError, lambda: launch.check_number(one)) == (
        "expected several hosts, found number 4 (NODE_RANK) of one host. Set NNODES on every host, or unset NODE_RANK."
    )
    assert said(ConfigurationError, lambda: launch.check_number(LaunchConfig(nodes=3))) == (
        "expected the number of this host among 3 in NODE_RANK (0 for the first), found none. Set it on every host, or "
        "run on one host: `NNODES=1 kedro run`."
    )
    assert said(ConfigurationError, lambda: launch.check_hosts(LaunchConfig(nodes=3, node_rank=2))) == (
        "expected the address of the first of 3 hosts, found none. Set MASTER_ADDR and MASTER_PORT on every host, or "
        "launch.rendezvous of training or embedding."
    )
    process = Process(RankInfo(world=2), torch.device("cpu"), None)
    assert said(ConfigurationError, lambda: Parallel(torch.nn.Linear(1, 1), process, strategy="dp")) == (
        "parameter 'training.parallel': expected 'ddp' or 'fsdp', found 'dp'. Choose one of them."
    )


def test_a_gpu_that_is_not_there_is_refused_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def join() -> None:
        with joined(device="cuda:5"):
            pass

    assert said(ConfigurationError, join) == (
        "parameter 'training.device': cuda:5 is not on this machine, which has 2 GPUs. Set it to auto or cpu."
    )


# -- the first host ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [(TimeoutError("slow"), "no answer"), (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
     "Connection refused"), (OSError("odd"), "odd")],
)  # fmt: skip
def test_a_first_host_that_does_not_answer_is_described_in_full(
    error: OSError, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [10.0]

    def connect(*_: Any, **__: Any) -> None:
        raise error

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(master, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with caplog.at_level("INFO"):
        text = said(WorkerFailed, lambda: master._wait("head", 7, seconds=2.5, every=1.0))
    assert text == (
        f"the first host does not answer at head, port 7, within 2.5 s ({reason}). Start the same command there first "
        "(NODE_RANK 0), and check MASTER_ADDR, MASTER_PORT and the firewall: `nc -vz head 7`."
    )
    assert caplog.messages == [f"waiting up to 2.5 s for the first host at head, port 7 ({reason})"]


def test_a_port_that_is_taken_is_described_in_full() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert said(WorkerFailed, lambda: master._refuse_taken(port)) == (
            f"port {port} of this host, where the other hosts are to meet it, cannot be used (Address already in use). "
            f"End the process that uses it (`ss -ltnp 'sport = :{port}'` names it), or choose another MASTER_PORT on "
            "every host."
        )


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "hint"),
    [(signal.SIGKILL, " The kernel sends SIGKILL when memory runs out: see `dmesg`."), (signal.SIGSEGV, "")],
)
def test_a_signal_is_described_in_full(number: signal.Signals, hint: str) -> None:
    assert failure.describe_signals([(0, -signal.SIGTERM, "x"), (7, -number, "l/job/attempt_2/1/stderr.log")]) == (
        f"rank 7 was ended by {number.name} from outside.{hint}\nThe log of that rank is l/job/attempt_2/1/stderr.log; "
        "those of all ranks of this host are in l/job/attempt_2"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "rank 6 on far failed at step 7: E (a.py:3): odd"),
        ({"is_ours": True}, "rank 6 on far failed at step 7: odd"),
        ({"step": None}, "rank 6 on far failed before the first step: E (a.py:3): odd"),
        ({"step": 0, "is_ours": True}, "rank 6 on far failed at step 0: odd"),
    ],
)  # fmt: skip
def test_a_failure_is_described_in_full(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {
        "rank": 6, "local_rank": 2, "host": "far", "step": 7, "error_class": "E", "message": "odd",
        "location": "a.py:3", "is_ours": False, "time": 5.0, "log": "l/job/attempt_0/2/stderr.log",
    }  # fmt: skip
    where = (
        "The log of that rank is l/job/attempt_0/2/stderr.log; those of all ranks of this host are in l/job/attempt_0"
    )
    assert str(Failure(**given | changes)) == f"{words}\n{where}"


def test_the_cause_of_a_lost_launch_has_its_rank_and_its_log(tmp_path: Path) -> None:
    """Of three ranks that ended, one was killed; their logs are those of their numbers on this host."""
    for local in (0, 1, 2):
        folder = tmp_path / "job" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stderr.log").touch()
    codes = {8: (-signal.SIGABRT, 2), 9: (1, 1), 10: (-signal.SIGKILL, 0)}
    failures = {
        rank: SimpleNamespace(exitcode=code, local_rank=local, timestamp=100) for rank, (code, local) in codes.items()
    }
    error = SimpleNamespace(failures=failures, get_first_failure=lambda: (9, failures[9]))
    found = launch._worker_failed(error, tmp_path, 0.0, LaunchConfig(max_restarts=2))
    folder = tmp_path / "job" / "attempt_0"
    assert str(found) == (
        "rank 10 was ended by SIGKILL from outside. The kernel sends SIGKILL when memory runs out: see `dmesg`.\n"
        f"The log of that rank is {folder / '0' / 'stderr.log'}; those of all ranks of this host are in {folder}\n"
        "(after 2 restarts)"
    )


def test_forked_ranks_that_cannot_start_are_described_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no port is free")

    monkeypatch.setattr(forked, "_store", refuse)
    assert said(WorkerFailed, lambda: forked.run_forked(print, processes=2, seconds=5)) == (
        "no process group could be made (RuntimeError: no port is free)"
    )
    results: Any = SimpleNamespace(recv_bytes=lambda: b'{"error": "why"}')
    monkeypatch.setattr(forked, "wait", lambda objects, timeout: [results])
    assert said(WorkerFailed, lambda: forked._first_result(results, [], 5.0)) == "why"
    results.recv_bytes = lambda: b'{"result": [1, null]}'
    assert forked._first_result(results, [], 5.0) == [1, None]
    lost: Any = SimpleNamespace(sentinel=3, exitcode=-9, join=lambda: None)
    monkeypatch.setattr(forked, "wait", lambda objects, timeout: [3])
    assert said(WorkerFailed, lambda: forked._first_result(results, [lost], 5.0)) == (
        "a process ended with exit code -9"
    )
