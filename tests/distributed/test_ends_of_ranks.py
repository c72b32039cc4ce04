"""The first and the last thing that a rank does: its output, its parent's death, its answer; logs without a line."""

from __future__ import annotations

import ctypes
import fcntl
import inspect
import io
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import environment, failure, forked, interfaces, launch, logs, master
from mm_ldlm.distributed import process as processes


def appends(number: int) -> bool:
    return bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND)


def test_both_streams_of_a_rank_append_to_their_files_and_pipes_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w") as out, (tmp_path / "error").open("w") as error:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", error)
        logs.append_output()
        assert (appends(out.fileno()), appends(error.fileno())) == (True, True)
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", io.StringIO())  # as in a notebook
        logs.append_output()
        assert not appends(write)


@pytest.mark.parametrize(
    ("platform", "parents", "asked", "killed"),
    [("linux", [7, 7], True, False), ("linux", [7, 1], True, True), ("darwin", [7, 1], False, False)],
)
def test_a_rank_ends_with_its_parent_also_if_that_died_before_it_asked(
    platform: str, parents: list[int], asked: bool, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    numbers = iter(parents)
    library = SimpleNamespace(prctl=lambda *given: found.append(("prctl", *given)))
    monkeypatch.setattr(processes, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *, use_errno: library)
    kill = lambda *given: found.append(("kill", *given))  # noqa: E731
    system = SimpleNamespace(getppid=lambda: next(numbers), getpid=lambda: 9, kill=kill)
    monkeypatch.setattr(processes, "os", system)
    processes.die_with_parent()
    assert found == [*[("prctl", 1, signal.SIGTERM)] * asked, *[("kill", 9, signal.SIGTERM)] * killed]


@pytest.mark.parametrize(
    ("rank", "fails", "message"),
    [
        (0, None, {"result": [0, "0", "3"]}), (1, None, None),
        (1, ValueError("x" * 2000), {"error": f"ValueError: {'x' * 988}"}),
        (0, WorkerFailed("the others did not come"), {"error": "the others did not come"}),
    ],
)  # fmt: skip
def test_a_forked_rank_answers_with_its_result_on_rank_0_and_with_its_error_on_any(
    rank: int, fails: Exception | None, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    handled: dict[int, Any] = {}
    joins: list[Any] = []

    class Joined:
        def __init__(self, **given: Any) -> None:
            joins.append(given)
            if isinstance(fails, WorkerFailed):
                raise fails

        def __enter__(self) -> Any:
            return SimpleNamespace(rank=rank, is_main=rank == 0)

        def __exit__(self, *_: Any) -> None: ...

    def work(process: Any) -> list[Any]:
        if fails is not None:
            raise fails
        return [process.rank, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]]

    monkeypatch.setattr(forked, "joined", Joined)
    monkeypatch.setattr(forked, "die_with_parent", lambda: sent.append("asked for the end"))
    monkeypatch.setattr(forked.signal, "signal", lambda number, handler: handled.update({number: handler}))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "before")
    pipe: Any = SimpleNamespace(send_bytes=lambda data: sent.append(json.loads(data)))
    forked._rank(work, pipe, {"WORLD_SIZE": "3"}, rank)
    assert sent == ["asked for the end", *([] if message is None else [message])]
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(rank), "3")
    assert joins == [{"device": "cpu", "timeout_minutes": 1, "threads": 1}]
    assert handled == {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL}


def test_without_a_port_no_process_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seconds: float) -> Any:
        raise OSError("no port is free")

    monkeypatch.setattr(forked, "_store", refuse)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    with pytest.raises(WorkerFailed, match=r"no process group could be made \(OSError: no port is free\)"):
        forked.run_forked(lambda process: None, processes=2, seconds=5)


def test_outside_the_main_thread_the_handler_of_interrupts_stays() -> None:
    usual, seen = signal.getsignal(signal.SIGINT), list[Any]()

    def run() -> None:
        with forked._interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [usual]


def test_the_last_line_of_a_launch_is_that_of_the_first_log_that_has_one(tmp_path: Path) -> None:
    assert launch._last_line(tmp_path, 0.0) == "."
    for name, content in (("a", b"\n\n"), ("b", b"first\n \xff last \n\n"), ("c", b"other\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stderr.log").write_bytes(content)
    assert launch._last_line(tmp_path, 0.0) == ": \ufffd last"
    assert launch._last_line(tmp_path, 1e12) == ".", "of an earlier launch"


def test_without_an_interface_gloo_chooses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with launch._environment_of_workers(None):
        assert "GLOO_SOCKET_IFNAME" not in os.environ
        assert os.environ["PYTHONPATH"]


def test_a_host_without_any_address_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces.socket, "getaddrinfo", lambda *_, **__: [])
    assert interfaces.address_towards("head:1") is None


@pytest.mark.parametrize(("job", "port"), [({}, 10000), ({"SLURM_JOB_ID": "19999"}, 29999),
                                           ({"SLURM_JOB_ID": "123456"}, 13456)])  # fmt: skip
def test_every_slurm_job_has_a_port_of_its_own(job: dict[str, str], port: int) -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "a[1-2]"}
    assert environment.rank_info(slurm | job).master_port == port
    assert environment.rank_info({**slurm, **job, "MASTER_PORT": "7"}).master_port == 7


def test_a_failure_at_step_0_is_not_one_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "rank" / "error.json"))
    for step, words in ((0, "failed at step 0: "), (None, "failed before the first step: ")):
        error = WorkerFailed("why")
        failure.note(error, step=step)
        failure.note(error, step=9)
        failure.record(error)
        assert words in str(failure.first_failure(tmp_path, since=0.0))
    message = json.loads((tmp_path / "rank" / "error.json").read_text())["message"]
    assert message["extraInfo"]["timestamp"].isdecimal(), "the agent reads it as a whole number"
    assert message["message"] == "why"
    assert [path.name for path in (tmp_path / "rank").iterdir()] == ["error.json"]


def test_an_address_of_a_first_host_is_read_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NNODES", "NODE_RANK", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "head")
    assert launch.with_environment(launch.RanksConfig()).rendezvous is None
    assert launch.with_environment(launch.RanksConfig(nodes=2, rendezvous="x:1")).rendezvous == "head:29400"
    monkeypatch.setenv("NNODES", "3")
    monkeypatch.setenv("NODE_RANK", "2")
    found = launch.with_environment(launch.RanksConfig(processes=4))
    assert (found.nodes, found.node_rank, found.rendezvous, found.processes) == (3, 2, "head:29400", 4)


def test_a_port_that_was_in_use_a_moment_ago_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    class Listener:
        def __init__(self, *kind: Any) -> None: ...

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None: ...

        def setsockopt(self, *given: Any) -> None:
            done.append(given)

        def bind(self, address: Any) -> None:
            done.append(address)

    monkeypatch.setattr(master.socket, "socket", Listener)
    master._refuse_taken(29411)
    assert done == [(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), ("", 29411)]


def test_logs_that_cannot_be_removed_do_not_end_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job" / "attempt_0").mkdir(parents=True)
    removed: list[Any] = []
    monkeypatch.setattr(logs.shutil, "rmtree", lambda path, **how: removed.append((path, how)))
    logs.remove_old(tmp_path, keep=0)
    assert removed == [(tmp_path / "job", {"ignore_errors": True})]


def test_a_rank_waits_ten_minutes_for_the_others_where_nothing_else_is_set() -> None:
    defaults = {name: each.default for name, each in inspect.signature(processes.joined).parameters.items()}
    assert defaults == {"device": "auto", "timeout_minutes": 10, "threads": None, "group_of_one": False}
