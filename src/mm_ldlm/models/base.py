"""Interface of all models: `ModelConfig` builds a module for data of a `DataShape`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from mm_ldlm.core.errors import ConfigurationError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataShape:
    """Sizes of the data that a model is built for; they come from the tokenizer and the stores."""

    vocab_size: int
    """Token ids are 0 .. vocab_size - 1, including the special ones."""
    pad_id: int
    mask_id: int
    """Marks a position that is to be written; the noise of absorbing diffusion."""
    max_length: int
    """Number of tokens of the longest text."""
    latent_dim: int | None = None
    """Dimension of a latent; None for data without latents."""
    state_dim: int | None = None
    """Dimension of the continuous state of a token; None for data without token states."""
    noise_ids: int = 0
    """Ids that only the noise of the text process has (its clusters, for example), from `first_noise_id` on."""
    image_size: tuple[int, int, int] | None = None
    """Height, width and channels of an image; None for data without images."""

    def __post_init__(self) -> None:
        if self.image_size is not None:  # JSON has lists
            object.__setattr__(self, "image_size", tuple(self.image_size))

    @property
    def image_dim(self) -> int:
        """Number of values of an image: height · width · channels; 0 for data without images."""
        return 0 if self.image_size is None else math.prod(self.image_size)

    @property
    def first_noise_id(self) -> int:
        """The id after those of the tokenizer."""
        return max(self.vocab_size, self.pad_id + 1, self.mask_id + 1)

    @property
    def num_ids(self) -> int:
        """Ids that a model may read: the tokenizer's and those of the noise. It predicts the first `vocab_size`."""
        return self.first_noise_id + self.noise_ids

    @property
    def word_ids(self) -> list[int]:
        """Ids that can occur in a text: all but [PAD] and [MASK]."""
        return [i for i in range(self.vocab_size) if i not in (self.pad_id, self.mask_id)]


Interface = Literal[
    "text_and_latent_denoiser", "text_and_states_denoiser", "text_denoiser", "text_given_latent_denoiser",
    "text_and_image_denoiser", "text_vectors_and_image_denoiser", "next_token", "latent_features",
]  # fmt: skip
"""Call signature of a model. Objectives name the interface that they train; models of one interface are
interchangeable.

text_and_latent_denoiser: noised text and latent with their timesteps → logits, latent, length (`models.mmdit.MMDiT`).
text_and_states_denoiser: noised text and noised state of each token with their timesteps → logits, states, marginal
    length (`models.ccdd.Ccdd`).
text_denoiser: noised text with its timestep → logits, marginal length (`models.dit.DiT`).
text_given_latent_denoiser: noised text with its timestep, and a clean latent or none → logits, length given the latent
    (`models.latent_dit.LatentDiT`).
text_and_image_denoiser: noised caption and image with their timesteps → logits, image, length
    (`models.image_mmdit.ImageMMDiT`).
text_vectors_and_image_denoiser: the same with noised vectors of the caption's tokens, and the vectors of all tokens.
next_token: a text → logits of each next token (`models.causal.CausalTransformer`).
latent_features: a clean latent → its features for a head (`models.latent_mlp.LatentMLP`).
"""


class ModelConfig(Protocol):
    """Configuration of a model; `models.registry.MODELS` lists them."""

    kind: str
    interface: ClassVar[str]
    """One of `Interface`, or a new name that matches a new objective."""

    @property
    def stores(self) -> tuple[str, ...]:
        """Stores of the dataset that the initial weights are made from, such as "token_vectors"."""
        ...

    def build(self, shape: DataShape, *, generator: torch.Generator, token_vectors: Tensor | None = None) -> nn.Module:
        """Build the model on the CPU in float32; its initial values depend on `generator` and `token_vectors` only.

        The module has `blocks` (an nn.ModuleList, the unit of sharding and diagnostics) and a part tag on every
        parameter (`models.parts.tag`).

        Raises:
            ConfigurationError: the data do not fit the model; for example, they have no latents.
        """
        ...


class FeatureModel(Protocol):
    """A model that computes features for a head; its interface is text_denoiser, text_and_latent_denoiser or
    latent_features."""

    feature_dim: int
    """Dimension of the features"""
    feature_parts: frozenset[str]
    """Parts that the features depend on; the other parts get no gradient from a head."""

    def features(self, inputs: Tensor, *, valid_BL: Tensor | None = None) -> Tensor:
        """Compute features (B, feature_dim) float32 of clean texts (B, L), or of standardised latents (B, d)."""
        ...


def require_latents(shape: DataShape, kind: str) -> int:
    """Dimension of a latent, for the model `kind`, which reads latents.

    Raises:
        ConfigurationError: the data have no latents.
    """
    if shape.latent_dim is None:
        raise ConfigurationError(
            f"parameter 'model.kind' is '{kind}', which reads latents, but the dataset has none. Run the embedding and "
            "validation pipelines with an objective that needs latents, or choose a text-only model (model.kind: dit)."
        )
    return shape.latent_dim


def build_on_meta(make: Callable[[], Any], generator: torch.Generator) -> Any:
    """Build a module on the meta device, then allocate it once on the CPU with values drawn from `generator`.

    Calls `init_weights(generator)` once of every module that has it, in the order of the modules.

    Raises:
        ConfigurationError: the memory cannot hold the module, or its sizes exceed 64 bits.
    """
    try:
        with torch.device("meta"):
            model = make()
        model.to_empty(device="cpu")
    except (RuntimeError, OverflowError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(
            f"parameter 'model': expected a model that fits the memory, found one that cannot be made ({reason}). "
            "Lower its dimensions."
        ) from None
    init_weights(model, generator)
    return model


def init_weights(root: nn.Module, generator: torch.Generator) -> None:
    """Ask every module with a method `init_weights(generator)` once, in the order of the modules."""
    with torch.no_grad():
        for module in root.modules():
            if callable(method := getattr(module, "init_weights", None)):
                method(generator)


def count_parameters(model: nn.Module) -> int:
    """Count the elements of all parameters; shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())
