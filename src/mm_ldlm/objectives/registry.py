"""Registry of the objectives by kind."""

from __future__ import annotations

from mm_ldlm.kinds import Kinds
from mm_ldlm.objectives.base import ObjectiveConfig

OBJECTIVES = Kinds(
    "objective",
    {
        "multimodal": "mm_ldlm.objectives.multimodal:MultimodalConfig",
        "text_diffusion": "mm_ldlm.objectives.text_diffusion:TextDiffusionConfig",
        "latent_conditioned": "mm_ldlm.objectives.latent_conditioned:LatentConditionedConfig",
        "adaptive_masking": "mm_ldlm.objectives.adaptive_masking:AdaptiveMaskingConfig",
        "ccdd": "mm_ldlm.objectives.ccdd:CcddObjectiveConfig",
        "classification": "mm_ldlm.objectives.classification:ClassificationConfig",
        "pairwise_classification": "mm_ldlm.objectives.pairwise_classification:PairwiseClassificationConfig",
        "image_text": "mm_ldlm.objectives.image_text:ImageTextConfig",
        "image_text_continuous": "mm_ldlm.objectives.image_text:ContinuousImageTextConfig",
        "autoregressive": "mm_ldlm.objectives.autoregressive:AutoregressiveConfig",
    },
    group="mm_ldlm.objectives",
    interface=ObjectiveConfig,
)
"""Every objective that `objective.kind` can name."""
