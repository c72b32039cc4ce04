"""Roll-back of a run whose steps are refused, as the guard decided it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from mm_ldlm.core import TrainingDiverged
from mm_ldlm.distributed import collectives
from mm_ldlm.training.checkpoints.reference import latest
from mm_ldlm.training.guard import Verdict

if TYPE_CHECKING:
    from mm_ldlm.training.loop import Run


def roll_back(run: Run, verdict: Verdict, diagnosis: str) -> None:
    """Restore weights, optimizer and step of the last checkpoint, lower the learning rate, and continue the data.

    The next batch sets its epoch and its place there (`TrainingState.drawn`).

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
