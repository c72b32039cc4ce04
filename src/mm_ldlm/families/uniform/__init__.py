"""Diffusion with words as noise: uniform noise and GIDD."""

COMPONENTS: dict[str, dict[str, str]] = {
    "text_processes": {
        "uniform": "mm_ldlm.families.uniform.uniform:UniformConfig",
        "gidd": "mm_ldlm.families.uniform.gidd:GiddConfig",
    },
    "text_samplers": {"self_correction": "mm_ldlm.families.uniform.self_correction:SelfCorrectionConfig"},
}
