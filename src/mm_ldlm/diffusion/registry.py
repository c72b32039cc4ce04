"""Registries of the text processes and of the noise schedules by kind."""

from mm_ldlm.core import Kinds
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.diffusion.schedules import ScheduleConfig

TEXT_PROCESSES = Kinds(
    "text process",
    {"absorbing": "mm_ldlm.diffusion.masked:AbsorbingConfig"},
    group="text_processes",
    interface=TextProcessConfig,
)
MASK_SCHEDULES = Kinds(
    "mask schedule",
    {
        "log_linear": "mm_ldlm.diffusion.schedules:LogLinear",
        "cosine": "mm_ldlm.diffusion.schedules:Cosine",
        "geometric": "mm_ldlm.diffusion.schedules:Geometric",
    },
    group="mask_schedules",
    interface=ScheduleConfig,
)
GAUSSIAN_SCHEDULES = Kinds(
    "Gaussian schedule",
    {
        "cosine": "mm_ldlm.diffusion.schedules:CosineLatents",
        "linear": "mm_ldlm.diffusion.schedules:LinearLatents",
        "sigmoid": "mm_ldlm.diffusion.schedules:SigmoidLatents",
        "flow": "mm_ldlm.diffusion.schedules:Flow",
    },
    group="gaussian_schedules",
    interface=ScheduleConfig,
)
