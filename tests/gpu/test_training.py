"""Training on the device: each objective against the CPU, bf16 and fp16, compilation, processes, kill and resume."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.test_layers import relative_error
from tests.training import task
from tests.training.faults import KIND
from tests.training.ranks import train_on_ranks

from mm_ldlm.core import WorkerFailed
from mm_ldlm.distributed import collectives
from mm_ldlm.extras.sanity.checks import SanityConfig, check_sanity
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.training import loop
from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.session import LOG
from mm_ldlm.training.spec import TrainingSpec

pytestmark = pytest.mark.gpu
LOSS, GRADIENT = 1e-4, 1e-3
"""Largest relative errors against the CPU; those of a gradient are relative to the largest one of the model"""
LOW_PRECISION, COMPILED, PROCESSES = 0.05, 1e-3, 1e-3
"""Largest relative difference of a loss: of bf16 and fp16, of a compiled model, of several processes"""


def losses(run: loop.Run) -> list[float]:
    return [line["loss"] for line in run.tracker.lines if "loss" in line]


def error(found: list[float], wanted: list[float]) -> float:
    assert len(found) == len(wanted)
    return relative_error(torch.tensor(found), torch.tensor(wanted))


def one_batch(run: loop.Run) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Compute losses and gradients of one batch in every kind of step, with noise on every parameter.

    Heads and gates that start at zero would hide errors before them.
    """
    generator = torch.Generator().manual_seed(1)
    for p in run.learner.root.parameters():
        p.data.add_((torch.randn(p.shape, generator=generator) * 0.05).to(p.device))
    batch = run.loader.make(next(run.loader.plan.first(1)))[0].to(run.process.device)
    totals, gradients = {}, {}
    for kind in run.stepper.objective.kinds:
        total = run.stepper.total(batch, kind=kind, draw=0, step=0)
        found = run.stepper.parallel.gradients(total)
        totals[kind] = total.detach()
        gradients |= {f"{kind} {name}": grad for name, grad in found.items() if grad is not None}
    return totals, gradients


@pytest.mark.parametrize("kind", OBJECTIVES.known)
def test_every_objective_computes_what_the_cpu_computes(kind: str, device: str, tmp_path: Path, measured: Any) -> None:
    runs = [task.built(task.spec(kind, device=name), tmp_path) for name in ("cpu", device)]
    (wanted, wanted_gradients), (found, gradients) = map(one_batch, runs)
    largest = max(float(value.abs().max()) for value in wanted_gradients.values())
    loss = max(relative_error(found[name], wanted[name]) for name in wanted)
    differences = [
        (gradients[name].cpu() - value.cpu()).abs().max() / largest for name, value in wanted_gradients.items()
    ]
    measured(loss_error=loss, gradient_error=float(max(differences)))
    assert loss <= LOSS
    assert max(differences) <= GRADIENT


@pytest.mark.parametrize("autocast", ["bf16", "fp16"])
def test_low_precision_is_near_float32_and_sound(autocast: str, device: str, tmp_path: Path, measured: Any) -> None:
    runs = [
        task.built(task.spec(precision={"autocast": name}, device=device), tmp_path / name)
        for name in ("fp32", autocast)
    ]
    for run in runs:
        loop.train(run)
    found = error(losses(runs[1]), losses(runs[0]))
    spec = task.spec(precision={"autocast": autocast}, device=device)
    limits = SanityConfig(examples=8, max_steps=60, fall=0.9, lr=1e-2)
    checks = check_sanity(spec, root=tmp_path, config=limits, data=task.data(spec))
    measured(loss_error=found, sanity_checks=len(checks))
    assert found <= LOW_PRECISION
    assert [str(check) for check in checks if check.remedy] == []


def test_an_overflow_of_fp16_halves_the_scale_which_is_restored(device: str, tmp_path: Path) -> None:
    faults = [{"kind": "inf_gradient", "step": 3, "times": 1}]
    spec = task.spec({"kind": KIND, "faults": faults}, precision={"autocast": "fp16"}, device=device)
    run = task.built(spec, tmp_path)
    task.train_until(run, 3)
    before, scale = task.held(run), run.learner.optimization.scaler.get_scale()
    task.train_until(run, 4)
    assert task.largest_difference(before, task.held(run)) == 0
    again = task.built(spec, tmp_path)
    again.checkpointer.resume("auto", tmp_path)
    scales = [each.learner.optimization.scaler.get_scale() for each in (run, again)]
    assert scales == [scale / 2] * 2


def test_a_compiled_model_has_the_same_losses(gpu: str, tmp_path: Path, measured: Any) -> None:
    model = {"dim": 512, "depth": 6, "heads": 8}
    runs = []
    for chosen in (False, True):
        batch = {"examples": 16, "length_multiple": 12}
        spec = task.spec("multimodal", model=model, precision={"compile": chosen}, batch=batch, device=gpu)
        runs.append(task.built(spec, tmp_path / str(chosen), data=task.data(spec, full=True)))
        loop.train(runs[-1])
    seconds = [run.tracker.lines[-1]["seconds_per_step"] for run in runs]
    found = error(losses(runs[1]), losses(runs[0]))
    compiling = runs[1].tracker.lines[0]["seconds"]
    measured(loss_error=found, ms=1e3 * seconds[0], ms_compiled=1e3 * seconds[1], seconds_of_compiling=compiling)
    assert found <= COMPILED


# -- several processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def ranks(device: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`ranks(spec, root, fault)` trains on one rank per GPU (two on the CPU), and returns the folder of the run."""
    monkeypatch.setenv("PYTHONPATH", f"{project / 'src'}{os.pathsep}{project}")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def train(spec: TrainingSpec, root: Path) -> Path:
        train_on_ranks(spec, root, processes=torch.cuda.device_count() if device == "cuda" else 2)
        return root / "run"

    return train


def spec_of(device: str, *faults: dict[str, Any], **training: Any) -> TrainingSpec:
    checkpoint = {"every_steps": 1, "keep_last": 20, "background": False}
    batch = {"examples": 32}
    return task.spec(
        {"kind": KIND, "faults": list(faults)}, device=device, checkpoint=checkpoint, batch=batch, **training
    )


def test_poison_on_the_last_rank_moves_nothing_and_the_others_train_like_one(
    ranks: Callable[..., Path], device: str, tmp_path: Path, measured: Any
) -> None:
    world = torch.cuda.device_count() if device == "cuda" else 2
    poison = {"kind": "nan_loss", "step": 3}
    run = ranks(spec_of(device, {**poison, "ranks": [world - 1]}), tmp_path / "several")
    assert task.largest_difference(task.saved(run.parent, 3), task.saved(run.parent, 4)) == 0
    (skip,) = read_events(run / LOG, "skip")
    assert (skip["step"], f"(rank {world - 1})" in skip["reason"]) == (3, True)
    one = task.built(spec_of(device, poison), tmp_path / "one")
    loop.train(one)
    found = error([line["loss"] for line in read_metrics(run / LOG) if "loss" in line], losses(one))
    measured(ranks=world, loss_error=found)
    assert found <= PROCESSES


def test_a_run_that_is_killed_and_resumed_equals_an_undisturbed_one(
    ranks: Callable[..., Path], device: str, tmp_path: Path, measured: Any
) -> None:
    ranks(spec_of(device), tmp_path / "whole")
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        ranks(spec_of(device, {"kind": "kill", "step": 5}), tmp_path / "killed")
    run = ranks(spec_of(device), tmp_path / "killed")
    assert read_events(run / LOG, "start")[-1]["resumed_from"] == "step-00000005"
    difference = task.largest_difference(task.saved(tmp_path / "whole", 10), task.saved(run.parent, 10))
    measured(difference=difference)
    assert difference == 0


def test_collectives_of_one_process_per_gpu(
    device: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Any
) -> None:
    from mm_ldlm.core.files import InputFile
    from mm_ldlm.distributed.launch import LaunchConfig, launch

    monkeypatch.setenv("PYTHONPATH", f"{project / 'src'}{os.pathsep}{project}")
    world = torch.cuda.device_count() if device == "cuda" else 1
    config = LaunchConfig(processes=world)
    launch("tests.gpu.ranks", [device, str(tmp_path / "found.json")], config=config, log_directory=tmp_path / "logs")
    found = InputFile(tmp_path / "found.json", remedy="").json(dict)
    measured(**found)
    assert (found["world"], found["backend"]) == (world, "nccl" if device == "cuda" else "gloo")
    assert found["wrong"] == []
    assert not collectives.active()
