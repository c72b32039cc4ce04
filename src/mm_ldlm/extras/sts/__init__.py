"""STS sets in the formats of SemEval, SICK and the hub, their scores on a finished run, and an adapter of encoders."""

COMPONENTS: dict[str, dict[str, str]] = {
    "pipelines": {"sts": "mm_ldlm.extras.sts.pipeline:create_pipeline"},
    "sts_formats": {
        "semeval": "mm_ldlm.extras.sts.readers:read_semeval",
        "sick": "mm_ldlm.extras.sts.readers:read_sick",
        "hub": "mm_ldlm.extras.sts.readers:read_hub",
    },
}
