"""Checks of a configuration in about a minute, as the pipeline `sanity`; any failure gives a failing exit code."""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"sanity": "mm_ldlm.extras.sanity.checks:SanityConfig"},
    "pipelines": {"sanity": "mm_ldlm.extras.sanity.pipeline:create_pipeline"},
}
