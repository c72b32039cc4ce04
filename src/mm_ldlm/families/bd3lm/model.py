"""DiT for block diffusion: a block reads itself, with its masks, and the clean tokens of the blocks before it.

The objective needs one forward pass over x_t and x_0 together (BD3-LM, arXiv:2503.09573, §3.2), the sampler one over
the block that it writes, with the keys and values of the earlier blocks from a cache.

B batch, L text length, l positions of one block, T positions in the cache, M chosen positions, V vocabulary, D dim,
C conditioning dim, H heads, E dim of a head, N longest length.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core import Size, config
from mm_ldlm.models.attention import key_mask
from mm_ldlm.models.base import DataShape, TextOutput, build_on_meta
from mm_ldlm.models.blocks import Block, ModulatedOptions, prepare_qkv
from mm_ldlm.models.dit import TextTransformer
from mm_ldlm.models.embeddings import sinusoid
from mm_ldlm.models.heads import LengthPrior
from mm_ldlm.models.parts import tag


@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of the finished blocks of a batch of texts."""

    c_BC: Tensor
    """Conditioning of the texts"""
    layers: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values (B, H, T, E) of each block of the transformer"""

    @property
    def length(self) -> int:
        """T, the position at which the next block begins"""
        return self.layers[0][0].shape[2]

    def select(self, rows_A: Tensor) -> "KeyValueCache":
        """Return the cache of these rows of the batch, in ascending order."""
        if len(rows_A) == len(self.c_BC):
            return self
        return KeyValueCache(self.c_BC[rows_A], tuple((k[rows_A], v[rows_A]) for k, v in self.layers))


class BlockModel(Protocol):
    """Denoiser of the blocks of a text given the blocks before each, called as `BlockDiT`."""


@config
class BlockDiTConfig(ModulatedOptions):
    """Kind `block_dit`: the shape of a DiT for block diffusion.

    Attributes:
        block_length: number of tokens of a block, L' in the paper; the last block of a text may be shorter.
    """

    interface: ClassVar[type] = BlockModel
    kind: str = "block_dit"
    block_length: Size = 4

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "BlockDiT":
        """Build the model on the CPU in float32; see `models.base.ModelConfig.build`."""
        return build_on_meta(lambda: BlockDiT(self, shape), generator)


class BlockDiT(TextTransformer):
    """Transformer whose blocks of tokens are denoised given the clean blocks before them.

    As in the paper, no timestep conditions it, so that the keys and values of a finished block do not depend on one.
    The number of tokens of the text takes its place: the texts of the paper are equally long, and a model of all tokens
    at once sees the length in its canvas, which the first blocks do not.
    """

    def __init__(self, config: BlockDiTConfig, shape: DataShape) -> None:
        super().__init__(config, shape)  # type: ignore[arg-type]  # the options of timesteps are not read
        self.block_length = config.block_length
        self.length_prior = tag(LengthPrior(shape.max_length), "length_head")

    def forward(
        self, tokens_BL: Tensor, *, valid_BL: Tensor | None, clean_BL: Tensor | None = None,
        logits_at: Tensor | None = None,
    ) -> TextOutput:  # fmt: skip
        """Predict the token of every position from its own block of x_t and the blocks of x_0 before it.

        Args:
            tokens_BL: x_t; [MASK] where the text is corrupted, pads where not valid.
            valid_BL: true at real tokens; None where there is no padding.
            clean_BL: x_0; None takes `tokens_BL`, whose blocks before the one of interest are then clean.
            logits_at: (B, L) bool; the logits are computed at these M positions only, in row-major order.
        """
        L = tokens_BL.shape[1]
        valid_BL = torch.ones_like(tokens_BL, dtype=torch.bool) if valid_BL is None else valid_BL
        positions_L = torch.arange(L, device=tokens_BL.device)
        mask_BSS = attention_mask(positions_L // self.block_length) & valid_BL.repeat(1, 2)[:, None]
        mask_BSS = mask_BSS | torch.eye(2 * L, dtype=torch.bool, device=tokens_BL.device)  # padding reads itself
        c_BC = self._conditioning(valid_BL.sum(dim=1))
        hidden_BSD = self.hidden(
            torch.cat([tokens_BL, tokens_BL if clean_BL is None else clean_BL], dim=1),
            mask=mask_BSS[:, None], c_BC=c_BC, positions_L=positions_L.repeat(2),
        )  # fmt: skip
        return TextOutput(self.head(hidden_BSD[:, :L], c_BC=c_BC, logits_at=logits_at), self.length_logits())

    def start(self, length_B: Tensor) -> KeyValueCache:
        """Make an empty cache for texts of these lengths."""
        c_BC, config = self._conditioning(length_B), self.config
        nothing = c_BC.new_empty(len(length_B), config.heads, 0, config.head_dim)
        return KeyValueCache(c_BC, ((nothing, nothing),) * config.depth)

    def read(self, tokens_Bl: Tensor, cache: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Read the next block of each text: the output (B, l, D) of the last layer, as in `forward`, and the cache with
        the keys and values of this block, for blocks that follow it if it is finished."""
        at = slice(cache.length, cache.length + tokens_Bl.shape[1])
        x_BlD = (self.text_embedding(tokens_Bl) + self.positions.weight[at]).float()
        mask = key_mask(tokens_Bl != self.shape.pad_id, others=cache.length)
        silu_c_BC, layers = F.silu(cache.c_BC), []
        for block, past in zip(self.blocks, cache.layers, strict=True):
            assert isinstance(block, Block)
            x_BlD, keys_values = _read(block, x_BlD, silu_c_BC, self.rope_L2e[at], mask, past)
            layers.append(keys_values)
        return x_BlD, KeyValueCache(cache.c_BC, tuple(layers))

    def logits(self, hidden_BlD: Tensor, cache: KeyValueCache, *, at: Tensor) -> Tensor:
        """Compute logits (M, V) at the chosen positions of a block from what `read` returns."""
        return self.head(hidden_BlD, c_BC=cache.c_BC, logits_at=at)

    def length_logits(self) -> Tensor:
        """Return unnormalised log-probabilities (N,) float32 of the lengths 1..N; column i is length i + 1."""
        return self.length_prior()

    def _conditioning(self, length_B: Tensor) -> Tensor:
        return self.time(sinusoid(length_B, factor=1.0))


def attention_mask(block_L: Tensor) -> Tensor:
    """Make the mask (2L, 2L) over [x_t; x_0], true where a query (row) may read a key (column).

    x_t reads its own block of x_t (block-diagonal) and the earlier blocks of x_0 (offset block-causal); x_0 reads its
    own and the earlier blocks of x_0 (block-causal). `block_L` is the block of each position.
    """
    block_S = block_L.repeat(2)
    clean_S = torch.arange(len(block_S), device=block_L.device) >= len(block_L)
    own_SS = (block_S[:, None] == block_S) & (clean_S[:, None] == clean_S)
    return own_SS | (clean_S & (block_S[:, None] > block_S))


def _read(
    block: Block,
    x_BlD: Tensor,
    silu_c_BC: Tensor,
    rope_l2e: Tensor,
    mask: Tensor | None,
    past: tuple[Tensor, Tensor],
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Call a transformer block given earlier keys and values; return its output, and the keys and values of all tokens.

    The order of keys does not matter: the new ones are first, as `blocks.key_mask` has them.
    """
    stream: Any = block.streams[0]
    modulations = stream.modulations(silu_c_BC)
    qkv = prepare_qkv([stream.project(x_BlD, *modulations[:2])], [stream.qk_norm], (rope_l2e,))
    q_BHlE, *new = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    k_BHTE, v_BHTE = (torch.cat(pair, dim=2) for pair in zip(new, past, strict=True))
    attended_BlD = block.attention(q_BHlE, k_BHTE, v_BHTE, mask).transpose(1, 2).flatten(2)
    return stream.finish(x_BlD, attended_BlD, modulations), (k_BHTE, v_BHTE)
