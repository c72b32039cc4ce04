"""Precision of the forward pass, by what the devices of all ranks compute fast."""

import dataclasses
from typing import Any

import torch

from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.config import PrecisionConfig


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


def resolve(precision: PrecisionConfig, process: Process) -> PrecisionConfig:
    """Replace `auto` by bf16 if it is faster on the devices of all ranks, otherwise by fp32; all ranks agree.

    Nothing is timed: the numbers of a run would then depend on the load of the machine.
    """
    if precision.autocast != "auto":
        return precision
    fast = all(collectives.gather(multiplies_bf16(process.device)))
    return dataclasses.replace(precision, autocast="bf16" if fast else "fp32")
