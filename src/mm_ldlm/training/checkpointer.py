"""Save and restore the checkpoints of a run, at the steps that the parameters determine."""

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from mm_ldlm.core import CheckpointError, to_dict
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, latest
from mm_ldlm.training.checkpoints.weights import differences, identity_of, refuse_other
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.learner import Learner
from mm_ldlm.training.spec import TrainingSpec


class Checkpointer:
    """Saves and restores the learner of a run.

    Attributes:
        directory: folder of the checkpoints.
        identity: properties that a checkpoint must share with the run that loads it: model, data shape, tokenizer,
            normaliser, encoder, and those that the objective adds.
        session: properties that may differ between two sessions of a run; differences are logged.
        folders: folders copied into every checkpoint, so that the run folder suffices for sampling.
        failed: error of the last checkpoint that was written, or None.
    """

    def __init__(
        self, learner: Learner, spec: TrainingSpec, process: Process, tracker: Tracker, *, run: Path,
        folders: dict[str, Path],
    ) -> None:  # fmt: skip
        self.learner, self.config, self.process, self.tracker = learner, spec.training.checkpoint, process, tracker
        self.directory, self.folders = run / CHECKPOINTS, folders
        self.identity = identity_of(
            model=spec.model, shape=spec.shape, objective=spec.objective, fingerprints=spec.fingerprints
        )
        data = {name: value for name, value in spec.fingerprints.items() if name not in ("tokenizer", "normaliser")}
        self.session = {
            "seed": spec.seed, "world": process.world, "max_steps": spec.training.steps, "torch": torch.__version__,
            "batch": to_dict(spec.training.batch), "optimizer": to_dict(spec.training.optimizer),
            "objective": to_dict(spec.objective), "precision": to_dict(spec.training.precision), "data": data,
        }  # fmt: skip
        self.failed: CheckpointError | None = None
        self._last_time = time.monotonic()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    # -- when -------------------------------------------------------------------------------------------------------

    def minutes_over(self) -> bool:
        """Return whether `every_minutes` have passed on this rank; only the result of rank 0 is used."""
        every = self.config.every_minutes
        return every is not None and time.monotonic() - self._last_time > every * 60

    def due(self, step: int, minutes: bool) -> bool:
        return minutes or (self.config.every_steps is not None and step % self.config.every_steps == 0)

    # -- save -------------------------------------------------------------------------------------------------------

    def save(self, line: dict[str, float]) -> list[str]:
        """Save a checkpoint, in the background if configured. Every rank must call this; rank 0 writes.

        Returns the names of non-finite tensors; if there are any, nothing is saved.

        Args:
            line: metrics of this step; they determine `best`.
        """
        self._last_time = time.monotonic()
        tensors, non_finite = self.learner.snapshot(keep=self.process.is_main)
        if found := next((names for names in collectives.gather(non_finite) if names), None):  # all ranks decide
            return found
        self.wait()
        before, best = self.learner.state.best, self._is_best(line)
        if self.process.is_main:
            metrics = {name: value for name, value in line.items() if math.isfinite(value)}
            state = {**self.learner.numbers(), "identity": self.identity, "session": self.session, "metrics": metrics}
            documents = {"training_state.json": state, "optimizer.json": self.learner.optimization.describe()}
            step = self.learner.state.step
            self._writing = self._writer.submit(self._write, step, tensors, documents, best, before)
            if not self.config.background:
                self.wait()
        return []

    def wait(self) -> None:
        """Wait until the current checkpoint is written or has failed."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, step: int, tensors: Any, documents: Any, best: bool, before: float | None) -> None:
        started = time.perf_counter()
        try:
            path = folder.write(self.directory, step, tensors=tensors, documents=documents, folders=self.folders)
            if best:
                folder.point(self.directory, "best", path)
            folder.apply_retention(self.directory, last=self.config.keep_last, every=self.config.keep_every)
            self.failed = None
            seconds = round(time.perf_counter() - started, 3)
            self.tracker.event(step, "checkpoint", seconds=seconds, folder=path.name)
        except (CheckpointError, OSError) as error:
            self.learner.state.best = before  # the best checkpoint that exists
            self.failed = error if isinstance(error, CheckpointError) else CheckpointError(str(error))
            self.tracker.event(step, "checkpoint_failed", reason=str(error))

    def _is_best(self, line: dict[str, float]) -> bool:
        """Return whether the metric of `best` is the best so far; `state.best` stores its value."""
        name, best = self.config.best_metric, self.learner.state.best
        if name is None:
            return False
        step, every = self.learner.state.step, self.config.every_steps
        if name not in line and every is not None and step % every == 0:  # at other steps it may be unmeasured
            self.tracker.event(step, "best_unknown", reason=f"no {name!r} among {sorted(line)}")
        value = line.get(name, math.nan)
        better = best is None or (value < best if self.config.best_is == "min" else value > best)
        if better := better and math.isfinite(value):
            self.learner.state.best = value
        return better

    # -- restore ----------------------------------------------------------------------------------------------------

    def resume(self, origin: str, root: Path) -> str | None:
        """Restore the newest checkpoint of the run, or else the one in `training.resume`; return its name or None.

        `never` does not apply to restarts after a lost rank. An incomplete checkpoint is refused, not skipped.
        """
        if origin == "never" and self.process.attempt == 0:
            return None
        path = latest(self.directory)
        if path is None and origin not in ("auto", "never"):
            path = folder.find(root / origin)
        if path is None:
            return None
        self.restore(path)
        return path.name

    def restore(self, path: Path) -> int:
        """Load a checkpoint on every rank; return its step.

        Raises:
            CheckpointError: it is damaged, belongs to another model, tokenizer, normaliser or encoder, or contains
                non-finite numbers.
        """
        self.wait()
        collectives.barrier()  # rank 0 may just have finished writing
        folder.check(path)
        document = folder.document(path, "training_state.json")
        refuse_other(
            self.identity, document.get("identity"), path,
            remedy="Restore these values, train under a new name (training.run_name=NEW), or start anew "
            "(training.resume=never).",
        )  # fmt: skip
        tensors = {name: folder.tensors(path, name) for name in self.learner.tensors()}
        self.learner.load(tensors, document, path)
        if differing := differences(document.get("session") or {}, self.session):
            self.tracker.event(self.learner.state.step, "resume_differs", fields=differing)
        return self.learner.state.step
