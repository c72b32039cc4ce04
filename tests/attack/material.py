"""Undamaged material that the targets damage: the data folder of a finished quick run."""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
GIVEN = "MM_LDLM_ATTACK_MATERIAL"
"""Environment variable with the data folder of a finished `kedro run --env=test`; without it, one is made"""
_TINY = (
    "tracking.enabled=false,model.dim=16,model.depth=1,model.heads=2,training.launch.processes=1,training.max_steps=3,"
    "training.checkpoint.every_steps=1"
)


@functools.cache
def data() -> Path:
    """The data folder; one that was made here is removed when the process ends."""
    if given := os.environ.get(GIVEN):
        return Path(given)
    made = Path(tempfile.mkdtemp(prefix="attack-material-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    pipelines = "ingestion,embedding,validation,training"
    command = [sys.executable, "-m", "kedro", "run", "--env=test", f"--pipelines={pipelines}"]
    subprocess.run([*command, "--params", f"data={made},{_TINY}"], cwd=PROJECT, check=True, capture_output=True)
    return made


def dataset() -> Path:
    """The folder of the validated dataset."""
    return data() / "05_model_input" / "dataset"


def runs() -> Path:
    """The folder of the runs."""
    return data() / "06_models" / "runs"


def run_name() -> str:
    """The name of the finished run in `runs`."""
    return str(json.loads((data() / "06_models" / "run.json").read_text())["name"])


@functools.cache
def model() -> Any:
    """The model of the run, with its encoder loaded."""
    from mm_ldlm.inference.api import MMLDLM

    loaded = MMLDLM.from_run(runs() / run_name(), device="cpu")
    loaded.encode(["one text"])
    return loaded


def copy(source: Path, target: Path) -> Path:
    """Copy a folder for one case."""
    shutil.copytree(source, target, symlinks=True)
    return target
