"""Audit of a collection of texts and vectors: how much text can be read from the vectors, and which defences help."""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"audit": "mm_ldlm.extras.audit.config:AuditConfig"},
    "pipelines": {"audit": "mm_ldlm.extras.audit.pipeline:create_pipeline"},
    "commands": {"audit": "mm_ldlm.extras.audit.command:audit"},
}
