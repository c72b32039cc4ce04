"""Registry of the text processes that the parameter `process` of an objective can name."""

from __future__ import annotations

from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.kinds import Kinds

TEXT_PROCESSES = Kinds(
    what="text process",
    known={
        "absorbing": "mm_ldlm.diffusion.absorbing:AbsorbingConfig",
        "d3pm": "mm_ldlm.diffusion.d3pm:D3pmConfig",
        "sedd": "mm_ldlm.diffusion.sedd:SeddConfig",
        "uniform": "mm_ldlm.diffusion.uniform:UniformConfig",
        "gidd": "mm_ldlm.diffusion.gidd:GiddConfig",
        "hdlm": "mm_ldlm.diffusion.hdlm:HdlmConfig",
    },
    group="mm_ldlm.text_processes",
    interface=TextProcessConfig,
)
