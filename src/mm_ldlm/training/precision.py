"""Choice of the precision of the forward pass for the devices of a run."""

import dataclasses
import time

import torch
from torch.nn import functional as F

from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.config import PrecisionConfig

GAIN = 1.3
"""Speedup from bf16 that the linear layer of `bf16_gain` must show on a CPU, so that a whole step gains too"""


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether the device computes products faster in bf16 than in float32.

    A CPU must have AVX512-BF16 or AMX, and be at least `GAIN` times as fast in bf16: an Intel CPU with AVX512-BF16 but
    without AMX (a virtual machine may hide it) took twice as long in bf16. CPUs that are not x86, and all CPUs under a
    version of torch that does not report their capabilities, count as CPUs without either. A GPU must not emulate bf16.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")) and bf16_gain() >= GAIN


def bf16_gain(*, tries: int = 10) -> float:
    """Measure how many times faster this CPU computes a linear layer of base's size in bf16 than in float32.

    It alternates between the types and compares the fastest of `tries` calls of each. It measures the CPU time of this
    thread, so that other processes hardly change the result, takes less than 0.1 s and draws no random numbers.
    """
    x, weight = torch.ones(1024, 192), torch.ones(768, 192)
    operands = [(x, weight), (x.bfloat16(), weight.bfloat16())]
    fastest = [float("inf")] * 2
    for _ in range(tries):
        for kind, (left, right) in enumerate(operands):
            started = time.thread_time()
            F.linear(left, right)
            fastest[kind] = min(fastest[kind], time.thread_time() - started)
    return fastest[0] / max(fastest[1], 1e-9)


def resolve(precision: PrecisionConfig, process: Process) -> PrecisionConfig:
    """Replace `auto` by bf16 if it is faster on the devices of all ranks, otherwise by fp32; all ranks agree."""
    if precision.autocast != "auto":
        return precision
    lacking = torch.tensor(float(not multiplies_bf16(process.device)), device=process.device)
    return dataclasses.replace(precision, autocast="fp32" if float(collectives.max_(lacking)) else "bf16")
