"""Denoising loop of the unmasking samplers, with a policy of each sampler for the order of unmasking.

These samplers differ in three decisions: which positions a step evaluates, which of the drawn tokens it keeps, and
which tokens it returns to `[MASK]`. `denoising_loop` does everything else for all texts at once: timesteps, model
calls (texts without an evaluated position are left out of the batch), draws and counts.

Pads and tokens that are not `[MASK]` at the start are never changed. The canvas fixes the length of a text: the model's
length head predicts it beforehand, so there is no end token.

B texts of the request, A texts that a step evaluates, L positions, V vocabulary, M evaluated positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mm_ldlm.diffusion.masked import unmask_probability
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.guidance import guide_log_probs, guide_prediction, no_condition
from mm_ldlm.sampling.logit_filters import draw_tokens

Logits = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(tokens_AL, t_A, rows_A, evaluated_AL) → logits_MV at the M evaluated positions of the texts `rows_A` of the request.

Each call returns a new tensor, because samplers write into it.
"""
Write = Callable[["Canvas"], "TextSample"]
Where = Tensor | tuple[Tensor, Tensor]
"""Positions of a canvas: bool (B, L), or the rows and the columns of M positions, row by row."""
Observe = Callable[[Tensor, Where, Tensor], None]
"""(tokens_BL before a step, positions that it evaluates, log x_θ (M, V) there), called before anything is drawn."""
TimestepSource = Literal["schedule", "mask_ratio"]
"""Source of the timestep. `schedule`: the current time of the sampler's grid. `mask_ratio`: the time at which the
expected mask ratio equals the text's, so that the model's output depends only on the tokens."""


def unobserved(tokens_BL: Tensor, evaluated: Where, log_x0_MV: Tensor) -> None:
    """Record nothing of a step."""


@dataclass(frozen=True, kw_only=True)
class TextDenoiser:
    """Interface of a model for text samplers: logits at chosen positions. Families add what their samplers read."""

    logits: Logits
    unconditional: Logits | None = None
    """Logits with the condition replaced by the learned null embedding; needed only for guidance"""


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """Texts with positions to be written, the model that writes them, and their random numbers."""

    denoise: Any
    """`TextDenoiser`, or what samplers of other models read"""
    process: TextProcess | None
    """The process that the model was trained with; None if it is not a diffusion model"""
    tokens: Tensor
    """(B, L)"""
    generator: RowGenerator
    open: Tensor | None = None
    """(B, L) bool: limits the sampler to part of the `[MASK]` positions"""
    window: int | None = None
    """Number of positions that the model reads at once; None: no limit"""
    observe: Observe = unobserved
    """Receives every prediction of the model (`sampling.traces`)"""
    divide: Callable[["Canvas", "Write"], "TextSample"] | None = None
    """Calls the sampler's method `write` for each part of a text that the model writes part by part; None: at once"""

    @property
    def diffusion(self) -> TextProcess:
        """The process of a diffusion model."""
        assert self.process is not None
        return self.process

    @cached_property
    def writable_BL(self) -> Tensor:
        """Positions (B, L) that a sampler writes: those that are `[MASK]`, limited to `open`."""
        masked_BL = self.tokens == self.diffusion.mask_id
        return masked_BL if self.open is None else self.open & masked_BL

    def part(self, text: "TextSample", view: slice, open_BL: Tensor, **changes: Any) -> "Canvas":
        """Make the canvas of the positions `view` of a text that is being written, of which `open_BL` (B, L) are open.

        Its observer receives the part within the text.
        """

        def observe(tokens_Bl: Tensor, evaluated_Bl: Any, log_x0_MV: Tensor) -> None:
            before_BT, after_BT = text.tokens[:, : view.start], text.tokens[:, view.stop :]
            evaluated_BL = pad(evaluated_Bl, (before_BT.shape[1], after_BT.shape[1]))
            self.observe(torch.cat([before_BT, tokens_Bl, after_BT], dim=1), evaluated_BL, log_x0_MV)

        observes = unobserved if self.observe is unobserved else observe
        return replace(self, tokens=text.tokens[:, view], open=open_BL[:, view], observe=observes, **changes)

    def guided_log_x0(
        self, tokens_BL: Tensor, t_B: Tensor, rows_A: Tensor, scored_BL: Tensor, *, guidance: float
    ) -> tuple[Tensor, Tensor]:
        """Compute log x_θ (M, V) under guidance at positions of the texts `rows_A`; return the model's output (M, ·)
        too. `tokens_BL` are the tokens by now.

        Scores are guided themselves, s = s_cond^γ·s_uncond^(1−γ), as the rates of arXiv:2406.01572: an x_θ that is
        made from approximate scores may exclude words, and then the quotient of two x_θ has no value.

        Raises:
            SamplingError: guidance needs an unconditional prediction that the denoiser does not have.
        """
        process, row_M = self.diffusion, scored_BL.nonzero()[:, 0]
        tokens_AL, scored_AL = tokens_BL[rows_A], scored_BL[rows_A]
        noisy_M = tokens_AL[scored_AL]

        def output(logits: Logits) -> Tensor:
            return logits(tokens_AL, t_B[rows_A].float(), rows_A, scored_AL)

        def log_x0(output_MV: Tensor) -> Tensor:
            return process.log_x0(process.x0_logits(output_MV, noisy_M, t_B[row_M]), noisy_M)

        output_MV = output(self.denoise.logits)
        unconditional_MV = None
        if guidance != 1.0:
            if self.denoise.unconditional is None:
                raise no_condition(guidance)
            unconditional_MV = output(self.denoise.unconditional)
            if process.traits.predicts_scores:
                output_MV, unconditional_MV = guide_prediction(output_MV, unconditional_MV, scale=guidance), None
        log_x0_MV = log_x0(output_MV)
        if unconditional_MV is not None:
            log_x0_MV = guide_log_probs(log_x0_MV, log_x0(unconditional_MV), scale=guidance)
        self.observe(tokens_BL, scored_BL, log_x0_MV)
        return log_x0_MV, output_MV


@dataclass(frozen=True)
class TextSample:
    """Texts that a sampler wrote, their log-probabilities, and their cost."""

    tokens: Tensor
    """(B, L) with every open position written"""
    log_probs: Tensor
    """(B, L) float32: log-probability of each token when it was last written, before temperature and filters; 0 for
    given tokens
    """
    steps: Tensor
    """(B, L) the step that last changed each token; −1 where it never changed"""
    calls_per_row: Tensor
    """(B,) number of model calls in which the text took part; a guided call counts 2"""
    model_calls: int
    """Number of model calls for the entire request; a guided call counts 2"""

    @classmethod
    def start(cls, tokens_BL: Tensor) -> "TextSample":
        """Make a sample in which nothing is written."""
        nothing_BL = torch.zeros(tokens_BL.shape, dtype=torch.float32, device=tokens_BL.device)
        return cls(tokens_BL, nothing_BL, torch.full_like(tokens_BL, -1), tokens_BL.new_zeros(len(tokens_BL)), 0)

    def written(self, where_BL: Tensor, tokens_BL: Tensor, log_probs_BL: Tensor, step: int) -> "TextSample":
        """Write the tokens at these positions."""
        changed_BL = where_BL & (tokens_BL != self.tokens)
        return replace(
            self,
            tokens=torch.where(where_BL, tokens_BL, self.tokens),
            log_probs=torch.where(where_BL, log_probs_BL, self.log_probs),
            steps=torch.where(changed_BL, step, self.steps),
        )

    def with_part(self, part: "TextSample", view: slice) -> "TextSample":
        """Take over what a sampler wrote at the positions `view` (`Canvas.part`); its steps follow those until now."""
        margins = (view.start, self.tokens.shape[1] - view.stop)
        steps_BL = pad(part.steps, margins, value=-1)
        new_BL = steps_BL >= 0
        return TextSample(
            torch.where(new_BL, pad(part.tokens, margins), self.tokens),
            torch.where(new_BL, pad(part.log_probs, margins), self.log_probs),
            torch.where(new_BL, steps_BL + self.steps.amax(dim=1, keepdim=True) + 1, self.steps),
            self.calls_per_row + part.calls_per_row,
            self.model_calls + part.model_calls,
        )

    def called(self, rows_A: Tensor, *, guidance: float = 1.0) -> "TextSample":
        """Count a model call for the texts `rows_A`."""
        price = 1 if guidance == 1.0 else 2
        calls_B = self.calls_per_row.index_add(0, rows_A, torch.full_like(rows_A, price))
        return replace(self, calls_per_row=calls_B, model_calls=self.model_calls + price)


@dataclass(frozen=True)
class State:
    """State of the canvas before a step."""

    step: int
    grid: "Grid"
    tokens: Tensor
    """(B, L)"""
    masked: Tensor
    """(B, L) bool: open to the sampler and `[MASK]`"""
    written: Tensor
    """(B, L) bool: open to the sampler and already unmasked"""
    log_probs: Tensor
    """(B, L)"""
    generator: RowGenerator
    """Generator of this step; the numbers of a text depend only on its row id, the position and the step"""

    @property
    def last(self) -> bool:
        """Whether this is the last step, which leaves no mask."""
        return self.step == self.grid.steps - 1

    def uniform(self, name: str) -> Tensor:
        """Draw (B, L) float64 numbers in (0, 1), from a separate stream for each `name`."""
        return self.generator.fork(name).uniform(self.tokens.shape[1], dtype=torch.float64)

    def time(self, source: TimestepSource) -> Tensor:
        """Return the times (B,) that the model receives."""
        if source == "schedule":
            return self.grid.at(self.step)
        process = self.grid.process
        ratio_B = _ratio(process, self.tokens, self.tokens == process.mask_id)
        return self.grid.schedule.time_of_mask_ratio(ratio_B)


@dataclass(frozen=True)
class Prediction:
    """Tokens drawn at the evaluated positions, and the model's distribution there, for the statistics of samplers."""

    evaluated: Tensor
    """(B, L) bool"""
    log_x0: Tensor
    """(M, V) log-probabilities of the words, under guidance, before temperature and filters"""
    tokens: Tensor
    """(M,) the drawn tokens"""
    rows: Tensor
    """(A,) index of each evaluated text in the request"""
    times: Tensor
    """(A,) time that the model received"""

    def spread(self, values_M: Tensor, fill: float = -torch.inf) -> Tensor:
        """Place a statistic of the evaluated positions on the canvas: (B, L) float32, `fill` elsewhere."""
        blank_BL = torch.full(self.evaluated.shape, fill, dtype=torch.float32, device=self.evaluated.device)
        return blank_BL.masked_scatter(self.evaluated, values_M.float())

    @property
    def log_prob(self) -> Tensor:
        """(B, L) log-probability of the drawn token; −inf where not evaluated"""
        return self.spread(self.log_x0.gather(1, self.tokens[:, None])[:, 0])


def denoising_loop(
    canvas: Canvas,
    sampler: Any,
    *,
    timestep: TimestepSource,
    query: Callable[[State], Tensor] | None = None,
    keep: Callable[[State, Prediction], Tensor] | None = None,
    remask: Callable[[State], Tensor] | None = None,
    skip_idle: bool = True,
) -> TextSample:
    """Unmask a canvas in up to `sampler.steps` steps, by a process whose only noise is [MASK].

    Args:
        sampler: a `DiffusionSampler`.
        timestep: source of the times that the model receives.
        query: returns the masked positions (B, L) that a step evaluates; None evaluates all.
        keep: returns the drawn tokens (B, L) that are written; None keeps all.
        remask: returns the written tokens (B, L) that become `[MASK]` again; called before the step unmasks tokens.
        skip_idle: leave texts out of a step that evaluates none of their positions; otherwise only finished texts.
    """
    mask_id, open_BL, steps = canvas.diffusion.mask_id, canvas.writable_BL, sampler.steps
    grid, sample = Grid.of(canvas, steps=steps), TextSample.start(canvas.tokens)
    for step in range(steps):
        masked_BL = open_BL & (sample.tokens == mask_id)
        if not bool(masked_BL.any()) and (remask is None or step == steps - 1):
            break
        state = State(
            step, grid, sample.tokens, masked_BL, open_BL & ~masked_BL, sample.log_probs, canvas.generator.fork(step)
        )
        returned_BL = remask(state) if remask is not None and not state.last else None
        asked_BL = masked_BL if query is None else query(state)
        rows_A = (asked_BL if skip_idle else masked_BL).any(dim=1).nonzero().squeeze(1)
        if rows_A.numel():
            t_B = state.time(timestep)
            log_x0_MV, _ = canvas.guided_log_x0(sample.tokens, t_B, rows_A, asked_BL, guidance=sampler.guidance)
            drawn_M = draw_tokens(log_x0_MV, state.uniform("token")[asked_BL], sampler)
            prediction = Prediction(asked_BL, log_x0_MV, drawn_M, rows_A, t_B[rows_A])
            kept_BL = asked_BL if keep is None else keep(state, prediction) & asked_BL
            drawn_BL = sample.tokens.masked_scatter(asked_BL, drawn_M)
            sample = sample.written(kept_BL, drawn_BL, prediction.log_prob, step).called(
                rows_A, guidance=sampler.guidance
            )
        if returned_BL is not None:
            sample = replace(sample, tokens=sample.tokens.masked_fill(returned_BL, mask_id))
    return sample


# --- timesteps that the model receives -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Times of a denoising loop: for each text from its mask ratio at the start to the mask ratio at the end."""

    process: TextProcess
    schedule: MaskSchedule
    steps: int
    start_B: Tensor
    """float64; 1 for a fully masked text"""
    end_B: Tensor
    """float64; 0 unless the sampler leaves some masks"""

    @classmethod
    def of(cls, canvas: Canvas, *, steps: int) -> "Grid":
        """Make the grid for the masks of a canvas, some of which are to be written."""
        process, schedule = canvas.diffusion, canvas.diffusion.mask_schedule
        assert schedule is not None
        masked_BL = canvas.tokens == process.mask_id
        start_B, end_B = (
            schedule.time_of_mask_ratio(_ratio(process, canvas.tokens, chosen_BL))
            for chosen_BL in (masked_BL, masked_BL & ~canvas.writable_BL)
        )
        return cls(process, schedule, steps, start_B, end_B)

    def at(self, step: int) -> Tensor:
        """Return the time (B,) before `step`, float64; step = steps gives the end."""
        return self.start_B + (self.end_B - self.start_B) * (step / self.steps)

    def alpha(self, step: int) -> Tensor:
        """Return α_t (B,) before `step`, float64."""
        return self.schedule.alpha(self.at(step))

    def unmask_fraction(self, step: int) -> Tensor:
        """Compute `(α_s − α_t)/(α_end − α_t)` (B,), float64: the probability that `step` unmasks an open mask.

        With all masks open it is `(α_s − α_t)/(1 − α_t)` (MDLM eq. 7); the last step unmasks everything.
        """
        if step == self.steps - 1:
            return torch.ones_like(self.start_B)
        closed_B = 1 - torch.where(self.end_B > 0, self.alpha(self.steps), 1.0)
        return unmask_probability(self.alpha(step) + closed_B, self.alpha(step + 1) + closed_B)


def _ratio(process: TextProcess, tokens_BL: Tensor, chosen_BL: Tensor) -> Tensor:
    valid_B = (tokens_BL != process.pad_id).sum(dim=1)
    return chosen_BL.sum(dim=1).double() / valid_B.clamp_min(1)
