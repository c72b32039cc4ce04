"""Preflight checks before the first step: whether this machine can execute the run, and otherwise the remedy."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import torch

from mm_ldlm.core.errors import ConfigurationError, PreflightError, StoreError
from mm_ldlm.core.files import InputFile, write_text
from mm_ldlm.distributed import collectives, environment
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.batches import BatchPlan, Planned, deal
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import PrecisionConfig, TrainingConfig
from mm_ldlm.training.data import Data
from mm_ldlm.training.loop import Run
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.stepper import Stepper


@dataclasses.dataclass(frozen=True)
class Check:
    """Line of the table of checks; `remedy` is empty if the check passed."""

    name: str
    found: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return not self.remedy

    def __str__(self) -> str:
        mark = "✓" if self.ok else "✗"
        return f"{mark} {self.name}: {self.found}" + ("" if self.ok else f"\n    → {self.remedy}")


def preflight(parts: Run, spec: TrainingSpec, data: Data, directory: Path) -> list[Check]:
    """Run all checks on all ranks together and log the table.

    Raises:
        PreflightError: a check failed on a rank; the message contains the whole table.
    """
    process, plan = parts.process, parts.loader.plan
    # Nothing is resumed yet, so the steps that are done are those of the newest checkpoint.
    done = max((folder.step_of(path) for path in folder.all_in(directory / "checkpoints")), default=0)
    checks = [
        device(process, parts.config.precision),
        versions(process),
        all_reduce(process),
        configuration(directory, spec),
        shared_folder(process, directory),
        disk(parts.stepper, parts.config, directory, averaged=bool(parts.ema.values), done=done),
        data_shape(data, parts.stepper.objective.fields),
        batches(plan, process, epoch=parts.state.epoch),
    ]
    checks = _agreed(checks)
    if all(check.ok for check in checks):
        checks += _agreed([dry_step(parts.stepper, plan, data, filled=parts.config.precision.compile)])
    parts.tracker.event(parts.state.step, "preflight", checks=[str(check) for check in checks])
    if not all(check.ok for check in checks):
        table = "\n".join(str(check) for check in checks)
        raise PreflightError(f"the run cannot start as configured:\n{table}")
    return checks


def device(process: Process, precision: PrecisionConfig) -> Check:
    chosen = process.device
    if chosen.type == "cuda":
        free, whole = torch.cuda.mem_get_info(chosen)
        name = torch.cuda.get_device_name(chosen)
        found = f"{chosen} {name}, {free / 2**30:.1f} of {whole / 2**30:.1f} GiB free"
        local = process.rank_info.local_world
        if local > torch.cuda.device_count():
            return Check(
                "device", f"{local} processes on {torch.cuda.device_count()} GPUs",
                "lower training.launch.processes to the number of GPUs on this host",
            )  # fmt: skip
        if precision.autocast == "bf16" and not torch.cuda.is_bf16_supported():
            return Check("device", f"{name} has no bf16", "set training.precision.autocast to fp16 or fp32")
        return Check("device", found)
    if precision.autocast == "fp16":
        return Check("device", "fp16 on a CPU", "set training.precision.autocast to fp32 (or bf16)")
    threads = torch.get_num_threads()
    return Check("device", f"CPU, {threads} thread{'s' if threads > 1 else ''} per rank")


def versions(process: Process) -> Check:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if process.device.type == "cuda" else "none"
    mine = f"torch {torch.__version__}, NCCL {nccl}"
    everyone = collectives.gather(mine)
    if len(set(everyone)) > 1:
        seen = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(everyone))
        return Check("versions", seen, "install the same versions on every host (constraints file)")
    return Check("versions", mine)


def all_reduce(process: Process) -> Check:
    if process.world == 1:
        return Check("processes", "one, no communication")
    value = torch.full((1024,), float(process.rank + 1), device=process.device)
    collectives.sum_(value)
    want = process.world * (process.world + 1) / 2
    info = process.rank_info
    where = f"{process.world} over {process.backend}, meeting at {info.master_address}:{info.master_port}"
    if not bool((value == want).all()):
        return Check(
            "processes", f"{where}: a sum over ranks is wrong", "check the network and the NCCL or gloo versions"
        )
    return Check("processes", f"{where}, all-reduce correct")


def configuration(directory: Path, spec: TrainingSpec) -> Check:
    """Check that config.json can be read back as the same spec."""
    path = directory / "config.json"
    try:
        found = InputFile(path, remedy="").json()
        known = {key: value for key, value in found.items() if key != "versions"} if isinstance(found, dict) else found
        same = TrainingSpec.from_dict(known).fingerprint == spec.fingerprint
    except StoreError as error:
        return Check("configuration", str(error), "make the run's folder readable and writable")
    except ConfigurationError:
        same = False
    return Check(
        "configuration", str(path), "" if same else "another run writes into this folder: set training.run_name"
    )


def shared_folder(process: Process, directory: Path) -> Check:
    """Check that every rank reads what rank 0 writes, because a resumed run reads checkpoints on every host."""
    probe = directory / ".preflight"
    word = f"{environment.host_name()} {process.rank_info.run_id}"
    if process.is_main:
        write_text(probe, word)
    collectives.barrier()
    try:
        seen = probe.is_file()
    finally:
        collectives.barrier()
        if process.is_main:
            probe.unlink(missing_ok=True)
    if not seen:
        return Check(
            "run folder", f"{directory} on {environment.host_name()} is not the folder that rank 0 writes",
            "put the data folder on storage that all hosts share (kedro run --params data=/shared/…)",
        )  # fmt: skip
    return Check("run folder", str(directory))


def disk(stepper: Stepper, config: TrainingConfig, directory: Path, *, averaged: bool, done: int) -> Check:
    """Check that there is room for the checkpoints of the steps after the first `done` ones."""
    parameters = sum(p.numel() for p in stepper.root.parameters())
    one = 4 * parameters * (4 if averaged else 3)
    checkpoint = config.checkpoint
    kept = checkpoint.keep_last + 1 + (checkpoint.best_metric is not None)
    if checkpoint.keep_every is not None:
        kept += (config.steps - done) // checkpoint.keep_every
    free = shutil.disk_usage(directory).free
    found = f"{free / 2**30:.1f} GiB free, {kept} checkpoints of {one / 2**30:.2f} GiB at most"
    short = kept * one > free
    remedy = "free some space, or lower training.checkpoint.keep_last or keep_every"
    return Check("disk", found, remedy if short else "")


def data_shape(data: Data, fields: tuple[str, ...]) -> Check:
    """Check that tokens and fields have the shapes that the model was built for."""
    shape, source = data.shape, data.train
    sizes = {name: source.field(name, np.array([0])).shape[1:] for name in fields}
    described = "".join(f", {name} of {' × '.join(map(str, size)) or 'one number'}" for name, size in sizes.items())
    found = f"{shape.vocab_size} tokens{described}"
    if "latents" in sizes and sizes["latents"] != (shape.latent_dim,):
        return Check("data", found, f"the run was planned for latents of dimension {shape.latent_dim}: plan it again")
    specials = (shape.pad_id, shape.mask_id)
    if len(set(specials)) < 2 or min(specials) < 0:
        return Check("data", f"{found}, pad and mask ids {specials}", "prepare the tokenizer again")
    first = source.tokens(np.arange(min(256, len(source.lengths))), length=shape.max_length)
    if (largest := int(first.max())) >= max(shape.vocab_size, max(specials) + 1):
        return Check("data", f"{found}, but a token id of {largest}", "make the tokens again with this tokenizer")
    return Check("data", found)


def batches(plan: BatchPlan, process: Process, *, epoch: int) -> Check:
    shapes = plan.shapes()
    longest = int(plan.lengths.max())
    found = f"{len(plan.lengths)} examples, {len(plan.epoch(epoch))} batches an epoch, shapes {shapes[:6]}"
    if longest > plan.max_length:
        return Check("batches", f"{found}, longest text {longest}", f"raise tokenizer.max_length to {longest}")
    ways = process.world * plan.config.accumulation
    if min(size for size, _ in shapes) < ways:
        return Check(
            "batches", f"{found}; a global batch has fewer examples than its {ways} micro-batches over all ranks",
            "set training.batch.examples_per_device (or tokens_per_device) instead of examples (or tokens), or lower "
            "accumulation",
        )  # fmt: skip
    return Check("batches", found)


def dry_step(stepper: Stepper, plan: BatchPlan, data: Data, *, filled: bool) -> Check:
    """Run one forward and backward pass at the largest shape, without an update.

    Unless batches are `filled` to their full size, none has more examples than there are.
    """
    size, length = max(plan.shapes(), key=lambda shape: (shape[0] * shape[1], shape[1]))
    size = size if filled else min(size, len(plan.lengths))
    world, accumulation = stepper.process.world, plan.config.accumulation
    try:
        _passes(stepper, data, size, length, accumulation)
        return Check("dry step", f"{size} examples × {length} tokens over all ranks fit")
    except torch.OutOfMemoryError:
        _free_memory(stepper)
    fits = size // 2
    while fits >= world:
        try:
            _passes(stepper, data, fits, length, accumulation)
            break
        except torch.OutOfMemoryError:
            _free_memory(stepper)
            fits //= 2
    ways = -(-size // fits) if fits else 0
    remedy = (
        f"{fits} examples × {length} tokens fit: set training.batch.accumulation to {accumulation * ways}, "
        f"or batch.tokens to {fits * length}"
        if fits >= world
        else "not even one example per rank fits: set model.gradient_checkpointing, training.parallel=fsdp, or a "
        "smaller model"
    )
    return Check("dry step", f"out of memory at {size} examples × {length} tokens", remedy)


def _passes(stepper: Stepper, data: Data, size: int, length: int, accumulation: int) -> None:
    repeated = np.resize(np.arange(len(data.train.lengths)), size)
    fit = data.train.lengths[repeated] <= length
    repeated = np.where(fit, repeated, int(np.argmin(data.train.lengths)))
    tokens = int(data.train.lengths[repeated].sum())
    planned = Planned(0, 0, repeated, length, size, tokens)
    process, objective = stepper.process, stepper.objective
    micro = deal(
        planned, data.train, fields=objective.fields, rank=process.rank, world=process.world,
        accumulation=accumulation, fill=False,
    )[0]  # fmt: skip
    batch = micro.to(process.device)
    for kind in objective.kinds:
        stepper.parallel.gradients(stepper.total(batch, kind=kind, draw=0, step=0))


def _free_memory(stepper: Stepper) -> None:
    for p in stepper.root.parameters():
        p.grad = None
    if stepper.process.device.type == "cuda":
        torch.cuda.empty_cache()


def _agreed(checks: list[Check]) -> list[Check]:
    """Combine the checks of all ranks: those of rank 0, replaced by the first failing one of another rank."""
    everyone = collectives.gather(checks)
    found = []
    for number, check in enumerate(checks):
        failing = [(rank, theirs[number]) for rank, theirs in enumerate(everyone) if not theirs[number].ok]
        if failing:
            rank, bad = failing[0]
            found.append(Check(f"{bad.name} (rank {rank})", bad.found, bad.remedy))
        else:
            found.append(check)
    return found
