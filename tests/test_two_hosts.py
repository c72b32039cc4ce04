"""`kedro run` on two hosts, each in a network namespace of its own (slow)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from safetensors.numpy import load_file

PARAMS = "training.max_steps=6,tracking.enabled=false"


def on_hosts(namespaces: list[str], *arguments: str, workshop: Path, project: Path, port: int) -> list[str]:
    """Run `kedro run` in both namespaces, as host 1 and as host 0; return what they printed."""
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
    return printed


@pytest.mark.slow
def test_embedding_on_two_hosts_equals_one(
    namespaces: list[str], run_kedro: Callable[..., CompletedProcess[str]], workshop: Path, project: Path
) -> None:
    prepared = run_kedro("run", "--env=test", "--pipelines=ingestion,embedding", "--params=tracking.enabled=false")
    assert prepared.returncode == 0, prepared.stderr[-2000:]
    features = workshop / "data" / "test" / "04_feature"
    expected = {path: path.read_bytes() for path in features.rglob("part-*.arrow")}
    expected |= {path: path.read_bytes() for path in features.rglob("manifest.json")}
    shutil.rmtree(features)
    params = ("--pipeline=embedding", "--params=tracking.enabled=false")
    first, second = on_hosts(namespaces, *params, workshop=workshop, project=project, port=29523)
    assert "this is host 0" in first
    assert "this is host 1" in second
    assert {path: path.read_bytes() for path in expected} == expected
    refused = run_kedro("run", "--env=test", "--pipeline=ingestion", NNODES="2", NODE_RANK="1")
    assert refused.returncode == 1
    assert "expected only embedding and training on host 1 of 2, found ingestion." in " ".join(refused.stderr.split())


@pytest.mark.slow
def test_kedro_run_on_two_hosts_equals_one(
    namespaces: list[str], run_kedro: Callable[..., CompletedProcess[str]], workshop: Path, project: Path
) -> None:
    prepared = run_kedro("run", "--env=test", "--pipelines=ingestion,embedding,validation")
    assert prepared.returncode == 0, prepared.stderr[-2000:]
    one = ("run", "--env=test", "--pipeline=training", f"--params={PARAMS},training.run_name=one-host")
    result = run_kedro(*one, NPROC_PER_NODE="2")
    assert result.returncode == 0, result.stderr[-2000:]
    two = ("--pipeline=training", f"--params={PARAMS},training.run_name=two-hosts")
    on_hosts(namespaces, *two, workshop=workshop, project=project, port=29519)
    runs = workshop / "data" / "test" / "06_models" / "runs"
    for name in ("model", "ema", "optimizer"):
        a, b = (
            load_file(runs / run / "checkpoints" / "step-00000006" / f"{name}.safetensors")
            for run in ("one-host", "two-hosts")
        )
        assert a.keys() == b.keys()
        assert all(a[key].tobytes() == b[key].tobytes() for key in a), name
