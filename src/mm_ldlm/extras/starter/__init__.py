"""Generator of the starter corpus and its STS set."""

COMPONENTS: dict[str, dict[str, str]] = {
    "sources": {
        "starter": "mm_ldlm.extras.starter.source:StarterConfig",
        "starter_pairs": "mm_ldlm.extras.starter.source:StarterPairsConfig",
    },
    "sts_formats": {"starter": "mm_ldlm.extras.starter.sts:read_starter"},
}
