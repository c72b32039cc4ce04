"""Registry of the models by kind."""

from __future__ import annotations

from mm_ldlm.kinds import Kinds
from mm_ldlm.models.base import ModelConfig

MODELS = Kinds(
    "model",
    {
        "mmdit": "mm_ldlm.models.mmdit:MMDiTConfig",
        "dit": "mm_ldlm.models.dit:DiTConfig",
        "latent_dit": "mm_ldlm.models.latent_dit:LatentDiTConfig",
        "latent_dit_cross": "mm_ldlm.models.latent_dit:LatentDiTCrossConfig",
        "ccdd": "mm_ldlm.models.ccdd:CcddConfig",
        "latent_mlp": "mm_ldlm.models.latent_mlp:LatentMLPConfig",
        "image_mmdit": "mm_ldlm.models.image_mmdit:ImageMMDiTConfig",
        "image_mmdit_continuous": "mm_ldlm.models.image_mmdit:ContinuousImageMMDiTConfig",
        "causal": "mm_ldlm.models.causal:CausalConfig",
    },
    group="mm_ldlm.models",
    interface=ModelConfig,
)
"""Every model that `model.kind` can name."""
