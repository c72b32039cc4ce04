"""Compute validation losses and perplexity on held-out examples, with the EMA weights and the same noise every time."""

import dataclasses
import math

import numpy as np
import torch

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.parallel import reshard
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.training.batches import BatchPlan, Loader, Source
from mm_ldlm.training.learner import Learner
from mm_ldlm.training.seeds import step_seed
from mm_ldlm.training.spec import TrainingSpec

_SCORES: tuple[str, ...] = ("score", "score_given_latent")
"""Uses that give a likelihood of texts, the preferred one first"""
_LARGEST = 700.0
"""Largest number of nats per token that is exponentiated; the result is still finite"""


class Validation:
    """Validation losses of one pass over a fixed part of the split, separately for each kind of step, and perplexity.

    A run without a likelihood of texts has no perplexity.
    """

    def __init__(self, source: Source, learner: Learner, spec: TrainingSpec, process: Process) -> None:
        self.root, self.ema, self.process, self.seed = learner.root, learner.ema, process, spec.seed
        config, fields = spec.training, self.root.objective.fields
        capabilities = spec.objective.capabilities(spec.model)
        readable = [use for use in _SCORES if use == "score" or "latents" in fields]
        self._given_length = capabilities.likelihood == "given_length"
        self._scores = next((use for use in readable if use in capabilities), None)
        batch = config.batch
        if config.validation_batch is not None:
            batch = dataclasses.replace(batch, tokens=None, examples=config.validation_batch, accumulation=1)
        order = np.random.default_rng([spec.seed, 0]).permutation(len(source.lengths))
        self.examples = np.sort(order[: config.validation_examples])
        self.plan = BatchPlan(source.lengths[self.examples], batch, seed=spec.seed, max_length=spec.shape.max_length)
        self.loader = Loader(self.plan, source, fields, process, fill=config.precision.compile)

    def __call__(self, step: int, *, batches: int | None = None) -> dict[str, float]:
        """Compute `KIND/NAME` → average over all examples, equal on all ranks; `loss` is the mean of the totals.

        `batches` is the number of batches to read; None reads all.

        `nll` and `perplexity` are as in the evaluation, from one draw for each text: per token, length included if
        the run has learned it, and without a latent if the run can score texts without one.
        """
        objective = self.root.objective
        generative = None if self._scores is None else objective.generative_model(self.root.model)
        sums: dict[str, torch.Tensor] = {}
        self.root.eval()
        with torch.no_grad(), self.ema.swapped():
            for planned in self.plan.first(batches or len(self.plan.epoch(0))):
                of_source = dataclasses.replace(planned, examples=self.examples[planned.examples])
                for micro in self.loader.make(of_source):
                    batch = micro.to(self.process.device)
                    found = self._losses(batch, draw=planned.index, step=step)
                    if generative is not None:
                        found["nll"] = self._negative_log_likelihood(generative, batch, draw=planned.index)
                    for name, pair in found.items():
                        sums[name] = sums[name] + pair if name in sums else pair
            reshard(self.root)
        self.root.train()
        read = collectives.sum_(torch.stack(list(sums.values()))).tolist()
        means = {name: value / number for name, (value, number) in zip(sums, read, strict=True) if number > 0}
        totals = [
            sum(weight * means.get(f"{kind}/{key}", 0.0) for key, weight in objective.weights.items())
            for kind in objective.kinds
        ]
        if "nll" in means:
            means["perplexity"] = math.exp(min(means["nll"], _LARGEST))
        return {"loss": sum(totals) / len(totals), **means}

    def _losses(self, batch: Batch, *, draw: int, step: int) -> dict[str, torch.Tensor]:
        """Compute (2,) float64 of each loss by `KIND/NAME`: sum and count of this rank."""
        objective = self.root.objective
        found: dict[str, torch.Tensor] = {}
        for kind in objective.kinds:
            generator = RowGenerator(step_seed(self.seed, draw, f"validation/{kind}"), batch.position_B)
            losses = objective(self.root.model, batch, generator, kind=kind, step=step)
            found |= {f"{kind}/{key}": torch.stack([part.double() for part in pair]) for key, pair in losses.items()}
        return found

    def _negative_log_likelihood(self, model: GenerativeModel, batch: Batch, *, draw: int) -> torch.Tensor:
        """Compute (2,) float64: the sum of −log p of the texts of this rank, and the number of their tokens."""
        given = batch.fields["latents"] if self._scores == "score_given_latent" else None
        generator = RowGenerator(step_seed(self.seed, draw, "validation/nll"), batch.position_B)
        nll_B = model.likelihood(batch.tokens_BL, latents_Bd=given, draws=1, generator=generator).nll_KB[0]
        lengths_B = batch.valid_BL.sum(dim=1)
        if model.has_length and not self._given_length:
            log_probs_BN = model.length_log_probs(given, rows=len(nll_B)).double()
            nll_B = nll_B - log_probs_BN.gather(1, (lengths_B - 1).clamp(min=0)[:, None])[:, 0]
        real_B = batch.real_B
        return torch.stack([torch.where(real_B, nll_B, 0.0).sum().double(), (lengths_B * real_B).sum().double()])
