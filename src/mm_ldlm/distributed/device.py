"""The device that computes, a GPU of this machine or the CPU, what it computes fast, and the threads of a CPU."""

from typing import Any

import torch
from torch import nn

from mm_ldlm.core import SamplingError, foreign_code, show

SMALL = 50_000_000
"""Number of parameters up to which several threads would wait for one another longer than they compute"""


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


def threads_of(model: nn.Module) -> int:
    """Return the number of threads that compute a batch of a model: one for a small model on a CPU, else torch's."""
    parameters = list(model.parameters())
    small = parameters[0].device.type == "cpu" and sum(each.numel() for each in parameters) <= SMALL
    return 1 if small else torch.get_num_threads()


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether the device computes products faster in bf16 than in float32.

    A CPU must have AMX, or be one of AMD's with AVX512-BF16: one of Intel's with AVX512-BF16 only (a virtual machine
    may hide AMX) took twice as long in bf16. A GPU must not emulate bf16.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = str(found.get("cpu_name")).startswith("AMD")
    return bool(found.get("amx_bf16") or (amd and found.get("avx512_bf16")))
