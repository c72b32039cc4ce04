"""What DDP shares between ranks, and how gradients of a repeated step are computed under it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mm_ldlm.distributed import parallel
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process

TWO = RankInfo(rank=1, world=2, local_world=2)


class Wrapped:
    """Stands for DDP: notes its options and its communication hook."""

    def __init__(self, inner: nn.Module, **how: Any) -> None:
        self.inner, self.how, self.hooks = inner, how, list[Any]()

    def register_comm_hook(self, *given: Any) -> None:
        self.hooks.append(given)


@pytest.mark.parametrize("memory", ["the memory", None])
def test_gradients_of_trained_parameters_go_through_shared_memory_where_there_is_some(
    memory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trained matrices of 6 and 4 numbers; 50 numbers are frozen."""
    asked: list[Any] = []
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", Wrapped)
    monkeypatch.setattr(
        parallel, "shared_memory", lambda process, *, elements: asked.append((process, elements)) or memory
    )
    inner = nn.ModuleList([nn.Linear(2, 3, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(5, 10, bias=False)])
    inner[2].weight.requires_grad_(False)  # type: ignore[union-attr,operator]
    process = Process(TWO, torch.device("cpu"), "gloo")
    found: Any = Parallel(inner, process, some_unused=False).module
    assert asked == [(process, 10)]
    assert found.hooks == [("the memory", parallel.average_bucket)] * (memory is not None)
    assert (found.how["device_ids"], found.how["find_unused_parameters"]) == (None, False)


def test_on_a_gpu_ddp_receives_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", Wrapped)
    monkeypatch.setattr(parallel, "shared_memory", lambda process, *, elements: None)
    process = Process(TWO, torch.device("cuda", 1), "nccl")
    found: Any = Parallel(nn.Linear(1, 1), process).module
    assert found.how == {
        "device_ids": [torch.device("cuda", 1)], "find_unused_parameters": True, "gradient_as_bucket_view": True,
        "forward_sync_buffers": False,
    }  # fmt: skip


@pytest.mark.parametrize("strategy", ["ddp", "none", "fsdp"])
def test_a_repeated_step_leaves_no_gradient_and_only_fsdp_runs_the_hooks_of_accumulation(strategy: str) -> None:
    """DDP's reducer counts the parameters whose hooks ran as used in the next step."""
    inner = nn.Linear(2, 1)
    accumulated: list[str] = []
    for name, parameter in inner.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: accumulated.append(name))
    made = Parallel(inner, Process(RankInfo(), torch.device("cpu"), None))
    made.strategy = strategy
    found = made.gradients(inner(torch.tensor([[3.0, 5.0]])).sum() * 2)
    assert {name: None if value is None else value.tolist() for name, value in found.items()} == {
        "weight": [[6.0, 10.0]], "bias": [2.0]
    }  # fmt: skip
    assert sorted(accumulated) == (["bias", "weight"] if strategy == "fsdp" else [])
    assert (inner.weight.grad, inner.bias.grad) == (None, None)


def test_weights_are_assigned_in_the_type_of_their_place_without_a_graph() -> None:
    target = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
    place = target.data_ptr()
    parallel.assign(target, torch.tensor([1.0, 2.5], dtype=torch.float64))
    assert (target.dtype, target.tolist(), target.data_ptr()) == (torch.bfloat16, [1.0, 2.5], place)
    assert (target.grad_fn, target.requires_grad) == (None, True)


def test_a_sharded_weight_receives_its_part_of_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Sharded:
        full_tensor, device, dtype, device_mesh, placements = None, torch.device("cpu"), torch.float32, "mesh", "places"

        def copy_(self, value: Any) -> None:
            assert not torch.is_grad_enabled()
            given.append(value)

    def distribute(value: torch.Tensor, mesh: Any, placements: Any) -> Any:
        return value.dtype, value.tolist(), mesh, placements

    monkeypatch.setattr("torch.distributed.tensor.distribute_tensor", distribute)
    parallel.assign(Sharded(), torch.tensor([4, 5]))  # type: ignore[arg-type]
    assert given == [(torch.float32, [4.0, 5.0], "mesh", "places")]
