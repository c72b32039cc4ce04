"""Diffusion with words as noise: uniform noise with Duo's training, distillation and samplers, and GIDD.

The process of Duo is uniform noise; its objectives and its sampler are therefore here.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "text_processes": {
        "uniform": "mm_ldlm.families.uniform.uniform:UniformConfig",
        "gidd": "mm_ldlm.families.uniform.gidd:GiddConfig",
    },
    "objectives": {
        "duo": "mm_ldlm.families.uniform.duo:DuoConfig",
        "duo_distillation": "mm_ldlm.families.uniform.distillation:DistillationConfig",
    },
    "checkpoint_trainers": {"duo": "mm_ldlm.families.uniform.trainers:DUO"},
    "text_samplers": {
        "psi": "mm_ldlm.families.uniform.psi:PsiConfig",
        "self_correction": "mm_ldlm.families.uniform.self_correction:SelfCorrectionConfig",
    },
}
