"""Ranks that are forked from a server which has imported torch once; processes of the launcher import it each."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch.distributed.fsdp", "tests.training.task"])
_PROJECT = Path(__file__).parents[1]


def run_forked(function: Callable[..., None], *arguments: Any, processes: int = 2) -> None:
    """Run a function of a module as the ranks of one group, and wait until all of them have ended without an error."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    ranks = [
        _SERVER.Process(target=_rank, args=(rank, processes, port, function, arguments)) for rank in range(processes)
    ]
    paths = os.pathsep.join([str(_PROJECT / "src"), str(_PROJECT)])
    with mock.patch.dict(os.environ, {"PYTHONPATH": paths}):
        for rank in ranks:
            rank.start()
    for rank in ranks:
        rank.join(300)
    assert [rank.exitcode for rank in ranks] == [0] * processes


def _rank(rank: int, world: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    )  # fmt: skip
    function(*arguments)
