"""ATAT: adaptive masking by a learned importance of tokens."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"adaptive_masking": "mm_ldlm.families.atat.objective:AdaptiveMaskingConfig"},
    "text_samplers": {"uncertainty": "mm_ldlm.families.atat.sampler:UncertaintyConfig"},
}
