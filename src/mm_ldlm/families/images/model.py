"""MMDiT for captions and images: the general one, whose Gaussian modality is an image.

An image enters as patches, one token each (ViT, arXiv:2010.11929). A caption enters as token ids, or, in
`image_mmdit_continuous`, as vectors that Gaussian noise can corrupt (CDCD, arXiv:2211.15089).

B batch, L caption length, V vocabulary, D model dimension, e dimension of a caption vector, P values of an image
(height · width · channels), K patches, p values of a patch.
"""

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import ConfigurationError, Size, config, refuse_if
from mm_ldlm.models.base import DataShape, TextAndLatentModel, build_on_meta
from mm_ldlm.models.blocks import Linear, ModulatedOptions, trunc_normal_
from mm_ldlm.models.embeddings import TokenTable
from mm_ldlm.models.heads import Modulated, TextHead
from mm_ldlm.models.mmdit import MMDiT, MMDiTOptions


class TextAndImageModel(TextAndLatentModel, Protocol):
    """Denoiser of a caption and its image."""


class TextVectorsAndImageModel(TextAndLatentModel, Protocol):
    """Denoiser of the vectors of a caption's tokens and its image; see `CaptionEmbedding`."""


@config
class ImageMMDiTOptions(MMDiTOptions):
    """Options of both kinds.

    Attributes:
        patch: side of a square patch in pixels; it divides the height and the width of the images.
        pooled_conditions: add to c an MLP of the mean vector of the known caption tokens (SD3 also adds a pooled text)
            and an MLP of the image, so that each modality influences the other without attention. Short trainings
            need it.
    """

    patch: Size = 2
    pooled_conditions: bool = True

    @property
    def condition_on_text(self) -> bool:  # type: ignore[override]
        return self.pooled_conditions

    @property
    def condition_on_latent(self) -> bool:  # type: ignore[override]
        return self.pooled_conditions

    @property
    def vector_dim(self) -> int | None:
        """Dimension of the vector of a caption token; None where captions are tokens."""
        return None

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "ImageMMDiT":
        """Build the model; see `models.base.ModelConfig.build`.

        Raises:
            ConfigurationError: the data have no images, or the patch does not divide their size.
        """
        height, width, _ = shape.require("images", kind=self.kind)
        if height % self.patch or width % self.patch:
            raise ConfigurationError(
                f"parameter 'model.patch' is {self.patch}, which does not divide the {height} × {width} pixels of the "
                "images. Choose a divisor of both, or change images.height and images.width and embed again."
            )
        return build_on_meta(lambda: ImageMMDiT(self, shape), generator)


@config
class ImageMMDiTConfig(ImageMMDiTOptions):
    """Kind `image_mmdit`: two streams, caption tokens and image patches, with joint attention."""

    interface: ClassVar[type] = TextAndImageModel
    kind: str = "image_mmdit"


@config
class ContinuousImageMMDiTConfig(ImageMMDiTOptions):
    """Kind `image_mmdit_continuous`: the same model for captions as noised vectors.

    Attributes:
        caption_dim: dimension of the vector of a caption token. The smaller it is, the earlier noise hides the token.
    """

    interface: ClassVar[type] = TextVectorsAndImageModel
    kind: str = "image_mmdit_continuous"
    caption_dim: Size = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.tied_embeddings,
            "tied_embeddings must be false: token vectors have caption_dim dimensions, the hidden states have dim",
            "tied_embeddings",
        )

    @property
    def vector_dim(self) -> int | None:
        return self.caption_dim


class CaptionEmbedding(nn.Module):
    """Vectors of caption tokens, given or noised, with learned positions; a linear layer if they have their own
    dimension."""

    def __init__(self, rows: int, *, vector_dim: int | None, dim: int, max_length: int) -> None:
        super().__init__()
        self.pooled_dim = dim
        self.table = TokenTable(rows, vector_dim or dim)
        self.linear = None if vector_dim is None else Linear(vector_dim, dim)
        self.positions = TokenTable(max_length, dim)

    @property
    def unit_vectors(self) -> Tensor:
        """(ids, e): the vector of each id with norm √e, so that its coordinates have the scale of the noise.

        Vectors of free norm would grow in training, until noise no longer hides them (CDCD, arXiv:2211.15089, §3).
        """
        weight = self.table.weight.float()
        return F.normalize(weight, dim=-1) * weight.shape[1] ** 0.5

    def forward(
        self, tokens_BL: Tensor, *, captions_BLe: Tensor | None = None, signal_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the input (B, L, D) of the stream, and the same without positions.

        Args:
            captions_BLe: noise of the vectors of the caption; None for a clean caption.
            signal_B: factor of the tokens' own vectors, to which `captions_BLe` is added; None: they are left out, and
                `captions_BLe` is the whole noised caption.
        """
        if self.linear is None:
            words_BLD = self.table(tokens_BL)
        else:
            if captions_BLe is None:
                captions_BLe = self.unit_vectors[tokens_BL]
            elif signal_B is not None:
                captions_BLe = signal_B[:, None, None] * self.unit_vectors[tokens_BL] + captions_BLe
            words_BLD = self.linear(captions_BLe)
        words_BLD = words_BLD.float()
        return words_BLD + self.positions.weight[: tokens_BL.shape[1]], words_BLD

    def known(
        self, tokens_BL: Tensor, shape: DataShape, *, captions_BLe: Tensor | None = None, **text: Tensor
    ) -> Tensor:
        """Select the positions (B, L) whose token or noised vector is given."""
        valid_BL = tokens_BL != shape.pad_id
        return valid_BL if captions_BLe is not None else (tokens_BL != shape.mask_id) & valid_BL


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

    def forward(self, images_BP: Tensor, self_condition_BP: Tensor | None = None) -> Tensor:
        """Compute the tokens (B, K, D) in float32; an earlier estimate is not read."""
        return self.linear(self.split(images_BP)).float() + self.position_KD


class PatchHead(Modulated):
    """Prediction of an image (B, P) patch by patch."""

    def __init__(self, config: ModulatedOptions, patches: Patches) -> None:
        super().__init__(config, config.dim, patches.patch_dim)
        self.join = patches.join

    def forward(self, image_BKD: Tensor, silu_c_BC: Tensor) -> Tensor:
        return self.join(super().forward(image_BKD, silu_c_BC))


class ImageMMDiT(MMDiT):
    """Two-stream transformer over caption and image; `ImageMMDiTOptions.build` builds and initialises it."""

    modality: ClassVar[str] = "image"
    field: ClassVar[str] = "images"

    def make_text_embedding(self) -> CaptionEmbedding:
        shape, config = self.shape, self.config
        return CaptionEmbedding(
            shape.num_ids, vector_dim=config.vector_dim, dim=config.dim, max_length=shape.max_length
        )  # fmt: skip

    def make_latent_encoder(self) -> Patches:
        height, width, channels = self.shape.fields["images"]
        return Patches((height, width, channels), patch=self.config.patch, dim=self.config.dim)

    def make_text_head(self) -> TextHead:
        return TextHead(self.config, self.shape.vocab_size)

    def make_latent_head(self) -> PatchHead:
        return PatchHead(self.config, self.latent_encoder)
