"""Launching of the ranks of `ranks.py`."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mm_ldlm.distributed.launch import LaunchConfig, launch


@pytest.fixture(scope="session")
def run_ranks(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`run_ranks(case, processes=2)` launches the ranks of a case and returns their folder."""

    def run(case: str, *, processes: int = 2) -> Path:
        folder = tmp_path_factory.mktemp("ranks")
        config = LaunchConfig(processes=processes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(project))
            launch("tests.distributed.ranks", [case, str(folder)], config=config, log_directory=folder / "logs")
        return folder

    return run


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
