"""Families: tokens per CPU second of a training step of every text-only model, relative to MDLM.

Model, objective and process are those of each environment, on the same synthetic sentences of the base run's lengths
and vocabulary, in one process with one thread. A step is a batch, a forward and backward pass, and AdamW. The families
alternate, so other jobs on the machine move the ratios little.
"""

import dataclasses
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import training

CONF = Path(__file__).resolve().parents[1] / "conf"
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
FAMILIES = {name: about for name, about in _ENVIRONMENTS.items() if (CONF / about[0]).is_dir()}
"""Those of the installed families"""
VOCAB, GROUPS = 600, 64
STEPS, ROUNDS = 10, 5


def run() -> list[dict[str, Any]]:
    """Tokens per CPU second of each family, and the ratio to MDLM."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        built = {name: _build(name, Path(folder)) for name in FAMILIES}
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


def _build(name: str, root: Path) -> Any:
    """A run of a family on synthetic sentences; nothing has been trained yet."""
    import numpy as np
    import torch

    from mm_ldlm.app.config_loader import LayeredConfigLoader
    from mm_ldlm.app.parameters import check_parameters
    from mm_ldlm.distributed.process import Process
    from mm_ldlm.models.base import DataShape
    from mm_ldlm.settings import CONFIG_LOADER_ARGS
    from mm_ldlm.training.build import build
    from mm_ldlm.training.data import Data
    from mm_ldlm.training.jsonl import Tracker
    from mm_ldlm.training.spec import TrainingSpec

    environment, process = FAMILIES[name]
    loader = LayeredConfigLoader(str(CONF), env=environment, **CONFIG_LOADER_ARGS)
    parameters = loader["parameters"]
    if process:
        parameters["objective"]["process"] |= process
    typed = check_parameters(parameters)
    shape = DataShape(vocab_size=VOCAB, pad_id=0, mask_id=1, max_length=training.LONGEST)
    groups = np.where(np.arange(VOCAB) > 1, np.arange(VOCAB) % GROUPS, -1)[:, None]
    stores = dict.fromkeys(typed["objective"].stores, groups)
    tensors = {name: torch.from_numpy(values) for name, values in stores.items()}
    shape = dataclasses.replace(shape, noise_ids=typed["objective"].noise_ids(shape, **tensors))
    spec = TrainingSpec(
        seed=0, dataset="", fingerprints={}, shape=shape, model=typed["model"], objective=typed["objective"],
        training=dataclasses.replace(
            typed["training"], max_steps=100_000, validate_every=0, batch=training.batch(), preflight=False,
            device="cpu", run_name=name,
        ),
    )  # fmt: skip
    sentences: Any = training.Sentences(VOCAB)
    data = Data(train=sentences, validation=None, shape=shape, folders={}, stores=stores)
    return build(
        spec, root=root, data=data, process=Process(),
        tracker=Tracker(root / f"{name}.jsonl"),
    )  # fmt: skip


def _tokens_per_step(parts: Any) -> float:
    """Mean number of valid tokens of a batch."""
    planned = parts.loader.plan.from_(0, 0)
    counts = [int(sum(int(batch.valid_BL.sum()) for batch in parts.loader.make(next(planned)))) for _ in range(20)]
    return statistics.mean(counts)


if __name__ == "__main__":
    for row in run():
        print(row)
