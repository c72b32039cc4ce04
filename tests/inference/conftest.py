"""Runs that several files of tests use and none changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.inference.runs import DIM, make, text_run, write_run

from mm_ldlm.inference.api import MMLDLM


@pytest.fixture(scope="session")
def model() -> MMLDLM:
    """A run of texts and latents."""
    return make()


@pytest.fixture(scope="session")
def text_model() -> MMLDLM:
    """A run of texts without latents."""
    return text_run()


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run-1")


@pytest.fixture(scope="session")
def unit_latents() -> Callable[..., npt.NDArray[np.float32]]:
    """`unit_latents(n, seed=5)`: random raw latents of norm 1."""

    def draw(count: int, seed: int = 5) -> Any:
        raw_nd = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
        return raw_nd / np.linalg.norm(raw_nd, axis=1, keepdims=True)

    return draw
