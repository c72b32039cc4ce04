"""Shared by all tests: one thread per process, no telemetry, no network."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "KEDRO_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
}.items():
    os.environ.setdefault(_name, _value)

import pytest  # noqa: E402

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """A test that draws from the global generator draws the same every time, alone or in company."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root."""
    return PROJECT


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder of its own: a copy of the checkout's configuration and notebooks, with empty data."""
    root = tmp_path_factory.mktemp("workshop")
    for name in ("pyproject.toml", ".telemetry"):
        (root / name).symlink_to(PROJECT / name)
    (root / "src").mkdir()  # Kedro wants one below the project; the package itself comes by PYTHONPATH
    for name in ("conf", "notebooks"):
        shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("local", ".ipynb_checkpoints"))
    (root / "conf" / "local").mkdir()
    return root


@pytest.fixture(scope="session")
def finished(workshop: Path) -> Path:
    """The workshop after one `kedro run --env=test`: every pipeline has run, every artifact is there."""
    result = kedro("run", "--env=test", root=workshop)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return workshop


def kedro(*arguments: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a user in the folder `root` would type it."""
    return subprocess.run(
        [sys.executable, "-m", "kedro", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=1800,  # a hang, not slowness
    )


@pytest.fixture(scope="session")
def run_kedro(workshop: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`kedro …` in the workshop."""
    return functools.partial(kedro, root=workshop)
