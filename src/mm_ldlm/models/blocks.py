"""Blocks of a transformer with adaLN: the weights of a stream, attention over all streams, and the block of both.

Norms, rotations and the residual stream are float32 under autocast, softmax too except for long texts on the CPU.

B batch, L positions of one stream, S positions of all streams, K latent tokens, D model dimension, H heads,
E dimension of a head, C dimension of the conditioning.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mm_ldlm.core import Fraction, Layers, PositiveFloat, Ratio, Size, config, refuse_if
from mm_ldlm.models.attention import EPSILON, SHORT, Attention, QKNorm, by_hand
from mm_ldlm.models.parts import tag
from mm_ldlm.models.rope import rotate

# -- options -----------------------------------------------------------------------------------------------------------


@config
class TransformerOptions:
    """Shape of a transformer.

    Attributes:
        mlp_bias: biases of the two layers of the MLP. Models of other projects have them.
        mlp_activation: of the MLP: GELU, or its approximation with tanh.
        logit_softcap: attention logits become cap·tanh(logit / cap), without the fused attention kernel.
        gradient_checkpointing: recompute the blocks in the backward pass instead of storing activations.
    """

    dim: Size = 256
    depth: Layers = 6
    heads: Size = 4
    mlp_ratio: Ratio = 4.0
    mlp_bias: bool = False
    mlp_activation: Literal["gelu", "gelu_tanh"] = "gelu"
    dropout: Fraction = 0.0
    rope_theta: PositiveFloat = 10_000.0
    qk_norm: bool = True
    logit_softcap: PositiveFloat | None = None
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        refuse_if(
            self.dim % self.heads,
            f"dim must be divisible by heads, found dim {self.dim} and {self.heads} heads",
            "dim",
            "heads",
        )
        refuse_if(
            self.head_dim % 2, f"the dimension of a head must be even for RoPE, found {self.head_dim}", "dim", "heads"
        )

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def mlp_dim(self) -> int:
        return max(1, round(self.dim * self.mlp_ratio))

    @property
    def stores(self) -> tuple[str, ...]:
        """Stores of the dataset that the initial weights are made from."""
        return ()


@config
class ModulatedOptions(TransformerOptions):
    """Shape of a transformer with adaLN.

    Attributes:
        conditioning_dim: dimension of the conditioning vector c that modulates every block; `dim` if None.
        tied_embeddings: use the token embeddings as the weights of the output layer.
    """

    conditioning_dim: Size | None = None
    tied_embeddings: bool = False

    @property
    def condition_dim(self) -> int:
        return self.conditioning_dim or self.dim


# -- linear layers and norms -------------------------------------------------------------------------------------------


def trunc_normal_(weight: Tensor, *, std: float, generator: torch.Generator) -> None:
    """Fill with a normal distribution of standard deviation `std`, truncated at three standard deviations."""
    nn.init.trunc_normal_(weight, std=std, a=-3 * std, b=3 * std, generator=generator)


class Linear(nn.Linear):
    """Linear layer whose initial weights have standard deviation gain/√fan_in (all zeros for gain 0), with bias 0."""

    def __init__(self, inputs: int, outputs: int, *, gain: float = 1.0, bias: bool = True) -> None:
        self.gain = gain
        super().__init__(inputs, outputs, bias=bias)

    def init_weights(self, generator: torch.Generator) -> None:
        if self.gain:
            trunc_normal_(self.weight, std=self.gain / math.sqrt(self.in_features), generator=generator)
        else:
            nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def modulate(x_BLD: Tensor, shift_BD: Tensor, scale_BD: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """Apply LayerNorm without affine parameters, then x(1 + scale) + shift, in float32."""
    normed_BLD = F.layer_norm(x_BLD.float(), x_BLD.shape[-1:], eps=epsilon)
    return torch.addcmul(shift_BD.float().unsqueeze(1), normed_BLD, 1 + scale_BD.float().unsqueeze(1))


def prepare_qkv(qkvs: list[Tensor], norms: list[QKNorm | None], ropes: tuple[Tensor | None, ...]) -> Tensor:
    """Join raw (B, L_i, 3, H, E) of each stream to (B, S, 3, H, E); normalise and rotate Q and K in float32.

    On the CPU the result for short texts is float32 under autocast too, as their attention.
    """
    short = sum(qkv.shape[1] for qkv in qkvs) <= SHORT
    ready, dtype = [], torch.float32 if short and by_hand(qkvs[0]) else qkvs[0].dtype
    for qkv, norm, rope in zip(qkvs, norms, ropes, strict=True):
        qk, v = qkv.split([2, 1], dim=2)
        qk = qk.float() if norm is None else norm(qk)
        if rope is not None:
            qk = rotate(qk, rope)
        ready.append(torch.cat([qk.to(dtype), v.to(dtype)], dim=2))
    return ready[0] if len(ready) == 1 else torch.cat(ready, dim=1)


def run_block(block: Callable[..., Any], *inputs: Any, config: TransformerOptions, training: bool) -> Any:
    """Call a block, whose activations the backward pass recomputes if `config.gradient_checkpointing` is set."""
    if config.gradient_checkpointing and training and torch.is_grad_enabled():
        return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=config.dropout > 0)
    return block(*inputs)


class CrossAttention(nn.Module):
    """Attention from the text to the latent tokens, with RMSNorm on Q and K; the tokens have learned positions."""

    def __init__(self, config: ModulatedOptions) -> None:
        super().__init__()
        self.heads, self.head_dim, self.dropout = config.heads, config.head_dim, config.dropout
        self.query = Linear(config.dim, config.dim, bias=False)
        self.key_value = Linear(config.dim, 2 * config.dim, bias=False)
        self.qk_norm = QKNorm(config.heads, config.head_dim) if config.qk_norm else None
        self.attention = Attention(softcap=config.logit_softcap)
        self.out = Linear(config.dim, config.dim, bias=False)

    def forward(self, x_BLD: Tensor, latent_BKD: Tensor) -> Tensor:
        """Compute what every text position reads from the K latent tokens of its example, (B, L, D)."""
        B, L, D = x_BLD.shape
        q_BLHE = self.query(x_BLD).view(B, L, self.heads, self.head_dim)
        k_BKHE, v_BKHE = self.key_value(latent_BKD).view(B, -1, 2, self.heads, self.head_dim).unbind(2)
        if self.qk_norm is not None:
            q_BLHE, k_BKHE = self.qk_norm.each(q_BLHE, k_BKHE)
        q, k, v = (x.to(v_BKHE.dtype).transpose(1, 2) for x in (q_BLHE, k_BKHE, v_BKHE))
        attended_BLD = self.attention(q, k, v, None).transpose(1, 2).reshape(B, L, D)
        return F.dropout(self.out(attended_BLD), self.dropout, self.training)


class Mlp(nn.Module):
    def __init__(self, config: TransformerOptions) -> None:
        super().__init__()
        self.up = Linear(config.dim, config.mlp_dim, bias=config.mlp_bias)
        self.down = Linear(config.mlp_dim, config.dim, bias=config.mlp_bias)
        self.approximate = "tanh" if config.mlp_activation == "gelu_tanh" else "none"
        self.dropout = config.dropout

    def forward(self, x_BLD: Tensor) -> Tensor:
        hidden_BLM = F.gelu(self.up(x_BLD), approximate=self.approximate)
        return F.dropout(self.down(hidden_BLM), self.dropout, self.training)


class Stream(nn.Module):
    """Weights of a stream in one block: modulation, QKV, output projection, MLP (SD3, arXiv:2403.03206, figure 2b).

    Cross-attention, if any, follows self-attention (PixArt-α, arXiv:2310.00426), with adaLN-Zero as the other layers.
    """

    def __init__(
        self, config: ModulatedOptions, *, tail_part: str | None = None, cross: CrossAttention | None = None
    ) -> None:
        """Tag the layers after attention with `tail_part`: in the last block only this stream's head uses them."""
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.dropout = config.dropout
        self.modulation = Linear(config.condition_dim, (6 if cross is None else 9) * config.dim, gain=0.0)
        # No biases below the modulation: its shift already is one, and each costs passes over memory.
        self.qkv = Linear(config.dim, 3 * config.dim, bias=False)
        self.qk_norm = QKNorm(config.heads, config.head_dim) if config.qk_norm else None
        self.out = Linear(config.dim, config.dim, bias=False)
        self.cross = cross
        self.mlp = Mlp(config)
        if tail_part is not None:
            tag(self.out, tail_part)
            tag(self.mlp, tail_part)

    def modulations(self, silu_c_BC: Tensor) -> tuple[Tensor, ...]:
        """Compute shift, scale and gate of attention, of the MLP and of cross-attention, each (B, D); all 0 at the
        start (adaLN-Zero)."""
        return self.modulation(silu_c_BC).chunk(6 if self.cross is None else 9, dim=-1)

    def project(self, x_BLD: Tensor, shift_BD: Tensor, scale_BD: Tensor) -> Tensor:
        """Compute raw Q, K and V, (B, L, 3, H, E)."""
        B, L, _ = x_BLD.shape
        return self.qkv(modulate(x_BLD, shift_BD, scale_BD)).view(B, L, 3, self.heads, self.head_dim)

    def finish(
        self,
        x_BLD: Tensor,
        attended_BLD: Tensor,
        modulations: tuple[Tensor, ...],
        latent_BKD: Tensor | None = None,
    ) -> Tensor:
        """Add all residuals: gate · out(attention), gate · cross-attention to the latent tokens, gate · MLP."""
        gate_BD, shift_BD, scale_BD, mlp_gate_BD = modulations[2:6]
        attended_BLD = F.dropout(self.out(attended_BLD), self.dropout, self.training)
        x_BLD = torch.addcmul(x_BLD, gate_BD.unsqueeze(1).to(x_BLD.dtype), attended_BLD.to(x_BLD.dtype))
        if self.cross is not None:
            cross_shift_BD, cross_scale_BD, cross_gate_BD = modulations[6:]
            read_BLD = self.cross(modulate(x_BLD, cross_shift_BD, cross_scale_BD), latent_BKD)
            x_BLD = torch.addcmul(x_BLD, cross_gate_BD.unsqueeze(1).to(x_BLD.dtype), read_BLD.to(x_BLD.dtype))
        hidden_BLD = self.mlp(modulate(x_BLD, shift_BD, scale_BD))
        return torch.addcmul(x_BLD, mlp_gate_BD.unsqueeze(1).to(x_BLD.dtype), hidden_BLD.to(x_BLD.dtype))


class Block(nn.Module):
    """Block with one attention over all streams, each with its own weights: text and latent, both in one, or text.

    With `cross`, every stream also reads latent tokens by cross-attention.
    """

    def __init__(
        self, config: ModulatedOptions, *, tail_parts: tuple[str | None, ...] = (None,), cross: bool = False
    ) -> None:
        super().__init__()
        self.streams = nn.ModuleList(
            Stream(config, tail_part=part, cross=CrossAttention(config) if cross else None) for part in tail_parts
        )
        self.attention = Attention(softcap=config.logit_softcap)

    def forward(
        self,
        xs: tuple[Tensor, ...],
        silu_c_BC: Tensor,
        ropes: tuple[Tensor | None, ...],
        key_mask: Tensor | None,
        wanted: tuple[bool, ...],
        latent_BKD: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Update each stream x (B, L_i, D); a stream that is not wanted only provides keys and values."""
        modulations = [stream.modulations(silu_c_BC) for stream in self.streams]  # type: ignore[operator]
        qkvs = [
            stream.project(x, mods[0], mods[1])  # type: ignore[operator]
            for stream, x, mods in zip(self.streams, xs, modulations, strict=True)
        ]
        joint_BS3HE = prepare_qkv(qkvs, [stream.qk_norm for stream in self.streams], ropes)  # type: ignore[misc]
        q, k, v = joint_BS3HE.permute(2, 0, 3, 1, 4).unbind(0)
        attended_BHSE = self.attention(q, k, v, key_mask)
        parts = [part.transpose(1, 2).flatten(2) for part in attended_BHSE.split([x.shape[1] for x in xs], dim=2)]
        return tuple(
            stream.finish(x, part, mods, latent_BKD) if want else x  # type: ignore[operator]
            for stream, x, part, mods, want in zip(self.streams, xs, parts, modulations, wanted, strict=True)
        )
