"""DiT for text: a bidirectional transformer over tokens with adaLN-Zero (arXiv:2212.09748).

It is the model of MDLM (arXiv:2406.07524) with learned positions besides RoPE and a distribution over text lengths.

B batch, L text length, M chosen positions, V vocabulary, D dim, C conditioning dim, N longest length.
"""

from collections.abc import Container
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import PositiveFloat, config
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES
from mm_ldlm.models.attention import key_mask
from mm_ldlm.models.base import DataShape, TextModel, TextOutput, build_on_meta
from mm_ldlm.models.blocks import Block, ModulatedOptions, run_block
from mm_ldlm.models.embeddings import TIME_FACTOR, TIME_FEATURES, Conditioner, TokenTable, sinusoid
from mm_ldlm.models.heads import LengthPrior, TextHead, mean_features
from mm_ldlm.models.parts import tag
from mm_ldlm.models.rope import rope_table


@config
class DiTOptions(ModulatedOptions):
    """The shape of a DiT over text.

    Attributes:
        time_conditioning: if false, the model receives t = 0 at every timestep, so that its output does not depend on
            the timestep.
        time_factor: factor of the timestep in its sinusoidal embedding. Some older models were trained with 1, with
            which the model can hardly distinguish timesteps.
        time_schedule: if given, the model receives σ = −log α_t of this schedule in place of t, as models of SEDD
            (arXiv:2310.16834) and Duo do.
    """

    time_conditioning: bool = True
    time_factor: PositiveFloat = TIME_FACTOR
    time_schedule: Annotated[Any, MASK_SCHEDULES] | None = None


@config
class DiTConfig(DiTOptions):
    """Kind `dit`: the shape of a text-only diffusion transformer."""

    interface: ClassVar[type] = TextModel
    kind: str = "dit"

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "DiT":
        """Build the model on the CPU in float32; see `models.base.ModelConfig.build`."""
        return build_on_meta(lambda: DiT(self, shape), generator)


class TextTransformer(nn.Module):
    """Embeddings, blocks and text head of a DiT, for subclasses that add conditions and a distribution over lengths.

    At the start every block is the identity and all logits are 0.
    """

    rope_L2e: Tensor

    def __init__(self, config: DiTOptions, shape: DataShape, *, cross_attention: Container[int] = ()) -> None:
        """`cross_attention` names the blocks that read latent tokens, by their index."""
        super().__init__()
        self.config, self.shape = config, shape
        self.text_embedding = tag(TokenTable(shape.num_ids, config.dim), "text_embedding", input=True)
        # RoPE by itself cannot distinguish the positions of a canvas of masks, whose values are all the same.
        self.positions = tag(TokenTable(shape.max_length, config.dim), "text_embedding", input=True)
        self.time = tag(Conditioner(TIME_FEATURES, config.condition_dim), "conditioning")
        blocks = (Block(config, cross=index in cross_attention) for index in range(config.depth))
        self.blocks = tag(nn.ModuleList(blocks), "backbone")
        self.text_head = tag(TextHead(config, shape.vocab_size), "text_head")
        rope_shape = (shape.max_length, 2, config.head_dim // 2)
        self.register_buffer("rope_L2e", torch.empty(rope_shape), persistent=False)

    def init_weights(self, generator: torch.Generator) -> None:
        self.rope_L2e.copy_(rope_table(self.shape.max_length, self.config.head_dim, self.config.rope_theta))

    def time_features(self, t_B: Tensor) -> Tensor:
        """Compute the sinusoidal embedding (B, 256) float32 of t or σ(t), or of 0 without conditioning on time."""
        if self.config.time_schedule is not None:
            t_B = -self.config.time_schedule.alpha(t_B).clamp_min(torch.finfo(t_B.dtype).tiny).log()  # α_1 may be 0
        t_B = t_B if self.config.time_conditioning else torch.zeros_like(t_B)
        return sinusoid(t_B, factor=self.config.time_factor)

    def hidden(
        self,
        tokens_BL: Tensor,
        *,
        mask: Tensor | None,
        c_BC: Tensor,
        latent_BKD: Tensor | None = None,
        added_BLD: Tensor | None = None,
        positions_L: Tensor | None = None,
    ) -> Tensor:
        """Compute the output (B, L, D) of the last block.

        Args:
            mask: the keys that may be read, as of `blocks.key_mask`, or (B, 1, L, L) with a row for each position.
            added_BLD: is added to the embeddings of the tokens.
            positions_L: the position of each token in its text; by default 0 to L − 1.
        """
        at = slice(tokens_BL.shape[1]) if positions_L is None else positions_L
        x_BLD = (self.text_embedding(tokens_BL) + self.positions.weight[at]).float()
        x_BLD = x_BLD if added_BLD is None else x_BLD + added_BLD
        silu_c_BC = F.silu(c_BC)
        for block in self.blocks:
            inputs = ((x_BLD,), silu_c_BC, (self.rope_L2e[at],), mask, (True,), latent_BKD)
            (x_BLD,) = run_block(block, *inputs, config=self.config, training=self.training)
        return x_BLD

    def head(self, x_BLD: Tensor, *, c_BC: Tensor, logits_at: Tensor | None) -> Tensor:
        """Map the output of the blocks to logits (B, L, V), or (M, V) at the chosen positions."""
        return self.text_head.logits(x_BLD, F.silu(c_BC), at=logits_at, embedding=self.text_embedding)


class DiT(TextTransformer):
    """Text-only diffusion transformer."""

    feature_parts = frozenset({"text_embedding", "conditioning", "backbone"})

    def __init__(self, config: DiTConfig, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.feature_dim = config.dim
        self.length_prior = tag(LengthPrior(shape.max_length), "length_head")

    def forward(
        self, tokens_BL: Tensor, *, valid_BL: Tensor | None, t_B: Tensor, logits_at: Tensor | None = None
    ) -> TextOutput:
        """Predict the token of every position from all tokens of the text at the timestep `t_B`.

        Args:
            tokens_BL: ids below `shape.num_ids`; [MASK] or other noise where the text is corrupted, pads where not
                valid.
            valid_BL: true at real tokens; None where there is no padding.
            t_B: timestep, from 0 (clean) to 1 (all noise).
            logits_at: (B, L) bool; the logits are computed at these M positions only, in row-major order.
        """
        c_BC = self.time(self.time_features(t_B))
        x_BLD = self.hidden(tokens_BL, mask=key_mask(valid_BL), c_BC=c_BC)
        return TextOutput(self.head(x_BLD, c_BC=c_BC, logits_at=logits_at), self.length_logits())

    def features(self, inputs: Tensor, *, valid_BL: Tensor | None = None) -> Tensor:
        """Compute the mean hidden state (B, D) of clean texts, at t = 0; see `models.base.FeatureModel`."""
        c_BC = self.time(self.time_features(torch.zeros(len(inputs), device=inputs.device)))
        return mean_features(self.hidden(inputs, mask=key_mask(valid_BL), c_BC=c_BC), valid_BL)

    def length_logits(self) -> Tensor:
        """Return unnormalised log-probabilities (N,) float32 of the lengths 1..N; column i is length i + 1."""
        return self.length_prior()
