"""Write a sentence at intervals of time, to show the progress of training.

A model that writes texts from latents rebuilds one held-out sentence from its latent; a model that writes texts from
noise writes a text of the length of that sentence, always from the same noise. Models that do neither show nothing.
"""

import math
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.training.loop import Run
from mm_ldlm.training.observers import Observer
from mm_ldlm.training.seeds import step_seed

MOST = 0.01
"""Largest fraction of the time that the sentences take; a slower model shows them at a longer interval"""
TRIED = 1000
"""Number of the sentences of about median length among which one without unknown words is searched"""
LONGEST = 64
"""Length in tokens of the canvas of a model that decides itself where a text ends"""

Task = Literal["l2t", "unconditional"]


def task_of(capabilities: Capabilities) -> Task | None:
    """Return what a run with these capabilities can show; None if it writes no texts."""
    if "l2t" in capabilities:
        return "l2t"
    orders = capabilities.joint_orders
    return "unconditional" if "unconditional" in capabilities and (not orders or "text_first" in orders) else None


def preview(run: Run) -> "Preview | None":
    """Make the preview of the first rank; None if it is off or nothing can be shown."""
    folder, spec = run.data.folders.get("tokenizer"), run.spec
    sharded = run.config.parallel == "fsdp" and run.process.world > 1  # a forward pass of such a model needs all ranks
    task = task_of(spec.objective.capabilities(spec.model))
    if run.config.show_every_seconds is None or not run.process.is_main or folder is None or sharded or task is None:
        return None
    return Preview(run, task=task, tokenizer=folder)


class Preview(Observer):
    """Writes the sentence and records it as the event `preview`, on the first rank.

    It does not change the training: it has a separate random generator, reads the weights of the step as they are
    (not their averages) outside of DDP, and computes no gradients. An error ends the previews and not the training.

    Attributes:
        source: split of which a sentence of median length is rebuilt, or the next one without unknown words.
    """

    def __init__(self, run: Run, *, task: Task, tokenizer: Path) -> None:
        self.root, self.source, self.tracker = run.learner.root, run.data.validation or run.data.train, run.tracker
        self.task, self.seed, self.every = task, run.spec.seed, run.config.show_every_seconds or math.inf
        self._row = np.array([])
        self._folder = tokenizer
        self._tokenizer: TextTokenizer | None = None
        self._due = 0.0

    def after_step(self, step: int, *, last: bool) -> None:
        """Show the sentence if it is due: after the first step of a session, at the interval, after the last step."""
        if time.monotonic() < self._due and not (last and self._due < math.inf):
            return
        try:
            started = time.monotonic()
            text, *original = self.texts()
        except Exception as error:
            self._due = math.inf
            self.tracker.event(step, "preview_failed", reason=f"{type(error).__name__}: {error}")
            return
        seconds = time.monotonic() - started
        self._due = time.monotonic() + max(self.every, seconds / MOST)
        words = {"original": original[0] if original else None, "text": text, "seconds": round(seconds, 3)}
        self.tracker.event(step, "preview", **words)

    def texts(self, *, sampler: Any = None) -> list[str]:
        """Write the sentence, by the model's default sampler if none is given; the original follows if there is one."""
        if self._tokenizer is None:
            self._tokenizer = TextTokenizer.load(self._folder)
            self._row = self._usual_row(self._tokenizer.unk_id)
        length = int(self.source.lengths[self._row[0]])
        rows = [self._write(length, sampler)]
        if self.task == "l2t":
            rows.append(self.source.tokens(self._row, length=length)[0].tolist())
        return self._tokenizer.decode_batch(rows)

    def _usual_row(self, unk_id: int | None) -> npt.NDArray[np.int64]:
        """Choose the row (1,) whose length is nearest to the median, if possible one without an unknown word."""
        lengths = self.source.lengths
        nearest = np.argsort(np.abs(lengths - np.median(lengths)), kind="stable")[:TRIED, None]
        known = (row for row in nearest if unk_id not in self.source.tokens(row, length=int(lengths[row[0]]))[0])
        return next(known, nearest[0])

    @torch.no_grad()
    def _write(self, length: int, sampler: Any) -> list[int]:
        """Write one text: ids without pads, given the latent of the sentence or from noise."""
        model = self.root.objective.generative_model(self.root.model)
        device = next(self.root.parameters()).device
        given = self.task == "l2t"
        latents_1d = torch.from_numpy(self.source.field("latents", self._row)).to(device) if given else None
        generator = RowGenerator(step_seed(self.seed, 0, "preview"), torch.zeros(1, dtype=torch.int64).to(device))
        length = min(length if model.has_length else LONGEST, model.shape.max_length)
        canvas_1L = torch.full((1, length), model.shape.mask_id, device=device)
        self.root.eval()
        try:
            sample = model.write(
                canvas_1L, torch.ones_like(canvas_1L, dtype=torch.bool), latents_Bd=latents_1d,
                sampler=sampler or model.default_sampler(conditional=given), generator=generator,
            )  # fmt: skip
        finally:
            self.root.train()
        return [index for index in sample.tokens[0].tolist() if index != model.shape.pad_id]
