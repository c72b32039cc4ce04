"""Checkpointing of a run: when it is saved, what is saved, and how it is restored."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.core.messages import show
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.parallel import assign, full
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.identity import differences, refuse_other
from mm_ldlm.training.checkpoints.weights import (
    load_parameters,
    load_tensors,
    persistent_buffers,
    refuse_non_finite,
    saved_tensors,
)
from mm_ldlm.training.checkpoints.writer import Writer
from mm_ldlm.training.config import CheckpointConfig
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.guard import Guard
from mm_ldlm.training.optimizer import Optimization
from mm_ldlm.training.state import TrainingState, random_states, restore_random_states
from mm_ldlm.training.tracker import Tracker


class Checkpointer:
    """Checkpointer of a run: the trainable root, its EMA, optimizer, guard, counters and random states.

    Args:
        identity: properties that a checkpoint must share with the run that loads it: model, data shape, tokenizer,
            normaliser, encoder, and those that the objective adds.
        session: properties that may differ between two sessions of a run; differences are logged.
        folders: folders copied into every checkpoint, so that the run folder suffices for sampling.
    """

    def __init__(
        self, directory: Path, config: CheckpointConfig, *, root: torch.nn.Module, ema: Ema, optimization: Optimization,
        guard: Guard, state: TrainingState, scaler: Any, process: Process, identity: dict[str, Any],
        session: dict[str, Any], folders: dict[str, Path], tracker: Tracker,
    ) -> None:  # fmt: skip
        self.directory, self.config, self.identity, self.session = directory, config, identity, session
        self.root, self.ema, self.optimization, self.guard, self.state = root, ema, optimization, guard, state
        self.scaler, self.process, self.folders, self.tracker = scaler, process, folders, tracker
        self._last_time = time.monotonic()
        self._writer = Writer(
            directory, keep_last=config.keep_last, keep_every=config.keep_every, background=config.background,
            report=self._report,
        )  # fmt: skip

    # -- when -------------------------------------------------------------------------------------------------------

    def minutes_over(self) -> bool:
        """Return whether `every_minutes` have passed on this rank; only the answer of rank 0 is used."""
        every = self.config.every_minutes
        return every is not None and time.monotonic() - self._last_time > every * 60

    def due(self, step: int, minutes: bool) -> bool:
        return minutes or (self.config.every_steps is not None and step % self.config.every_steps == 0)

    # -- save -------------------------------------------------------------------------------------------------------

    def save(self, line: dict[str, float]) -> None:
        """Take a snapshot of the run and write it. Every rank must call this; rank 0 writes.

        `line` contains the metrics of this step, which determine `best`.
        """
        self._last_time = time.monotonic()
        best = self._is_best(line)
        tensors = {
            "model.safetensors": _snapshot(saved_tensors(self.root)),
            "optimizer.safetensors": _snapshot(self.optimization.tensors()),
        }
        if self.ema.values:
            tensors["ema.safetensors"] = _snapshot(self._averages())
        ranks = _random_states_of_all(self.process.device)
        if not self.process.is_main:
            return
        for rank, states in enumerate(ranks):
            tensors[f"rng_state_rank{rank}.safetensors"] = states
        document = {
            "state": self.state.to_dict(),
            "guard": self.guard.to_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "identity": self.identity,
            "session": self.session,
            "metrics": {name: value for name, value in line.items() if value == value and abs(value) != float("inf")},
        }
        documents = {"training_state.json": document, "optimizer.json": self.optimization.describe()}
        self._writer.save(self.state.step, Contents(tensors, documents, self.folders), best=best)

    def _averages(self) -> dict[str, Tensor]:
        """The averages, with the buffers that inference needs beside them."""
        return {**self.ema.values, **persistent_buffers(self.root)}

    def _is_best(self, line: dict[str, float]) -> bool:
        """Return whether the metric of `best` is the best so far; `state.best` stores its value."""
        name, best = self.config.best_metric, self.state.best
        if name is None or not line:
            return False
        if name not in line:
            reason = f"no {name!r} among {sorted(line)}"
            self.tracker.event(self.state.step, "best_unknown", reason=reason)
            return False
        value = line[name]
        if best is not None and not (value < best if self.config.best_is == "min" else value > best):
            return False
        self.state.best = value
        return True

    def wait(self) -> None:
        self._writer.wait()

    def failed(self) -> CheckpointError | None:
        """Return the error of the last checkpoint, or None if it did not fail."""
        return self._writer.failed

    def latest(self) -> str:
        self.wait()
        try:
            name = folder.pointer(self.directory, "latest")
        except CheckpointError as error:
            return str(error)
        return "none yet" if name is None else str(self.directory / name)

    def _report(self, step: int, seconds: float, error: CheckpointError | None) -> None:
        if error is None:
            self.tracker.event(step, "checkpoint", seconds=round(seconds, 3), folder=folder.name_of(step))
        else:
            self.tracker.event(step, "checkpoint_failed", reason=str(error))

    # -- restore ----------------------------------------------------------------------------------------------------

    def newest(self) -> Path | None:
        """Find the newest complete checkpoint of this run; damaged ones are reported and skipped."""
        path, damaged = folder.newest_whole(self.directory)
        for text in damaged:
            self.tracker.event(0, "checkpoint_damaged", reason=text)
        return path

    def restore(self, path: Path | None = None) -> int:
        """Load a checkpoint (by default the newest of the run) on every rank; return its step.

        Raises:
            CheckpointError: there is no checkpoint, it belongs to another model, tokenizer, normaliser or encoder, or
                its weights are not finite.
        """
        self.wait()
        collectives.barrier()  # rank 0 may just have finished writing
        path = path or self.newest()
        if path is None:
            raise CheckpointError(f"{self.directory}: expected a complete checkpoint to restore, found none.")
        document = folder.document(path, "training_state.json")
        remedy = (
            "Restore these values, choose another checkpoint, or start from the beginning with training.resume=never."
        )
        refuse_other(self.identity, document.get("identity"), path, remedy=remedy)
        weights = {"model.safetensors": folder.tensors(path, "model.safetensors")}
        if self.ema.values:
            weights["ema.safetensors"] = folder.tensors(path, "ema.safetensors")
        learned = dict(self.root.named_parameters()).keys()
        for name, tensors in weights.items():
            refuse_non_finite(
                {key: value for key, value in tensors.items() if key in learned}, path / name,
                remedy="Remove this checkpoint, so that the run continues from the one before, or lower "
                "training.optimizer.lr and start again.",
            )  # fmt: skip
        load_parameters(self.root, weights["model.safetensors"], path)
        if self.ema.values:
            load_tensors(self._averages(), weights["ema.safetensors"], path / "ema.safetensors")
        try:
            found = self._restore_state(path, document)
        except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path}: the state of the optimizer, the random generators or the guard cannot be restored "
                f"({type(error).__name__}: {show(str(error), 200)}). Choose another checkpoint."
            ) from None
        if differing := differences(document["session"], self.session):
            self.tracker.event(found.step, "resume_differs", fields=differing)
        return found.step

    def _restore_state(self, path: Path, document: dict[str, Any]) -> TrainingState:
        """Load all but the weights; return the counters of the run."""
        self.optimization.load(folder.tensors(path, "optimizer.safetensors"), _placed_like)
        if self.scaler is not None and document["scaler"]:
            self.scaler.load_state_dict(document["scaler"])
        self.guard.load(document["guard"])
        found = TrainingState.from_dict(document["state"])
        for name, value in found.to_dict().items():
            setattr(self.state, name, value)
        own = path / f"rng_state_rank{self.process.rank}.safetensors"
        if own.is_file():
            restore_random_states(folder.tensors(path, own.name), self.process.device)
        return found


def _placed_like(parameter: Tensor, value: Tensor) -> Tensor:
    made = torch.empty_like(parameter, dtype=value.dtype)
    assign(made, value)
    return made


def _snapshot(tensors: Any) -> dict[str, Tensor]:
    """Copy tensors (unsharded) to the CPU, so that later steps do not change them."""
    return {name: full(value.detach()).to("cpu", copy=True) for name, value in tensors.items()}


def _random_states_of_all(device: torch.device) -> list[dict[str, Tensor]]:
    return collectives.gather(random_states(device))
