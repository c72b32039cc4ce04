"""The checks by name, in the order in which they run."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.messages import nearest
from mm_ldlm.extras.gpu_check.outcome import Check


@dataclasses.dataclass(frozen=True)
class Entry:
    """A check of the registry.

    Attributes:
        path: module:function, imported only in the process of the check.
        what: what it checks, one line.
        cpu: whether it also runs on a CPU, at small sizes.
    """

    path: str
    what: str
    cpu: bool = True

    def load(self) -> Check:
        module, function = self.path.split(":")
        found: Check = getattr(importlib.import_module(f"mm_ldlm.extras.gpu_check.{module}"), function)
        return found


CHECKS: dict[str, Entry] = {
    "attention": Entry("kernels:attention", "attention against float64, values and gradients, in fp32, bf16 and fp16"),
    "cross_entropy": Entry("kernels:cross_entropy", "the loss over the vocabulary against float64"),
    "normalisation": Entry("kernels:normalisation", "LayerNorm, QK-norm and RoPE against float64"),
    "models": Entry("models:models", "each model of the registry against the CPU in fp32 with TF32 off"),
    "bf16": Entry("precision:bf16", "training in bf16: sanity checks, and losses near those of fp32"),
    "fp16": Entry("precision:fp16", "training in fp16: overflow skipped, scale halved, grown and restored"),
    "compile": Entry("compiling:compiled", "torch.compile: the same losses; seconds of compiling", cpu=False),
    "ranks": Entry("ranks:ranks", "one process per GPU over NCCL: collectives, a poisoned rank, losses of one process"),
    "kill_resume": Entry("ranks:kill_resume", "a run killed by SIGKILL and resumed equals an undisturbed one"),
    "extraction": Entry("extraction:extraction", "latents of an encoder on the device; sentences per second"),
    "flops": Entry("flops:flops", "the formula for operations against torch's counter, 892M shape"),
    "throughput": Entry("throughput:throughput", "tokens per second and fraction of the chip's peak, middle size"),
    "memory_892m": Entry("throughput:memory_892m", "memory, tokens per second and fraction of the peak, 892M shape"),
}


def chosen(names: Sequence[str]) -> list[str]:
    """Return the names of the checks to run, in the order of the registry; all without names.

    Raises:
        ConfigurationError: a name is unknown.
    """
    for name in names:
        if name not in CHECKS:
            raise ConfigurationError(
                f"--only: expected names of checks, found {name!r}.{nearest(name, CHECKS)} The checks are "
                f"{', '.join(CHECKS)}."
            )
    return [name for name in CHECKS if not names or name in names]
