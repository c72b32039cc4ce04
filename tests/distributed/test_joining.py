"""Joining a process group: the store, its prefix and host; what DDP is given; bytes of any length between ranks."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mm_ldlm.distributed.forked import run_forked

from mm_ldlm.core.errors import ConfigurationError, WorkerFailed
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.environment import RankInfo, rank_info
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process, joined

CPU = torch.device("cpu")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the store and the group are made with; nothing is joined."""
    found: dict[str, Any] = {"left": 0}

    def left() -> None:
        found["left"] += 1
        raise RuntimeError("the peers are gone")

    monkeypatch.setattr(dist, "TCPStore", lambda *place, **how: found.update(place=place, how=how) or "a store")
    monkeypatch.setattr(dist, "PrefixStore", lambda prefix, store: (prefix, store))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: found.update(backend=backend, group=how))
    monkeypatch.setattr(dist, "destroy_process_group", left)
    return found


@pytest.mark.parametrize(("rank", "agent", "hosts_it"), [(0, "False", True), (0, "True", False), (1, "False", False)])
def test_the_store_is_hosted_once_and_its_prefix_is_the_attempt(
    rank: int, agent: str, hosts_it: bool, group: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the agent of the launcher, or else by the first rank, which waits for all."""
    given = {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": rank, "MASTER_ADDR": "head", "MASTER_PORT": 29411,
             "TORCHELASTIC_RESTART_COUNT": 4, "TORCHELASTIC_USE_AGENT_STORE": agent}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    with joined(device="cpu", timeout_minutes=3) as process:
        assert (process.rank, process.world, process.is_main, process.backend) == (rank, 3, rank == 0, "gloo")
        assert group["left"] == 0
    assert group["place"] == ("head", 29411, None if agent == "True" else 3)
    assert group["how"] == {"is_master": hosts_it, "timeout": datetime.timedelta(minutes=3)}
    assert group["backend"] == "gloo"
    assert group["group"]["store"] == ("attempt_4", "a store")
    assert (group["group"]["rank"], group["group"]["world_size"]) == (rank, 3)
    assert group["left"] == 1
    with pytest.raises(ValueError, match="of the work"), joined(device="cpu"):
        raise ValueError("of the work")  # and not that of the peers that are gone
    assert group["left"] == 2


def test_a_single_process_has_no_group_unless_one_is_asked_for(
    group: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    with joined(device="cpu") as process:
        assert (process.world, process.backend) == (1, None)
        assert torch.get_num_threads() == before
    assert group == {"left": 0}
    with joined(device="cpu", group_of_one=True) as process:
        assert process.backend == "gloo"
    assert group["place"][2] == 1


def test_a_gpu_that_this_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        pytest.raises(ConfigurationError, match="cuda:2 is not on this machine, which has 2 GPUs"),
        joined(device="cuda:2"),
    ):
        pass


def test_ranks_that_do_not_come_are_reported_with_place_and_time(
    group: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise dist.DistStoreError("timed out\nmore")

    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "MASTER_ADDR": "head", "MASTER_PORT": 7}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(dist, "TCPStore", fail)
    words = r"rank 1 of 2 could not join the others at head:7 within 0\.5 minutes \(timed out\)\."
    with pytest.raises(WorkerFailed, match=words), joined(device="cpu", timeout_minutes=0.5):
        pass


@pytest.mark.parametrize(("world", "strategy", "wrapped"), [(1, "ddp", False), (2, "ddp", True), (2, "fsdp", False)])
def test_ddp_wraps_a_module_for_several_ranks(
    world: int, strategy: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn modes leave parameters unused, and the buffers of a rank are its own."""
    made: list[Any] = []
    monkeypatch.setattr(
        "torch.nn.parallel.DistributedDataParallel", lambda inner, **how: made.append((inner, how)) or "wrapped"
    )
    inner = torch.nn.Linear(1, 1)
    found = Parallel(inner, Process(RankInfo(world=world), CPU, None), strategy=strategy)
    assert found.strategy == (strategy if world > 1 else "none")
    assert found.inner is inner
    assert found.module == ("wrapped" if wrapped else inner)
    how = {"device_ids": None, "find_unused_parameters": True, "gradient_as_bucket_view": True,
           "forward_sync_buffers": False}  # fmt: skip
    assert made == [(inner, how)] * wrapped
    with pytest.raises(ConfigurationError, match="expected 'ddp' or 'fsdp', found 'dp'"):
        Parallel(inner, Process(RankInfo(world=2), CPU, None), strategy="dp")


@pytest.mark.parametrize("strategy", ["none", "fsdp"])
def test_gradients_of_a_repeated_step_are_those_of_the_trained_parameters(strategy: str) -> None:
    inner = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1, bias=False) for name in ("used", "unused", "frozen")})
    inner["frozen"].weight.requires_grad_(False)
    made = Parallel(inner, Process(RankInfo(), CPU, None))
    made.strategy = strategy
    found = made.gradients(3 * inner["used"].weight.sum() + inner["frozen"].weight.sum())
    assert {name: None if g is None else float(g) for name, g in found.items()} == {
        "used.weight": 3.0, "unused.weight": None
    }  # fmt: skip
    assert all(parameter.grad is None for parameter in inner.parameters())


def test_bytes_of_every_length_arrive_in_the_order_of_the_ranks() -> None:
    def work(process: Process) -> list[Any]:
        texts = [collectives.gather_texts("é" * (3 * process.rank), device=CPU) for _ in range(2)]
        empty = [len(data) for data in collectives.gather_bytes(b"", device=CPU)]
        numbers = [float(call(torch.tensor(process.rank + 1.0))) for call in (collectives.sum_, collectives.max_)]
        sent = float(collectives.broadcast(torch.tensor(float(process.rank)), source=1))
        return [*texts, empty, numbers, sent, collectives.rank(), collectives.world()]

    assert run_forked(work, processes=2, seconds=60) == [["", "ééé"], ["", "ééé"], [0, 0], [3.0, 2.0], 1.0, 0, 2]
    assert collectives.gather_texts("alone", device=CPU) == ["alone"]
    assert (collectives.active(), collectives.rank(), collectives.world()) == (False, 0, 1)


def test_a_forked_rank_inherits_no_attempt_and_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may itself be a rank that was restarted."""
    given = {"RANK": 5, "LOCAL_RANK": 5, "WORLD_SIZE": 9, "TORCHELASTIC_RESTART_COUNT": 4, "MASTER_ADDR": "head"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))

    def work(process: Process) -> list[Any]:
        info = rank_info()
        return [info.rank, info.local_rank, info.world, info.local_world, info.attempt, info.master_address]

    assert run_forked(work, processes=1, seconds=60) == [0, 0, 1, 1, 0, "127.0.0.1"]
    assert rank_info().attempt == 4
