"""Training: what guard, logging, diagnostics and waiting for data cost on the base configuration, against a bare loop.

One process, one thread, the base model's shape on synthetic examples. The bare loop does the same forward and backward
passes and the same AdamW on the same batches, and nothing else; both alternate, medians are compared. Seconds are the
process's CPU time: other jobs on the machine move it little.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS, ROUNDS = 40, 5
VOCAB, DIM, LONGEST = 1000, 384, 24


class Sentences:
    """Synthetic sentences of 6 to 24 tokens and random latents."""

    pad_id = 0

    def __init__(self, vocab: int = VOCAB, count: int = 4000) -> None:
        import numpy as np

        draw = np.random.default_rng(0)
        self.lengths = draw.integers(6, LONGEST + 1, count)
        self._ids = draw.integers(3, vocab, (count, LONGEST))
        self._latents = draw.standard_normal((count, DIM)).astype(np.float32)

    def tokens(self, rows: Any, *, length: int) -> Any:
        import numpy as np

        found = np.where(np.arange(LONGEST) < self.lengths[rows][:, None], self._ids[rows], 0)
        return found[:, :length]

    def field(self, name: str, rows: Any) -> Any:
        assert name == "latents"
        return self._latents[rows]


def batch() -> Any:
    """The batches of a step: 1,024 tokens."""
    from mm_ldlm.training.config import BatchConfig

    return BatchConfig(tokens=1024)


def _shape() -> Any:
    from mm_ldlm.models.base import DataShape

    return DataShape(vocab_size=VOCAB, pad_id=0, mask_id=1, max_length=LONGEST, latent_dim=DIM)


def _spec(steps: int) -> Any:
    from mm_ldlm.distributed.launch import LaunchConfig
    from mm_ldlm.models.mmdit import MMDiTConfig
    from mm_ldlm.objectives.multimodal import MultimodalConfig
    from mm_ldlm.training.config import CheckpointConfig, TrainingConfig
    from mm_ldlm.training.spec import TrainingSpec

    return TrainingSpec(
        seed=0,
        dataset="",
        fingerprints={},
        shape=_shape(),
        model=MMDiTConfig(dim=192, depth=4, heads=6, latent_tokens=4, conditioning_dim=128),
        objective=MultimodalConfig(mode="l2t"),
        training=TrainingConfig(
            max_steps=steps, batch=batch(), launch=LaunchConfig(), preflight=False, device="cpu",
            checkpoint=CheckpointConfig(every_steps=None, every_minutes=None), run_name="run",
        ),
    )  # fmt: skip


def _parts(root: Path) -> tuple[Any, Any]:
    """A built run, and the same once more for the bare loop."""
    from mm_ldlm.distributed.environment import RankInfo
    from mm_ldlm.distributed.process import Process, choose_device
    from mm_ldlm.tracking.jsonl import JsonlTracker
    from mm_ldlm.training.build import build
    from mm_ldlm.training.data import Data

    data = Data(train=Sentences(), validation=None, shape=_shape(), folders={})
    process = Process(RankInfo(), choose_device("cpu"), None)
    return tuple(
        build(_spec(100_000), root=root, data=data, process=process, tracker=JsonlTracker(root / f"{name}.jsonl"))
        for name in ("loop", "bare")
    )  # type: ignore[return-value]


def bare_steps(parts: Any, steps: int) -> float:
    """Seconds a step of: batch, forward, backward, AdamW."""
    from mm_ldlm.training.losses import total

    state, stepper = parts.state, parts.stepper
    planned = parts.loader.plan.from_(0, 0)
    ready = [parts.loader.make(next(planned)) for _ in range(state.step + steps)][state.step :]
    started = time.process_time()
    for micros in ready:
        for batch in micros:
            generator = stepper.generator(batch, state.draw)
            kind = stepper.objective.kind(generator, step=state.step)
            total(stepper.parallel.module(batch, generator, kind, state.step), stepper.objective, batch).backward()
        parts.optimization.step()
        parts.optimization.drop_gradients()
        state.step += 1
        state.draw += 1
    return (time.process_time() - started) / steps


def _loop(parts: Any, steps: int) -> float:
    """Seconds a step of the whole loop, preparing the batches included (checkpoints are not)."""
    from mm_ldlm.training import loop

    started = time.process_time()
    loop.run(parts, pause_at=parts.state.step + steps)
    return (time.process_time() - started) / steps


def run() -> list[dict[str, Any]]:
    """Overhead of the loop in per cent of a bare step, and the fraction of time spent waiting for data."""
    import dataclasses

    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        full, bare = _parts(root)
        no_ema = dataclasses.replace(full.ema.config, enabled=False)
        full.ema.config, full.ema.values = no_ema, {}  # the average is part of training, not of watching it
        full.checkpointer.save = lambda line: None
        bare_steps(bare, 10)
        _loop(full, 10)
        pairs = []
        for _ in range(ROUNDS):
            a, b = bare_steps(bare, STEPS), _loop(full, STEPS)
            pairs.append((a, b))
        waited = full.loader.waited / max(full.state.seconds, 1e-9)
    step, whole = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    note = f"medians of {ROUNDS} alternating rounds of {STEPS} steps; diagnostics every 100 steps, log every 10"
    return [
        {"name": "training.step", "value": 1000 * whole, "unit": "ms", "peer": "bare loop", "peer_value": 1000 * step,
         "ratio": 1 / ratio, "note": note},
        {"name": "training.overhead", "value": 100 * (ratio - 1), "unit": "%",
         "note": "guard, clip, logging, diagnostics against the bare loop; the bound is 3"},
        {"name": "training.waiting_for_data", "value": 100 * waited, "unit": "%",
         "note": "fraction of the loop's time; the bound is 1"},
    ]  # fmt: skip


if __name__ == "__main__":
    for row in run():
        print(row)
