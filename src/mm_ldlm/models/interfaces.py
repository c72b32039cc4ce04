"""Call signatures of models, as protocols. An objective names those that it trains; models of one are interchangeable.

B batch, L text length, M chosen positions, V vocabulary, D dimension of the features, d latent dimension, N longest
length. Families define further protocols beside their models.
"""

from typing import NamedTuple, Protocol

from torch import Tensor


class TextOutput(NamedTuple):
    """Predictions of a model of texts."""

    logits: Tensor
    """(B, L, V), or (M, V) at the chosen positions; unnormalised"""
    length_logits: Tensor
    """(N,) or (B, N); column i is length i + 1"""


class TextAndLatentOutput(NamedTuple):
    """Predictions of a model of texts and latents; None for a head that was not requested."""

    logits: Tensor | None
    """(B, L, V), or (M, V) at the chosen positions; unnormalised"""
    latent_Bd: Tensor | None
    """In the parameterisation of the objective"""
    length_logits: Tensor | None
    """(B, N); column i is length i + 1"""


class FeatureModel(Protocol):
    """A model that computes features for a head."""

    feature_dim: int
    """Dimension of the features"""
    feature_parts: frozenset[str]
    """Parts that the features depend on; the other parts get no gradient from a head."""

    def features(self, inputs: Tensor, *, valid_BL: Tensor | None = None) -> Tensor:
        """Compute features (B, D) float32 of clean texts (B, L), or of standardised latents (B, d)."""


class TextModel(FeatureModel, Protocol):
    """Denoiser of texts, with a marginal distribution over lengths."""

    def __call__(
        self, tokens_BL: Tensor, *, valid_BL: Tensor | None, t_B: Tensor, logits_at: Tensor | None = None
    ) -> TextOutput:
        """Predict the token of every position, or of the M positions in `logits_at` (B, L), at the times `t_B`."""

    def length_logits(self) -> Tensor:
        """Return unnormalised log-probabilities (N,) float32 of the lengths 1..N."""


class TextAndLatentModel(FeatureModel, Protocol):
    """Denoiser of a text and of a Gaussian modality (a latent, an image), with a distribution over lengths given it."""

    def __call__(
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
        """Predict from both modalities at their own times; see `models.mmdit.MMDiT.forward`."""

    def length_logits(self, latents_Bd: Tensor, null_latent_B: Tensor | None = None) -> Tensor:
        """Return unnormalised log-probabilities (B, N) float32 of the lengths 1..N, given latents or a null latent."""
