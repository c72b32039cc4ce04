"""Diagnostics of training: statistics of the model at intervals, and the first cause of a step that is not finite."""

COMPONENTS: dict[str, dict[str, str]] = {
    "observers": {
        "statistics": "mm_ldlm.extras.diagnostics.statistics:Statistics",
        "diagnosis": "mm_ldlm.extras.diagnostics.diagnosis:Diagnosis",
    }
}
