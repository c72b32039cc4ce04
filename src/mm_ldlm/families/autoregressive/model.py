"""Causal transformer with an end token and a key-value cache; it predicts each token from the tokens before it.

Pre-norm with RMSNorm (arXiv:1910.07467), RoPE (arXiv:2104.09864), RMSNorm on Q and K.

B batch, L text length, P = L + 1 positions (<begin>, then the text), M chosen positions, V vocabulary, D dim, H heads,
E dim of a head, T positions in the cache.
"""

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import config
from mm_ldlm.models.attention import EPSILON, Attention, QKNorm
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.blocks import Linear, Mlp, TransformerOptions, prepare_qkv, run_block
from mm_ldlm.models.embeddings import TokenTable
from mm_ldlm.models.parts import tag
from mm_ldlm.models.rope import rope_table


class NextTokenModel(Protocol):
    """Model that predicts each token from the tokens before it, in parallel or step by step, as `CausalTransformer`."""


@config
class CausalConfig(TransformerOptions):
    """Kind `causal`: the shape of an autoregressive transformer."""

    interface: ClassVar[type] = NextTokenModel
    kind: str = "causal"

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "CausalTransformer":
        """Build the model on the CPU in float32; see `models.base.ModelConfig.build`."""
        return build_on_meta(lambda: CausalTransformer(self, shape), generator)


class RMSNorm(nn.Module):
    """RMSNorm: x / RMS(x) times a learned scale, in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale_D = nn.Parameter(torch.empty(dim))

    def init_weights(self, generator: torch.Generator) -> None:
        nn.init.ones_(self.scale_D)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.scale_D, EPSILON)


class CausalAttention(Attention):
    """Causal attention; on a GPU without a softcap it uses the causal kernel, which reads no mask."""

    def forward(self, q_BHPE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is not None and q_BHPE.is_cuda and self.fused and self.softcap is None:
            return F.scaled_dot_product_attention(q_BHPE, k_BHTE, v_BHTE, is_causal=True)
        return super().forward(q_BHPE, k_BHTE, v_BHTE, key_mask)


class CausalBlock(nn.Module):
    """Pre-norm block of attention and MLP; it is the identity at the start."""

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        self.heads, self.head_dim, self.dropout = config.heads, config.head_dim, config.dropout
        self.attention_norm = RMSNorm(config.dim)
        self.qkv = Linear(config.dim, 3 * config.dim, bias=False)
        self.qk_norm = QKNorm(config.heads, config.head_dim) if config.qk_norm else None
        self.attention = CausalAttention(softcap=config.logit_softcap)
        self.out = Linear(config.dim, config.dim, gain=0.0, bias=False)
        self.mlp_norm = RMSNorm(config.dim)
        self.mlp = Mlp(config)
        self.mlp.down.gain = 0.0

    def forward(
        self, x_BPD: Tensor, rope_P2e: Tensor, key_mask: Tensor | None, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the residual stream (B, P, D), and keys and values (B, H, T, E) of `past` and these positions.

        `key_mask` (B, 1, P, P) is true where a position reads another one; None reads all.
        """
        B, P, _ = x_BPD.shape
        qkv = self.qkv(self.attention_norm(x_BPD)).view(B, P, 3, self.heads, self.head_dim)
        ready_BP3HE = prepare_qkv([qkv], [self.qk_norm], (rope_P2e,))
        q_BHPE, k_BHTE, v_BHTE = ready_BP3HE.permute(2, 0, 3, 1, 4).unbind(0)
        if past is not None:
            k_BHTE, v_BHTE = torch.cat([past[0], k_BHTE], dim=2), torch.cat([past[1], v_BHTE], dim=2)
        attended_BPD = self.attention(q_BHPE, k_BHTE, v_BHTE, key_mask).transpose(1, 2).flatten(2)
        x_BPD = x_BPD + F.dropout(self.out(attended_BPD), self.dropout, self.training).float()
        return x_BPD + self.mlp(self.mlp_norm(x_BPD)).float(), k_BHTE, v_BHTE


class KeyValueCache:
    """Keys and values of the earlier positions of a batch of texts, for `CausalTransformer.step`."""

    def __init__(self, depth: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * depth
        """Keys and values (B, H, T, E) of each block."""
        self.length = 0
        """T, including <begin>"""

    def keep(self, rows: Tensor) -> None:
        """Keep these rows of the batch, by index (n,) or mask (B,)."""
        self.layers = [layer and (layer[0][rows], layer[1][rows]) for layer in self.layers]


class CausalTransformer(nn.Module):
    """Autoregressive transformer over tokens. At the start every block is the identity and all logits are 0.

    Attributes:
        begin_id: the input that precedes the first token; the last row of the input table.
        end_id: the output that ends a text; the last column of the logits (vocab_size).
        pad_id: fills a batch after the end of a text.
    """

    rope_P2e: Tensor

    def __init__(self, config: CausalConfig, shape: DataShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        self.begin_id = shape.first_noise_id
        self.end_id, self.pad_id = shape.vocab_size, shape.pad_id
        self.forbidden = [i for i in (shape.pad_id, shape.mask_id) if i < shape.vocab_size]
        self.text_embedding = tag(TokenTable(self.begin_id + 1, config.dim), "text_embedding", input=True)
        self.blocks = tag(nn.ModuleList(CausalBlock(config) for _ in range(config.depth)), "backbone")
        self.norm = tag(RMSNorm(config.dim), "text_head")
        self.text_head = tag(Linear(config.dim, shape.vocab_size + 1, gain=0.0, bias=False), "text_head")
        rope_shape = (shape.max_length + 1, 2, config.head_dim // 2)
        self.register_buffer("rope_P2e", torch.empty(rope_shape), persistent=False)

    def init_weights(self, generator: torch.Generator) -> None:
        self.rope_P2e.copy_(rope_table(self.shape.max_length + 1, self.config.head_dim, self.config.rope_theta))

    def forward(self, tokens_BL: Tensor, *, logits_at: Tensor | None = None) -> Tensor:
        """Predict each token from the tokens before it, and <end> after the last one.

        Position l predicts token l given the tokens before l; the position after the last token predicts <end>. The
        logits are −inf at [PAD], at [MASK], and for <end> at position 0: no text is empty. Padding follows the text,
        so that no position of the text reads it.

        Args:
            tokens_BL: ids without <begin>, pads after the text.
            logits_at: (B, L + 1) bool; the logits are computed at these M positions only, in row-major order.

        Returns:
            Unnormalised logits (B, L + 1, V + 1), or (M, V + 1) with `logits_at`.
        """
        B, L = tokens_BL.shape
        x_BPD = self.text_embedding(F.pad(tokens_BL, (1, 0), value=self.begin_id)).float()
        causal_PP = torch.ones(L + 1, L + 1, dtype=torch.bool, device=tokens_BL.device).tril()
        key_mask, rope_P2e = causal_PP.expand(B, 1, -1, -1), self.rope_P2e[: L + 1]
        for block in self.blocks:
            x_BPD, _, _ = run_block(block, x_BPD, rope_P2e, key_mask, config=self.config, training=self.training)
        first_BP = (torch.arange(L + 1, device=tokens_BL.device) == 0).expand(B, -1)
        if logits_at is None:
            return self._logits(x_BPD, first_BP)
        return self._logits(x_BPD[logits_at], first_BP[logits_at])

    def start(self) -> KeyValueCache:
        """Make an empty cache; the tokens of the first step are `begin_id`."""
        return KeyValueCache(self.config.depth)

    def step(self, cache: KeyValueCache, token_B: Tensor) -> Tensor:
        """Append one token to every text of the cache and predict the next one: logits (B, V + 1) as of `forward`.

        They are a new tensor in each call, into which the sampler writes.
        """
        x_B1D = self.text_embedding(token_B[:, None]).float()
        rope_12e = self.rope_P2e[cache.length : cache.length + 1]
        for index, block in enumerate(self.blocks):
            x_B1D, keys, values = block(x_B1D, rope_12e, None, cache.layers[index])
            cache.layers[index] = (keys, values)
        first_B = torch.full_like(token_B, cache.length == 0, dtype=torch.bool)
        cache.length += 1
        return self._logits(x_B1D[:, 0], first_B)

    def _logits(self, x: Tensor, first: Tensor) -> Tensor:
        logits = self.text_head(self.norm(x)).float()
        # A forbidden logit has no gradient (its probability is 0), so this change need not be part of the graph.
        with torch.no_grad():
            logits[..., self.forbidden] = -torch.inf
            logits[..., self.end_id].masked_fill_(first, -torch.inf)
        return logits
