"""`kedro run` on two hosts, each in a network namespace of its own (slow)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from safetensors.numpy import load_file

PARAMS = "training.max_steps=6,tracking.enabled=false"


@pytest.mark.slow
def test_kedro_run_on_two_hosts_equals_one(
    namespaces: list[str], run_kedro: Callable[..., CompletedProcess[str]], workshop: Path, project: Path
) -> None:
    prepared = run_kedro("run", "--env=test", "--pipelines=ingestion,embedding,validation")
    assert prepared.returncode == 0, prepared.stderr[-2000:]
    one = ("run", "--env=test", "--pipeline=training", f"--params={PARAMS},training.run_name=one-host")
    result = run_kedro(*one, NPROC_PER_NODE="2")
    assert result.returncode == 0, result.stderr[-2000:]
    hosts = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-m", "kedro", "run", "--env=test", "--pipeline=training",
             f"--params={PARAMS},training.run_name=two-hosts"],
            cwd=workshop,
            env={**os.environ, "PYTHONPATH": str(project / "src"), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29519",
                 "NNODES": "2", "NODE_RANK": str(number), "NPROC_PER_NODE": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number, name in enumerate(namespaces)
    ]  # fmt: skip
    printed = [host.communicate(timeout=600)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(text[-2000:] for text in printed)
    runs = workshop / "data" / "test" / "06_models" / "runs"
    for name in ("model", "ema", "optimizer"):
        a, b = (
            load_file(runs / run / "checkpoints" / "step-00000006" / f"{name}.safetensors")
            for run in ("one-host", "two-hosts")
        )
        assert a.keys() == b.keys()
        assert all(a[key].tobytes() == b[key].tobytes() for key in a), name
