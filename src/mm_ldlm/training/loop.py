"""Training loop, in the order of execution; it does not depend on the model and the objective.

One step: batch → forward and backward of each micro-batch → one all-reduce of all numbers → one read by the host → the
guard's decision, the same on all ranks → update, or none. Everything else happens at intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch

from mm_ldlm.core.errors import TrainingDiverged
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.alerts import Alerts
from mm_ldlm.training.batches import Loader, Planned
from mm_ldlm.training.checkpointer import Checkpointer
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.diagnosis import diagnose
from mm_ldlm.training.diagnostics import Diagnostics
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.guard import Guard, Verdict
from mm_ldlm.training.losses import Averages, Tally
from mm_ldlm.training.optimizer import Optimization
from mm_ldlm.training.preview import Preview
from mm_ldlm.training.state import TrainingState
from mm_ldlm.training.stepper import Stepper
from mm_ldlm.training.throughput import Throughput
from mm_ldlm.training.tracker import Tracker

Ending = Literal["finished", "stopped", "paused"]


@dataclasses.dataclass
class Run:
    """Components of the training loop."""

    config: TrainingConfig
    process: Process
    stepper: Stepper
    optimization: Optimization
    ema: Ema
    loader: Loader
    state: TrainingState
    guard: Guard
    checkpointer: Checkpointer
    tracker: Tracker
    diagnostics: Diagnostics
    throughput: Throughput
    alerts: Alerts
    stop_requested: Callable[[], bool]
    """whether this process received a signal to end (SIGTERM, SIGINT)"""
    validate: Callable[[int], dict[str, float]] | None = None
    """step → validation losses"""
    preview: Preview | None = None
    """writes a sentence at intervals of time, on the first rank"""


def run(parts: Run, *, pause_at: int | None = None) -> Ending:
    """Train until `max_steps` (finished), a signal or `max_minutes` (stopped, finished), or `pause_at` steps (paused).

    Raises:
        TrainingDiverged: the guard stopped training; the message contains the diagnosis.
    """
    config, state = parts.config, parts.state
    last_step = config.steps if pause_at is None else min(pause_at, config.steps)
    averages, throughput, scaler = Averages(), parts.throughput, parts.stepper.scaler
    parts.stepper.parallel.module.train()
    parts.tracker.event(state.step, "trains", **parts.diagnostics.watch_freezing())
    batches = parts.loader.from_(state.epoch, state.batch_in_epoch)
    ended_early: Literal["", "stop", "minutes"] = ""
    diagnosis = ""
    try:
        while state.step < last_step:
            planned, micros = next(batches)

            # -- forward and backward --------------------------------------------------------------------------------
            lr = parts.optimization.set_lr(state.step, scale=state.lr_scale)
            detailed = parts.diagnostics.due(state.step)
            if detailed:
                if not parts.diagnostics.flops_per_token:
                    parts.diagnostics.count_flops(parts.stepper, micros[0])
                parts.diagnostics.arm()
            kind, tally = parts.stepper.forward_backward(micros, draw=state.draw, step=state.step)
            if detailed:
                parts.diagnostics.before_update()

            # -- one all-reduce, one read: from here on every rank has the same numbers --------------------------------
            if scaler is not None:
                for optimizer in parts.optimization.optimizers.values():
                    scaler.unscale_(optimizer)
            found = agree(parts, tally, out_of_time=throughput.out_of_time())
            verdict = parts.guard.judge(
                kind=kind, loss=found.loss, grad_norm=found.grad_norm, bad_ranks=found.bad_ranks,
                overflow=scaler is not None,
            )  # fmt: skip

            # -- update, or none ---------------------------------------------------------------------------------------
            if verdict.action == "apply":
                clipped = parts.optimization.clip(found.grad_norm)
                parts.optimization.step(scaler)
                parts.ema.update(state.ema_updates)
                state.ema_updates += 1
                averages.add(kind, found.loss, found.losses)
                if warning := parts.stepper.observe(found.losses, step=state.step):
                    parts.tracker.event(state.step, "objective_warning", reason=warning)
                throughput.applied(found.grad_norm, clipped)
                parts.alerts.stepped(state.step, kind=kind, loss=found.loss, grad_norm=found.grad_norm)
                if verdict.spike:
                    parts.tracker.event(
                        state.step, "spike", reason=verdict.reason, epoch=planned.epoch, batch=planned.index
                    )
            elif verdict.non_finite and parts.guard.consecutive_skips == 1:
                diagnosis = diagnose(
                    parts.stepper, parts.optimization, micros, kind=kind, step=state.step, draw=state.draw,
                    reason=verdict.reason, directory=parts.checkpointer.directory.parent, tracker=parts.tracker,
                )  # fmt: skip
            if detailed:
                parts.diagnostics.after_update(state.step + 1, applied=verdict.action == "apply")
            if scaler is not None:
                scaler.update()
            parts.optimization.drop_gradients()

            # -- count -------------------------------------------------------------------------------------------------
            state.step += 1
            state.draw += 1
            if planned.epoch != state.epoch:
                parts.diagnostics.new_epoch()
            state.epoch, state.batch_in_epoch = planned.epoch, planned.index + 1
            state.examples += len(planned.examples)
            state.tokens += planned.tokens
            throughput.stepped(planned)
            if verdict.action != "apply":
                skipped(parts, planned, verdict)
            if verdict.action == "stop":
                raise TrainingDiverged(divergence_message(parts, verdict, diagnosis))
            if verdict.action == "rollback":
                roll_back(parts, verdict)
                averages.take()
                continue

            # -- at intervals ------------------------------------------------------------------------------------------
            done = state.step >= config.steps
            line: dict[str, float] = {}
            if parts.validate is not None and (done or state.step % config.validate_every == 0):
                line = {f"validation/{name}": value for name, value in parts.validate(state.step).items()}
            if line or done or detailed or state.step % config.log_every == 0:
                line |= averages.take() | throughput.line(lr, flops_per_token=parts.diagnostics.flops_per_token)
                if detailed:
                    line |= parts.diagnostics.take()
                    parts.alerts.diagnosed(state.step, line)
                parts.tracker.metrics(
                    state.step, {"epoch": planned.epoch, "batch_in_epoch": planned.index, "mode": kind, **line}
                )
            if estimate := throughput.estimate():
                parts.tracker.event(state.step, "estimate", **estimate)
            if (
                done
                or found.stop
                or found.out_of_time
                or state.step == last_step
                or parts.checkpointer.due(state.step, found.minutes)
            ):
                throughput.count_seconds()
                parts.diagnostics.verify_freezing()
                parts.checkpointer.save(line)
            if parts.preview is not None:
                parts.preview(state.step, last=done)
            if found.stop or found.out_of_time:
                ended_early = "stop" if found.stop else "minutes"
                break
    finally:
        batches.close()
        throughput.count_seconds()
        parts.checkpointer.wait()
    if ended_early:
        reasons = {"stop": "stop requested", "minutes": f"max_minutes ({config.max_minutes}) have passed"}
        parts.tracker.event(state.step, "ended_early", reason=reasons[ended_early])
    if found_failure := parts.checkpointer.failed():
        raise found_failure
    if state.step >= config.steps or ended_early == "minutes":
        return "finished"
    return "stopped" if ended_early else "paused"


# -- one step ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Agreed:
    """Numbers that are equal on all ranks after the all-reduce of a step."""

    loss: float
    losses: dict[str, tuple[float, float]]
    grad_norm: float
    bad_ranks: list[int]
    stop: bool
    out_of_time: bool
    minutes: bool
    """whether a checkpoint is due by the time of rank 0"""


def agree(parts: Run, tally: Tally, *, out_of_time: bool) -> Agreed:
    """All-reduce losses, counts and flags as one small float64 tensor, and read it once."""
    process = parts.process
    numbers = tally.tensor()
    norm = parts.optimization.norm()
    flags = torch.zeros(3 + process.world, dtype=torch.float64)
    flags[0] = float(parts.stop_requested())
    flags[1] = float(process.is_main and out_of_time)
    flags[2] = float(process.is_main and parts.checkpointer.minutes_over())
    flags = flags.to(numbers.device, non_blocking=True)
    flags[3 + process.rank] = (~torch.isfinite(numbers[0])).double()
    together = torch.cat([flags, norm.detach().double().reshape(1) / process.world, numbers])
    read: list[float] = collectives.sum_(together).tolist()
    world = process.world
    loss, losses = tally.split(read[4 + world :])
    return Agreed(
        loss=loss,
        losses=losses,
        grad_norm=read[3 + world],
        bad_ranks=[rank for rank in range(world) if read[3 + rank] > 0],
        stop=read[0] > 0,
        out_of_time=read[1] > 0,
        minutes=read[2] > 0,
    )


# -- when a step is refused --------------------------------------------------------------------------------------------


def skipped(parts: Run, planned: Planned, verdict: Verdict) -> None:
    parts.state.skipped += 1
    parts.tracker.event(
        parts.state.step - 1, "skip", reason=verdict.reason, epoch=planned.epoch, batch=planned.index,
        examples=planned.examples[:64].tolist(), consecutive=parts.guard.consecutive_skips,
    )  # fmt: skip


def roll_back(parts: Run, verdict: Verdict) -> None:
    """Restore weights, optimizer and step of the last checkpoint, lower the learning rate, and continue the data."""
    state = parts.state
    before = dataclasses.replace(state)
    step = parts.checkpointer.restore()
    state.draw, state.epoch, state.batch_in_epoch = before.draw, before.epoch, before.batch_in_epoch
    state.skipped, state.seconds = before.skipped, before.seconds
    state.rollbacks = before.rollbacks + 1
    state.lr_scale = before.lr_scale * parts.config.guard.rollback_lr_factor
    parts.guard.rollbacks = before.rollbacks
    parts.guard.rolled_back()
    parts.tracker.event(before.step, "rollback", to_step=step, lr_scale=state.lr_scale, reason=verdict.reason)


def divergence_message(parts: Run, verdict: Verdict, diagnosis: str) -> str:
    """Describe the divergence, its diagnosis and the remedy."""
    diagnosis = diagnosis or "No single first cause was found: the values were finite but too large."
    return (
        f"training diverged at step {parts.state.step}: {verdict.reason}.\n{diagnosis}\n"
        "Lower training.optimizer.lr or clip, lengthen the warm-up, or inspect the examples of the skip events in the "
        f"log. The last good checkpoint is kept: {parts.checkpointer.latest()}."
    )
