"""Check before the first step whether this machine can execute the run, and name the remedy if it cannot."""

import dataclasses
from pathlib import Path

import numpy as np
import torch

from mm_ldlm.core import PreflightError
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.batches import Planned
from mm_ldlm.training.loop import Run
from mm_ldlm.training.observers import Observer

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Check:
    """Line of the table of checks; `remedy` is empty if the check passed."""

    name: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"✗ {self.name}: {self.found}\n    → {self.remedy}" if self.remedy else f"✓ {self.name}: {self.found}"


@dataclasses.dataclass
class Preflight(Observer):
    """Runs the checks on all ranks together before the first step, unless `training.preflight` is false."""

    run: Run

    def start(self) -> None:
        """Run all checks and log the table.

        Raises:
            PreflightError: a check failed on a rank; the message contains the table.
        """
        run = self.run
        if not run.config.preflight:
            return
        checks = _agreed([
            device(run.process, run.config.precision.autocast),
            versions(run.process),
            shared_folder(run.process, run.checkpointer.directory.parent),
            batches(run),
        ])  # fmt: skip
        if not any(check.remedy for check in checks):
            checks += _agreed([dry_step(run)])
        table = [str(check) for check in checks]
        run.tracker.event(run.learner.state.step, "preflight", checks=table)
        if any(check.remedy for check in checks):
            raise PreflightError("\n".join(["the run cannot start as configured:", *table]))


def device(process: Process, autocast: str) -> Check:
    local = process.local_world
    if process.device.type != "cuda":
        return Check("device", f"CPU, {local} process(es) of {torch.get_num_threads()} thread(s), {autocast}")
    free, total = torch.cuda.mem_get_info(process.device)
    gpus, name = torch.cuda.device_count(), torch.cuda.get_device_name(process.device)
    found = (
        f"{name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free, {local} process(es) on {gpus} GPU(s), {autocast}"
    )
    return Check(
        "device", found, "lower training.launch.processes to the number of GPUs on this host" if local > gpus else ""
    )


def versions(process: Process) -> Check:
    seen = sorted(set(collectives.gather(f"torch {torch.__version__}")))
    found = f"{process.world} over {process.backend or 'no network'}, {'; '.join(seen)}"
    return Check("processes", found, "" if len(seen) == 1 else "install the same versions on every host")


def shared_folder(process: Process, directory: Path) -> Check:
    """Check that every rank reads what rank 0 writes, because a resumed run reads checkpoints on every host."""
    probe = directory / ".preflight"
    if process.is_main:
        probe.touch()
    collectives.barrier()
    seen = probe.is_file()
    collectives.barrier()
    if process.is_main:
        probe.unlink()
    if seen:
        return Check("run folder", "all ranks read the files of rank 0")
    remedy = "put the data folder on storage that all hosts share (kedro run --params data=/shared/…)"
    return Check("run folder", "this rank does not find the files of rank 0", remedy)


def batches(run: Run) -> Check:
    """Check that every micro-batch of every rank has an example."""
    plan = run.loader.plan
    shapes, ways = plan.shapes(), run.process.world * plan.config.accumulation
    found = f"{len(plan.lengths)} examples, {len(plan.epoch(0))} batches an epoch, shapes {shapes[:6]}"
    if min(size for size, _ in shapes) >= ways:
        return Check("batches", found)
    return Check(
        "batches", f"{found}; a global batch has fewer examples than its {ways} micro-batches over all ranks",
        "set training.batch.examples_per_device instead of examples or tokens, or lower accumulation",
    )  # fmt: skip


def dry_step(run: Run) -> Check:
    """Run one forward and backward pass of each kind of step at the largest shape, and one batch of validation."""
    plan, stepper = run.loader.plan, run.stepper
    size, length = max(plan.shapes(), key=lambda shape: (shape[0] * shape[1], shape[1]))
    if not run.config.precision.compile:  # no batch has more examples than the data
        size = min(size, len(plan.lengths))
    rows = np.resize(np.arange(len(plan.lengths)), size)
    rows = np.where(plan.lengths[rows] <= length, rows, int(np.argmin(plan.lengths)))
    found = f"{size} examples × {length} tokens over all ranks"
    try:
        micro = run.loader.make(Planned(0, 0, rows, length, size, int(plan.lengths[rows].sum())))[0]
        batch = micro.to(run.process.device)
        for kind in stepper.objective.kinds:
            stepper.parallel.gradients(stepper.total(batch, kind=kind, draw=0, step=0))
        if run.validate is not None:
            run.validate(0, batches=1)
    except torch.OutOfMemoryError:
        remedy = (
            f"raise training.batch.accumulation ({plan.config.accumulation}) or lower the size of the batch; set "
            "model.gradient_checkpointing or training.parallel=fsdp, or use a smaller model"
        )
        return Check("dry step", f"out of memory at {found}", remedy)
    return Check("dry step", f"{found} fit")


def _agreed(checks: list[Check]) -> list[Check]:
    """Combine the checks of all ranks: keep this rank's, but replace each by the first failing one of any rank."""
    found = []
    for mine, *everyone in zip(checks, *collectives.gather(checks), strict=True):
        named = [dataclasses.replace(each, name=f"{each.name} (rank {rank})") for rank, each in enumerate(everyone)]
        found.append(next((each for each in named if each.remedy), mine))
    return found
