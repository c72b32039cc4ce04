"""Undamaged material that several targets damage: a dataset with all stores, and a run folder with a tiny model.

Both are written by the helpers of the tests of their rooms.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


@functools.cache
def folder() -> Path:
    """A folder for undamaged material, which ends with the process."""
    import atexit

    made = Path(tempfile.mkdtemp(prefix="attack-material-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def module(relative: str) -> ModuleType:
    """Import a file of the tests by its path."""
    path = TESTS / relative
    spec = importlib.util.spec_from_file_location(relative.replace("/", "_").removesuffix(".py"), path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


@functools.cache
def dataset() -> Path:
    """Stores of every kind and their committed dataset (`tests/training/helpers.py`)."""
    helpers = module("training/helpers.py")
    root = folder() / "data"
    helpers.write_stores(root, 48)
    helpers.commit_dataset(root)
    return root


@functools.cache
def run_folder() -> Path:
    """A run of a tiny untrained model with one checkpoint (`tests/inference/conftest.py`)."""
    found: Path = module("inference/conftest.py").write_run(folder() / "run-1")
    return found


def copy(source: Path, target: Path) -> Path:
    """Copy a folder for one case."""
    shutil.copytree(source, target, symlinks=True)
    return target


def encoder() -> Any:
    """An encoder for the latents of `run_folder`, which truncates long texts as encoders do."""

    class Truncating(module("inference/conftest.py").BagEncoder):  # type: ignore[misc]
        def encode(self, sentences: Any) -> Any:
            return super().encode([" ".join(text.split()[:40]) for text in sentences])

    return Truncating()
