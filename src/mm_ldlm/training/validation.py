"""The training losses on rows that are never trained on, with the averaged weights and the same noise every time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.distributed import collectives
from mm_ldlm.objectives.base import Objective
from mm_ldlm.training.batches import BatchPlan, Loader, Source
from mm_ldlm.training.state import step_seed

if TYPE_CHECKING:
    from mm_ldlm.training.loop import Run


class Subset:
    """The first rows of a fixed permutation of a source."""

    def __init__(self, source: Source, count: int, *, seed: int) -> None:
        self.source, self.pad_id = source, source.pad_id
        order = np.random.default_rng([seed, 0]).permutation(len(source.lengths))
        self.rows = np.sort(order[:count])
        self.lengths = source.lengths[self.rows]

    def tokens(self, rows: np.ndarray, *, length: int) -> np.ndarray:
        return self.source.tokens(self.rows[rows], length=length)

    def latents(self, rows: np.ndarray) -> np.ndarray:
        return self.source.latents(self.rows[rows])


class Validation:
    """Losses over one pass of the subset, by objective (`objectives`: name → objective of one mode)."""

    def __init__(
        self, source: Source, objectives: Mapping[str, Objective], *, rows: int, seed: int, max_length: int, fill: bool
    ) -> None:
        self.objectives, self.seed, self.fill, self.max_length = objectives, seed, fill, max_length
        self.subset = Subset(source, rows, seed=seed)

    def __call__(self, parts: Run) -> dict[str, float]:
        """`MODE/NAME` → average over all rows, the same on every rank; `loss` is the mean of the modes' totals."""
        process, model = parts.process, parts.parallel.inner.model
        plan = BatchPlan(self.subset.lengths, parts.config.batch, seed=self.seed, max_length=self.max_length)
        loader = Loader(plan, self.subset, rank=process.rank, world=process.world, fill=self.fill)
        count = len(plan.epoch(0))
        sums: dict[str, torch.Tensor] = {}
        model.eval()
        with torch.no_grad(), parts.ema.swapped():
            for planned in plan.first(count):
                for micro in loader.make(planned):
                    batch = micro.to(process.device)
                    for name, objective in self.objectives.items():
                        generator = RowGenerator(
                            step_seed(self.seed, planned.index, f"validation/{name}"), batch.position_B
                        )
                        for key, pair in objective(model, batch, generator, step=0).items():
                            both = torch.stack([pair[0].double(), pair[1].double()])
                            label = f"{name}/{key}"
                            sums[label] = sums[label] + both if label in sums else both
        model.train()
        read = collectives.sum_(torch.stack(list(sums.values()))).tolist()
        found = {name: value / number for name, (value, number) in zip(sums, read, strict=True) if number > 0}
        totals = [
            sum(weight * found.get(f"{name}/{key}", 0.0) for key, weight in objective.weights.items())
            for name, objective in self.objectives.items()
        ]
        return {"loss": sum(totals) / len(totals), **found}
