"""SEDD: score entropy diffusion."""

COMPONENTS: dict[str, dict[str, str]] = {
    "text_processes": {"sedd": "mm_ldlm.families.sedd.process:SeddConfig"},
    "checkpoint_trainers": {
        "sedd": "mm_ldlm.families.sedd.trainers:SEDD",
        "uniform_sedd": "mm_ldlm.families.sedd.trainers:UNIFORM_SEDD",
    },
}
