"""Diffusion with words as noise: uniform noise and GIDD."""

COMPONENTS: dict[str, dict[str, str]] = {
    "text_processes": {
        "uniform": "mm_ldlm.families.uniform.uniform:UniformConfig",
        "gidd": "mm_ldlm.families.uniform.gidd:GiddConfig",
    },
    "text_samplers": {
        "psi": "mm_ldlm.families.uniform.psi:PsiConfig",
        "self_correction": "mm_ldlm.families.uniform.self_correction:SelfCorrectionConfig",
    },
}
