"""Training: what guard, logging, diagnostics and waiting for data cost on the base configuration, against a bare loop.

One process, one thread, the parameters of base on synthetic examples of its lengths and vocabulary. The bare loop does
the same forward and backward passes and the same AdamW on the same batches, and nothing else. The two take turns, one
step each, so that a machine whose speed changes slows both; seconds are the process's CPU time.
"""

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.training.observers import Observer

CONF = Path(__file__).resolve().parents[1] / "conf"
STEPS, ROUND = 200, 40
VOCAB, DIM, LONGEST = 600, 384, 24
GROUPS = 64


class Sentences:
    """Synthetic sentences of 6 to 24 tokens and random latents."""

    pad_id = 0

    def __init__(self, count: int = 4000) -> None:
        import numpy as np

        draw = np.random.default_rng(0)
        self.lengths = draw.integers(6, LONGEST + 1, count)
        self._ids = draw.integers(3, VOCAB, (count, LONGEST))
        self._latents = draw.standard_normal((count, DIM)).astype(np.float32)

    def tokens(self, rows: Any, *, length: int) -> Any:
        import numpy as np

        found = np.where(np.arange(LONGEST) < self.lengths[rows][:, None], self._ids[rows], 0)
        return found[:, :length]

    def field(self, name: str, rows: Any) -> Any:
        assert name == "latents"
        return self._latents[rows]


def built(
    root: Path, *, name: str, env: str = "base", process: Mapping[str, Any] | None = None, **training: Any
) -> Any:
    """A run of an environment on synthetic sentences, before its first step.

    Args:
        name: of the run, and of its log below `root`.
        process: keys of the text process that differ from the environment's.
        training: attributes of the section `training` that differ.
    """
    import numpy as np
    import torch

    from mm_ldlm.app.config_loader import LayeredConfigLoader
    from mm_ldlm.app.parameters import check_parameters
    from mm_ldlm.distributed.process import Process
    from mm_ldlm.models.base import DataShape
    from mm_ldlm.settings import CONFIG_LOADER_ARGS
    from mm_ldlm.training.build import build
    from mm_ldlm.training.config import CheckpointConfig
    from mm_ldlm.training.data import Data
    from mm_ldlm.training.jsonl import Tracker
    from mm_ldlm.training.spec import TrainingSpec

    parameters = LayeredConfigLoader(str(CONF), env=env, **CONFIG_LOADER_ARGS)["parameters"]
    if process:
        parameters["objective"]["process"] |= process
    typed = check_parameters(parameters)
    shape = DataShape(vocab_size=VOCAB, pad_id=0, mask_id=1, max_length=LONGEST, fields={"latents": (DIM,)})
    groups = np.where(np.arange(VOCAB) > 1, np.arange(VOCAB) % GROUPS, -1)[:, None]
    vectors = np.random.default_rng(1).standard_normal((VOCAB, DIM)).astype(np.float32)
    stores = dict.fromkeys(typed["objective"].stores, groups) | dict.fromkeys(typed["model"].stores, vectors)
    tensors = {key: torch.from_numpy(values) for key, values in stores.items() if key in typed["objective"].stores}
    shape = dataclasses.replace(shape, noise_ids=typed["objective"].noise_ids(shape, **tensors))
    never = CheckpointConfig(every_steps=None, every_minutes=None)
    fixed = {"max_steps": 100_000, "validate_every": 0, "preflight": False, "device": "cpu", "checkpoint": never}
    spec = TrainingSpec(
        seed=0, dataset="", fingerprints={}, shape=shape, model=typed["model"], objective=typed["objective"],
        training=dataclasses.replace(typed["training"], **fixed, run_name=name, **training),
    )  # fmt: skip
    sentences: Any = Sentences()
    data = Data(train=sentences, validation=None, shape=shape, folders={}, stores=stores)
    return build(spec, root=root, data=data, process=Process(), tracker=Tracker(root / f"{name}.jsonl"))


def bare_step(parts: Any) -> float:
    """CPU seconds of the next step of: forward, backward, AdamW. Its batches are made before."""
    from mm_ldlm.training.forward_backward import total

    state, stepper, optimization = parts.learner.state, parts.stepper, parts.learner.optimization
    planned = next(parts.loader.plan.from_(state.epoch, state.batch_in_epoch))
    micros = parts.loader.make(planned)
    started = time.process_time()
    for batch in micros:
        generator = stepper.generator(batch, state.draw)
        kind = stepper.objective.kind(generator, step=state.step)
        with stepper.autocast():
            losses = stepper.parallel.module(batch, generator, kind, state.step)
        total(losses, stepper.objective, batch).backward()
    optimization.step()
    optimization.drop_gradients()
    state.step += 1
    state.draw += 1
    state.epoch, state.batch_in_epoch = planned.epoch, planned.index + 1
    return time.process_time() - started


class Turns(Observer):
    """Observer of the loop: takes the time after each of its steps, and does a bare step."""

    def __init__(self, bare: Any) -> None:
        self.bare, self.loop_seconds, self.bare_seconds = bare, [], []  # type: ignore[var-annotated]
        self.started = time.process_time()

    def after_step(self, step: int, *, last: bool) -> None:
        self.loop_seconds.append(time.process_time() - self.started)
        self.bare_seconds.append(bare_step(self.bare))
        self.started = time.process_time()


def _take_turns(full: Any, bare: Any, steps: int) -> Turns:
    """Do `steps` steps of both. Preparing the batches counts for the loop; checkpoints do not."""
    from mm_ldlm.training import loop

    full.observers["turns"] = turns = Turns(bare)
    state = full.learner.state
    last = state.step + steps - 1
    full.stop_requested = lambda: state.step >= last
    loop.train(full)
    return turns


def run() -> list[dict[str, Any]]:
    """Overhead of the loop in per cent of a bare step, and the fraction of time spent waiting for data."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        full, bare = (built(Path(folder), name=name) for name in ("loop", "bare"))
        full.learner.ema.values = {}  # the average is part of training, not of watching it
        full.checkpointer.save = lambda line: []
        _take_turns(full, bare, 10)
        turns = _take_turns(full, bare, STEPS)
        waited = full.loader.waited / max(full.learner.state.seconds, 1e-9)
    whole, step = np.array(turns.loop_seconds), np.array(turns.bare_seconds)
    ratio = float(whole.sum() / step.sum())
    rounds = whole.reshape(-1, ROUND).sum(1) / step.reshape(-1, ROUND).sum(1)
    note = f"means of {STEPS} steps in turns; diagnostics every 100 steps, log every 10"
    return [
        {"name": "training.step", "value": 1000 * float(whole.mean()), "unit": "ms", "peer": "bare loop",
         "peer_value": 1000 * float(step.mean()), "ratio": 1 / ratio, "note": note},
        {"name": "training.overhead", "value": 100 * (ratio - 1), "unit": "%",
         "lowest": 100 * (float(rounds.min()) - 1), "highest": 100 * (float(rounds.max()) - 1),
         "note": f"guard, clip, logging, diagnostics against the bare loop, with the lowest and the highest of {ROUND} "
                 "steps in a row; the bound is 3"},
        {"name": "training.waiting_for_data", "value": 100 * waited, "unit": "%",
         "note": "fraction of the loop's time; the bound is 1"},
    ]  # fmt: skip


if __name__ == "__main__":
    for row in run():
        print(row)
