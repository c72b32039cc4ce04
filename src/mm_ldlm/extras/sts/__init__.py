"""STS sets in the formats of SemEval, SICK and the hub, and an adapter for the evaluators of other packages."""

COMPONENTS: dict[str, dict[str, str]] = {
    "sts_formats": {
        "semeval": "mm_ldlm.extras.sts.readers:read_semeval",
        "sick": "mm_ldlm.extras.sts.readers:read_sick",
        "hub": "mm_ldlm.extras.sts.readers:read_hub",
    },
}
