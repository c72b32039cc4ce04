"""Options of MMDiT: latent tokens, token vectors, direct views, single-stream blocks, conditioning."""

from __future__ import annotations

from typing import Literal

from mm_ldlm.core.config import InvalidValue, NonNegativeInt, config
from mm_ldlm.models.base import DataShape, require_latents
from mm_ldlm.models.transformer_options import LatentTokenOptions, ModulatedOptions


@config
class MMDiTOptions(ModulatedOptions, LatentTokenOptions):
    """The options of MMDiT; `models.mmdit.MMDiTConfig` is the configuration that builds it."""

    kind: str = "mmdit"
    token_vectors: Literal["random", "encoder"] = "random"
    """Initial values of the token embeddings (input and output). `random`: vectors of dimension `dim`. `encoder`: the
    encoder's vector of each token, of the latents' dimension, with a linear layer to and from `dim`."""
    direct_views: bool = False
    """Connect each modality to the other's stream without attention. Every text position adds its own linear view of
    the latent (max_length · latent_dim · dim weights); the latent tokens add a linear view of the mean token vector."""
    cross_modal_blocks: NonNegativeInt | None = None
    """Number of two-stream blocks at the bottom; the blocks above have a single stream. None: all have two."""
    condition_on_latent: bool = True
    """Add an MLP of the latent to c."""
    self_condition: bool = False
    """Read the previous x_0 estimate beside the noisy latent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross_modal_blocks is not None and not 1 <= self.cross_modal_blocks <= self.depth:
            raise InvalidValue(
                f"cross_modal_blocks must lie in 1..depth ({self.depth}), found {self.cross_modal_blocks}",
                "cross_modal_blocks",
                "depth",
            )

    @property
    def two_stream_blocks(self) -> int:
        return self.depth if self.cross_modal_blocks is None else self.cross_modal_blocks

    @property
    def stores(self) -> tuple[str, ...]:
        """See `TransformerOptions.stores`."""
        return ("token_vectors",) if self.token_vectors == "encoder" else ()

    def table_dim(self, shape: DataShape) -> int:
        """Dimension of the token embeddings."""
        return latent_dim(shape) if self.token_vectors == "encoder" else self.dim


def latent_dim(shape: DataShape) -> int:
    """Return the dimension of a latent.

    Raises:
        ConfigurationError: the data have no latents.
    """
    return require_latents(shape, "mmdit")
