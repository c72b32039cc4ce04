"""Rare cases of logs and hosts: a file that is none, several addresses, a name that is none, a single host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.launcher import api

import mm_ldlm
from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import launch, logs, master
from mm_ldlm.distributed import process as processes
from mm_ldlm.distributed.launch import LaunchConfig

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
        "this host is the first one (NODE_RANK 0), but head is not an address of it; the other hosts must reach it "
        "there"
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
    return found


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
        f"rank 5 ended with exit code {code}.\nThe logs of all ranks are in {tmp_path}\n(after 1 restart)"
    )


def test_the_end_of_a_parent_is_a_signal_that_a_rank_handles() -> None:
    assert processes._PR_SET_PDEATHSIG == 1
    assert signal.SIGTERM in launch._HANDLED_SIGNALS
