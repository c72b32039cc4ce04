"""The device of a rank: the GPU with its number on the host, and what the parameters name."""

from __future__ import annotations

import pytest
import torch

from mm_ldlm.distributed.process import choose_device


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
