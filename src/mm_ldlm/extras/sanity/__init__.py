"""Checks of a configuration: in about a minute as the pipeline `sanity`, where a failure gives a failing exit code, and
before the first step of a training.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"sanity": "mm_ldlm.extras.sanity.checks:SanityConfig"},
    "observers": {"preflight": "mm_ldlm.extras.sanity.preflight:Preflight"},
    "pipelines": {"sanity": "mm_ldlm.extras.sanity.pipeline:create_pipeline"},
}
