"""Gradients through shared memory: the mean over all ranks, with the bits of gloo, and gloo where nothing is shared."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from mm_ldlm.distributed.forked import run_forked
from torch import Tensor, nn

from mm_ldlm.distributed import parallel, shared_memory
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process

CPU = torch.device("cpu")


def _gradients(rank: int, *, step: int = 0, elements: int = 101) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(100 * step + rank))


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("world", [2, 3])
def test_every_rank_has_the_mean_of_all_ranks(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of tensors that are longer than a part of the memory, of several dimensions, and of other types."""
    monkeypatch.setattr(shared_memory, "CHUNK", 32)

    def work(process: Process) -> list[Any]:
        before = _open_files()
        memory = shared_memory.shared_memory(process, elements=101)
        assert memory is not None
        made = [_gradients(process.rank), _gradients(process.rank, step=1, elements=24).view(2, 3, 4)]
        made += [_gradients(process.rank).double(), _gradients(process.rank).bfloat16(), torch.empty(0)]
        for tensor in made:
            memory.average_(tensor)
        return [[tensor.double().flatten().tolist() for tensor in made], memory.slots.numel(), _open_files() - before]

    found, size, files = run_forked(work, processes=world, seconds=60)
    want = sum(_gradients(rank) / world for rank in range(world))
    assert torch.equal(torch.tensor(found[0], dtype=torch.float64), want.double())  # type: ignore[union-attr]
    more = sum(_gradients(rank, step=1, elements=24) / world for rank in range(world))
    assert torch.equal(torch.tensor(found[1], dtype=torch.float64), more.double())  # type: ignore[union-attr]
    assert torch.allclose(torch.tensor(found[2], dtype=torch.float64), want.double(), rtol=1e-6)  # type: ignore[union-attr]
    assert torch.allclose(torch.tensor(found[3], dtype=torch.float64), want.double(), atol=0.05)  # type: ignore[union-attr]
    assert (found[4], size, files) == ([], 2 * world * 4 * 32, 1)  # the mapping keeps one file


def test_infinities_and_nan_of_a_rank_reach_all() -> None:
    def work(process: Process) -> list[str]:
        memory = shared_memory.shared_memory(process, elements=3)
        tensor = torch.tensor([1.0, float("nan"), float("inf")] if process.rank else [3.0, 1.0, 1.0])
        assert memory is not None
        memory.average_(tensor)
        return [str(value) for value in tensor.tolist()]

    assert run_forked(work, processes=2, seconds=60) == ["2.0", "nan", "inf"]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_that_reads_slowly_reads_the_numbers_of_its_step(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank is already at its next step, and may not overwrite what was not read."""
    usual = torch.add

    def work(process: Process) -> list[float]:
        def late(*given: Any, **named: Any) -> Tensor:
            time.sleep(0.05 if process.rank == slow else 0)
            return usual(*given, **named)

        monkeypatch.setattr(torch, "add", late)
        memory = shared_memory.shared_memory(process, elements=1)
        assert memory is not None
        seen = []
        for step in range(6):
            tensor = torch.tensor([float(10 * step + process.rank)])
            memory.average_(tensor)
            seen.append(float(tensor))
        everyone = torch.tensor(seen)
        torch.distributed.broadcast(everyone, src=slow)
        return everyone.tolist()

    assert run_forked(work, processes=2, seconds=60) == [10.0 * step + 0.5 for step in range(6)]


class _Uneven(nn.Module):
    """Each step uses one of two layers, and rank 1 uses a third one alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 1) for _ in range(3))

    def forward(self, x: Tensor, layers: list[int]) -> Tensor:
        total: Tensor = sum(self.layers[number](x).square().sum() for number in layers)  # type: ignore[assignment]
        return total


def test_a_training_has_the_bits_of_one_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """With unused parameters, which keep no gradient, and accumulation of two micro-batches."""

    def trained(process: Process) -> list[list[float] | None]:
        made = Parallel(_Uneven(), process)
        for step in range(3):
            layers = [step % 2, *([2] if process.rank and step == 1 else [])]
            for number in range(2):
                with made.accumulate(last=number == 1):
                    made.module(_gradients(process.rank, step=7 * step + number, elements=5), layers).backward()
            found = [None if p.grad is None else p.grad.flatten().tolist() for p in made.inner.parameters()]
            with torch.no_grad():
                for p in made.inner.parameters():
                    p -= 0.1 * (0 if p.grad is None else p.grad)
                    p.grad = None
        return [*found, *(p.detach().flatten().tolist() for p in made.inner.parameters())]

    def work(process: Process) -> list[Any]:
        kept: list[Any] = []
        for share in (parallel.shared_memory, lambda process, elements: None):
            monkeypatch.setattr(
                parallel, "shared_memory",
                lambda process, *, elements, share=share: kept.append(share(process, elements=elements)) or kept[-1],
            )  # fmt: skip
            kept.append(trained(process))
        return [kept[0] is not None, kept[0] and kept[0].slots.shape, kept[1], kept[2] is None, kept[3]]

    shared, shape, ours, not_shared, theirs = run_forked(work, processes=2, seconds=60)
    assert (shared, not_shared) == (True, True)
    assert shape == [2, 2, 4 * 32]  # 18 parameters
    assert [found is None for found in ours[:6]] == [False, False, True, True, True, True]
    assert ours == theirs


@pytest.mark.parametrize("info", [
    RankInfo(), RankInfo(world=4, local_world=2), RankInfo(world=2, local_world=2),
], ids=["one rank", "two hosts", "no group"])  # fmt: skip
def test_nothing_is_shared_without_other_ranks_on_this_host(info: RankInfo) -> None:
    assert shared_memory.shared_memory(Process(info, CPU, None), elements=1) is None


def test_nothing_is_shared_on_gpus_and_by_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(process: Process) -> list[bool]:
        gpu = dataclasses.replace(process, device=torch.device("cuda", 0))
        hosts = dataclasses.replace(process, rank_info=dataclasses.replace(process.rank_info, local_world=1))
        return [shared_memory.shared_memory(each, elements=1) is None for each in (gpu, hosts)]

    assert run_forked(work, processes=2, seconds=60) == [True, True]


@pytest.mark.parametrize("trouble", ["no such call", "refused", "full", "not open", "not mapped"])
def test_a_system_that_refuses_memory_gets_gloo_on_every_rank(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    def work(process: Process) -> list[Any]:
        if trouble == "no such call":
            monkeypatch.delattr(os, "memfd_create")
        elif trouble == "refused":
            monkeypatch.setattr(os, "memfd_create", refuse)
        elif trouble == "full":
            monkeypatch.setattr(os, "posix_fallocate", refuse)
        elif process.rank == 1:  # one rank alone
            place, name = (os, "open") if trouble == "not open" else (shared_memory.mmap, "mmap")
            monkeypatch.setattr(place, name, refuse)
        before = _open_files()
        found = shared_memory.shared_memory(process, elements=1)
        left = torch.tensor([float(found is not None), float(_open_files() - before)])
        torch.distributed.all_reduce(left)
        return left.tolist()

    assert run_forked(work, processes=2, seconds=60) == [0.0, 0.0]
