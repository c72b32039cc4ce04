"""Registry of the models by kind."""

from mm_ldlm.core import Kinds
from mm_ldlm.models.base import ModelConfig

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
