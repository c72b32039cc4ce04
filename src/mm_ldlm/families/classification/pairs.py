"""Pairwise comparison objective: which of two texts answers a question more, or whether both are similar.

Both texts are encoded with shared weights, and the head is antisymmetric: if the texts are exchanged, the
probabilities of "first" and "second" are exchanged exactly.

B examples, L positions, D dimension of the features.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor

from mm_ldlm.core.config import Size, config
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.families.classification.heads import ComparisonHead
from mm_ldlm.families.classification.objective import HeadConfig, HeadObjective, refuse_compiled
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.interfaces import TextModel
from mm_ldlm.objectives.base import Batch, require_interface
from mm_ldlm.objectives.capabilities import Capabilities

ANSWERS = ("first", "second", "similar")


@config
class PairwiseClassificationConfig(HeadConfig):
    """Kind `pairwise_classification`: records of pairs (`pair_column`) with the label first, second or similar.

    Attributes:
        features: trunk: the mean hidden state of a text model on the clean text, fine-tuned; frozen_trunk: the same
            with the weights of `training.init_from`, of which only the head is trained.
        hidden_dim: dimension of the head's hidden layer.
    """

    answers: ClassVar[tuple[str, ...]] = ANSWERS
    kind: str = "pairwise_classification"
    features: Literal["trunk", "frozen_trunk"] = "trunk"
    hidden_dim: Size = 128

    @property
    def fields(self) -> tuple[str, ...]:
        return ("labels", "pair_tokens")

    @property
    def identity(self) -> dict[str, Any]:
        return {"features": "trunk", "label": self.label}

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, TextModel)
        return Capabilities(
            uses=frozenset({"classify"}),
            fields=self.fields,
            trained_as=f"objective pairwise_classification, features {self.features}",
        )

    def build(self, shape: DataShape, *, fixed_shapes: bool = False, **stores: Tensor) -> PairwiseClassification:
        """Build the objective; classes that are not the answers and a compiled model are refused."""
        refuse_compiled(fixed_shapes)
        return PairwiseClassification(self, shape, label_names=stores["label_names"])


class PairwiseClassification(HeadObjective):
    """See the module. The logits are those of `ANSWERS`, in this order, even if an answer does not occur."""

    classifies = "pairs"

    def __init__(self, config: PairwiseClassificationConfig, shape: DataShape, *, label_names: Tensor) -> None:
        super().__init__(config, shape, label_names=label_names)
        if self.classes != ANSWERS:
            raise ConfigurationError(
                f"objective 'pairwise_classification': expected the labels {', '.join(ANSWERS)}, found "
                f"{', '.join(self.classes)}. Validate the data with this objective "
                "(`kedro run --pipelines=validation`)."
            )

    def make_head(self, feature_dim: int) -> ComparisonHead:
        return ComparisonHead(feature_dim, hidden_dim=self.config.hidden_dim)

    def logits(self, model: Any, *inputs: Tensor, valid_BL: Tensor | None = None) -> Tensor:
        first_BL, second_BL = inputs
        second_valid_BL = second_BL != self.shape.pad_id
        longest = max(1, int(second_valid_BL.sum(dim=1).max()))
        first_BD = self.text_features(model, first_BL, valid_BL)
        second_BD = self.text_features(model, second_BL[:, :longest], second_valid_BL[:, :longest])
        logits_BK: Tensor = self.head(first_BD, second_BD)
        return logits_BK

    def batch_logits(self, model: Any, batch: Batch) -> Tensor:
        return self.logits(model, batch.tokens_BL, batch.fields["pair_tokens"].long(), valid_BL=batch.valid_BL)
