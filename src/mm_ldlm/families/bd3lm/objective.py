"""Block diffusion (BD3-LM, arXiv:2503.09573): masked diffusion of each block of a text given the blocks before it.

−log p(x | length) ≤ Σ_b ∫₀¹ (1/m) E[Σ over the masked positions of block b of −log x_θ(x_t^b, x^{<b})] dm (eq. 6 to 8):
the likelihood of an autoregressive model for blocks of one token, and the NELBO of MDLM for one block.

B examples, L positions, l positions of a block, N blocks, M scored positions, K draws.
"""

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from mm_ldlm.core import bounded, config, refuse_if
from mm_ldlm.diffusion.masked import Absorbing, AbsorbingConfig
from mm_ldlm.diffusion.nelbo import Likelihood, integrate
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.times import antithetic
from mm_ldlm.families.bd3lm.model import BlockModel, KeyValueCache
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, untrained_lengths
from mm_ldlm.objectives.generation import DenoiserGeneration
from mm_ldlm.objectives.text_diffusion import TextDiffusion, TextDiffusionConfig
from mm_ldlm.objectives.text_loss import NoisyTexts, length_loss, text_losses
from mm_ldlm.sampling.denoising import Canvas, TextDenoiser, TextSample, Write


@config
class BlockDiffusionConfig(TextDiffusionConfig):
    """Kind `block_diffusion`: masked diffusion of the blocks of a text, one after another.

    Attributes:
        t_max: largest time that training draws. With `process.t_min` these are the clipped schedules of the paper
            (§5.3), which lower the variance of the loss: [.45, .95] for blocks of 4 tokens, [.3, .8] for 16.
    """

    kind: str = "block_diffusion"
    t_max: Annotated[float, bounded(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        refuse_if(
            not isinstance(self.process, AbsorbingConfig),
            f"process must be 'absorbing', whose tokens are final once they are written, found '{self.process.kind}'",
            "process.kind",
        )
        refuse_if(
            self.t_max < self.process.t_min,
            f"t_max must be at least process.t_min, found {self.t_max:g} and {self.process.t_min:g}",
            "t_max",
            "process.t_min",
        )

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`. A block does not see given tokens after it."""
        require_interface(self, model, BlockModel)
        no_lengths = untrained_lengths(self, given=None)
        return Capabilities(
            uses=frozenset({"unconditional", "score"}),
            likelihood="given_length" if no_lengths else "exact" if model.block_length == 1 else "bound",
            untrained_lengths={"unconditional": no_lengths},
            process=self.process,
            trained_as=f"objective {self.kind}, blocks of {model.block_length} tokens",
        )

    def build(self, shape: DataShape, **stores: Tensor) -> "BlockDiffusion":
        return BlockDiffusion(self, shape, **stores)


class BlockDiffusion(TextDiffusion):
    """Losses of text and length; each block of a text has its own time."""

    config: BlockDiffusionConfig
    process: Absorbing
    block_length: int

    def attach(self, model: nn.Module) -> None:
        self.block_length = model.block_length  # type: ignore[assignment]

    def generative_model(self, model: nn.Module) -> "BlockGeneration":
        return BlockGeneration(model, self.shape, self.process, self.config)

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        noisy = self.corrupt(batch, generator)
        logits, length_logits = model(
            noisy.tokens_BL, valid_BL=batch.valid_BL, clean_BL=batch.tokens_BL,
            logits_at=noisy.logits_at(fixed_shapes=self.fixed_shapes),
        )  # fmt: skip
        losses = text_losses(self.process, logits, batch, noisy, z_loss=self.config.z_loss > 0)
        return losses | (length_loss(length_logits, batch) if self.config.length_weight > 0 else {})

    def corrupt(self, batch: Batch, generator: RowGenerator) -> NoisyTexts:
        """Mask each block at its own time in [t_min, t_max].

        The times are low-discrepancy over all blocks of the global batch, and evenly spaced within a text. There are as
        many as the longest text has blocks, so that they do not depend on padding.
        """
        L = batch.tokens_BL.shape[1]
        number_N = torch.arange(-(-self.shape.max_length // self.block_length), device=batch.tokens_BL.device)
        index_BN = batch.position_B[:, None] + batch.global_size * number_N
        u = generator.fork("text_time").shared_uniform()
        phase_BN = antithetic(u, index_BN, batch.global_size * len(number_N), 0.0)
        t_BN = self.process.t_min + (self.config.t_max - self.process.t_min) * phase_BN
        t_BL = t_BN.repeat_interleave(self.block_length, dim=1)[:, :L]
        uniform_BL = generator.fork("text_noise").uniform(L, dtype=torch.float32)
        masked_BL = (uniform_BL < self.process.mask_probability(t_BL)) & batch.valid_BL
        noisy_BL = batch.tokens_BL.masked_fill(masked_BL, self.shape.mask_id)
        return NoisyTexts(noisy_BL, t_BL, self.process.scored(noisy_BL, batch.valid_BL))


class BlockGeneration(DenoiserGeneration):
    """Texts written block by block, and likelihoods.

    A sampler writes one block after another as if it were a text, with its number of steps for each. The keys and
    values of the finished blocks are cached: one further model call appends a block's.
    """

    process: Absorbing

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        """Make a denoiser of texts whose blocks before the one that is asked for are written, without a cache."""
        if latents_Bd is not None:
            raise self._missing("texts given latents")

        def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            found: Tensor = self.model(tokens_AL, valid_BL=tokens_AL != self.shape.pad_id, logits_at=asked_AL).logits
            return found

        return TextDenoiser(logits=logits)

    def divide(self, canvas: Canvas, write: Write) -> TextSample:
        """Write the blocks of a canvas (`Canvas.divide`)."""
        length, valid_BL = canvas.tokens.shape[1], canvas.tokens != self.shape.pad_id
        cache, text = self.model.start(valid_BL.sum(dim=1)), TextSample.start(canvas.tokens)
        for number, start in enumerate(range(0, length, self.model.block_length)):
            at = slice(start, min(start + self.model.block_length, length))
            block = canvas.part(
                text, at, canvas.writable_BL, denoise=self._block_denoiser(cache),
                generator=canvas.generator.fork(number), divide=None,
            )  # fmt: skip
            text = text.with_part(write(block), at)
            if at.stop < length:
                _, cache = self.model.read(text.tokens[:, at], cache)
                text = text.called(valid_BL[:, at.stop].nonzero().squeeze(1))
        return text

    def _block_denoiser(self, cache: KeyValueCache) -> TextDenoiser:
        def logits(tokens_Al: Tensor, t_A: Tensor, rows_A: Tensor, asked_Al: Tensor) -> Tensor:
            past = cache.select(rows_A)
            hidden_AlD, _ = self.model.read(tokens_Al, past)
            found: Tensor = self.model.logits(hidden_AlD, past, at=asked_Al)
            return found

        return TextDenoiser(logits=logits)

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Draw the NELBO with one mask ratio for all blocks of a text; the exact −log p for blocks of one token.

        A block of one token costs as much at every mask ratio, so that one pass with masks only has no variance.
        """
        valid_BL = tokens_BL != self.shape.pad_id

        def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
            found: Tensor = self.model(noisy_BL, valid_BL=valid_BL, clean_BL=tokens_BL, logits_at=scored_BL).logits
            return found

        if self.model.block_length > 1:
            return self.process.nelbo(predict, tokens_BL, valid_BL, draws=draws, generator=generator)
        all_B = torch.ones(len(tokens_BL), dtype=torch.float64, device=tokens_BL.device)
        found = integrate(self.process, predict, tokens_BL, valid_BL, [all_B], generator, corrupt=self.process.mask)
        assert found.cross_entropy_KB is not None
        return Likelihood(found.cross_entropy_KB.expand(draws, -1))
