"""Construction of a run: every parameter reaches the part that reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from mm_ldlm.training.tracker import Silent

from mm_ldlm.core.config import to_dict
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.build import build
from mm_ldlm.training.state import step_seed

SET: dict[str, Any] = {
    "max_steps": 84, "max_minutes": 33.0, "diagnose_every": 5, "parameter_gradients": True, "validate_every": 6,
    "validation_examples": 11, "validation_batch": 3, "log_every": 3,
    "batch": {"examples": 16, "accumulation": 2, "length_multiple": 6, "example_multiple": 4, "prefetch": 3},
    "optimizer": {"lr": 7e-4, "betas": [0.81, 0.72], "eps": 3e-5, "weight_decay": 0.31, "schedule": "linear",
                  "warmup_steps": 9, "min_lr_ratio": 0.23, "clip": 0.37},
    "ema": {"decay": 0.77},
    "guard": {"max_consecutive_skips": 6, "max_rollbacks": 4, "rollback_lr_factor": 0.4, "spike_z": 8.5,
              "spike_window": 64, "spike_action": "skip", "spike_patience": 21},
    "checkpoint": {"every_steps": 12, "every_minutes": 9.0, "keep_last": 4, "keep_every": 24,
                   "best_metric": "validation/loss", "best_is": "max", "background": False},
}  # fmt: skip
"""Values that differ from every default and from one another."""


@pytest.fixture
def _tf32_as_found() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("_tf32_as_found")
@pytest.mark.parametrize("rank", [0, 1])
def test_every_parameter_reaches_the_part_that_reads_it(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built as one rank of two, without a group: DDP is left out."""
    monkeypatch.setattr(
        "mm_ldlm.training.build.Parallel",
        lambda inner, process, *, strategy: SimpleNamespace(inner=inner, module=inner, strategy=strategy),
    )
    tf32 = rank == 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not tf32
    spec = helpers.spec(seed=99, model={"depth": 1}, **SET, precision={"tf32": tf32})
    spec = dataclasses.replace(spec, fingerprints={**spec.fingerprints, "index": "x", "tokens": "y"})
    process = Process(RankInfo(rank=rank, world=2), torch.device("cpu"), None)
    parts: Any = build(spec, root=tmp_path, data=helpers.data(), process=process, tracker=Silent())
    given = spec.training
    (adamw,) = parts.optimization.optimizers.values()
    assert {(group["betas"], group["eps"]) for group in adamw.param_groups} == {((0.81, 0.72), 3e-5)}
    assert {group["weight_decay"] for group in adamw.param_groups} == {0.31, 0.0}
    assert (parts.optimization.config, parts.optimization.max_steps) == (given.optimizer, 84)
    assert parts.optimization.set_lr(83, scale=0.5) == pytest.approx(7e-4 * (0.23 + 0.77 / 75) * 0.5)
    assert (parts.ema.config.decay, parts.guard.config, parts.config) == (0.77, given.guard, given)
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (tf32, tf32)
    assert (parts.stepper.seed, parts.stepper.parallel.strategy) == (99, "ddp")
    loader, validation = parts.loader, parts.validate
    assert (loader.plan.config, loader.plan.seed, loader.plan.max_length) == (given.batch, 99, helpers.LONGEST)
    assert (loader.rank, loader.world, loader.fill, loader.pin) == (rank, 2, False, False)
    assert loader.source is not validation.loader.source.source
    assert validation.plan.config == dataclasses.replace(given.batch, examples=3, accumulation=1)
    assert (len(validation.plan.lengths), validation.seed, validation.plan.max_length) == (11, 99, helpers.LONGEST)
    assert (validation.loader.rank, validation.loader.world, validation.ema) == (rank, 2, parts.ema)
    saves = parts.checkpointer
    assert (saves.config, saves.directory) == (given.checkpoint, tmp_path / "run" / "checkpoints")
    assert (saves._writer.keep_last, saves._writer.keep_every, saves._writer.background) == (4, 24, False)
    of_data = {"index": "x", "tokens": "y"}
    assert saves.session == {
        "seed": 99,
        "world": 2,
        "max_steps": 84,
        "optimizer": to_dict(given.optimizer),
        "batch": to_dict(given.batch),
        "objective": to_dict(spec.objective),
        "precision": to_dict(given.precision),
        "torch": torch.__version__,
        "data": {"encoder": "e", **of_data},
    }, "whatever may differ between two sessions is compared"
    assert set(saves.identity) >= {"model", "shape", "objective", "tokenizer", "normaliser", "encoder"}
    watch = parts.diagnostics
    assert (watch.every, watch.gradients, watch.writes, watch.compiled) == (5, tmp_path / "run", rank == 0, False)
    assert (parts.throughput.max_steps, parts.throughput.max_minutes) == (84, 33.0)
    assert parts.preview is None, "data in memory have no tokenizer"
    assert torch.initial_seed() == step_seed(99, 0, f"global/{rank}"), "ranks have numbers of their own"
