"""Choose the precision of the forward pass in training by the devices of all ranks."""

import dataclasses

from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.device import multiplies_bf16
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.config import PrecisionConfig


def resolve(precision: PrecisionConfig, process: Process) -> PrecisionConfig:
    """Replace `auto` by bf16 if it is faster on the devices of all ranks, otherwise by fp32; all ranks agree.

    Nothing is timed, because the results of a run would then depend on the load of the machine.
    """
    if precision.autocast != "auto":
        return precision
    fast = all(collectives.gather(multiplies_bf16(process.device)))
    return dataclasses.replace(precision, autocast="bf16" if fast else "fp32")
