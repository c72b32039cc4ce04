"""Data that a model is built for, the interfaces of its configuration and of models, and reproducible initial values.

An objective names the call signatures that it trains; models of one signature are interchangeable. Families define
further ones next to their models.

B batch, L text length, M chosen positions, V vocabulary, D dimension of the features, d latent dimension, N longest
length.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mm_ldlm.core import ConfigurationError, Kinds, NonNegativeInt, PositiveInt, config
from mm_ldlm.diffusion.process import Vocabulary


@config
class DataShape(Vocabulary):
    """Sizes of the data that a model is built for; they come from the tokenizer and the stores."""

    max_length: PositiveInt
    """Number of tokens of the longest text."""
    fields: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """Shape of an example's value by the name of its field, "latents" (384,), or of a token's where each has one"""
    noise_ids: NonNegativeInt = 0
    """Ids that only the noise of the text process has (its clusters, for example), from `first_noise_id` on."""

    @property
    def num_ids(self) -> int:
        """Ids that a model may read: the tokenizer's and the noise's. It predicts the first `vocab_size`."""
        return self.first_noise_id + self.noise_ids

    def dim(self, field: str) -> int:
        """Number of values of a field; 0 for data without it."""
        return math.prod(self.fields[field]) if field in self.fields else 0

    def require(self, field: str, *, kind: str) -> tuple[int, ...]:
        """Return the shape of a field that the model `kind` reads.

        Raises:
            ConfigurationError: the data lack the field.
        """
        if field not in self.fields:
            raise ConfigurationError(
                f"parameter 'model.kind' is '{kind}', which reads the field '{field}', but the dataset has "
                f"{', '.join(self.fields) or 'no fields besides its texts'}. Run the embedding and validation "
                "pipelines with an objective that reads it, or choose a text-only model (model.kind: dit)."
            )
        return self.fields[field]


class ModelConfig(Protocol):
    """Configuration of a model; `MODELS` lists them."""

    kind: str
    interface: ClassVar[type]
    """Call signature of the model, a protocol such as those below"""

    @property
    def stores(self) -> tuple[str, ...]:
        """Stores of the dataset that the initial weights are made from, such as "token_vectors"."""

    def build(self, shape: DataShape, *, generator: torch.Generator, **stores: Tensor) -> nn.Module:
        """Build the model on the CPU in float32; its initial values depend on `generator` and `stores` only.

        The stores of `self.stores` are arguments of their names if they are at hand, as they are before training.

        The module has `blocks` (an nn.ModuleList, the unit of sharding and diagnostics) and a part tag on every
        parameter (`models.parts.tag`).

        Raises:
            ConfigurationError: the data do not fit the model; for example, they have no latents.
        """


def build_on_meta(make: Callable[[], Any], generator: torch.Generator) -> Any:
    """Build a module on the meta device, then allocate it once on the CPU with values drawn from `generator`.

    Calls `init_weights(generator)` once of every module that has it, in the order of the modules.

    Raises:
        ConfigurationError: the memory cannot hold the module, or its sizes exceed 64 bits.
    """
    try:
        with torch.device("meta"):
            model = make()
        # `to_empty` without `empty_like`, which imports sympy for meta tensors: a second of every start
        model._apply(lambda value: torch.empty(value.shape, dtype=value.dtype))
    except (RuntimeError, OverflowError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(
            f"parameter 'model': expected a model that fits in memory, found one that cannot be allocated ({reason}). "
            "Lower its dimensions."
        ) from None
    init_weights(model, generator)
    return model


class Unset(TorchFunctionMode):
    """Fills memory that nobody has set with NaN, so that what has no initial value can be told."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        empty = func in (torch.empty, torch.empty_like, Tensor.new_empty)
        return made.fill_(torch.nan) if empty and made.is_floating_point() else made


def init_weights(root: nn.Module, generator: torch.Generator) -> None:
    """Ask every module with a method `init_weights(generator)` once, in the order of the modules."""
    with torch.no_grad():
        for module in root.modules():
            if callable(method := getattr(module, "init_weights", None)):
                method(generator)


# -- call signatures of models -----------------------------------------------------------------------------------------


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
        """Predict the token of every position, or of the M positions in `logits_at` (B, L), at the times `t_B`.

        A model that embeds its tokens by a `models.embeddings.TokenTable` also takes weights (B, L, I) of the first I
        ids in place of the ids.
        """

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


MODELS = Kinds(
    "model",
    {
        "mmdit": "mm_ldlm.models.mmdit:MMDiTConfig",
        "dit": "mm_ldlm.models.dit:DiTConfig",
    },
    group="models",
    interface=ModelConfig,
)
"""Every model that `model.kind` can name."""
