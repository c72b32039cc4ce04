"""Registry of the objectives by kind."""

from mm_ldlm.core import Kinds
from mm_ldlm.objectives.base import ObjectiveConfig

OBJECTIVES = Kinds(
    "objective",
    {
        "multimodal": "mm_ldlm.objectives.multimodal:MultimodalConfig",
        "text_diffusion": "mm_ldlm.objectives.text_diffusion:TextDiffusionConfig",
    },
    group="objectives",
    interface=ObjectiveConfig,
)
"""Every objective that `objective.kind` can name."""
