"""The device of a rank: the GPU with its number on the host, and what the parameters name."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mm_ldlm.distributed.process import choose_device, joined


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
