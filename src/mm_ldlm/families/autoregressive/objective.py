"""Autoregressive objective (next-token prediction) with the exact likelihood, and its sampler.

−log p(text) = −Σ_l log p(x_l | x_<l), including the end token. The sampler draws each token given the tokens before it,
until the end token.

B examples, L positions, P = L + 1 predictions (the tokens and the end token), M of them scored, A texts that have not
ended, V vocabulary.
"""

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import NonNegativeFloat, PositiveInt, SamplingError, config
from mm_ldlm.diffusion.distributions import TokenLosses, normalise_, token_loss
from mm_ldlm.diffusion.nelbo import Likelihood
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.autoregressive.model import CausalTransformer, NextTokenModel
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, Objective, ObjectiveConfig, require_interface
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.base import Overridable, require_fit, unfit
from mm_ldlm.sampling.denoising import Canvas, Observe, TextSample, unobserved
from mm_ldlm.sampling.limits import Temperature, TopP
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens


@config
class AutoregressiveSampler(Overridable):
    """Text sampler `autoregressive`: draws tokens from left to right, one step for each token.

    Attributes:
        temperature: 0 takes the most probable token (greedy decoding).
        top_k: draw from the k most probable tokens only, which can include the end token.
        top_p: draw from the smallest set of tokens whose probability reaches p (nucleus sampling, arXiv:1904.09751).
    """

    kind: str = "autoregressive"
    temperature: Temperature = 1.0
    top_k: PositiveInt | None = None
    top_p: TopP | None = None

    exceeds_window: ClassVar[bool] = False

    def most_calls(self, length: int) -> int:
        """See `sampling.base.TextSampler.most_calls`: one call for each token."""
        return length

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `sampling.base.TextSampler.refusal`. No diffusion model fits."""
        needs = "a model that predicts the next token"
        return None if process is None else unfit(self.kind, needs, process, instead="'confidence' or 'ancestral'")

    def sample(self, canvas: Canvas) -> TextSample:
        """Write texts of at most L tokens. See `sampling.base.TextSampler.sample`.

        Raises:
            SamplingError: the model is a diffusion model, or a token is given after a position to write.
        """
        require_fit(self, canvas)
        model, given_BL = canvas.denoise, torch.zeros_like(canvas.tokens, dtype=torch.bool)
        if canvas.open is not None:
            given_BL = ~canvas.open & (canvas.tokens != model.pad_id)
            if behind := int((given_BL[:, 1:] & (canvas.open[:, :-1].cumsum(dim=1) > 0)).sum()):
                raise SamplingError(
                    "sampler 'autoregressive' writes from left to right: expected all given tokens at the beginning, "
                    f"found {behind} after a position to write. Choose a run that can infill."
                )
        draw = Draw(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        return autoregressive(
            model, canvas.tokens, given_BL, generator=canvas.generator, draw=draw, observe=canvas.observe
        )


def autoregressive(
    model: CausalTransformer,
    canvas_BL: Tensor,
    given_BL: Tensor,
    *,
    generator: RowGenerator,
    draw: Draw,
    observe: Observe = unobserved,
) -> TextSample:
    """Draw a text for each row of `generator`, token by token, after the tokens that are given (`given_BL`).

    A text that has ended leaves the batch; one that reaches the L positions of the canvas, or a pad of its row, stops
    there without an end token. The numbers drawn for a text depend only on its row of `generator` and on the position.

    Returns:
        Tokens (B, L), padded. `steps` is the position of each token, and −1 at pads. `calls_per_row` counts the model
        calls in which the text took part, including the call for its end token.
    """
    sample = TextSample.start(torch.full_like(canvas_BL, model.pad_id))
    rows_A = torch.arange(len(generator), device=generator.device)
    token_A, cache = torch.full_like(rows_A, model.begin_id), model.start()
    for position in range(canvas_BL.shape[1]):
        log_probs_AV = normalise_(model.step(cache, token_A).float())
        sample = sample.called(rows_A)
        observe(sample.tokens, (rows_A, torch.full_like(rows_A, position)), log_probs_AV)
        u_A = generator.fork(position).uniform(dtype=torch.float64)[rows_A]
        token_A = draw_tokens(log_probs_AV, u_A, draw)
        log_prob_A = log_probs_AV.gather(1, token_A[:, None])[:, 0]
        canvas_A, given_A = canvas_BL[rows_A, position], given_BL[rows_A, position]
        token_A, log_prob_A = torch.where(given_A, canvas_A, token_A), log_prob_A.masked_fill(given_A, 0.0)
        growing_A = (token_A != model.end_id) & (canvas_A != model.pad_id)
        if not bool(growing_A.all()):
            cache.keep(growing_A)
            rows_A, token_A, log_prob_A = rows_A[growing_A], token_A[growing_A], log_prob_A[growing_A]
            if rows_A.numel() == 0:
                break
        at = (rows_A, torch.full_like(rows_A, position))
        sample = dataclasses.replace(
            sample,
            tokens=sample.tokens.index_put(at, token_A),
            log_probs=sample.log_probs.index_put(at, log_prob_A),
            steps=sample.steps.index_put(at, torch.where(given_A[growing_A], -1, at[1])),
        )
    return sample


# -- objective ---------------------------------------------------------------------------------------------------------


@config
class AutoregressiveConfig(ObjectiveConfig):
    """Kind `autoregressive`: next-token prediction of texts, without latents.

    Attributes:
        z_loss: factor of the mean squared log of the softmax's normalising constant (PaLM, arXiv:2204.02311).
    """

    kind: str = "autoregressive"
    z_loss: NonNegativeFloat = 0.0

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, NextTokenModel)
        return Capabilities(
            uses=frozenset({"unconditional", "continue", "score"}),
            likelihood="exact",
            trained_as="objective autoregressive",
        )

    def build(self, shape: DataShape, **stores: Tensor) -> "Autoregressive":
        return Autoregressive(self, shape)


class Autoregressive(Objective):
    """Next-token prediction.

    `text_loss` is the negative log-likelihood of the texts per token: its sum includes the end tokens, its count does
    not. `text_nll` and `text_accuracy` are averages over the predictions, end tokens included.
    """

    def __init__(self, config: AutoregressiveConfig, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.weights = {"text_loss": 1.0, "z_loss": config.z_loss}
        self.units = {"text_loss": "tokens", "z_loss": "tokens"}

    def expected_first_loss(self) -> dict[str, float]:
        """Return log of the number of words and the end token: the model starts at the uniform distribution."""
        return {"text_nll": math.log(len(self.shape.word_ids) + 1)}

    def generative_model(self, model: nn.Module) -> "AutoregressiveGeneration":
        return AutoregressiveGeneration(model, self.shape)

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        dense = self.fixed_shapes or batch.tokens_BL.device.type != "cpu"
        found, scored, targets = _predictions(model, batch.tokens_BL, batch.valid_BL, self.shape, dense=dense)
        nll, count = torch.where(scored, found.nll_M, 0.0), scored.sum()
        tokens = batch.valid_BL.sum()
        losses: Losses = {"text_loss": (nll.sum(), tokens)}
        if self.weights["z_loss"] > 0:
            losses["z_loss"] = (torch.where(scored, found.log_norm_M.square(), 0.0).sum(), tokens)
        with torch.no_grad():
            losses["text_nll"] = (nll.detach().sum(), count)
            losses["text_accuracy"] = (((found.best_M == targets) & scored).sum(), count)
        return losses


def _scored(valid_BL: Tensor) -> Tensor:
    """Select the predictions (B, P) that are scored: every token and the end token; none in an empty row.

    Position l predicts token l, and the position after the last token predicts the end token.
    """
    return F.pad(valid_BL, (1, 0), value=True) & valid_BL.any(dim=1, keepdim=True)


def _predictions(
    model: nn.Module, tokens_BL: Tensor, valid_BL: Tensor, shape: DataShape, *, dense: bool
) -> tuple[TokenLosses, Tensor, Tensor]:
    """Compute the cross-entropy of the predictions; return it with the mask of the scored ones and the targets.

    The tensors cover the M scored predictions, or all B·P predictions if `dense`.
    """
    scored_BP = _scored(valid_BL)
    end_id = shape.vocab_size
    targets_BP = torch.where(F.pad(valid_BL, (0, 1)), F.pad(tokens_BL, (0, 1)), end_id)
    if dense:
        logits_MV, targets_M, scored_M = model(tokens_BL).flatten(0, 1), targets_BP.flatten(), scored_BP.flatten()
    else:
        logits_MV, targets_M = model(tokens_BL, logits_at=scored_BP), targets_BP[scored_BP]
        scored_M = torch.ones_like(targets_M, dtype=torch.bool)
    return token_loss(logits_MV, targets_M, mask_id=-1, pad_id=-1), scored_M, targets_M  # the model forbids both


class AutoregressiveGeneration(GenerativeModel):
    """Left-to-right generation and exact likelihoods of an autoregressive model.

    The model ends texts by itself, so no length is drawn.
    """

    has_length = False

    def default_sampler(self, *, conditional: bool) -> AutoregressiveSampler:
        return AutoregressiveSampler()

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        """Write texts of at most L tokens. This model reads neither latents nor given tokens."""
        return sampler.sample(
            Canvas(denoise=self.model, process=None, tokens=canvas_BL, generator=generator, open=open_BL)
        )

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Compute the exact −log p of each text with its end token, float64, as one draw (K = 1); 0 for a row that is
        only padding."""
        valid_BL = tokens_BL != self.shape.pad_id
        found, _, _ = _predictions(self.model, tokens_BL, valid_BL, self.shape, dense=False)
        scored_BP = _scored(valid_BL)
        nll_BP = torch.zeros(scored_BP.shape, dtype=torch.float64, device=tokens_BL.device)
        return Likelihood(nll_BP.masked_scatter(scored_BP, found.nll_M.double()).sum(1)[None])
