"""Registry of the text processes that the parameter `process` of an objective can name."""

from __future__ import annotations

from mm_ldlm.core.kinds import Kinds
from mm_ldlm.diffusion.process import TextProcessConfig

TEXT_PROCESSES = Kinds(
    what="text process",
    core={
        "absorbing": "mm_ldlm.diffusion.absorbing:AbsorbingConfig",
    },
    group="text_processes",
    interface=TextProcessConfig,
)
