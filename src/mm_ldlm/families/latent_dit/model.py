"""DiT for text given a sentence latent, in two kinds: the latent modulates every block, or every second block reads it.

`latent_dit` adds an MLP of the latent to the conditioning vector c of adaLN-Zero, as DiT does with a class label
(arXiv:2212.09748, §3.2). `latent_dit_cross` projects the latent to K tokens, which every second block reads by
cross-attention (PixArt-α, arXiv:2310.00426). The latent is clean and standardised.

B batch, L text length, M chosen positions, V vocabulary, D dim, d latent dimension, K latent tokens, N longest length.
"""

from abc import abstractmethod
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from mm_ldlm.core import Size, config
from mm_ldlm.models.attention import key_mask
from mm_ldlm.models.base import DataShape, TextOutput, build_on_meta
from mm_ldlm.models.dit import DiTOptions, TextTransformer
from mm_ldlm.models.embeddings import Conditioner, LatentTokens, NullEmbedding
from mm_ldlm.models.heads import LengthHead
from mm_ldlm.models.parts import tag


class TextGivenLatentModel(Protocol):
    """Denoiser of texts that reads a clean latent or a null latent, called as `LatentTextTransformer`."""


@config
class LatentDiTConfig(DiTOptions):
    """Kind `latent_dit`: a DiT whose adaLN-Zero is conditioned on the timestep and on the latent.

    Attributes:
        length_hidden_dim: dimension of the length head's two hidden layers; `dim` if None. A short training needs a
            large one.
    """

    interface: ClassVar[type] = TextGivenLatentModel
    kind: str = "latent_dit"
    length_hidden_dim: Size | None = None

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "LatentTextTransformer":
        """The model on the CPU in float32; see `models.base.ModelConfig.build`.

        Raises:
            ConfigurationError: the data have no latents.
        """
        shape.require("latents", kind=self.kind)
        return build_on_meta(lambda: self.make(shape), generator)

    def make(self, shape: DataShape) -> "LatentTextTransformer":
        """Make the module of this kind."""
        return LatentDiT(self, shape)


@config
class LatentDiTCrossConfig(LatentDiTConfig):
    """Kind `latent_dit_cross`: a DiT with cross-attention to latent tokens in its first, third, fifth … block.

    Attributes:
        latent_tokens: number of tokens that one latent vector becomes.
    """

    kind: str = "latent_dit_cross"
    latent_tokens: Size = 4

    def make(self, shape: DataShape) -> "LatentTextTransformer":
        return LatentDiTCross(self, shape)


class LatentTextTransformer(TextTransformer):
    """See `forward`. Subclasses decide how the latent reaches the blocks."""

    def __init__(self, config: LatentDiTConfig, shape: DataShape, *, cross_attention: range = range(0)) -> None:
        super().__init__(config, shape, cross_attention=cross_attention)
        latent_dim = shape.dim("latents")
        self.null_latent = tag(NullEmbedding(latent_dim), "null_latent", occasional=True)
        hidden_dim = config.length_hidden_dim or config.dim
        length_head = LengthHead(latent_dim, hidden_dim=hidden_dim, max_length=shape.max_length)
        self.length_head = tag(length_head, "length_head")

    @abstractmethod
    def condition(self, latents_Bd: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor | None]:
        """The conditioning vector c (B, C), and the latent tokens (B, K, D) of a model that reads some."""

    def forward(
        self,
        tokens_BL: Tensor,
        *,
        valid_BL: Tensor | None,
        t_B: Tensor,
        latents_Bd: Tensor,
        null_latent_B: Tensor | None = None,
        logits_at: Tensor | None = None,
    ) -> TextOutput:
        """Predict the token of every position from all tokens of the text and its latent at the timestep `t_B`, and
        the length from the latent.

        Args:
            tokens_BL: ids; [MASK] or other noise where the text is corrupted, pads where not valid.
            valid_BL: true at real tokens; None where there is no padding.
            t_B: timestep of the text, from 0 (clean) to 1 (all noise).
            latents_Bd: clean, standardised.
            null_latent_B: true where the learned null latent replaces the latent; None replaces none.
            logits_at: (B, L) bool; the logits are computed at these M positions only, in row-major order.
        """
        given_Bd = self.null_latent.replace(latents_Bd.float(), null_latent_B)
        c_BC, latent_BKD = self.condition(given_Bd, t_B)
        x_BLD = self.hidden(tokens_BL, mask=key_mask(valid_BL), c_BC=c_BC, latent_BKD=latent_BKD)
        return TextOutput(self.head(x_BLD, c_BC=c_BC, logits_at=logits_at), self.length_head(given_Bd))

    def length_logits(self, latents_Bd: Tensor, null_latent_B: Tensor | None = None) -> Tensor:
        """(B, N) float32 unnormalised log-probabilities of the lengths 1..N given the latent, or given none."""
        return self.length_head(self.null_latent.replace(latents_Bd.float(), null_latent_B))


class LatentDiT(LatentTextTransformer):
    """c = MLP(sin(1000·t)) + MLP(latent)."""

    def __init__(self, config: LatentDiTConfig, shape: DataShape) -> None:
        super().__init__(config, shape)
        encoder = Conditioner(shape.dim("latents"), config.condition_dim)
        self.latent_encoder = tag(encoder, "latent_encoder", input=True)

    def condition(self, latents_Bd: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.time(self.time_features(t_B)) + self.latent_encoder(latents_Bd), None


class LatentDiTCross(LatentTextTransformer):
    """c = MLP(sin(1000·t)); cross-attention to K latent tokens in every second block, the first one among them."""

    def __init__(self, config: LatentDiTCrossConfig, shape: DataShape) -> None:
        super().__init__(config, shape, cross_attention=range(0, config.depth, 2))
        encoder = LatentTokens(shape.dim("latents"), tokens=config.latent_tokens, dim=config.dim)
        self.latent_encoder = tag(encoder, "latent_encoder", input=True)

    def condition(self, latents_Bd: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.time(self.time_features(t_B)), self.latent_encoder(latents_Bd)
