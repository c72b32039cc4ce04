"""MMDiT (SD3, arXiv:2403.03206) for a text and one Gaussian modality: two streams with joint attention and two times.

The modality of `mmdit` is a sentence latent, a vector that becomes K tokens. Other modalities (an image, whose patches
are the tokens) override the parts that read and predict it: the methods `make_…` of `MMDiT`.

B batch, L text length, V vocabulary, D model dimension, d dimension of the modality, K its tokens,
e dimension of a token vector, N longest length.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import NonNegativeInt, Size, config, refuse_if
from mm_ldlm.models.attention import EPSILON, key_mask
from mm_ldlm.models.base import DataShape, TextAndLatentModel, TextAndLatentOutput, build_on_meta
from mm_ldlm.models.blocks import Block, Linear, ModulatedOptions, run_block, trunc_normal_
from mm_ldlm.models.embeddings import TIME_FEATURES, Conditioner, LatentTokens, NullEmbedding, TokenTable, sinusoid
from mm_ldlm.models.heads import LatentHead, LengthHead, TextHead, mean_features
from mm_ldlm.models.parts import tag
from mm_ldlm.models.rope import rope_table

INITIAL_STD = 0.1
"""Standard deviation of all entries of a table of token vectors that the encoder initialised"""


@config
class MMDiTOptions(ModulatedOptions):
    """Options of an MMDiT for any second modality.

    Attributes:
        length_hidden_dim: dimension of the length head's two hidden layers; `dim` if None. A short training needs a
            large one.
        cross_modal_blocks: number of two-stream blocks at the bottom; the blocks above have a single stream. None: all
            have two.
    """

    kind: str
    length_hidden_dim: Size | None = None
    cross_modal_blocks: NonNegativeInt | None = None

    self_condition: ClassVar[bool] = False
    direct_views: ClassVar[bool] = False
    condition_on_text: ClassVar[bool] = False
    """Whether c has an MLP of the mean vector of the known tokens"""
    condition_on_latent: ClassVar[bool] = True
    """Whether c has an MLP of the modality"""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.cross_modal_blocks is not None and not 1 <= self.cross_modal_blocks <= self.depth,
            f"cross_modal_blocks must lie in 1..depth ({self.depth}), found {self.cross_modal_blocks}",
            "cross_modal_blocks",
            "depth",
        )

    @property
    def two_stream_blocks(self) -> int:
        return self.depth if self.cross_modal_blocks is None else self.cross_modal_blocks


@config
class MMDiTConfig(MMDiTOptions):
    """Kind `mmdit`: two streams, text tokens and latent tokens, with joint attention.

    The vocabulary, the longest text and the dimension of a latent come from the data (`models.base.DataShape`).

    Attributes:
        latent_tokens: number of tokens that one latent vector becomes.
        token_vectors: initial values of the token embeddings (input and output). `random`: vectors of dimension `dim`.
            `encoder`: the encoder's vector of each token, of the latents' dimension, with a linear layer to and from
            `dim`. A sentence embedding is nearly linear in the words of its sentence, so that the model has a first
            estimate of both before any training.
        direct_views: connect each modality to the other's stream without attention. Every text position adds its own
            linear view of the latent (max_length · latent_dim · dim weights); the latent tokens add a linear view of
            the mean token vector.
        condition_on_latent: add an MLP of the latent to c.
        self_condition: read the previous x_0 estimate with the noisy latent.
    """

    interface: ClassVar[type] = TextAndLatentModel

    kind: str = "mmdit"
    latent_tokens: Size = 4
    token_vectors: Literal["random", "encoder"] = "random"
    direct_views: bool = False  # type: ignore[misc]
    condition_on_latent: bool = True  # type: ignore[misc]
    self_condition: bool = False  # type: ignore[misc]

    @property
    def stores(self) -> tuple[str, ...]:
        return ("token_vectors",) if self.token_vectors == "encoder" else ()

    def build(self, shape: DataShape, *, generator: torch.Generator, token_vectors: Tensor | None = None) -> "MMDiT":
        """Build the model, see `models.base.ModelConfig.build`; `token_vectors` (vocab_size, latent_dim) are raw.

        Raises:
            ConfigurationError: the data have no latents.
        """
        shape.require("latents", kind=self.kind)
        model: MMDiT = build_on_meta(lambda: MMDiT(self, shape), generator)
        if self.token_vectors == "encoder" and token_vectors is not None:
            for table in (model.text_embedding.table, model.text_head.table):
                if table is not None:
                    set_token_vectors(table, token_vectors, shape=shape)
        return model


# -- parts -------------------------------------------------------------------------------------------------------------


class TextEmbedding(nn.Module):
    """Token embedding of the text stream: a table, and a linear layer if its vectors have another dimension."""

    def __init__(self, rows: int, *, table_dim: int | None, dim: int) -> None:
        super().__init__()
        self.pooled_dim = table_dim or dim  # dimension of the second output
        self.table = TokenTable(rows, self.pooled_dim)
        self.linear = None if table_dim is None else Linear(table_dim, dim, gain=2.0, bias=False)

    def forward(self, tokens_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the input (B, L, D) float32 of the stream, and the vectors (B, L, e) that are pooled."""
        vectors_BLe = self.table(tokens_BL)
        return (vectors_BLe if self.linear is None else self.linear(vectors_BLe)).float(), vectors_BLe

    def known(self, tokens_BL: Tensor, shape: DataShape, **text: Tensor) -> Tensor:
        """Select the positions (B, L) whose token is given."""
        return (tokens_BL != shape.mask_id) & (tokens_BL != shape.pad_id)


class LatentEncoder(LatentTokens):
    """Map a latent (with self-conditioning also the previous x_0 estimate) to K tokens with learned positions."""

    def __init__(self, config: MMDiTConfig, *, latent_dim: int, max_length: int) -> None:
        inputs = latent_dim * (2 if config.self_condition else 1)
        super().__init__(inputs, tokens=config.latent_tokens, dim=config.dim)
        self.self_condition = config.self_condition
        size = (max_length, config.dim, latent_dim)
        self.view_LDd: Any = nn.Parameter(torch.empty(size)) if config.direct_views else None

    def init_weights(self, generator: torch.Generator) -> None:
        super().init_weights(generator)
        if self.view_LDd is not None:
            trunc_normal_(self.view_LDd, std=0.4 / self.view_LDd.shape[2] ** 0.5, generator=generator)

    def at_positions(self, latents_Bd: Tensor, length: int) -> Tensor:
        """Compute a linear view (B, L, D) of the latent for each of `length` text positions."""
        return F.linear(latents_Bd, self.view_LDd[:length].flatten(0, 1)).unflatten(1, (length, -1))

    def forward(self, latents_Bd: Tensor, self_condition_Bd: Tensor | None = None) -> Tensor:
        if self.self_condition:
            previous_Bd = torch.zeros_like(latents_Bd) if self_condition_Bd is None else self_condition_Bd
            latents_Bd = torch.cat([latents_Bd, previous_Bd.to(latents_Bd.dtype)], dim=-1)
        return super().forward(latents_Bd)


class PooledText(nn.Module):
    """Linear view of the pooled text, added to the K latent tokens."""

    def __init__(self, inputs: int, *, tokens: int, dim: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.linear = Linear(inputs, tokens * dim)

    def forward(self, pooled_Be: Tensor) -> Tensor:
        return self.linear(pooled_Be).float().unflatten(1, (self.tokens, -1))


class Conditioning(nn.Module):
    """Conditioning vector c (B, C): the sum of MLPs of both times, the pooled text and the modality, if wanted."""

    def __init__(self, config: MMDiTOptions, dims: Mapping[str, int]) -> None:
        """`dims` are the dimensions of the pooled text ("text") and of the modality ("latent")."""
        super().__init__()
        C = config.condition_dim
        self.text_time, self.latent_time = Conditioner(TIME_FEATURES, C), Conditioner(TIME_FEATURES, C)
        self.text = Conditioner(dims["text"], C) if config.condition_on_text else None
        self.latent = Conditioner(dims["latent"], C) if config.condition_on_latent else None

    def forward(self, t_text_B: Tensor, t_latent_B: Tensor, *, pooled_Be: Tensor | None, latents_Bd: Tensor) -> Tensor:
        c_BC: Tensor = self.text_time(sinusoid(t_text_B)) + self.latent_time(sinusoid(t_latent_B))
        c_BC = c_BC if self.text is None else c_BC + self.text(pooled_Be)
        return c_BC if self.latent is None else c_BC + self.latent(latents_Bd)


# -- model -------------------------------------------------------------------------------------------------------------


class MMDiT(nn.Module):
    """Two-stream transformer over a text and a modality; see `forward`.

    At the start every block is the identity, and logits and predictions are 0. Subclasses for another modality set
    `modality` and `field`, and override `make_text_embedding`, `make_latent_encoder`, `make_latent_head`.
    """

    modality: ClassVar[str] = "latent"
    """Name of the modality, the prefix of its parts"""
    field: ClassVar[str] = "latents"
    """Field of the data that has its shape"""
    rope_L2e: Tensor

    def __init__(self, config: Any, shape: DataShape) -> None:
        super().__init__()
        name, D, d = self.modality, config.dim, shape.dim(self.field)
        self.config, self.shape, self.feature_dim = config, shape, D
        # The last block's layers of the text stream belong to the text head; its other layers get no gradient.
        self.feature_parts = frozenset(
            {"text_embedding", f"{name}_encoder", f"null_{name}", "conditioning", "backbone"}
        )
        self.text_embedding = tag(self.make_text_embedding(), "text_embedding", input=True)
        self.null_text = tag(NullEmbedding(D), "null_text", occasional=True)
        self.latent_encoder = tag(self.make_latent_encoder(), f"{name}_encoder", input=True)
        self.pooled_text: Any = None
        if config.direct_views:
            pooled_text = PooledText(self.text_embedding.pooled_dim, tokens=config.latent_tokens, dim=D)
            self.pooled_text = tag(pooled_text, "conditioning")
        self.null_latent = tag(NullEmbedding(d), f"null_{name}", occasional=True)
        conditioning = Conditioning(config, {"text": self.text_embedding.pooled_dim, "latent": d})
        self.conditioning = tag(conditioning, "conditioning")
        last = ("text_head", f"{name}_head") if config.two_stream_blocks == config.depth else (None,)
        tails = [(None, None) if index < config.two_stream_blocks else (None,) for index in range(config.depth - 1)]
        blocks = (Block(config, tail_parts=tail) for tail in [*tails, last])
        self.blocks = tag(nn.ModuleList(blocks), "backbone")
        self.text_head = tag(self.make_text_head(), "text_head")
        self.latent_head = tag(self.make_latent_head(), f"{name}_head")
        length_head = LengthHead(d, hidden_dim=config.length_hidden_dim or D, max_length=shape.max_length)
        self.length_head = tag(length_head, "length_head")
        self.register_buffer("rope_L2e", torch.empty(shape.max_length, 2, config.head_dim // 2), persistent=False)

    def init_weights(self, generator: torch.Generator) -> None:
        self.rope_L2e.copy_(rope_table(self.shape.max_length, self.config.head_dim, self.config.rope_theta))

    # -- the parts that depend on the modality ------------------------------------------------------------------------

    @property
    def _table_dim(self) -> int | None:
        """Dimension of the token vectors if they are the encoder's; None if it equals the model's."""
        return self.shape.dim(self.field) if self.config.token_vectors == "encoder" else None

    def make_text_embedding(self) -> Any:
        """Make the module that maps tokens to the text stream, with the interface of `TextEmbedding`."""
        return TextEmbedding(self.shape.num_ids, table_dim=self._table_dim, dim=self.config.dim)

    def make_latent_encoder(self) -> Any:
        """Make the module that maps values (B, d), and the previous estimate or None, to tokens (B, K, D)."""
        return LatentEncoder(
            self.config, latent_dim=self.shape.dim(self.field), max_length=self.shape.max_length
        )  # fmt: skip

    def make_text_head(self) -> TextHead:
        """Make the head of the text stream."""
        return TextHead(self.config, self.shape.vocab_size, table_dim=self._table_dim, table_bias=True)

    def make_latent_head(self) -> nn.Module:
        """Make the module that maps tokens (B, K, D) and silu(c) to the prediction (B, d) float32."""
        return LatentHead(self.config, tokens=self.config.latent_tokens, dim=self.shape.dim(self.field))

    # -- calls --------------------------------------------------------------------------------------------------------

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
        heads: tuple[str, ...] = ("text", "latent", "length"),
        **text: Tensor,
    ) -> TextAndLatentOutput:
        """Predict tokens, latent and length from both modalities at their own times (0 = given, 1 = all noise).

        Args:
            tokens_BL: ids, [MASK] or other noise where the text is corrupted, pads where not valid.
            valid_BL: true at real tokens; None if there is no padding.
            latents_Bd: standardised values of the modality, noised to `t_latent_B`.
            null_latent_B: true where the latent is replaced by the learned null latent.
            null_text_B: true where the text is replaced by one learned null token, which hides its length too.
            length_latents_Bd: input of the length head (clean latents while the trunk reads noised ones); `latents_Bd`
                if None.
            null_length_B: `null_latent_B` for the length head only; `null_latent_B` if None.
            self_condition_Bd: the previous x_0 estimate, if the model was configured to read it; zeros if None.
            logits_at: (B, L) bool; the vocabulary head is computed at these M positions only and returns (M, V), in
                row-major order.
            heads: the heads to compute; the outputs of the others are None.
            text: further arguments of the text embedding of another modality.
        """
        latents_Bd = latents_Bd.float()
        length_logits = None
        if "length" in heads:
            clean_Bd = latents_Bd if length_latents_Bd is None else length_latents_Bd.float()
            null_B = null_latent_B if null_length_B is None else null_length_B
            length_logits = self.length_head(self.null_latent.replace(clean_Bd, null_B))
        want_text, want_latent = "text" in heads, "latent" in heads
        if not (want_text or want_latent):
            return TextAndLatentOutput(None, None, length_logits)

        text_BLD, latent_BKD, silu_c_BC = self._hidden(
            tokens_BL, valid_BL, t_text_B, self.null_latent.replace(latents_Bd, null_latent_B), t_latent_B,
            null_text_B=null_text_B, self_condition_Bd=self_condition_Bd, wanted=(want_text, want_latent), text=text,
        )  # fmt: skip
        latent = self.latent_head(latent_BKD, silu_c_BC) if want_latent else None
        logits = None
        if want_text:
            logits = self.text_head.logits(
                text_BLD, silu_c_BC, at=logits_at, embedding=self.text_embedding.table
            )  # fmt: skip
        return TextAndLatentOutput(logits, latent, length_logits)

    def features(self, inputs: Tensor, *, valid_BL: Tensor | None = None) -> Tensor:
        """Compute the mean hidden state (B, D) of clean texts, at time 0, with the null latent.

        See `models.base.FeatureModel`.
        """
        null_Bd = self.null_latent.value.float().expand(len(inputs), -1)
        zero_B = torch.zeros(len(inputs), device=inputs.device)
        text_BLD, _, _ = self._hidden(inputs, valid_BL, zero_B, null_Bd, zero_B, wanted=(True, False))
        return mean_features(text_BLD, valid_BL)

    def length_logits(self, latents_Bd: Tensor, null_latent_B: Tensor | None = None) -> Tensor:
        """Return unnormalised log-probabilities (B, N) float32 of the lengths 1..N, given latents or none."""
        zero_B = torch.zeros(len(latents_Bd), device=latents_Bd.device)
        tokens_B1 = torch.full((len(latents_Bd), 1), self.shape.mask_id, device=latents_Bd.device)
        # A call of the module, because the hooks of a sharded model act on it.
        out = self(
            tokens_B1, valid_BL=None, t_text_B=zero_B, latents_Bd=latents_Bd, t_latent_B=zero_B,
            null_latent_B=null_latent_B, heads=("length",),
        )  # fmt: skip
        return out.length_logits

    # -- the parts of forward -----------------------------------------------------------------------------------------

    def _hidden(
        self, tokens_BL: Tensor, valid_BL: Tensor | None, t_text_B: Tensor, given_Bd: Tensor, t_latent_B: Tensor, *,
        null_text_B: Tensor | None = None, self_condition_Bd: Tensor | None = None, wanted: tuple[bool, bool],
        text: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Compute the output (B, L, D) and (B, K, D) of the blocks, as far as wanted, and silu(c) (B, C)."""
        text = text or {}
        text_BLD, vectors_BLe = self.text_embedding(tokens_BL, **text)
        pooled_Be = None
        if self.pooled_text is not None or self.config.condition_on_text:
            known_BL = self.text_embedding.known(tokens_BL, self.shape, **text)
            known_BL = known_BL if valid_BL is None else known_BL & valid_BL
            known_BL = known_BL if null_text_B is None else known_BL & ~null_text_B[:, None]
            sum_Be = torch.einsum("ble,bl->be", vectors_BLe.float(), known_BL.float())
            pooled_Be = F.layer_norm(sum_Be, sum_Be.shape[-1:], eps=EPSILON)  # zeros if no token is known
        silu_c_BC = F.silu(self.conditioning(t_text_B, t_latent_B, pooled_Be=pooled_Be, latents_Bd=given_Bd))

        if self.config.direct_views:
            text_BLD = text_BLD + self.latent_encoder.at_positions(given_Bd, tokens_BL.shape[1]).float()
        if null_text_B is not None:
            # One null token at position 0, and padding after it
            text_BLD = self.null_text.replace(text_BLD, null_text_B)
            first_L = torch.arange(text_BLD.shape[1], device=text_BLD.device) == 0
            valid_BL = torch.where(null_text_B[:, None], first_L, True if valid_BL is None else valid_BL)
        latent_BKD = self.latent_encoder(given_Bd, self_condition_Bd)
        if self.pooled_text is not None:
            latent_BKD = latent_BKD + self.pooled_text(pooled_Be)
        mask = key_mask(valid_BL, others=latent_BKD.shape[1])
        return *self._trunk(text_BLD, latent_BKD, silu_c_BC, mask, wanted), silu_c_BC

    def _trunk(
        self, text_BLD: Tensor, latent_BKD: Tensor, silu_c_BC: Tensor, mask: Tensor | None, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        config, L, K = self.config, text_BLD.shape[1], latent_BKD.shape[1]
        rope_L2e = self.rope_L2e[:L]
        xs: tuple[Tensor, ...] = (text_BLD, latent_BKD)
        ropes: tuple[Tensor | None, ...] = (rope_L2e, None)
        for index, block in enumerate(self.blocks):
            if index == config.two_stream_blocks:
                xs = (torch.cat(xs, dim=1),)
                ropes = (torch.cat([rope_L2e, rope_L2e[:1].expand(K, -1, -1)]),)  # latents stand at position 0
            keep = wanted if index == config.depth - 1 and len(xs) == 2 else (True,) * len(xs)
            xs = run_block(block, xs, silu_c_BC, ropes, mask, keep, config=config, training=self.training)
        return (xs[0], xs[1]) if len(xs) == 2 else (xs[0][:, :L], xs[0][:, L:])


def set_token_vectors(table: TokenTable, vectors_Vd: Tensor, *, shape: DataShape) -> None:
    """Initialise a table with `vectors_Vd` (raw encoder vectors by id), centred and scaled; [MASK] and [PAD] stay."""
    centred_Vd = vectors_Vd.float() - vectors_Vd.float().mean(0)
    set_Vd = centred_Vd * (INITIAL_STD / centred_Vd.std().clamp(min=1e-12))
    ids = torch.tensor(shape.word_ids)
    with torch.no_grad():
        table.weight[ids] = set_Vd[ids].to(table.weight.device)
