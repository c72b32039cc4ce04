"""The launcher: a failing rank ends the run with one readable error, and a killed launcher leaves no process."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from mm_ldlm.core import ConfigurationError, WorkerFailed
from mm_ldlm.distributed import entry
from mm_ldlm.distributed.failure import Failure, explain
from mm_ldlm.distributed.launch import LaunchConfig, RanksConfig, check_hosts, launch, with_environment

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# -- a failing rank ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "words", "error_class"),
    [
        ("refuses", r"rank 1 on \S+ failed at step 5: expected seven, found eight\. Write seven\.", "ConfigurationError"),
        ("breaks", r"rank 1 .* before the first step: ZeroDivisionError \(ranks\.py:\d+\): a plain defect",
         "ZeroDivisionError"),
        ("exits", r"rank 1 ended with exit code 7 .*the last words", ""),
        ("is_killed", r"rank 1 was ended by SIGKILL from outside", ""),
        ("exits_beside_a_collective", r"rank 1 ended with exit code 7", ""),
        pytest.param("is_terminated_beside_a_collective", r"rank 1 was ended by SIGTERM", "", marks=pytest.mark.slow),
        pytest.param("aborts_beside_a_collective", r"rank 1 was ended by SIGABRT", "", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_failing_rank_ends_all_with_one_error_that_names_it(
    run_ranks: Callable[..., Path], case: str, words: str, error_class: str
) -> None:
    before, handlers = dict(os.environ), [signal.getsignal(number) for number in HANDLED]
    with pytest.raises(WorkerFailed) as raised:
        run_ranks(case)
    assert handlers == [signal.getsignal(number) for number in HANDLED]
    assert before.items() <= os.environ.items()
    assert "GLOO_SOCKET_IFNAME" not in os.environ.keys() - before.keys()
    message = str(raised.value)
    assert re.match(words, message), message
    assert "\n" not in message
    assert raised.value.error_class == error_class
    log = re.search(r"\(log: (\S+)\)$", message)
    assert log is not None, message
    assert "/1/stderr.log" in log[1]
    assert Path(log[1]).is_file()


@pytest.mark.slow
def test_pitfall_18_a_rank_that_hangs_ends_the_run_with_a_message(run_ranks: Callable[..., Path]) -> None:
    with pytest.raises(WorkerFailed, match=r"rank 0 .*Timed out"):
        run_ranks("hangs_beside_a_collective")


def test_old_logs_are_removed(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name / "attempt_0" / "0").mkdir(parents=True)
        os.utime(tmp_path / name, (0, ord(name)))
    with pytest.raises(WorkerFailed):
        launch("timeit", ["-n1", "import nothing"], config=LaunchConfig(keep_logs=2), log_directory=tmp_path)
    kept = {path.parts[-3:-1] for path in tmp_path.glob("*/attempt_*/0")}
    assert (len(kept), kept & {(name, "attempt_0") for name in "abc"}) == (2, {("c", "attempt_0")})


# -- the hosts ---------------------------------------------------------------------------------------------------------


def test_variables_of_the_launcher_replace_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RanksConfig(nodes=2, rendezvous="a:1", processes=3)
    assert with_environment(config) == LaunchConfig(nodes=2, rendezvous="a:1", processes=3)
    for name, value in {"NNODES": "4", "NODE_RANK": "1", "MASTER_ADDR": "b", "NPROC_PER_NODE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert with_environment(config) == LaunchConfig(nodes=4, rendezvous="b:29400", processes=8, node_rank=1)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (LaunchConfig(nodes=2, rendezvous="a:1"), ("NODE_RANK", 2)),
        (LaunchConfig(nodes=1, node_rank=3), ("NODE_RANK", 3)),
        (LaunchConfig(nodes=2, node_rank=2, rendezvous="a:1"), ("NODE_RANK", 2)),
        (LaunchConfig(nodes=2, node_rank=0), ("MASTER_ADDR", 2)),
    ],
)
def test_hosts_that_cannot_meet_are_refused(
    refuses: Callable[..., Any], config: LaunchConfig, named: tuple[Any, ...]
) -> None:
    with refuses(ConfigurationError, *named):
        check_hosts(config)


@pytest.mark.parametrize("address", ["127.0.0.1:{free}", "no.such.host.invalid:29400", "nonsense"])
def test_a_first_host_that_does_not_answer_is_reported(address: str, tmp_path: Path, free_port: int) -> None:
    config = LaunchConfig(nodes=2, node_rank=1, rendezvous=address.format(free=free_port), join_timeout=1)
    with pytest.raises(WorkerFailed, match=r"expected 2 hosts to join at .* within 1 s"):
        launch("this", [], config=config, log_directory=tmp_path)


# -- a killed launcher -------------------------------------------------------------------------------------------------

LAUNCHER = """
import sys
from pathlib import Path
from mm_ldlm.distributed.launch import LaunchConfig, launch
launch(sys.argv[1], ["waits", sys.argv[2]], config=LaunchConfig(processes=2), log_directory=Path(sys.argv[2]))
"""


def start(project: Path, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{project / 'src'}{os.pathsep}{project}"}
    return subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment)


def started(launcher: subprocess.Popen[bytes]) -> set[psutil.Process]:
    """Wait for the two ranks of a launcher."""
    parent, ranks = psutil.Process(launcher.pid), set[psutil.Process]()
    while len(ranks) < 2:
        assert launcher.poll() is None
        time.sleep(0.05)
        ranks = set(parent.children(recursive=True))
    return ranks


def survivors(launcher: subprocess.Popen[bytes], *, after: float) -> list[psutil.Process]:
    """Kill a launcher some seconds after its two ranks appear; return the processes of the run after 10 s at most."""
    ranks = started(launcher)
    time.sleep(after)
    ranks |= set(psutil.Process(launcher.pid).children(recursive=True))
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    return psutil.wait_procs(ranks, timeout=10)[1]


def test_pitfall_45_ranks_end_with_a_launcher_that_is_killed_early(project: Path, tmp_path: Path) -> None:
    launcher = start(project, tmp_path, "-c", LAUNCHER, "tests.distributed.ranks", str(tmp_path))
    assert not survivors(launcher, after=0.0)


def test_ranks_end_with_torchrun_when_it_is_killed(project: Path, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "tests.distributed.ranks")
    launcher = start(project, tmp_path, *torchrun, "waits_beside_a_collective", str(tmp_path))
    while len([*tmp_path.glob("joined-*")]) < 2:
        assert launcher.poll() is None
        time.sleep(0.05)
    assert not survivors(launcher, after=0.0)


def test_a_child_finds_its_package_in_any_folder_and_imports_nothing_after_its_parent(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    (tmp_path / "a:b" / "mm_ldlm").symlink_to(Path(entry.__file__).parents[1])
    found = "mm_ldlm.__file__ + os.environ['GLOO_SOCKET_IFNAME']"
    (tmp_path / "touches.py").write_text(f"import os, mm_ldlm\nopen('touched', 'w').write({found})")
    own = {**os.environ, "GLOO_SOCKET_IFNAME": "mine"}
    program = [sys.executable, str(tmp_path / "a:b" / "mm_ldlm" / "distributed" / "entry.py")]
    for parent, code in ((os.getppid(), -signal.SIGKILL), (os.getpid(), 0)):
        assert not (tmp_path / "touched").exists()
        child = subprocess.run([*program, str(parent), "lo", "touches"], cwd=tmp_path, env=own, check=False)
        assert child.returncode == code
    assert re.search("a:b.*mine", (tmp_path / "touched").read_text())


def test_ctrl_c_ends_a_child_whose_python_would_drop_it(tmp_path: Path) -> None:
    drops = "import contextlib, signal\nwith contextlib.suppress(KeyboardInterrupt):\n    signal.raise_signal(2)"
    (tmp_path / "drops.py").write_text(drops)
    program = [sys.executable, entry.__file__, str(os.getpid()), "", "drops"]
    assert subprocess.run(program, cwd=tmp_path, check=False).returncode == -signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_the_ranks_and_then_the_launcher(project: Path, tmp_path: Path, number: signal.Signals) -> None:
    launcher = start(project, tmp_path, "-c", LAUNCHER, "tests.distributed.ranks", str(tmp_path))
    ranks = started(launcher)
    timer = threading.Timer(60, launcher.kill)
    timer.start()
    launcher.send_signal(number)
    assert launcher.wait() in (128 + number, -number)
    timer.cancel()
    assert not psutil.wait_procs(ranks, timeout=10)[1]


# -- two hosts ---------------------------------------------------------------------------------------------------------

PARAMS = "training.max_steps=6,tracking.enabled=false"


def on_hosts(namespaces: list[str], *arguments: str, workshop: Path, project: Path, port: int) -> None:
    """Run `kedro run` in both namespaces, as host 1 and as host 0."""
    hosts = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-m", "kedro", "run", "--env=test", *arguments],
            cwd=workshop,
            env={**os.environ, "PYTHONPATH": str(project / "src"), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(port),
                 "NNODES": "2", "NODE_RANK": str(number), "NPROC_PER_NODE": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number, name in enumerate(namespaces)
    ]  # fmt: skip
    printed = [host.communicate(timeout=600)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(text[-2000:] for text in printed)


@pytest.mark.slow
def test_training_on_two_hosts_equals_two_processes_of_one(
    namespaces: list[str], run_kedro: Callable[..., Any], workshop: Path, project: Path
) -> None:
    run_kedro("run", "--env=test", "--pipelines=ingestion,embedding,validation")
    one = ("run", "--env=test", "--pipeline=training", f"--params={PARAMS},training.run_name=one-host")
    run_kedro(*one, NPROC_PER_NODE="2")
    two = ("--pipeline=training", f"--params={PARAMS},training.run_name=two-hosts")
    on_hosts(namespaces, *two, workshop=workshop, project=project, port=29519)
    runs = workshop / "data" / "test" / "06_models" / "runs"
    for name in ("model", "ema", "optimizer"):
        one_host, two_hosts = (
            load_file(runs / run / "checkpoints" / "step-00000006" / f"{name}.safetensors")
            for run in ("one-host", "two-hosts")
        )
        assert {key: value.tobytes() for key, value in one_host.items()} == {
            key: value.tobytes() for key, value in two_hosts.items()
        }, name


@pytest.mark.slow
def test_embedding_on_two_hosts_equals_one(
    namespaces: list[str], run_kedro: Callable[..., Any], workshop: Path, project: Path
) -> None:
    run_kedro("run", "--env=test", "--pipelines=ingestion,embedding", "--params=tracking.enabled=false")
    features = workshop / "data" / "test" / "04_feature"
    expected = {path: path.read_bytes() for path in features.rglob("part-*.arrow")}
    expected |= {path: path.read_bytes() for path in features.rglob("manifest.json")}
    shutil.rmtree(features)
    params = ("--pipeline=embedding", "--params=tracking.enabled=false")
    on_hosts(namespaces, *params, workshop=workshop, project=project, port=29523)
    assert {path: path.read_bytes() for path in expected} == expected


OURS, FOREIGN = "", "x.py:1"
"""Locations of errors"""


@pytest.mark.parametrize(
    ("ranks", "cause"),  # of each rank: exit code, end; location and time of its error, or None and when a signal came
    [
        ([(1, 5, FOREIGN, 10), (1, 5, OURS, 99)], "rank 1 on host failed at step 3: why"),
        ([(-9, 5, None, 0), (1, 5, OURS, 99)], "rank 1 on"),
        ([(1, 5, FOREIGN, 10), (1, 5, FOREIGN, 9)], "rank 1 on host failed at step 3: Broken (x.py:1): why"),
        ([(1, 5, FOREIGN, 10), (7, 5, None, 0)], "rank 1 ended with exit code 7"),
        ([(1, 5, FOREIGN, 10), (-15, 5, None, 0)], "rank 0 on"),  # ended by the agent
        ([(1, 5, FOREIGN, 10), (-9, 25, None, 0)], "rank 0 on"),
        ([(1, 5, FOREIGN, 10), (1, 5, FOREIGN, 9), (-15, 5, None, 8)], "rank 2 was ended by SIGTERM"),
        ([(1, 5, FOREIGN, 11), (1, 5, FOREIGN, 9), (-15, 5, None, 10)], "rank 1 on"),
        ([(7, 5, FOREIGN, 1)], "rank 0 ended with exit code 7"),  # the error is that of an earlier launch
    ],
)
def test_the_first_cause_is_reported_and_not_its_consequences(
    ranks: list[tuple[int, int, str | None, int]], cause: str, tmp_path: Path
) -> None:
    for rank, (_, _, location, at) in enumerate(ranks):
        for attempt in (1, 0):
            log = tmp_path / f"launch/attempt_{attempt}/{rank}/stderr.log"
            log.parent.mkdir(parents=True)
            log.write_text(f"words of attempt {attempt}")
            os.utime(log, (attempt, attempt))
        found = Failure(
            rank=rank, host="host", step=3, error_class="Broken", message="why", location=location or "", time=at
        )
        error = json.dumps({"message": {"extraInfo": {"mm_ldlm": dataclasses.asdict(found)}}})
        file = tmp_path / f"launch/attempt_1/{rank}" / ("error.json" if location is not None else "ended")
        file.write_text(error if location is not None else "stack" * at)
        os.utime(file, (at, at))
    ended = {rank: SimpleNamespace(exitcode=code, timestamp=end, local_rank=rank)
             for rank, (code, end, *_) in enumerate(ranks)}  # fmt: skip
    text, kind = explain(ended, tmp_path, since=2.0)
    assert text.startswith(cause)
    assert kind == ("Broken" if " on host" in text else "")
    assert "exit code" not in text or "words of attempt 1" in text, "the last log of the rank"
