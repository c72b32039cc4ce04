from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import SignalException, Std
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher import api

import mm_ldlm
from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import failure
from mm_ldlm.distributed import launch as module
from mm_ldlm.distributed.launch import LaunchConfig, _restored_signal_handlers, launch

SENTINELS: dict[str, Any] = {
    "nodes": 3, "processes": 5, "node_rank": 1, "rendezvous": "head:29411", "address": "10.0.0.7", "job": "the-job",
    "max_restarts": 7, "join_timeout": 11, "keep_logs": 13, "log_megabytes": 17, "monitor_interval": 0.75,
}  # fmt: skip
"""Parameters of a launch, all different and none a default."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signal_handlers_are_restored_after_a_launch(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    try:
        signal.signal(number, mine := lambda *_: None)
        with _restored_signal_handlers():
            signal.signal(number, lambda *_: None)  # what the elastic agent does, and leaves
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)


def test_outside_the_main_thread_nothing_is_touched() -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with _restored_signal_handlers():
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failures == []


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a launch hands to PyTorch's launcher and to the other modules; nothing is started."""
    found: dict[str, Any] = {"error": None}

    @contextlib.contextmanager
    def bounded(directory: Path, *, largest: int) -> Iterator[None]:
        found["largest"] = largest
        yield

    def start(config: Any, program: str) -> Any:
        def run(*arguments: str) -> None:
            found.update(arguments=arguments, interface=os.environ.get("GLOO_SOCKET_IFNAME"))
            found["sources"] = os.environ["PYTHONPATH"].split(os.pathsep)
            if found["error"] is not None:
                raise found["error"]

        return run

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(api, "LaunchConfig", lambda **given: found.update(given))
    monkeypatch.setattr(api, "elastic_launch", start)
    monkeypatch.setattr(module.logs, "bounded", bounded)
    monkeypatch.setattr(module.logs, "remove_old", lambda directory, *, keep: found.update(keep=keep))
    monkeypatch.setattr(module.master, "probe", lambda endpoint, **given: found.update(probed=(endpoint, given)))
    monkeypatch.setattr(module.interfaces, "address_towards", lambda endpoint: f"towards {endpoint}")
    monkeypatch.setattr(module.interfaces, "interface_of", lambda address: f"interface of {address}")
    return found


def test_every_parameter_of_a_launch_reaches_the_launcher(
    called: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    launch("a.module", ["--x"], config=LaunchConfig(**SENTINELS), log_directory=tmp_path / "logs")
    assert called["arguments"] == ("-u", "-m", "a.module", "--x")
    assert (called["min_nodes"], called["max_nodes"], called["nproc_per_node"]) == (3, 3, 5)
    assert (called["run_id"], called["max_restarts"], called["monitor_interval"]) == ("the-job", 7, 0.75)
    assert (called["rdzv_endpoint"], called["local_addr"]) == ("head:29411", "10.0.0.7")
    assert called["rdzv_configs"] == {"join_timeout": 11, "is_host": False}
    assert called["probed"] == ("head:29411", {"node_rank": 1, "seconds": 11})
    assert (called["keep"], called["largest"]) == (12, 17_000_000), "the logs of this launch are one of those kept"
    assert called["interface"] == "interface of 10.0.0.7"
    assert called["sources"] == [str(Path(mm_ldlm.__file__).parents[1]), "/somewhere"]
    assert "GLOO_SOCKET_IFNAME" not in os.environ, "only the workers inherit it"
    assert os.environ["PYTHONPATH"] == "/somewhere"
    assert (called["logs_specs"]._redirects, called["logs_specs"]._tee) == (Std.ALL, Std.NONE)


def test_the_first_host_and_the_only_one(called: dict[str, Any], tmp_path: Path) -> None:
    first = {**SENTINELS, "node_rank": 0, "address": None}
    launch("m", [], config=LaunchConfig(**first), log_directory=tmp_path, echo=True)
    assert (called["rdzv_configs"]["is_host"], called["local_addr"]) == (True, "towards head:29411")
    assert called["logs_specs"]._tee == Std.ALL
    del called["probed"]
    launch("m", [], config=LaunchConfig(processes=2), log_directory=tmp_path)
    assert (called["rdzv_endpoint"], called["local_addr"], called["nproc_per_node"]) == ("localhost:0", "127.0.0.1", 2)
    assert called["run_id"]
    assert "probed" not in called


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (SignalException("x", sigval=signal.SIGINT), KeyboardInterrupt, "^$"),
        (SignalException("x", sigval=signal.SIGTERM), SystemExit, "143"),
        (SignalException("x", sigval=signal.SIGHUP), SystemExit, "129"),
        (RendezvousError("closed"), WorkerFailed, r"expected 3 hosts to join at head:29411 within 11 s.*closed"),
    ],
)
def test_every_end_of_a_launch_has_its_own_error(
    error: Exception, expected: type[BaseException], words: str, called: dict[str, Any], tmp_path: Path
) -> None:
    called["error"] = error
    with pytest.raises(expected, match=words):
        launch("m", [], config=LaunchConfig(**SENTINELS), log_directory=tmp_path)


def test_a_rank_without_a_record_is_reported_with_its_exit_code_and_last_line(tmp_path: Path) -> None:
    """The log of an earlier launch says nothing about this one."""
    for number, (name, line) in enumerate((("a_old", "an old error"), ("b_new", "ImportError: no such module"))):
        folder = tmp_path / name / "attempt_0" / "0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"Traceback\n{line}\n")
        os.utime(folder / "stderr.log", (100 + 100 * number, 100 + 100 * number))
    failed = SimpleNamespace(exitcode=3, local_rank=0, timestamp=150)
    error = SimpleNamespace(failures={2: failed}, get_first_failure=lambda: (2, failed))
    text = str(module._worker_failed(error, tmp_path, 150.0, LaunchConfig(max_restarts=7)))
    assert "rank 2 ended with exit code 3: ImportError: no such module\n" in text
    assert text.endswith("(after 7 restarts)")
    killed = SimpleNamespace(exitcode=-signal.SIGKILL, local_rank=0, timestamp=150)
    error = SimpleNamespace(failures={2: killed}, get_first_failure=lambda: (2, killed))
    found = module._worker_failed(error, tmp_path, 150.0, LaunchConfig())
    assert "rank 2 was ended by SIGKILL from outside" in str(found)
    assert str(tmp_path / "b_new/attempt_0/0/stderr.log") in str(found), "the newest log of the rank"
    assert "restarts" not in str(found)
    assert found.error_class == ""


def test_what_the_user_set_for_the_workers_stays(
    called: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(Path(mm_ldlm.__file__).parents[1])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "of the user")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/first", source, "", "/last"]))
    launch("m", [], config=LaunchConfig(), log_directory=tmp_path)
    assert called["interface"] == "of the user"
    assert called["sources"] == ["/first", source, "", "/last"], "the package is on the path already"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "of the user"
    called["error"] = RendezvousError("closed")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(WorkerFailed):
        launch("m", [], config=LaunchConfig(), log_directory=tmp_path)
    assert not {"GLOO_SOCKET_IFNAME", "PYTHONPATH"} & os.environ.keys(), "also after an error"


def test_an_error_of_this_project_comes_before_the_signal_that_followed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of another kind is that of a lost rank."""
    killed = SimpleNamespace(exitcode=-signal.SIGKILL, local_rank=0, timestamp=150)
    failed = SimpleNamespace(exitcode=1, local_rank=1, timestamp=151)
    both = {2: killed, 3: failed}
    for failures, is_ours, words in (
        (both, True, "rank 3 on h failed at step 7: too far"), (both, False, "rank 2 was ended by SIGKILL"),
        ({3: failed}, False, "rank 3 on h failed at step 7: E (a.py:1): too far"),
    ):  # fmt: skip
        error = SimpleNamespace(failures=failures, get_first_failure=lambda: (2, killed))
        first = failure.Failure(
            rank=3, local_rank=1, host="h", step=7, error_class="E", message="too far", location="a.py:1",
            is_ours=is_ours, time=149.0, log="x/y/z.log",
        )  # fmt: skip
        monkeypatch.setattr(failure, "first_failure", lambda directory, *, since, first=first: first)
        found = module._worker_failed(error, tmp_path, 140.0, LaunchConfig())
        assert str(found).startswith(words)
        assert found.error_class == ("" if words.endswith("SIGKILL") else "E")
