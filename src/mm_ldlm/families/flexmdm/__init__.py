"""FlexMDM: masked diffusion with insertion, in which the model chooses the length of a text."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"flexmdm": "mm_ldlm.families.flexmdm.objective:FlexMDMConfig"},
    "models": {"insertion_dit": "mm_ldlm.families.flexmdm.model:InsertionDiTConfig"},
    "text_samplers": {"insertion": "mm_ldlm.families.flexmdm.sampler:InsertionSampler"},
}
