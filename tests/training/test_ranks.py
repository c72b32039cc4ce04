"""Runs of several processes through the elastic launcher: equal numbers, equal decisions, recovery."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import helpers
import pytest

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed.launch import LaunchConfig, launch
from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.status import read_status


def go(root: Path, *, processes: int = 2, restarts: int = 0, **case: Any) -> Path:
    """Run a case (see rank_worker.py) and give the run's folder."""
    root.mkdir(parents=True, exist_ok=True)
    file = root / "case.json"
    file.write_text(json.dumps({"root": str(root), **case}))
    config = LaunchConfig(processes=processes, max_restarts=restarts, monitor_interval=0.1)
    launch("rank_worker", [str(file)], config=config, log_directory=root / "logs")
    return root / "run"


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(run / "training_log.jsonl")]


def test_two_processes_resume_bit_for_bit_and_equal_one(tmp_path: Path) -> None:
    spec = {"objective": {"mode": "mixed"}, "batch": {"examples": 16, "accumulation": 2}, "model": {"dropout": 0.0}}
    whole = go(tmp_path / "whole", spec=spec)
    parts = go(tmp_path / "parts", spec=spec, pause_at=5)
    parts = go(tmp_path / "parts", spec=spec)
    for name in ("model", "ema", "optimizer"):
        assert helpers.same_bits(helpers.tensors(whole, 10, name), helpers.tensors(parts, 10, name)), name
    from mm_ldlm.training.worker import train

    train(helpers.spec(**spec), root=tmp_path / "one", data=helpers.data())
    assert losses(whole) == pytest.approx(losses(tmp_path / "one/run"), rel=1e-4)
    a, b = helpers.tensors(whole, 10), helpers.tensors(tmp_path / "one/run", 10)
    assert max(float((a[name] - b[name]).abs().max()) for name in a) < 1e-4


def test_pitfall_08_nan_on_one_rank_of_two(tmp_path: Path) -> None:
    """No hang, the same decision everywhere, and the first failing rank in the log."""
    spec = {"max_steps": 6, "checkpoint": {"every_steps": 1, "keep_last": 20, "background": False}}
    run = go(tmp_path, spec=spec, fault={"kind": "nan_loss", "steps": [3], "ranks": [1]})
    for name in ("model", "ema", "optimizer"):
        assert helpers.same_bits(helpers.tensors(run, 3, name), helpers.tensors(run, 4, name)), name
    (skip,) = read_events(run / "training_log.jsonl", "skip")
    assert "rank 1" in skip["reason"]
    assert "Rank 1" in read_events(run / "training_log.jsonl", "diagnosis")[0]["reason"]


# -- the slow tier -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_fault_campaign_poisoned_steps(accumulation: int, tmp_path: Path) -> None:
    """NaN in the loss, Inf in a gradient, NaN in an input row, on rank 0, rank 1, both: nine faulty steps in one run.

    No hang, and after each of them weights, averages and optimizer are bit for bit what they were before it.
    """
    faults = [(kind, ranks) for kind in ("nan_loss", "inf_gradient", "nan_input") for ranks in ([0], [1], [0, 1])]
    campaign = {str(3 + 2 * i): fault for i, fault in enumerate(faults)}
    spec = {
        "max_steps": 23,
        "batch": {"examples": 16, "accumulation": accumulation},
        "checkpoint": {"every_steps": 1, "keep_last": 40, "background": False},
    }
    run = go(tmp_path, spec=spec, fault={"campaign": campaign})
    for step in map(int, campaign):
        for name in ("model", "ema", "optimizer"):
            before, after = (helpers.tensors(run, number, name) for number in (step, step + 1))
            assert helpers.same_bits(before, after), (campaign[str(step)], name)
        assert not helpers.same_bits(helpers.tensors(run, step + 1), helpers.tensors(run, step + 2))
    skips = read_events(run / "training_log.jsonl", "skip")
    assert [skip["step"] for skip in skips] == [int(step) for step in campaign]
    for skip, (kind, ranks) in zip(skips, faults, strict=True):
        if kind != "inf_gradient":  # a gradient is whole again after the all-reduce: no rank's own
            assert f"(rank {', '.join(map(str, ranks))})" in skip["reason"]
    assert len(read_events(run / "training_log.jsonl", "diagnosis")) == 9


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 4])
def test_other_numbers_of_processes_see_the_same_losses(processes: int, tmp_path: Path) -> None:
    two = go(tmp_path / "two", spec={"batch": {"examples": 16}})
    other = go(tmp_path / "other", processes=processes, spec={"batch": {"examples": 16}})
    assert losses(two) == pytest.approx(losses(other), rel=1e-3)


@pytest.mark.slow
def test_resuming_with_another_number_of_processes_works_and_reports_the_difference(tmp_path: Path) -> None:
    go(tmp_path, spec={}, pause_at=5)
    run = go(tmp_path, processes=1, spec={})
    assert (
        "world: checkpoint has 2, this run 1" in read_events(run / "training_log.jsonl", "resume_differs")[0]["fields"]
    )
    whole = go(tmp_path / "whole", spec={})
    assert losses(run) == pytest.approx(losses(whole), rel=1e-3)


@pytest.mark.slow
def test_a_raising_rank_is_the_one_that_is_shown(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"rank 1 on .* failed at step 3: RuntimeError .*a fault on purpose"):
        go(tmp_path, spec={"max_steps": 6}, fault={"kind": "raise", "steps": [3], "ranks": [1]})


@pytest.mark.slow
def test_a_hung_rank_ends_the_run_with_a_message_pitfall_18(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerFailed):
        go(
            tmp_path, spec={"max_steps": 6, "collective_timeout_minutes": 0.2},
            fault={"kind": "hang", "steps": [3], "ranks": [1]},
        )  # fmt: skip
    assert time.monotonic() - started < 120


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_restarted_and_the_run_is_the_undisturbed_one(rank: int, tmp_path: Path) -> None:
    spec = {"checkpoint": {"every_steps": 2, "background": True}}
    whole = go(tmp_path / "whole", spec=spec)
    fault = {"kind": "kill", "steps": [5], "ranks": [rank], "once": str(tmp_path / "once")}
    run = go(tmp_path / "killed", restarts=2, spec=spec, fault=fault)
    for name in ("model", "ema", "optimizer"):
        assert helpers.same_bits(helpers.tensors(whole, 10, name), helpers.tensors(run, 10, name)), name


_LAUNCHER = """
import sys
from pathlib import Path
from mm_ldlm.distributed.launch import LaunchConfig, launch
root = Path(sys.argv[1])
config = LaunchConfig(processes=2, monitor_interval=0.1, max_restarts=int(sys.argv[2]))
launch("rank_worker", [str(root / "case.json")], config=config, log_directory=root / "logs")
"""


def started(root: Path, *, restarts: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _LAUNCHER, str(root), str(restarts)], stderr=subprocess.DEVNULL)


def ranks_of(launcher: int) -> list[int]:
    """Processes whose parent is the launcher."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == launcher:
                found.append(int(entry.name))
    return sorted(found)


@pytest.mark.slow
def test_random_kills_leave_the_finished_run_bitwise_undisturbed(tmp_path: Path) -> None:
    """SIGKILL of rank 0, rank 1 or the launcher at random moments, also while a checkpoint is written; at least 30."""
    import random

    kills = int(os.environ.get("MM_LDLM_KILLS", "30"))
    last = 50 * kills  # a session between two kills makes some thirty steps
    # Checkpoints all the time, so that kills fall into their writing.
    spec: dict[str, Any] = {
        "max_steps": last,
        "model": {"dim": 64, "depth": 2},
        "log_every": 20,
        "checkpoint": {"every_steps": 5, "keep_last": 3, "background": True},
    }
    whole = go(tmp_path / "whole", spec=spec)
    root = tmp_path / "killed"
    root.mkdir()
    (root / "case.json").write_text(json.dumps({"root": str(root), "spec": spec}))
    draw, done, victims = random.Random(5), 0, []
    while done < kills:
        launcher = started(root, restarts=0)
        deadline = time.monotonic() + 120
        while launcher.poll() is None and time.monotonic() < deadline:
            checkpoints = (
                sorted((root / "run/checkpoints").glob("step-*")) if (root / "run/checkpoints").is_dir() else []
            )
            begun = (
                read_events(root / "run/training_log.jsonl", "start")
                if (root / "run/training_log.jsonl").exists()
                else []
            )
            if len(begun) > done and checkpoints:
                break
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 1.0))
        if launcher.poll() is not None:
            break
        ranks = ranks_of(launcher.pid)
        victim = draw.choice(["launcher", *[f"rank{i}" for i in range(len(ranks))]])
        target = launcher.pid if victim == "launcher" else ranks[int(victim[4:])]
        os.kill(target, signal.SIGKILL)
        launcher.wait(timeout=60)
        gone = time.monotonic() + 60
        while any(Path(f"/proc/{rank}").exists() for rank in ranks) and time.monotonic() < gone:
            time.sleep(0.1)
        assert not any(Path(f"/proc/{rank}").exists() for rank in ranks), "orphaned ranks"
        victims.append(victim)
        done += 1
    run = go(root, spec=spec)
    for name in ("model", "ema", "optimizer"):
        assert helpers.same_bits(helpers.tensors(whole, last, name), helpers.tensors(run, last, name)), name
    print(f"{done} kills: " + ", ".join(f"{name} {victims.count(name)}" for name in sorted(set(victims))))
    assert done == kills


_HOST = """
import sys
from pathlib import Path
from mm_ldlm.distributed.launch import LaunchConfig, launch
case, number, head, address, logs = sys.argv[1:]
config = LaunchConfig(
    processes=1, nodes=2, rendezvous=head, job="pair", join_timeout=120, address=address, node_rank=int(number)
)
launch("rank_worker", [case], config=config, log_directory=Path(logs))
"""


def two_hosts_equal_one(tmp_path: Path, *, prefixes: list[list[str]], addresses: list[str]) -> None:
    """Two launchers, each behind its command prefix and at its address, against one launcher of two processes."""
    spec = {"max_steps": 8, "batch": {"examples": 16}}
    one = go(tmp_path / "one", spec=spec)
    root = tmp_path / "two"
    root.mkdir()
    case = root / "case.json"
    case.write_text(json.dumps({"root": str(root), "spec": spec}))
    hosts = [
        subprocess.Popen(
            [*prefix, sys.executable, "-c", _HOST, str(case), str(i), f"{addresses[0]}:29517", address,
             str(root / f"logs{i}")]
        )
        for i, (prefix, address) in enumerate(zip(prefixes, addresses, strict=True))
    ]  # fmt: skip
    for host in hosts:
        assert host.wait(timeout=400) == 0
    for name in ("model", "ema", "optimizer"):
        assert helpers.same_bits(helpers.tensors(one, 8, name), helpers.tensors(root / "run", 8, name)), name


@pytest.mark.slow
def test_two_launchers_on_loopback_equal_one_host(tmp_path: Path) -> None:
    two_hosts_equal_one(tmp_path, prefixes=[[], []], addresses=["127.0.0.1", "127.0.0.1"])


@pytest.mark.slow
def test_two_hosts_in_network_namespaces_equal_one_host(namespaces: list[str], tmp_path: Path) -> None:
    prefixes = [["ip", "netns", "exec", name] for name in namespaces]
    two_hosts_equal_one(tmp_path, prefixes=prefixes, addresses=["10.77.0.1", "10.77.0.2"])


@pytest.mark.slow
def test_fully_sharded_equals_replicated(tmp_path: Path) -> None:
    """FSDP2 on two processes: the same losses as DDP, and its checkpoint is a whole one."""
    spec = {"batch": {"examples": 16, "accumulation": 2}}
    replicated = go(tmp_path / "ddp", spec=spec)
    sharded = go(tmp_path / "fsdp", spec={**spec, "parallel": "fsdp"}, pause_at=5)
    sharded = go(tmp_path / "fsdp", spec={**spec, "parallel": "fsdp"})
    assert losses(sharded) == pytest.approx(losses(replicated), rel=1e-3)
    a, b = helpers.tensors(replicated, 10), helpers.tensors(sharded, 10)
    assert max(float((a[name] - b[name]).abs().max()) for name in a) < 1e-3


@pytest.mark.slow
def test_fully_sharded_trains_and_validates_in_bf16(tmp_path: Path) -> None:
    """Layers that compute in float32 under autocast, and validation without autocast, find float32 parameters."""
    spec = {"max_steps": 4, "objective": {"mode": "mixed"}, "precision": {"autocast": "bf16"}, "validate_every": 2,
            "validation_examples": 16}  # fmt: skip
    sharded = go(tmp_path / "fsdp", spec={**spec, "parallel": "fsdp"})
    replicated = go(tmp_path / "ddp", spec=spec)
    assert losses(sharded) == pytest.approx(losses(replicated), rel=1e-2)


@pytest.mark.slow
def test_ctrl_c_on_the_launcher_checkpoints_and_resumes_exactly(tmp_path: Path) -> None:
    spec = {"max_steps": 300, "log_every": 10, "checkpoint": {"every_steps": None, "background": False}}
    whole = go(tmp_path / "whole", spec=spec)
    root = tmp_path / "told"
    root.mkdir()
    (root / "case.json").write_text(json.dumps({"root": str(root), "spec": spec}))
    launcher = started(root)
    log = root / "run/training_log.jsonl"
    while not (log.exists() and read_metrics(log)):
        time.sleep(0.05)
    threading.Timer(0.3, lambda: os.kill(launcher.pid, signal.SIGINT)).start()
    launcher.wait(timeout=60)
    status = read_status(root / "run")
    assert status["status"] == "stopped"
    assert 0 < status["step"] < 300
    run = go(root, spec=spec)
    assert helpers.same_bits(helpers.tensors(whole, 300), helpers.tensors(run, 300))
