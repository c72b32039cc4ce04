"""DiT for text given a sentence latent only, by adaLN without gates: the model of arXiv:2602.11047.

c = MLP(latent) modulates every block. There is no timestep and no RoPE, and all layers have biases. Every text is read
in a canvas of the longest length, whose pads are read like words.

B batch, L text length, N longest length, D dim, d latent dimension.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import Fraction, Layers, Ratio, Size, config, refuse_if
from mm_ldlm.families.latent_dit.model import TextGivenLatentModel
from mm_ldlm.models.base import DataShape, TextOutput, build_on_meta
from mm_ldlm.models.blocks import Block, Linear, ModulatedOptions, Stream
from mm_ldlm.models.embeddings import Conditioner, NullEmbedding, TokenTable
from mm_ldlm.models.heads import LengthHead, TextHead
from mm_ldlm.models.parts import tag


@config
class LatentDiTAdaLNConfig:
    """Kind `latent_dit_adaln`: a DiT whose adaLN is conditioned on the latent only.

    Attributes:
        length_hidden_dim: dimension of the length head's two hidden layers; `dim` if None.
        unit_latents: scale every latent to length 1 before it is read.
    """

    interface: ClassVar[type] = TextGivenLatentModel
    kind: str = "latent_dit_adaln"
    dim: Size = 256
    depth: Layers = 6
    heads: Size = 4
    mlp_ratio: Ratio = 4.0
    dropout: Fraction = 0.0
    length_hidden_dim: Size | None = None
    unit_latents: bool = False

    def __post_init__(self) -> None:
        refuse_if(
            self.dim % (2 * self.heads),
            f"dim must be divisible by twice the heads, found dim {self.dim} and {self.heads} heads",
            "dim",
            "heads",
        )

    @property
    def transformer(self) -> ModulatedOptions:
        """Options of the blocks and of the text head."""
        return ModulatedOptions(
            dim=self.dim, heads=self.heads, mlp_ratio=self.mlp_ratio, dropout=self.dropout, mlp_bias=True, qk_norm=False
        )

    @property
    def stores(self) -> tuple[str, ...]:
        """None: all initial weights are random."""
        return ()

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "LatentDiTAdaLN":
        """The model on the CPU in float32; see `models.base.ModelConfig.build`.

        Raises:
            ConfigurationError: the data have no latents.
        """
        shape.require("latents", kind=self.kind)
        return build_on_meta(lambda: LatentDiTAdaLN(self, shape), generator)


class LatentMlp(Conditioner):
    """MLP (linear, GELU, linear) in float32 even under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.outer(F.gelu(self.inner(x.float())))


class UngatedStream(Stream):
    """Weights of a block with adaLN instead of adaLN-Zero; the output layers start at zero in place of the gates."""

    def __init__(self, config: ModulatedOptions) -> None:
        super().__init__(config)
        self.modulation = Linear(config.condition_dim, 4 * config.dim, gain=0.0)
        self.qkv = Linear(config.dim, 3 * config.dim)
        self.out = Linear(config.dim, config.dim, gain=0.0)
        self.mlp.down.gain = 0.0

    def modulations(self, c_BC: Tensor) -> tuple[Tensor, ...]:
        """Compute shift and scale of attention and of the MLP, each (B, D), with gates of 1."""
        shift_BD, scale_BD, mlp_shift_BD, mlp_scale_BD = self.modulation(c_BC).chunk(4, dim=-1)
        gate_BD = torch.ones_like(shift_BD)
        return shift_BD, scale_BD, gate_BD, mlp_shift_BD, mlp_scale_BD, gate_BD


class UngatedBlock(Block):
    """Block of texts without gates."""

    def __init__(self, config: ModulatedOptions) -> None:
        super().__init__(config)
        self.streams = nn.ModuleList([UngatedStream(config)])


class LatentDiTAdaLN(nn.Module):
    """Denoiser of texts that reads a clean latent or a null latent; see `forward`."""

    def __init__(self, config: LatentDiTAdaLNConfig, shape: DataShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        latent_dim, options = shape.dim("latents"), config.transformer
        self.text_embedding = tag(TokenTable(shape.num_ids, config.dim), "text_embedding", input=True)
        self.positions = tag(TokenTable(shape.max_length, config.dim), "text_embedding", input=True)
        self.latent_encoder = tag(LatentMlp(latent_dim, config.dim), "latent_encoder", input=True)
        self.blocks = tag(nn.ModuleList(UngatedBlock(options) for _ in range(config.depth)), "backbone")
        self.text_head = tag(TextHead(options, shape.vocab_size), "text_head")
        self.null_latent = tag(NullEmbedding(latent_dim), "null_latent", occasional=True)
        hidden_dim = config.length_hidden_dim or config.dim
        length_head = LengthHead(latent_dim, hidden_dim=hidden_dim, max_length=shape.max_length)
        self.length_head = tag(length_head, "length_head")

    def forward(
        self,
        tokens_BL: Tensor,
        *,
        valid_BL: Tensor | None,
        latents_Bd: Tensor,
        null_latent_B: Tensor | None = None,
        logits_at: Tensor | None = None,
        **unread: Any,
    ) -> TextOutput:
        """Predict as `LatentTextTransformer`, without the timestep `t_B`, which is not read."""
        given_Bd, L = self._given(latents_Bd, null_latent_B), tokens_BL.shape[1]
        c_BD, pad = self.latent_encoder(given_Bd), self.shape.pad_id
        tokens_BL = tokens_BL if valid_BL is None else tokens_BL.masked_fill(~valid_BL, pad)
        tokens_BN = F.pad(tokens_BL, (0, self.shape.max_length - L), value=pad)
        x_BND = (self.text_embedding(tokens_BN) + self.positions.weight).float()
        for block in self.blocks:
            (x_BND,) = block((x_BND,), c_BD, (None,), None, (True,))
        logits = self.text_head.logits(x_BND[:, :L], c_BD, at=logits_at, embedding=self.text_embedding)
        return TextOutput(logits, self.length_head(given_Bd))

    def length_logits(self, latents_Bd: Tensor, null_latent_B: Tensor | None = None) -> Tensor:
        """(B, N) float32 unnormalised log-probabilities of the lengths 1..N given the latent, or given none."""
        return self.length_head(self._given(latents_Bd, null_latent_B))

    def _given(self, latents_Bd: Tensor, null_latent_B: Tensor | None) -> Tensor:
        given_Bd = self.null_latent.replace(latents_Bd.float(), null_latent_B)
        return F.normalize(given_Bd, dim=-1) if self.config.unit_latents else given_Bd
