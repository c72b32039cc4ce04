"""MMDiT (SD3, arXiv:2403.03206) for captions and images: two streams with joint attention and separate timesteps.

An image enters as patches, one token each (ViT, arXiv:2010.11929). A caption enters as token ids, or, in
`image_mmdit_continuous`, as vectors that Gaussian noise can corrupt (CDCD, arXiv:2211.15089).

B batch, L caption length, M chosen positions, V vocabulary, D model dimension, e dimension of a caption vector,
P values of an image (height · width · channels), K patches, p values of a patch, N longest caption.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mm_ldlm.core.config import InvalidValue, Size, config
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.embeddings import NullEmbedding, TokenTable
from mm_ldlm.models.heads import LengthHead, Modulated
from mm_ldlm.models.layers import EPSILON, Block, Linear, rope_table, trunc_normal_
from mm_ldlm.models.parts import tag
from mm_ldlm.models.timestep_embedding import TIME_FEATURES, Conditioner, sinusoid
from mm_ldlm.models.transformer_options import LatentOptions, ModulatedOptions
from mm_ldlm.models.two_streams import drop_text, joint_key_mask

Head = Literal["text", "image", "length"]
HEADS: tuple[Head, ...] = ("text", "image", "length")


@config
class ImageMMDiTOptions(ModulatedOptions, LatentOptions):
    """Options of both kinds.

    Attributes:
        patch: side of a square patch in pixels; it divides the height and the width of the images.
        pooled_conditions: add to c an MLP of the mean vector of the known caption tokens (SD3 also adds a pooled text)
            and an MLP of the image, so that each modality influences the other without attention. Short trainings
            need it.
    """

    kind: str
    patch: Size = 2
    pooled_conditions: bool = True

    @property
    def vector_dim(self) -> int | None:
        """Dimension of the vector of a caption token; None where captions are tokens."""
        return None

    def build(self, shape: DataShape, *, generator: torch.Generator, token_vectors: Tensor | None = None) -> ImageMMDiT:
        """Build the model; see `models.base.ModelConfig.build`.

        Raises:
            ConfigurationError: the data have no images, or the patch does not divide their size.
        """
        if shape.image_size is None:
            raise ConfigurationError(
                f"parameter 'model.kind' is '{self.kind}', which reads images, but the dataset has none. Run the "
                "embedding and validation pipelines with an objective that reads images, or choose another model."
            )
        height, width, _ = shape.image_size
        if height % self.patch or width % self.patch:
            raise ConfigurationError(
                f"parameter 'model.patch' is {self.patch}, which does not divide the {height} × {width} pixels of the "
                "images. Choose a divisor of both, or change images.height and images.width and embed again."
            )
        model: ImageMMDiT = build_on_meta(lambda: ImageMMDiT(self, shape), generator)
        return model


@config
class ImageMMDiTConfig(ImageMMDiTOptions):
    """Kind `image_mmdit`: two streams, caption tokens and image patches, with joint attention."""

    interface: ClassVar[str] = "text_and_image_denoiser"
    kind: str = "image_mmdit"


@config
class ContinuousImageMMDiTConfig(ImageMMDiTOptions):
    """Kind `image_mmdit_continuous`: the same model for captions as noised vectors.

    Attributes:
        caption_dim: dimension of the vector of a caption token. The smaller it is, the earlier noise hides the token.
    """

    interface: ClassVar[str] = "text_vectors_and_image_denoiser"
    kind: str = "image_mmdit_continuous"
    caption_dim: Size = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied_embeddings:
            raise InvalidValue(
                "tied_embeddings must be false: token vectors have caption_dim dimensions, the hidden states have dim",
                "tied_embeddings",
            )

    @property
    def vector_dim(self) -> int | None:
        return self.caption_dim


class Output(NamedTuple):
    """Predictions of the model; None for a head that was not requested."""

    logits: Tensor | None
    """(B, L, V), or (M, V) at the chosen positions; unnormalised"""
    images_BP: Tensor | None
    """In the objective's parameterisation"""
    length_logits_BN: Tensor | None
    """Column i is length i + 1"""


class Patches(nn.Module):
    """Linear map of the patches of an image to tokens with learned positions."""

    def __init__(self, size: tuple[int, int, int], *, patch: int, dim: int) -> None:
        super().__init__()
        self.size, self.patch = size, patch
        self.num_patches = (size[0] // patch) * (size[1] // patch)
        self.patch_dim = patch * patch * size[2]
        self.linear = Linear(self.patch_dim, dim)
        self.position_KD = nn.Parameter(torch.empty(self.num_patches, dim))

    def init_weights(self, generator: torch.Generator) -> None:
        # As large as the embedded noise. With smaller ones the model cannot tell the patches of a noisy image apart for
        # many steps, and the image ignores its caption.
        trunc_normal_(self.position_KD, std=1.0, generator=generator)

    def split(self, images_BP: Tensor) -> Tensor:
        """Cut images (B, P) of rows of pixels into patches (B, K, p), from left to right and top to bottom."""
        (height, width, channels), side = self.size, self.patch
        grid = images_BP.reshape(-1, height // side, side, width // side, side, channels)
        return grid.transpose(2, 3).reshape(-1, self.num_patches, self.patch_dim)

    def join(self, patches_BKp: Tensor) -> Tensor:
        """Join patches (B, K, p) to images (B, P); the inverse of `split`."""
        (height, width, channels), side = self.size, self.patch
        grid = patches_BKp.reshape(-1, height // side, width // side, side, side, channels)
        return grid.transpose(2, 3).reshape(-1, height * width * channels)

    def forward(self, images_BP: Tensor) -> Tensor:
        """Compute the tokens (B, K, D) in float32."""
        return self.linear(self.split(images_BP)).float() + self.position_KD


class ImageMMDiT(nn.Module):
    """Two-stream transformer over caption and image; `ImageMMDiTOptions.build` builds and initialises it."""

    rope_L2e: Tensor

    def __init__(self, config: ImageMMDiTOptions, shape: DataShape) -> None:
        super().__init__()
        assert shape.image_size is not None
        self.config, self.shape = config, shape
        D, C, P = config.dim, config.condition_dim, shape.image_dim
        vector_dim = config.vector_dim or D
        self.text_embedding = tag(TokenTable(shape.num_ids, vector_dim), "text_embedding", input=True)
        widen = None if config.vector_dim is None else Linear(vector_dim, D)
        self.caption_encoder = None if widen is None else tag(widen, "text_embedding", input=True)
        self.positions = tag(TokenTable(shape.max_length, D), "text_embedding", input=True)
        self.null_text = tag(NullEmbedding(D), "null_text", occasional=True)
        patches = Patches(shape.image_size, patch=config.patch, dim=D)
        self.image_encoder = tag(patches, "image_encoder", input=True)
        self.null_image = tag(NullEmbedding(P), "null_image", occasional=True)
        self.text_time = tag(Conditioner(TIME_FEATURES, C), "conditioning")
        self.image_time = tag(Conditioner(TIME_FEATURES, C), "conditioning")
        pooled = config.pooled_conditions
        self.pooled_text = tag(Conditioner(D, C), "conditioning") if pooled else None
        self.pooled_image = tag(Conditioner(P, C), "conditioning") if pooled else None
        tails = [(None, None)] * (config.depth - 1) + [("text_head", "image_head")]
        self.blocks = tag(nn.ModuleList(Block(config, tail_parts=tail, fused=True) for tail in tails), "backbone")
        outputs = None if config.tied_embeddings else shape.vocab_size
        self.text_head = tag(Modulated(config, D, outputs), "text_head")
        self.image_head = tag(Modulated(config, D, patches.patch_dim), "image_head")
        length_head = LengthHead(P, hidden_dim=config.length_hidden_dim or D, max_length=shape.max_length)
        self.length_head = tag(length_head, "length_head")
        self.register_buffer("rope_L2e", torch.empty(shape.max_length, 2, config.head_dim // 2), persistent=False)

    def init_weights(self, generator: torch.Generator) -> None:
        self.rope_L2e.copy_(rope_table(self.shape.max_length, self.config.head_dim, self.config.rope_theta))

    @property
    def unit_vectors(self) -> Tensor:
        """(ids, e): the vector of each id with norm √e, so that its coordinates have the scale of the noise.

        Vectors of free norm would grow in training, until noise no longer hides them (CDCD, arXiv:2211.15089, §3).
        """
        weight = self.text_embedding.weight.float()
        return F.normalize(weight, dim=-1) * weight.shape[1] ** 0.5

    def forward(
        self,
        tokens_BL: Tensor,
        *,
        valid_BL: Tensor | None,
        t_text_B: Tensor,
        images_BP: Tensor,
        t_image_B: Tensor,
        captions_BLe: Tensor | None = None,
        signal_B: Tensor | None = None,
        null_text_B: Tensor | None = None,
        null_image_B: Tensor | None = None,
        length_images_BP: Tensor | None = None,
        null_length_B: Tensor | None = None,
        logits_at: Tensor | None = None,
        heads: tuple[Head, ...] = HEADS,
    ) -> Output:
        """Predict tokens, image and length from both modalities at their own times (0 = given, 1 = all noise).

        Args:
            tokens_BL: ids; [MASK] or other noise where the caption is corrupted, pads where not valid.
            valid_BL: true at real tokens; None if there is no padding.
            images_BP: standardised images, noised to `t_image_B`.
            captions_BLe: noise of the vectors of the caption (`image_mmdit_continuous`); None for a clean caption.
            signal_B: factor of the tokens' own vectors, to which `captions_BLe` is added; None: they are left out, and
                `captions_BLe` is the whole noised caption.
            null_text_B: true where the caption is replaced by one learned null token, which hides its length too.
            null_image_B: true where the image is replaced by the learned null image.
            length_images_BP: input of the length head (clean images while the trunk reads noised ones); `images_BP` if
                None.
            null_length_B: `null_image_B` for the length head alone; `null_image_B` if None.
            logits_at: (B, L) bool; the logits are computed at these M positions only, in row-major order.
            heads: the heads to compute; the outputs of the others are None.

        Raises:
            ValueError: the captions are longer than the longest text of the data.
        """
        L = tokens_BL.shape[1]
        if self.shape.max_length < L:
            raise ValueError(f"Expected captions of at most {self.shape.max_length} tokens, found {L}.")
        images_BP = images_BP.float()
        length_logits_BN = None
        if "length" in heads:
            clean_BP = images_BP if length_images_BP is None else length_images_BP.float()
            null_B = null_image_B if null_length_B is None else null_length_B
            length_logits_BN = self.length_head(self.null_image.replace(clean_BP, null_B))
        wanted = ("text" in heads, "image" in heads)
        if not any(wanted):
            return Output(None, None, length_logits_BN)
        given_BP = self.null_image.replace(images_BP, null_image_B)
        image_BKD = self.image_encoder(given_BP)
        words_BLD = self._read(tokens_BL, captions_BLe, signal_B).float()
        text_BLD = words_BLD + self.positions.weight[:L]
        if null_text_B is not None:
            text_BLD, valid_BL = drop_text(text_BLD, valid_BL, null_text_B, null_text=self.null_text.value)
        c_BC = self.text_time(sinusoid(t_text_B)) + self.image_time(sinusoid(t_image_B))
        if self.pooled_text is not None and self.pooled_image is not None:
            known_BL = (tokens_BL != self.shape.pad_id) if captions_BLe is not None else self._known(tokens_BL)
            if null_text_B is not None:
                known_BL = known_BL & ~null_text_B[:, None]
            sum_BD = torch.einsum("bld,bl->bd", words_BLD, known_BL.float())
            pooled_BD = F.layer_norm(sum_BD, sum_BD.shape[-1:], eps=EPSILON)  # zeros if no token is known
            c_BC = c_BC + self.pooled_text(pooled_BD) + self.pooled_image(given_BP)
        silu_c_BC = F.silu(c_BC)
        text_BLD, image_BKD = self._trunk(
            text_BLD, image_BKD, silu_c_BC, joint_key_mask(valid_BL, others=self.image_encoder.num_patches), wanted
        )
        logits = self._vocabulary(text_BLD, silu_c_BC, logits_at) if wanted[0] else None
        found_BP = None
        if wanted[1]:
            assert self.image_head.linear is not None
            found_BKp = self.image_head.linear(self.image_head.norm(image_BKD, silu_c_BC)).float()
            found_BP = self.image_encoder.join(found_BKp)
        return Output(logits, found_BP, length_logits_BN)

    def length_logits(self, images_BP: Tensor, null_image_B: Tensor | None = None) -> Tensor:
        """Return unnormalised log-probabilities (B, N) float32 of the lengths 1..N, given the image or without one."""
        found_BN: Tensor = self.length_head(self.null_image.replace(images_BP.float(), null_image_B))
        return found_BN

    # -- the parts of forward -----------------------------------------------------------------------------------------

    def _read(self, tokens_BL: Tensor, captions_BLe: Tensor | None, signal_B: Tensor | None) -> Tensor:
        if self.caption_encoder is None:
            if captions_BLe is not None:
                raise ValueError("Expected captions as tokens, found vectors.")
            return self.text_embedding(tokens_BL)
        if captions_BLe is None:
            captions_BLe = self.unit_vectors[tokens_BL]
        elif signal_B is not None:
            captions_BLe = signal_B[:, None, None] * self.unit_vectors[tokens_BL] + captions_BLe
        return self.caption_encoder(captions_BLe)

    def _known(self, tokens_BL: Tensor) -> Tensor:
        return (tokens_BL != self.shape.mask_id) & (tokens_BL != self.shape.pad_id)

    def _trunk(
        self,
        text_BLD: Tensor,
        image_BKD: Tensor,
        silu_c_BC: Tensor,
        key_mask: Tensor | None,
        wanted: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor]:
        xs: tuple[Tensor, ...] = (text_BLD, image_BKD)
        ropes: tuple[Tensor | None, ...] = (self.rope_L2e[: text_BLD.shape[1]], None)
        for index, block in enumerate(self.blocks):
            keep = wanted if index == self.config.depth - 1 else (True, True)
            if self.config.gradient_checkpointing and self.training and torch.is_grad_enabled():
                xs = checkpoint(
                    block, xs, silu_c_BC, ropes, key_mask, keep,
                    use_reentrant=False, preserve_rng_state=self.config.dropout > 0,
                )  # fmt: skip
            else:
                xs = block(xs, silu_c_BC, ropes, key_mask, keep)
        return xs[0], xs[1]

    def _vocabulary(self, text_BLD: Tensor, silu_c_BC: Tensor, logits_at: Tensor | None) -> Tensor:
        x_BLD = self.text_head.norm(text_BLD, silu_c_BC)
        x = x_BLD if logits_at is None else x_BLD[logits_at]
        if self.text_head.linear is not None:
            logits: Tensor = self.text_head.linear(x)
            return logits
        return F.linear(x, self.text_embedding.weight[: self.shape.vocab_size])
