"""Comparison of several models under one budget."""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"comparison": "mm_ldlm.extras.comparison.config:ComparisonConfig"},
    "pipelines": {"comparison": "mm_ldlm.extras.comparison.pipeline:create_pipeline"},
    "hooks": {"comparison": "mm_ldlm.extras.comparison.plan:ComparisonHooks"},
}
