"""Discrete consistency distillation: a model of uniform diffusion learns to write in few steps (Duo, arXiv:2506.10892).

Two latents of one ε, at the times t and s = t − δ, are two points of a deterministic Gaussian trajectory. The student
at argmax w_t learns the prediction of its teacher at argmax w_s. The training consists of rounds: at the start of each
round the teacher becomes a copy of the student, and δ doubles (Duo, algorithm 1).

B examples, L positions, M scored positions, N words.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from mm_ldlm.core import Repeats, bounded, config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.distributed.parallel import full
from mm_ldlm.families.uniform.duo import GaussianText, GaussianTextConfig, Kept
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses
from mm_ldlm.objectives.text_loss import length_loss, text_times


@config
class DistillationConfig(GaussianTextConfig):
    """Kind `duo_distillation`: consistency distillation of the model of `training.init_from`.

    Attributes:
        grid: 1/δ of the first round.
        rounds: rounds of equal length; δ is 2^(rounds − 1)/grid in the last one.
    """

    z_loss: ClassVar[float] = 0.0  # type: ignore[misc]

    kind: str = "duo_distillation"
    kept_first: Kept = 0.999
    kept_last: Kept = 0.005
    grid: Repeats = 512
    rounds: Annotated[int, bounded(gt=0, le=32)] = 5

    def build(self, shape: DataShape, **stores: Tensor) -> "Distillation":
        return Distillation(self, shape)


class Distillation(GaussianText):
    """See the module. The weights of the teacher are persistent buffers, so that a resumed run has the same teacher."""

    config: DistillationConfig
    teacher: nn.Module
    student: Callable[[], Iterator[tuple[str, nn.Parameter]]]

    def __init__(self, config: DistillationConfig, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.weights["distillation_loss"], self.units["distillation_loss"] = config.text_weight, "tokens"

    def attach(self, model: nn.Module) -> None:
        """Make the teacher: a copy of the model, with buffers in the place of parameters."""
        self.student, self.teacher = model.named_parameters, copy.deepcopy(model)
        for module in self.teacher.modules():
            for name, parameter in [*module.named_parameters(recurse=False)]:
                delattr(module, name)
                module.register_buffer(name, parameter.detach())

    def round_of(self, step: int) -> int:
        """Compute the round, from 0, that a step belongs to."""
        return min(step * self.config.rounds // (self.training_steps or 1), self.config.rounds - 1)

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        """See `objectives.base.Objective`; in evaluation mode the losses are uniform diffusion's."""
        if not self.training:
            return super().forward(model, batch, generator, kind=kind, step=step)
        number = self.round_of(step)
        if step == 0 or number != self.round_of(step - 1):
            for name, parameter in self.student():
                self.teacher.get_buffer(name).copy_(full(parameter.detach()))
        delta = min(2**number / self.config.grid, 1.0)
        t_B = (text_times(self.process, batch, generator).double() + delta).clamp_max(1.0)
        gammas = self.gamma(t_B), self.gamma(t_B - delta)
        late, early = (
            self.noisy_texts(latents_BLN, gamma_B, batch)[0]
            for latents_BLN, gamma_B in zip(self.latents(batch, gammas, generator), gammas, strict=True)
        )
        at = late.logits_at(fixed_shapes=self.fixed_shapes)
        given = {"valid_BL": batch.valid_BL, "logits_at": at}
        logits, length_logits = model(late.tokens_BL, t_B=late.t_B, **given)
        with torch.no_grad():
            aims = self.log_words(self.teacher.eval()(early.tokens_BL, t_B=early.t_B, **given).logits)
        found = self.log_words(logits)
        divergence = (found.exp() * (found - aims)).sum(dim=-1)  # KL(student ‖ teacher), as in the official code
        scored, tokens = (batch.valid_BL if at is None else batch.valid_BL[at]), batch.valid_BL.sum()
        losses: Losses = {"distillation_loss": (torch.where(scored, divergence, 0.0).sum(), tokens)}
        with torch.no_grad():
            losses["step_size"] = (tokens * delta, tokens)
        return losses | (length_loss(length_logits, batch) if self.config.length_weight > 0 else {})

    def log_words(self, logits: Tensor) -> Tensor:
        """Compute log x_θ (…, N) of the words."""
        return logits[..., self.process.word_ids_N].float().log_softmax(dim=-1)
