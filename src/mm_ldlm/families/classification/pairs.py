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
from mm_ldlm.families.classification.objective import HeadConfig, HeadObjective
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.interfaces import TextModel
from mm_ldlm.objectives.base import Batch

ANSWERS = ("first", "second", "similar")


class PairwiseClassification(HeadObjective):
    """See the module. The logits are those of `ANSWERS`, in this order, even if an answer does not occur."""

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
        logits_BK: Tensor = self.head(first_BD, second_BD)
        return logits_BK


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
