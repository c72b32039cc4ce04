"""Discrete consistency distillation: the teacher of a round, its resume, and what the student learns."""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.components import random_batch, root_of, stir
from tests.training import task
from torch import Tensor

from mm_ldlm.core import parse, parse_kind
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import MODELS
from mm_ldlm.objectives.base import OBJECTIVES, Batch, Losses
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.spec import plan
from mm_ldlm.training.worker import train


def distillation(**options: Any) -> TrainableRoot:
    return root_of("duo_distillation", {"rounds": 4, "grid": 64, **options})


def losses(root: TrainableRoot, batch: Batch, *, step: int) -> Losses:
    return root(batch, RowGenerator(step, batch.position_B), "text", step)


def teacher(root: TrainableRoot) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in root.objective.teacher.named_buffers() if "rope" not in name}


@pytest.mark.parametrize("grid", [64, 4])
def test_the_teacher_is_the_student_at_the_start_of_a_round_and_the_step_doubles(grid: int) -> None:
    """Rounds of 100 steps begin at 0, 25, 50 and 75. A step is at most 1, and begins at the last time at most."""
    root, batch, seen, times = distillation(grid=grid), random_batch(), [], list[Tensor]()
    for model in (root.model, root.objective.teacher):
        model.register_forward_pre_hook(lambda _, given, options: times.append(options["t_B"]), with_kwargs=True)
    for step in (0, 1, 24, 25, 26, 99):
        stir(root)
        before, student = teacher(root), {name: p.detach().clone() for name, p in root.model.named_parameters()}
        total, count = losses(root, batch, step=step)["step_size"]
        seen.append(float(total / count))
        expected = student if step in (0, 25) else before
        assert all(torch.equal(value, expected[name]) for name, value in teacher(root).items())
    assert seen == pytest.approx([min(number / grid, 1.0) for number in (1, 1, 1, 2, 2, 8)])
    assert float(torch.cat(times).max()) <= float(root.objective.process.schedule.inverse(torch.tensor(0.005))) + 1e-6
    assert all(bool((early_B < late_B).all()) for late_B, early_B in zip(times[::2], times[1::2], strict=True))
    assert root.training > root.objective.teacher.training, "the teacher has no dropout"


def test_distillation_resumes_to_the_bit(
    tmp_path: Path, write_dataset: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after step 7 of 10, in the middle of the second of two rounds, when student and teacher differ."""
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in draw.integers(0, 20, 5)) for _ in range(48)]
    dataset, runs = write_dataset(tmp_path, texts, ["train"] * 40 + ["validation"] * 8), tmp_path / "runs"

    def run(name: str, objective: dict[str, Any], **more: Any) -> dict[str, Tensor]:
        training = {
            "max_steps": 10, "batch": {"examples": 16}, "optimizer": {"lr": 1e-2, "warmup_steps": 2}, "device": "cpu",
            "checkpoint": {"background": False}, "preflight": False, "run_name": name, "show_every_seconds": None,
            "validate_every": 0, **more,
        }  # fmt: skip
        model = parse_kind(MODELS, {"kind": "dit", "dim": 16, "depth": 1, "heads": 2}, at="model")
        train(
            plan(dataset, runs=runs, seed=3, encoder={}, model=model, training=parse(TrainingConfig, training, at=""),
                 objective=parse_kind(OBJECTIVES, objective, at="objective")),
            root=runs,
        )  # fmt: skip
        return folder.tensors(folder.find(runs / name), "model.safetensors")

    run("origin", {"kind": "duo"})
    given: dict[str, Any] = {"objective": {"kind": "duo_distillation", "rounds": 2}, "init_from": "origin"}
    whole, steps = run("whole", **given), itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(
            "mm_ldlm.training.worker.stop_on_signal", lambda: contextlib.nullcontext(lambda: next(steps) >= 7)
        )
        half = run("halves", **given)
    table = "model.text_embedding.weight"
    assert not torch.equal(half[table], whole[table])
    resumed = run("halves", **given)
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    assert not torch.equal(whole[table], whole[f"objective.teacher.{table.removeprefix('model.')}"])
    assert task.built(task.spec("duo", max_steps=20), tmp_path).stepper.objective.training_steps == 20


def test_the_student_learns_the_predictions_of_its_teacher() -> None:
    """Where the two times are nearly equal the texts are, too, so that the student can reach its teacher."""
    root, batch = distillation(grid=100_000), random_batch(examples=32)
    losses(root, batch, step=0)
    root.model.load_state_dict(stir(distillation()).model.state_dict())
    optimizer = torch.optim.AdamW(root.parameters(), lr=1e-2)
    seen = []
    for _ in range(60):
        total, count = losses(root, batch, step=1)["distillation_loss"]
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        seen.append(float(total.detach() / count))
    assert seen[-1] < 0.5 * seen[0]


def test_in_evaluation_the_losses_are_those_of_uniform_diffusion() -> None:
    batch, plain = random_batch(), root_of("text_diffusion", {"process": {"kind": "uniform"}})
    assert losses(distillation().eval(), batch, step=3) == losses(plain, batch, step=3)
