"""Checks of the stored latents by their statistics and by a sample that is encoded again, with plots in the report."""

COMPONENTS: dict[str, dict[str, str]] = {
    "data_checks": {"vectors": "mm_ldlm.extras.vector_checks.checks:Vectors"},
    "keys": {"validation.vectors": "mm_ldlm.extras.vector_checks.checks:VectorLimits"},
}
