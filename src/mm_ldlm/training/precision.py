"""Choice of the precision of the forward pass for the devices of a run."""

from __future__ import annotations

import dataclasses

import torch

from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.config import PrecisionConfig


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether the device has instructions for bf16 products; without them bf16 is slower than float32.

    Of CPUs, these are x86 with AVX512-BF16 or AMX. Other CPUs were not measured and count as CPUs without, and so do
    all CPUs under a version of torch that does not report their capabilities.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def resolve(precision: PrecisionConfig, process: Process) -> PrecisionConfig:
    """Replace `auto` by bf16 if the devices of all ranks multiply in bf16, otherwise by fp32; the same on all ranks."""
    if precision.autocast != "auto":
        return precision
    lacking = torch.tensor(float(not multiplies_bf16(process.device)), device=process.device)
    return dataclasses.replace(precision, autocast="fp32" if float(collectives.max_(lacking)) else "bf16")
