"""Training loop, in the order of execution; it does not depend on the model and the objective.

A step: batch → forward and backward pass of each micro-batch → one all-reduce of all numbers → one read by the host →
the guard's decision, the same on all ranks → update, or none. Everything else happens at intervals.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import torch

from mm_ldlm.core import TrainingDiverged
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process
from mm_ldlm.models.parts import FreezingSnapshot, count_by_part
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.batches import Loader
from mm_ldlm.training.checkpointer import Checkpointer
from mm_ldlm.training.checkpoints.reference import latest
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import Data
from mm_ldlm.training.forward_backward import Averages, Stepper, Tally
from mm_ldlm.training.guard import Verdict
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.learner import Learner
from mm_ldlm.training.observers import Observer
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.throughput import Throughput

Ending = Literal["finished", "stopped"]


@dataclasses.dataclass
class Run:
    """Components of the training loop."""

    spec: TrainingSpec
    data: Data
    process: Process
    learner: Learner
    stepper: Stepper
    loader: Loader
    checkpointer: Checkpointer
    tracker: Tracker
    throughput: Throughput
    validate: Callable[..., dict[str, float]] | None = None
    """step → validation losses"""
    averages: Averages = dataclasses.field(default_factory=Averages)
    """of the losses since the last log line or roll-back"""
    observers: dict[str, Observer] = dataclasses.field(default_factory=dict)
    stop_requested: Callable[[], bool] = lambda: False
    """whether this process received a signal to end (SIGTERM, SIGINT)"""

    @property
    def config(self) -> TrainingConfig:
        return self.spec.training


def train(run: Run) -> Ending:
    """Train until the last step or `max_minutes` (finished), or a signal (stopped).

    Raises:
        TrainingDiverged: the guard stopped training; the message contains the diagnosis.
    """
    config, learner, throughput = run.config, run.learner, run.throughput
    state, optimization = learner.state, learner.optimization
    observers, diagnosis, ended_early = [*run.observers.values()], "", ""
    run.stepper.parallel.module.train()
    frozen = FreezingSnapshot(learner.root)
    run.tracker.event(state.step, "trains", **trained(learner.root))
    batches = run.loader.from_(state.epoch, state.batch_in_epoch)
    try:
        while state.step < config.steps and not ended_early:
            planned, micros = next(batches)

            # -- forward and backward --------------------------------------------------------------------------------
            lr = optimization.set_lr(state.step, scale=state.lr_scale)
            for observer in observers:
                observer.before_step(state.step, micros)
            kind, tally = run.stepper.forward_backward(micros, draw=state.draw, step=state.step)
            for observer in observers:
                observer.before_update()
            optimization.unscale()

            # -- one all-reduce, one read: from here on every rank has the same numbers --------------------------------
            found = agree(run, tally)
            verdict = learner.guard.judge(
                kind=kind, loss=found.loss, grad_norm=found.grad_norm, bad_ranks=found.bad_ranks,
                overflow=optimization.scaler.is_enabled(),
            )  # fmt: skip

            # -- update, or none ---------------------------------------------------------------------------------------
            if verdict.action == "apply":
                clipped = optimization.clip(found.grad_norm)
                optimization.step()
                learner.ema.update(state)
                run.averages.add(kind, found.loss, found.losses)
                throughput.applied(found.grad_norm, clipped)
                if warning := run.stepper.objective.observe(found.losses, step=state.step):
                    run.tracker.event(state.step, "objective_warning", reason=warning)
                if verdict.reason:
                    place = {"epoch": planned.epoch, "batch": planned.index}
                    run.tracker.event(state.step, "spike", reason=verdict.reason, **place)
            elif verdict.non_finite and learner.guard.consecutive_skips == 1:
                found_causes = [each.refused(micros, kind=kind, reason=verdict.reason) for each in observers]
                diagnosis = " ".join(filter(None, found_causes))
            measured: dict[str, float] = {}
            for observer in observers:
                measured |= observer.after_update(state.step + 1, applied=verdict.action == "apply")
            optimization.finish()

            # -- count -------------------------------------------------------------------------------------------------
            state.drawn(planned)
            throughput.stepped(planned)
            if verdict.action != "apply":
                state.skipped += 1
                run.tracker.event(
                    state.step - 1, "skip", reason=verdict.reason, epoch=planned.epoch, batch=planned.index,
                    examples=planned.examples[:64].tolist(), consecutive=learner.guard.consecutive_skips,
                )  # fmt: skip
            if verdict.action in ("rollback", "stop"):
                roll_back(run, verdict, diagnosis)
                continue

            # -- at intervals ------------------------------------------------------------------------------------------
            done = state.step >= config.steps
            if found.stop or found.out_of_time:
                ended_early = "stop requested" if found.stop else f"max_minutes ({config.max_minutes}) have passed"
            line: dict[str, float] = {}
            if run.validate is not None and (done or state.step % config.validate_every == 0):
                line = {f"validation/{name}": value for name, value in run.validate(state.step).items()}
            if line or done or measured or state.step % config.log_every == 0:
                line |= run.averages.take() | throughput.line(lr) | measured
                where = {"epoch": planned.epoch, "batch_in_epoch": planned.index, "mode": kind}
                run.tracker.metrics(state.step, {**where, **line})
            if done or ended_early or run.checkpointer.due(state.step, found.minutes):
                throughput.count_seconds()
                frozen.verify(learner.root)
                if bad := run.checkpointer.save(line):
                    reason = f"after the update {len(bad)} tensors are non-finite, the first of them {bad[0]}"
                    roll_back(run, learner.guard.give_up(reason, non_finite=True), diagnosis)
                    continue
            for observer in observers:
                observer.after_step(state.step, last=done)
    finally:
        batches.close()
        throughput.count_seconds()
        run.checkpointer.wait()
    if ended_early:
        run.tracker.event(state.step, "ended_early", reason=ended_early)
    if run.checkpointer.failed is not None:
        raise run.checkpointer.failed
    return "stopped" if ended_early == "stop requested" and state.step < config.steps else "finished"


def trained(root: TrainableRoot) -> dict[str, Any]:
    """Count the parameters of the run, of the objective if it has any, and of each part."""
    parameters, of_model = (sum(p.numel() for p in module.parameters()) for module in (root, root.model))
    own = {"objective_parameters": parameters - of_model} if parameters > of_model else {}
    return {"parameters": parameters, **own, "parts": count_by_part(root)}


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


def agree(run: Run, tally: Tally) -> Agreed:
    """All-reduce losses, counts and flags as one small float64 tensor, and read it once."""
    process, world = run.process, run.process.world
    flags = torch.zeros(3 + world, dtype=torch.float64)
    flags[0] = float(run.stop_requested())
    flags[1] = float(process.is_main and run.throughput.out_of_time())
    flags[2] = float(process.is_main and run.checkpointer.minutes_over())
    flags = flags.to(tally.numbers.device, non_blocking=True)
    flags[3 + process.rank] = (~torch.isfinite(tally.numbers[0])).double()
    norm = run.learner.optimization.norm().detach().double().reshape(1)
    read: list[float] = collectives.sum_(torch.cat([flags, norm / world, tally.numbers])).tolist()
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


def roll_back(run: Run, verdict: Verdict, diagnosis: str) -> None:
    """Restore weights, optimizer and step of the last checkpoint, lower the learning rate; new batches follow.

    The next batch sets the epoch and the batch number of the state (`TrainingState.drawn`).

    Raises:
        TrainingDiverged: the verdict is to stop, or there is no checkpoint yet.
    """
    state, guard = run.learner.state, run.learner.guard
    run.checkpointer.wait()
    collectives.barrier()  # every rank sees the checkpoint that rank 0 has just finished
    last = latest(run.checkpointer.directory)
    if verdict.action == "stop" or last is None:
        if not (diagnosis or verdict.non_finite):
            diagnosis = "No single first cause was found: the values were finite but too large."
        raise TrainingDiverged(
            f"training diverged at step {state.step}: {' '.join(filter(None, [f'{verdict.reason}.', diagnosis]))} "
            "Lower training.optimizer.lr or clip, lengthen the warm-up, or inspect the examples of the skip events in "
            f"the log. The last good checkpoint is kept: {last or 'none yet'}."
        )
    before = dataclasses.replace(state)
    step = run.checkpointer.restore(last)
    state.draw, state.skipped, state.seconds = before.draw, before.skipped, before.seconds
    state.rollbacks = guard.rollbacks = before.rollbacks + 1
    state.lr_scale = before.lr_scale * run.config.guard.rollback_lr_factor
    guard.forget()
    run.averages.take()
    run.tracker.event(before.step, "rollback", to_step=step, lr_scale=state.lr_scale, reason=verdict.reason)
