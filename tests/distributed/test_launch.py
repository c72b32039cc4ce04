"""Which record of a failure belongs to a launch, and until when a signal is a cause."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistStoreError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api

from mm_ldlm.core.errors import ConfigurationError, WorkerFailed
from mm_ldlm.distributed import launch as module
from mm_ldlm.distributed.launch import LaunchConfig, check_hosts, check_number, launch


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let PyTorch's launcher raise this error instead of starting anything."""

    def start(config: Any, program: str) -> Any:
        def run(*_: str) -> None:
            raise error

        return run

    monkeypatch.setattr(api, "elastic_launch", start)


def record(directory: Path, message: str, *, seconds: float) -> None:
    """The record of a rank that failed so many seconds after now."""
    found = {"rank": 3, "local_rank": 1, "host": "h", "step": 7, "error_class": "TrainingDiverged", "message": message,
             "location": "", "is_ours": True, "time": time.time() + seconds}  # fmt: skip
    directory.mkdir(parents=True)
    (directory / "error.json").write_text(json.dumps({"message": {"extraInfo": {"mm_ldlm": found}}}))


def failed(code: int = 1, *, local_rank: int = 1, at: int = 150) -> Any:
    return SimpleNamespace(exitcode=code, local_rank=local_rank, timestamp=at)


def child_failed(failures: dict[int, Any]) -> ChildFailedError:
    error = ChildFailedError.__new__(ChildFailedError)
    error.name, error.failures = "worker", failures
    return error


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_the_error_of_this_launch_is_reported_and_not_that_of_an_earlier_one(
    restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, child_failed({3: failed()}))
    config = LaunchConfig(max_restarts=restarts)
    again = {0: "", 1: "\n(after 1 restart)", 2: "\n(after 2 restarts)"}[restarts]
    record(tmp_path / "of before" / "1", "an old one", seconds=-1000)
    with pytest.raises(WorkerFailed) as raised:
        launch("m", [], config=config, log_directory=tmp_path)
    assert str(raised.value) == f"rank 3 ended with exit code 1.\nThe logs of all ranks are in {tmp_path}{again}"
    assert raised.value.error_class == ""
    record(tmp_path / "now" / "attempt_0" / "1", "too far", seconds=1000)
    with pytest.raises(WorkerFailed) as raised:
        launch("m", [], config=config, log_directory=tmp_path)
    log = tmp_path / "now" / "attempt_0" / "1" / "stderr.log"
    assert str(raised.value) == (
        f"rank 3 on h failed at step 7: too far\nThe log of that rank is {log}; those of all ranks of this host are in "
        f"{tmp_path / 'now' / 'attempt_0'}{again}"
    )
    assert raised.value.error_class == "TrainingDiverged"


def test_hosts_that_do_not_come_are_named_by_their_number_place_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, words in (
        (DistStoreError("closed"), "DistStoreError: closed"), (TimeoutError(" "), "TimeoutError: no details"),
    ):  # fmt: skip
        failing(monkeypatch, error)
        with pytest.raises(WorkerFailed) as raised:
            launch("m", [], config=LaunchConfig(join_timeout=9), log_directory=tmp_path)
        assert str(raised.value) == (
            f"expected 1 hosts to join at this machine within 9 s, but they did not ({words}). Start the same command "
            "on every host, and check MASTER_ADDR, MASTER_PORT and that the port is open."
        )


def test_the_errors_of_the_launcher_are_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("torch.distributed.elastic", "torch.distributed.launcher")
    for name in names:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    failing(monkeypatch, TimeoutError("x"))
    with pytest.raises(WorkerFailed):
        launch("m", [], config=LaunchConfig(), log_directory=tmp_path / "new" / "logs")
    assert [logging.getLogger(name).level for name in names] == [logging.CRITICAL] * 2
    assert (tmp_path / "new" / "logs").is_dir()


@pytest.mark.parametrize(("later", "cause"), [(0, True), (14, True), (15, False), (16, False)])
def test_a_signal_is_a_cause_within_half_the_time_after_which_the_agent_kills(later: int, cause: bool) -> None:
    failures = {0: failed(1, at=100), 4: failed(-signal.SIGKILL, at=100 + later), 5: failed(0, at=101)}
    assert module._killed_first(failures) == ({4} if cause else set())


def test_of_several_ranks_that_signals_ended_the_cause_is_named(tmp_path: Path) -> None:
    """The agent ends the others with SIGTERM; without a cause the first of these is named, with its own log."""
    for local in (0, 1):
        folder = tmp_path / "job" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stderr.log").touch()
    killed, ended = failed(-signal.SIGKILL, local_rank=1, at=101), failed(-signal.SIGTERM, local_rank=0, at=100)
    error = SimpleNamespace(failures={4: ended, 5: killed}, get_first_failure=lambda: (4, ended))
    text = str(module._worker_failed(error, tmp_path, 0.0, LaunchConfig()))
    assert text.startswith("rank 5 was ended by SIGKILL from outside.")
    assert f"The log of that rank is {tmp_path / 'job' / 'attempt_0' / '1' / 'stderr.log'};" in text
    watchdog = failed(-signal.SIGABRT, local_rank=0, at=100)
    error = SimpleNamespace(failures={4: watchdog, 5: killed}, get_first_failure=lambda: (4, watchdog))
    text = str(module._worker_failed(error, tmp_path, 0.0, LaunchConfig()))
    assert text.startswith("rank 5 was ended by SIGKILL"), "the watchdog ends a rank whose peer is gone"
    error = SimpleNamespace(failures={4: ended}, get_first_failure=lambda: (4, ended))
    text = str(module._worker_failed(error, tmp_path, 0.0, LaunchConfig()))
    assert text.startswith("rank 4 was ended by SIGTERM from outside.\nThe log of that rank is ")
    assert str(tmp_path / "job" / "attempt_0" / "0" / "stderr.log") in text


def test_the_last_line_is_that_of_a_log_of_this_launch(tmp_path: Path) -> None:
    for name, age, line in (("a", 100, "of before"), ("b", 0, "of now")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stderr.log").write_text(f"{line}\n")
        os.utime(tmp_path / name / "stderr.log", (1000 - age, 1000 - age))
    assert module._last_line(tmp_path, 1000.0) == ": of now"
    assert module._last_line(tmp_path, 900.0) == ": of before"


@pytest.mark.parametrize(
    ("settings", "number", "hosts"),
    [
        ({}, None, None), ({"node_rank": 0}, None, None),
        ({"node_rank": 1}, "expected several hosts, found number 1", "expected several hosts, found number 1"),
        ({"nodes": 2}, "expected the number of this host among 2", "expected the number of this host among 2"),
        ({"nodes": 2, "node_rank": 0}, None, "expected the address of the first of 2 hosts, found none"),
        ({"nodes": 2, "node_rank": 1, "rendezvous": "head:1"}, None, None),
    ],
    ids=str,
)  # fmt: skip
def test_several_hosts_have_numbers_and_a_place_to_meet(
    settings: dict[str, Any], number: str | None, hosts: str | None
) -> None:
    config = LaunchConfig(**settings)
    for check, words in ((check_number, number), (check_hosts, hosts)):
        if words is None:
            check(config)
        else:
            with pytest.raises(ConfigurationError, match=words):
                check(config)


@pytest.mark.parametrize(("towards", "interface"), [("10.0.0.9", "eth1"), (None, None)])
def test_gloo_uses_the_interface_on_the_way_to_the_first_host_if_there_is_a_way(
    towards: str | None, interface: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def start(config: Any, program: str) -> Any:
        return lambda *_: seen.update(interface=os.environ.get("GLOO_SOCKET_IFNAME"))

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(api, "LaunchConfig", lambda **given: seen.update(given))
    monkeypatch.setattr(api, "elastic_launch", start)
    monkeypatch.setattr(module.master, "probe", lambda *_, **__: None)
    monkeypatch.setattr(module.interfaces, "address_towards", lambda endpoint: towards if endpoint == "head:7" else "x")
    monkeypatch.setattr(module.interfaces, "interface_of", {"10.0.0.9": "eth1"}.__getitem__)
    launch("m", [], config=LaunchConfig(nodes=2, node_rank=1, rendezvous="head:7"), log_directory=tmp_path)
    assert (seen["local_addr"], seen["interface"]) == (towards, interface)
    assert seen["rdzv_backend"] == "c10d"
    assert seen["logs_specs"].root_log_dir == str(tmp_path)


def test_launches_without_a_name_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(api, "LaunchConfig", lambda **given: names.append(given["run_id"]))
    monkeypatch.setattr(api, "elastic_launch", lambda config, program: lambda *_: None)
    for _ in range(2):
        launch("m", [], config=LaunchConfig(), log_directory=tmp_path)
    assert names[0] != names[1]
    assert [len(name) for name in names] == [12, 12]
