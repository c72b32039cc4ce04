"""STS sets in the formats of STS-B, SemEval, SICK and the hub, their scores on a run, and an adapter of encoders."""

COMPONENTS: dict[str, dict[str, str]] = {
    "pipelines": {"sts": "mm_ldlm.extras.sts.pipeline:create_pipeline"},
    "keys": {"evaluation.sts": "mm_ldlm.extras.sts.config:StsKeys"},
    "suites": {"sts": "mm_ldlm.extras.sts.suite:Sts"},
    "sts_formats": {
        "stsb": "mm_ldlm.extras.sts.readers:read_stsb",
        "semeval": "mm_ldlm.extras.sts.readers:read_semeval",
        "sick": "mm_ldlm.extras.sts.readers:read_sick",
        "hub": "mm_ldlm.extras.sts.readers:read_hub",
    },
}
