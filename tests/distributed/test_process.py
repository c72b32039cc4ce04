"""The device of a rank: the GPU with its number on the host, and what the parameters name."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import master
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process, choose_device, joined
from mm_ldlm.extras.ray import engine as ray_engine

CPU = torch.device("cpu")


@pytest.mark.parametrize(("local_rank", "number"), [(0, 0), (1, 1), (3, 3), (4, 0)])
def test_every_rank_of_a_host_has_a_gpu_of_its_own(
    local_rank: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for wanted in ("auto", "cuda"):
        assert choose_device(wanted, local_rank=local_rank) == torch.device("cuda", number)
    assert choose_device("cuda:2", local_rank=local_rank) == torch.device("cuda", 2)
    assert choose_device("cpu", local_rank=local_rank) == torch.device("cpu")


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", local_rank=1) == torch.device("cpu")


def test_the_timeout_is_that_of_joining_and_of_every_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a hanging rank would block the others for torch's default time."""
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    found: dict[str, Any] = {}
    monkeypatch.setattr(dist, "TCPStore", lambda *_, timeout, **__: found.update(joining=timeout))
    monkeypatch.setattr(dist, "PrefixStore", lambda *_: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **keys: found.update(collectives=keys.get("timeout")))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with joined(device="cpu", timeout_minutes=3):
        pass
    assert found == dict.fromkeys(("joining", "collectives"), datetime.timedelta(minutes=3))


@pytest.mark.parametrize("strategy", ["none", "ddp", "fsdp"])
def test_gradients_are_exchanged_with_the_last_micro_batch_alone(strategy: str) -> None:
    exchanged: list[tuple[str, bool]] = []
    micro = ""

    class Block(torch.nn.Linear):
        def set_requires_gradient_sync(self, value: bool, *, recurse: bool) -> None:
            assert not recurse
            exchanged.append((micro, value))

    @contextlib.contextmanager
    def no_sync() -> Iterator[None]:
        exchanged.append((micro, False))
        yield

    made = Parallel(torch.nn.Sequential(Block(1, 1), torch.nn.ReLU(), Block(1, 1)), Process(RankInfo(), CPU, None))
    made.strategy, made.module = strategy, SimpleNamespace(no_sync=no_sync)  # type: ignore[assignment]
    for micro in ("first", "last"):
        with made.accumulate(last=micro == "last"):
            pass
    assert exchanged == {
        "none": [], "ddp": [("first", False)], "fsdp": [("first", False)] * 2 + [("last", True)] * 2,
    }[strategy]  # fmt: skip


def test_a_loss_is_scaled_by_the_number_of_ranks_whose_gradients_are_averaged() -> None:
    made = Parallel(torch.nn.Linear(1, 1), Process(RankInfo(), CPU, None))
    made.process = Process(RankInfo(rank=1, world=6), CPU, None)
    assert made.gradient_scale == 6.0


@pytest.mark.parametrize("wait", [
    lambda: master._wait("head", 29411, seconds=10.0, every=1.0),
    lambda: ray_engine._wait_for_head("head", 29411, seconds=10.0),
], ids=["hosts", "ray"])  # fmt: skip
def test_a_first_host_is_waited_for_until_the_time_is_over_and_no_longer(
    wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = [100.0], []

    def refuse(address: tuple[str, int], *, timeout: float) -> None:
        asked.append((address, now[0], timeout))
        raise ConnectionRefusedError(111, "Connection refused")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    for place in (master, ray_engine):
        monkeypatch.setattr(place, "time", clock)
        monkeypatch.setattr(place, "socket", SimpleNamespace(create_connection=refuse))
    with pytest.raises(WorkerFailed, match="does not answer at head, port 29411, within 10 s"):
        wait()
    assert [(address, timeout) for address, _, timeout in asked] == [(("head", 29411), 5.0)] * len(asked)
    assert 109.0 <= asked[-1][1] <= 110.0
