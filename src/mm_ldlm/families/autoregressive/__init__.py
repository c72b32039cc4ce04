"""Autoregressive transformer: next-token prediction with an exact likelihood."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"autoregressive": "mm_ldlm.families.autoregressive.objective:AutoregressiveConfig"},
    "models": {"causal": "mm_ldlm.families.autoregressive.model:CausalConfig"},
    "text_samplers": {"autoregressive": "mm_ldlm.families.autoregressive.objective:AutoregressiveSampler"},
}
