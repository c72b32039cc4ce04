"""Families: tokens per CPU second of a training step of every text-only model, relative to MDLM.

Model, objective and process are those of each environment, on the same synthetic sentences of the base run's lengths
and vocabulary, in one process with one thread. A step is a batch, a forward and backward pass, and AdamW. The families
alternate, so other jobs on the machine move the ratios little.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import training

_ENVIRONMENTS = {
    "mdlm": ("mdlm", {}),
    "ar": ("ar", {}),
    "d3pm": ("d3pm", {}),
    "sedd-absorbing": ("sedd", {}),
    "sedd-uniform": ("sedd", {"graph": "uniform"}),
    "uniform": ("uniform", {}),
    "gidd": ("gidd", {}),
    "hdlm": ("hdlm", {}),
    "atat": ("atat", {}),
}
"""Name → environment, and what differs in its process"""
FAMILIES = {name: about for name, about in _ENVIRONMENTS.items() if (training.CONF / about[0]).is_dir()}
"""Environments of the installed families"""
TOKENS = 1024
"""Padded tokens of a step"""
STEPS, ROUNDS = 10, 5


def run() -> list[dict[str, Any]]:
    """Tokens per CPU second of each family, and the ratio to MDLM."""
    import torch

    from mm_ldlm.training.config import BatchConfig

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        built = {
            name: training.built(Path(folder), name=name, env=env, process=process, batch=BatchConfig(tokens=TOKENS))
            for name, (env, process) in FAMILIES.items()
        }
        for parts in built.values():
            _seconds_per_step(parts, 3)
        rounds = [{name: _seconds_per_step(parts, STEPS) for name, parts in built.items()} for _ in range(ROUNDS)]
    seconds = {name: statistics.median(one[name] for one in rounds) for name in FAMILIES}
    tokens = {name: _tokens_per_step(parts) for name, parts in built.items()}
    return [
        {"name": f"families.{name}", "value": tokens[name] / seconds[name], "unit": "tokens/s", "peer": "mdlm",
         "peer_value": tokens["mdlm"] / seconds["mdlm"],
         "ratio": statistics.median(one["mdlm"] / one[name] for one in rounds) * tokens[name] / tokens["mdlm"],
         "parameters": sum(weight.numel() for weight in built[name].stepper.parallel.module.model.parameters()),
         "note": f"medians of {ROUNDS} alternating rounds of {STEPS} steps, CPU seconds of one thread"}
        for name in FAMILIES
    ]  # fmt: skip


def _seconds_per_step(parts: Any, steps: int) -> float:
    return sum(training.bare_step(parts) for _ in range(steps)) / steps


def _tokens_per_step(parts: Any) -> float:
    """Mean number of valid tokens of a batch."""
    planned = parts.loader.plan.from_(0, 0)
    counts = [int(sum(int(batch.valid_BL.sum()) for batch in parts.loader.make(next(planned)))) for _ in range(20)]
    return statistics.mean(counts)


if __name__ == "__main__":
    for row in run():
        print(row)
