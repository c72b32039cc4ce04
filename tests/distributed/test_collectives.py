"""Collective operations, and the ways to average gradients, give every rank the numbers of all ranks together."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.ranks import leaves_work, reports, tensors
from tests.forked import run_forked


@pytest.fixture(scope="module", params=[2, 3])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    run_forked(reports, folder, processes=request.param)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


def test_every_rank_gets_the_same(found: list[dict[str, Any]]) -> None:
    assert all(each == found[0] for each in found)


def test_sums_and_values_of_all_ranks(found: list[dict[str, Any]]) -> None:
    world = len(found)
    assert found[0]["sum"] == [i * world * (world + 1) / 2 for i in range(4)]
    assert found[0]["gather"] == [{"rank": rank, "text": "ä€😀"[:rank]} for rank in range(world)]


def test_shared_memory_averages_to_the_bit_and_hides_no_poison(found: list[dict[str, Any]]) -> None:
    world = len(found)
    assert found[0]["unmapped"] is found[0]["hosts"] is True, "where one rank cannot share, none does"
    for name in tensors(0):
        parts = [tensors(rank)[name] / world for rank in range(world)]
        expected = parts[0]
        for part in parts[1:]:
            expected = expected + part
        assert found[0][name] == repr(expected.double().flatten().tolist()), name


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_of_a_part_of_the_sum_become_those_of_the_whole_sum(
    found: list[dict[str, Any]], strategy: str
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    for number in range(2 * len(found)):
        model(torch.randn(4, 3, generator=torch.Generator().manual_seed(number))).sum().backward()
    for p, grad in zip(model.parameters(), found[0][strategy], strict=True):
        torch.testing.assert_close(torch.tensor(grad), p.grad.flatten())


def test_a_rank_ends_whatever_it_has_left_behind(tmp_path: Path) -> None:
    run_forked(leaves_work, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json"]
