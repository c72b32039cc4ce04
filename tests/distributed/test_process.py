"""Joining of a process group."""

from collections.abc import Callable
from typing import Any

import pytest

from mm_ldlm.core import ConfigurationError, WorkerFailed
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.device import choose_device
from mm_ldlm.distributed.process import joined


def be_rank(rank: int, world: int, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    with joined(device="cpu", threads=3) as process:
        assert (process.rank, process.world, process.backend, process.is_main) == (0, 1, None, True)
        assert (threads, collectives.active()) == ([3], False)


def test_a_group_of_one_is_left_at_the_end(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    be_rank(0, 1, free_port, monkeypatch)
    with joined(device="cpu", group_of_one=True) as process:
        assert process.backend == "gloo"
        assert collectives.active()
    assert not collectives.active()


def test_a_rank_that_nobody_joins_ends_with_the_address(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    be_rank(1, 2, free_port, monkeypatch)
    words = rf"rank 1 of 2 could not join the others at 127\.0\.0\.1:{free_port}"
    with pytest.raises(WorkerFailed, match=words), joined(device="cpu", timeout_minutes=0.02):
        pass


def test_auto_takes_a_gpu_only_where_there_is_one(refuses: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [str(choose_device("cuda", local_rank=rank)) for rank in (1, 2)] == ["cuda:1", "cuda:0"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with refuses(ConfigurationError, "cuda:3", "training.device"), joined(device="cuda:3"):
        pass
