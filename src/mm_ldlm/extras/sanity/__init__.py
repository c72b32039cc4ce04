"""Checks of a configuration: in about a minute by the pipeline `sanity`, which fails if one of them fails, and before
the first step of a training.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"sanity": "mm_ldlm.extras.sanity.checks:SanityConfig"},
    "observers": {"preflight": "mm_ldlm.extras.sanity.preflight:Preflight"},
    "pipelines": {"sanity": "mm_ldlm.extras.sanity.pipeline:create_pipeline"},
}
