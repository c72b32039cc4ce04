"""MMDiT (SD3, arXiv:2403.03206) for text and latent: two streams with joint attention, a timestep for each modality.

B batch, L text length, V vocabulary, D model dimension, d latent dimension, K latent tokens, N longest length.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mm_ldlm.core.config import config
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.embeddings import LatentEncoder, NullEmbedding, PooledText, TextEmbedding
from mm_ldlm.models.heads import LengthHead, Modulated, TextHead, mean_features
from mm_ldlm.models.layers import Block, rope_table
from mm_ldlm.models.mmdit_options import MMDiTOptions, latent_dim
from mm_ldlm.models.parts import tag
from mm_ldlm.models.timestep_embedding import Conditioning
from mm_ldlm.models.token_vectors import set_token_vectors
from mm_ldlm.models.two_streams import drop_text, joint_key_mask

Head = Literal["text", "latent", "length"]
HEADS: tuple[Head, ...] = ("text", "latent", "length")


class Output(NamedTuple):
    """Predictions of the model; None for a head that was not requested."""

    logits_BLV: Tensor | None
    """Unnormalised; (n, V) when `logits_at` chose n positions. The text process applies SUBS."""
    latent_Bd: Tensor | None
    """In the objective's parameterisation."""
    length_logits_BN: Tensor | None
    """Column i is length i + 1."""


@config
class MMDiTConfig(MMDiTOptions):
    """Kind `mmdit`: two streams, text tokens and latent tokens, with joint attention (SD3, arXiv:2403.03206).

    The vocabulary, the longest text and the dimension of a latent come from the data (`models.base.DataShape`).
    """

    interface: ClassVar[str] = "text_and_latent_denoiser"

    def build(self, shape: DataShape, *, generator: torch.Generator, token_vectors: Tensor | None = None) -> MMDiT:
        """Build the model, see `models.base.ModelConfig.build`; `token_vectors` (vocab_size, latent_dim) are raw.

        Raises:
            ConfigurationError: the data have no latents.
        """
        latent_dim(shape)
        model: MMDiT = build_on_meta(lambda: MMDiT(self, shape), generator)
        if self.token_vectors == "encoder" and token_vectors is not None:
            tables = (model.text_embedding.table, model.text_head.table)
            set_token_vectors([table for table in tables if table is not None], token_vectors, shape=shape)
        return model


class MMDiT(nn.Module):
    """Two-stream transformer over text and latent; `MMDiTConfig.build` builds it and sets its initial values."""

    rope_L2e: Tensor
    # The last block's layers of the text stream belong to the text head; its other layers get no gradient.
    feature_parts = frozenset({"text_embedding", "latent_encoder", "null_latent", "conditioning", "backbone"})

    def __init__(
        self, config: MMDiTOptions, shape: DataShape, *, attention: Literal["fused", "unfused"] = "fused"
    ) -> None:
        super().__init__()
        pad_id, mask_id = shape.pad_id, shape.mask_id
        if min(pad_id, mask_id) < 0 or pad_id == mask_id:
            raise ValueError(f"pad_id and mask_id must be two different ids ≥ 0, found {pad_id} and {mask_id}.")
        self.config, self.shape = config, shape
        self.feature_dim = config.dim
        D, K, d = config.dim, config.latent_tokens, latent_dim(shape)

        self.text_embedding = tag(TextEmbedding(config, shape, shape.num_ids), "text_embedding", input=True)
        self.null_text = tag(NullEmbedding(D), "null_text", occasional=True)
        self.latent_encoder = tag(LatentEncoder(config, shape), "latent_encoder", input=True)
        self.pooled_text = tag(PooledText(config, shape), "conditioning") if config.direct_views else None
        self.null_latent = tag(NullEmbedding(d), "null_latent", occasional=True)
        self.conditioning = tag(Conditioning(config, shape), "conditioning")
        two_stream, fused = config.two_stream_blocks, attention == "fused"
        blocks = []
        for index in range(config.depth):
            last = index == config.depth - 1
            if index < two_stream:
                tails: tuple[str | None, ...] = ("text_head", "latent_head") if last else (None, None)
            else:
                tails = (None,)
            blocks.append(Block(config, tail_parts=tails, fused=fused))
        self.blocks = tag(nn.ModuleList(blocks), "backbone")
        self.text_head = tag(TextHead(config, shape), "text_head")
        self.latent_head = tag(Modulated(config, K * D, d), "latent_head")
        length_head = LengthHead(d, hidden_dim=config.length_hidden_dim or D, max_length=shape.max_length)
        self.length_head = tag(length_head, "length_head")
        self.register_buffer("rope_L2e", torch.empty(shape.max_length, 2, config.head_dim // 2), persistent=False)

    def init_weights(self, generator: torch.Generator) -> None:
        config = self.config
        self.rope_L2e.copy_(rope_table(self.shape.max_length, config.head_dim, config.rope_theta))

    def forward(
        self,
        tokens_BL: Tensor,
        *,
        valid_BL: Tensor | None,
        t_text_B: Tensor,
        latents_Bd: Tensor,
        t_latent_B: Tensor,
        null_latent_B: Tensor | None = None,
        null_text_B: Tensor | None = None,
        length_latents_Bd: Tensor | None = None,
        null_length_B: Tensor | None = None,
        self_condition_Bd: Tensor | None = None,
        logits_at: Tensor | None = None,
        token_probs_BLV: Tensor | None = None,
        heads: tuple[Head, ...] = HEADS,
    ) -> Output:
        """Predict tokens, latent and length from both modalities at their own times (0 = given, 1 = all noise).

        Args:
            tokens_BL: ids, [MASK] where masked, pads where not valid.
            valid_BL: true at real tokens; None if there is no padding.
            latents_Bd: standardised latents, noised to `t_latent_B`.
            null_latent_B: true where the latent is replaced by the learned null latent.
            null_text_B: true where the text is replaced by one learned null token, which hides its length too.
            length_latents_Bd: input of the length head (clean latents while the trunk reads noised ones); `latents_Bd`
                if None.
            null_length_B: `null_latent_B` for the length head alone; `null_latent_B` if None.
            self_condition_Bd: the previous x_0 estimate, if the model was configured to read it; zeros if None.
            logits_at: (B, L) bool; the vocabulary head is computed at these n positions only and returns (n, V), in
                row-major order.
            token_probs_BLV: distributions of the tokens; each position has the expected embedding instead of that of
                its token, and `tokens_BL` marks pads and masks alone.
            heads: the heads to compute; the outputs of the others are None.
        """
        if tokens_BL.shape[1] > self.shape.max_length:
            raise ValueError(f"expected texts of at most {self.shape.max_length} tokens, found {tokens_BL.shape[1]}.")
        latents_Bd = latents_Bd.float()
        given_Bd = self.null_latent.replace(latents_Bd, null_latent_B)

        length_logits_BN = None
        if "length" in heads:
            clean_Bd = latents_Bd if length_latents_Bd is None else length_latents_Bd.float()
            null_B = null_latent_B if null_length_B is None else null_length_B
            length_logits_BN = self.length_head(self.null_latent.replace(clean_Bd, null_B))
        want_text, want_latent = "text" in heads, "latent" in heads
        if not (want_text or want_latent):
            return Output(None, None, length_logits_BN)

        silu_c_BC = F.silu(self.conditioning(t_text_B, t_latent_B, given_Bd))
        text_BLD, latent_BKD = self._hidden(
            tokens_BL, valid_BL, given_Bd, silu_c_BC, null_text_B=null_text_B, self_condition_Bd=self_condition_Bd,
            token_probs_BLV=token_probs_BLV, wanted=(want_text, want_latent),
        )  # fmt: skip
        logits = self._vocabulary(text_BLD, silu_c_BC, logits_at) if want_text else None
        latent = None
        if want_latent:
            assert self.latent_head.linear is not None
            latent = self.latent_head.linear(self.latent_head.norm(latent_BKD, silu_c_BC).flatten(1)).float()
        return Output(logits, latent, length_logits_BN)

    def features(self, inputs: Tensor, *, valid_BL: Tensor | None = None) -> Tensor:
        """Compute the mean hidden state (B, D) of clean texts, at time 0, with the null latent.

        See `models.base.FeatureModel`.
        """
        given_Bd = self.null_latent.value.float().expand(len(inputs), -1)
        zero_B = torch.zeros(len(inputs), device=inputs.device)
        silu_c_BC = F.silu(self.conditioning(zero_B, zero_B, given_Bd))
        text_BLD, _ = self._hidden(inputs, valid_BL, given_Bd, silu_c_BC, wanted=(True, False))
        return mean_features(text_BLD, valid_BL)

    # -- the parts of forward -----------------------------------------------------------------------------------------

    def _hidden(
        self,
        tokens_BL: Tensor,
        valid_BL: Tensor | None,
        given_Bd: Tensor,
        silu_c_BC: Tensor,
        *,
        null_text_B: Tensor | None = None,
        self_condition_Bd: Tensor | None = None,
        token_probs_BLV: Tensor | None = None,
        wanted: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor]:
        """Compute the output (B, L, D) and (B, K, D) of the blocks, before the heads, as far as wanted."""
        vectors_BLe = self.text_embedding.table(tokens_BL)
        if token_probs_BLV is not None:
            table_Ve = self.text_embedding.table.weight[: token_probs_BLV.shape[-1]]
            vectors_BLe = token_probs_BLV.to(table_Ve.dtype) @ table_Ve
        text_BLD = self.text_embedding(vectors_BLe).float()
        if self.config.direct_views:
            text_BLD = text_BLD + self.latent_encoder.at_positions(given_Bd, tokens_BL.shape[1]).float()
        if null_text_B is not None:
            text_BLD, valid_BL = drop_text(text_BLD, valid_BL, null_text_B, null_text=self.null_text.value)

        latent_BKD = self.latent_encoder(given_Bd, self_condition_Bd)
        if self.pooled_text is not None:
            known_BL = (tokens_BL != self.shape.mask_id) & (tokens_BL != self.shape.pad_id)
            known_BL = known_BL if valid_BL is None else known_BL & valid_BL
            known_BL = known_BL if null_text_B is None else known_BL & ~null_text_B[:, None]
            latent_BKD = latent_BKD + self.pooled_text(vectors_BLe, known_BL)
        return self._trunk(
            text_BLD, latent_BKD, silu_c_BC, joint_key_mask(valid_BL, others=self.config.latent_tokens), wanted
        )

    def _trunk(
        self,
        text_BLD: Tensor,
        latent_BKD: Tensor,
        silu_c_BC: Tensor,
        key_mask: Tensor | None,
        wanted: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor]:
        config, L, K = self.config, text_BLD.shape[1], latent_BKD.shape[1]
        rope_L2e = self.rope_L2e[:L]
        xs: tuple[Tensor, ...] = (text_BLD, latent_BKD)
        ropes: tuple[Tensor | None, ...] = (rope_L2e, None)
        for index, block in enumerate(self.blocks):
            if index == config.two_stream_blocks:
                xs = (torch.cat(xs, dim=1),)
                at_zero = torch.zeros_like(rope_L2e[:1]).index_fill(1, rope_L2e.new_zeros(1, dtype=torch.long), 1.0)
                ropes = (torch.cat([rope_L2e, at_zero.expand(K, -1, -1)]),)
            last = index == config.depth - 1
            keep = wanted if last and len(xs) == 2 else (True,) * len(xs)
            if config.gradient_checkpointing and self.training and torch.is_grad_enabled():
                xs = checkpoint(
                    block, xs, silu_c_BC, ropes, key_mask, keep,
                    use_reentrant=False, preserve_rng_state=config.dropout > 0,
                )  # fmt: skip
            else:
                xs = block(xs, silu_c_BC, ropes, key_mask, keep)
        return (xs[0], xs[1]) if len(xs) == 2 else (xs[0][:, :L], xs[0][:, L:])

    def _vocabulary(self, text_BLD: Tensor, silu_c_BC: Tensor, logits_at: Tensor | None) -> Tensor:
        x = self.text_head.norm(text_BLD, silu_c_BC)
        return self.text_head.logits(x if logits_at is None else x[logits_at], self.text_embedding)
