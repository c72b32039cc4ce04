"""The device that computes: a GPU of this machine, or the CPU."""

from typing import Any

import torch

from mm_ldlm.core import SamplingError, foreign_code, show


def choose_device(wanted: str, *, local_rank: int = 0) -> torch.device:
    """Return the device: `auto` is the GPU of the local rank if there is one, else the CPU; or a torch device name."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        return torch.device("cuda", local_rank % max(torch.cuda.device_count(), 1))
    return torch.device(wanted)


def working_device(wanted: Any) -> torch.device:
    """Return a device that has computed; None is `auto`. SamplingError for one that cannot."""
    with foreign_code(lambda reason: SamplingError(
        f"device: expected one of this machine, found {show(wanted, 60)} ({reason}). Choose cpu, cuda or cuda:N, or "
        "leave it out."
    )):  # fmt: skip
        chosen = choose_device("auto" if wanted is None else wanted)
        torch.zeros(1, device=chosen).cpu()
    return chosen
