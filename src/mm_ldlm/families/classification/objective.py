"""Classification objectives: a head on the features of a text model or of a latent, trained by cross-entropy.

`classification` has a linear head; the classes come from the store `label_names`. `pairwise_classification` compares
two texts: which of them answers a question more, or whether both are similar. Both texts are encoded with shared
weights, and the head is antisymmetric: if the texts are exchanged, the probabilities of "first" and "second" are
exchanged exactly. The loss has label smoothing (arXiv:1512.00567, section 7).

B examples, L positions, D dimension of the features, K classes.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import ConfigurationError, Fraction, Size, config, refuse_if
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.classification.model import ClassHead, ComparisonHead, LatentFeatures
from mm_ldlm.models.base import DataShape, TextAndLatentModel, TextModel
from mm_ldlm.models.parts import tag, tagged_parameters
from mm_ldlm.objectives.base import Batch, Losses, Objective, ObjectiveConfig, require_interface
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel

Features = Literal["latents", "trunk", "frozen_trunk"]


class HeadObjective(Objective):
    """Cross-entropy of a head on the features of the model; subclasses make the head and its logits."""

    kinds: tuple[str, ...] = ("classes",)
    head: nn.Module
    classifies: str
    """What an item is: texts, latents or pairs"""

    def __init__(self, config: Any, shape: DataShape, classes: tuple[str, ...]) -> None:
        super().__init__(config, shape)
        self.weights, self.units = {"class_loss": 1.0}, {"class_loss": "examples"}
        self.classes, self.frozen_trunk = classes, config.features == "frozen_trunk"
        self._frozen_parts: frozenset[str] = frozenset()

    @abstractmethod
    def make_head(self, feature_dim: int) -> nn.Module:
        """Make the head on features of `feature_dim` dimensions."""

    @abstractmethod
    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Choose what `logits` receives of a batch."""

    @abstractmethod
    def logits(self, model: Any, *inputs: Tensor) -> Tensor:
        """Compute the logits (B, K) of texts (B, L), of two texts each (B, L), or of latents (B, d)."""

    def attach(self, model: nn.Module) -> None:
        """Make the head for the features of the model, and choose the parts to freeze.

        Raises:
            ConfigurationError: the model of texts is compiled, but its features are not its forward pass.
        """
        if self.fixed_shapes and self.config.features != "latents":
            raise ConfigurationError(
                "parameter 'training.precision.compile' is true, which compiles the forward pass of the model; found "
                "an objective that reads the features of a text model instead. Set training.precision.compile to false."
            )
        found: Any = model
        self.head = tag(self.make_head(found.feature_dim), "class_head")
        parts = {part.name for _, part, _ in tagged_parameters(model)}
        self._frozen_parts = frozenset(parts if self.frozen_trunk else parts - found.feature_parts)

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        """Return the parts that the features do not depend on, and with a frozen trunk all parts of the model."""
        return self._frozen_parts

    def expected_first_loss(self) -> dict[str, float]:
        """Return log K, because the head starts at 0."""
        return {"class_loss": math.log(len(self.classes))}

    def generative_model(self, model: nn.Module) -> "Classifier":
        return Classifier(model, self.shape, self)

    def forward(self, model: nn.Module, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        logits_BK, real_B = self.logits(model, *self.inputs(batch)), batch.real_B
        target_B = torch.where(real_B, batch.fields["labels"][:, 0], 0)
        smoothing = self.config.label_smoothing
        loss_B = F.cross_entropy(logits_BK, target_B, label_smoothing=smoothing, reduction="none")
        nll_B = F.cross_entropy(logits_BK.detach(), target_B, reduction="none")
        correct_B = logits_BK.detach().argmax(dim=1) == target_B
        count = real_B.sum()
        return {
            "class_loss": (torch.where(real_B, loss_B, 0.0).sum(), count),
            "class_nll": (torch.where(real_B, nll_B, 0.0).sum(), count),
            "accuracy": ((correct_B & real_B).sum().float(), count),
        }

    def text_features(self, model: Any, tokens_BL: Tensor) -> Tensor:
        """Compute the features of clean texts; without a gradient if the trunk is frozen."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen_trunk):
            return model.features(tokens_BL, valid_BL=tokens_BL != self.shape.pad_id)


class Classification(HeadObjective):
    """See the module."""

    @property
    def classifies(self) -> str:  # type: ignore[override]
        return "latents" if self.config.features == "latents" else "texts"

    def make_head(self, feature_dim: int) -> ClassHead:
        return ClassHead(feature_dim, len(self.classes))

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.fields["latents"] if self.classifies == "latents" else batch.tokens_BL,)

    def logits(self, model: Any, *inputs: Tensor) -> Tensor:
        features_BD = model(*inputs) if self.classifies == "latents" else self.text_features(model, *inputs)
        return self.head(features_BD)


class Classifier(GenerativeModel):
    """Trained classifier: the classes of texts, of pairs of texts or of latents, by the head of its objective."""

    def __init__(self, model: nn.Module, shape: DataShape, objective: HeadObjective) -> None:
        super().__init__(model, shape)
        self.objective, self.classes, self.classifies = objective, objective.classes, objective.classifies

    @property
    def device(self) -> torch.device:
        """Device of the head; a model without blocks has no parameters."""
        return next(self.objective.head.parameters()).device

    def class_logits(self, *inputs: Tensor) -> Tensor:
        """Compute unnormalised log-probabilities (B, K) float32; see `HeadObjective.logits`."""
        return self.objective.logits(self.model, *inputs)


@config
class HeadConfig(ObjectiveConfig):
    """Keys and queries of all objectives that train a head on the features of a model.

    Attributes:
        label: key of a record's `meta` that is its label, or a function `package.module:function` of its text. Sources
            write `label_column` under "label"; the starter corpus has "shape".
        label_smoothing: fraction of the target that is divided equally among all classes.
        features: latents: a model's output for stored latents (`latent_mlp`); trunk: the mean hidden state of a text
            model on the clean text, fine-tuned; frozen_trunk: the same with the weights of `training.init_from`, of
            which only the head is trained.
    """

    label: str = "label"
    label_smoothing: Fraction = 0.05
    features: Features = "trunk"

    objective: ClassVar[type[HeadObjective]]
    answers: ClassVar[tuple[str, ...] | None] = None
    """The only classes; None: the labels of the training split"""

    @property
    def stores(self) -> tuple[str, ...]:
        return ("label_names",)

    @property
    def identity(self) -> dict[str, Any]:
        return {"features": "latents" if self.features == "latents" else "trunk", "label": self.label}

    @property
    @abstractmethod
    def interfaces(self) -> tuple[type, ...]:
        """Interfaces of the models that give the features."""

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, *self.interfaces)
        trained_as = f"objective {self.kind}, features {self.features}"
        return Capabilities(uses=frozenset({"classify"}), fields=self.fields, trained_as=trained_as)

    def build(self, shape: DataShape, **stores: Tensor) -> HeadObjective:
        return self.objective(self, shape, decode_names(stores["label_names"]))


@config
class ClassificationConfig(HeadConfig):
    """Kind `classification`: the class of a text or of a latent.

    Attributes:
        with_latents: keep the latents in the dataset even if the features do not need them. A text model that has
            latents (`mmdit`) needs them to be built, and the evaluation compares with logistic regression on them.
    """

    objective: ClassVar[type[HeadObjective]] = Classification
    kind: str = "classification"
    features: Features = "latents"
    with_latents: bool = False

    def __post_init__(self) -> None:
        refuse_if(
            self.with_latents and self.features == "latents",
            "'with_latents' is for features of a text model; with features 'latents' the dataset always has the "
            "latents. Remove it",
            "with_latents",
            "features",
        )

    @property
    def fields(self) -> tuple[str, ...]:
        return ("labels", "latents") if self.with_latents or self.features == "latents" else ("labels",)

    @property
    def interfaces(self) -> tuple[type, ...]:
        return (LatentFeatures,) if self.features == "latents" else (TextModel, TextAndLatentModel)

    def capabilities(self, model: Any) -> Capabilities:
        found = super().capabilities(model)
        if model.interface is TextAndLatentModel and not self.with_latents:
            raise ConfigurationError(
                f"parameter 'objective.with_latents' is false, but 'model.kind' {model.kind!r} is built for latents. "
                "Set objective.with_latents to true, or choose a text-only model (model.kind: dit)."
            )
        return found


def decode_names(label_names: Tensor) -> tuple[str, ...]:
    """Read the names of the classes from the store `label_names`: (K, bytes) uint8, padded with 0."""
    return tuple(bytes(row).rstrip(b"\0").decode("utf-8") for row in label_names.tolist())


# -- pairs of texts ----------------------------------------------------------------------------------------------------


ANSWERS = ("first", "second", "similar")


class PairwiseClassification(HeadObjective):
    """See the module. The logits are for `ANSWERS`, in this order, even if an answer does not occur."""

    classifies = "pairs"

    def __init__(self, config: Any, shape: DataShape, classes: tuple[str, ...]) -> None:
        super().__init__(config, shape, classes)
        if classes != ANSWERS:
            raise ConfigurationError(
                f"objective 'pairwise_classification': expected the labels {', '.join(ANSWERS)}, found "
                f"{', '.join(classes)}. Run `kedro run --pipelines=embedding,validation` with this objective."
            )

    def make_head(self, feature_dim: int) -> ComparisonHead:
        return ComparisonHead(feature_dim, hidden_dim=self.config.hidden_dim)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.tokens_BL, batch.fields["pair_tokens"].long()

    def logits(self, model: Any, *inputs: Tensor) -> Tensor:
        first_BL, second_BL = inputs
        longest = max(1, int((second_BL != self.shape.pad_id).sum(dim=1).max()))
        first_BD, second_BD = (self.text_features(model, each) for each in (first_BL, second_BL[:, :longest]))
        return self.head(first_BD, second_BD)


@config
class PairwiseClassificationConfig(HeadConfig):
    """Kind `pairwise_classification`: records of pairs (`pair_column`) with the label first, second or similar.

    Attributes:
        hidden_dim: dimension of the head's hidden layer.
    """

    answers: ClassVar[tuple[str, ...]] = ANSWERS
    objective: ClassVar[type[HeadObjective]] = PairwiseClassification
    kind: str = "pairwise_classification"
    features: Literal["trunk", "frozen_trunk"] = "trunk"
    hidden_dim: Size = 128

    @property
    def fields(self) -> tuple[str, ...]:
        return ("labels", "pair_tokens")

    @property
    def interfaces(self) -> tuple[type, ...]:
        return (TextModel,)
