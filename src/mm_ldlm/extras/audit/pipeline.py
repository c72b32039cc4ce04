"""`audit`: measure a collection of texts and vectors, and report it."""

from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mm_ldlm.extras.audit.config import AuditConfig


def measure_collection(audit: "AuditConfig", seed: int) -> dict[str, Any]:
    """Read a sample of the collection from its vectors, as they are and behind each defence."""
    from mm_ldlm.extras.audit.audit import audit as measured
    from mm_ldlm.extras.audit.audit import model_of

    return measured(audit, model_of(audit.model), seed=seed)


def report_collection(results: dict[str, Any]) -> "tuple[str, dict[str, go.Figure]]":
    """Render the page of the audit, and its figure by name."""
    from mm_ldlm.extras.audit.page import report

    return report(results)


def create_pipeline() -> Pipeline:
    measure = node(
        measure_collection, inputs=["params:audit", "params:seed"], outputs="audit_results", name="measure_collection"
    )
    report = node(
        report_collection, inputs="audit_results", outputs=["audit_report", "audit_figures"], name="report_collection"
    )
    return Pipeline([measure, report], tags="audit", namespace="audit", prefix_datasets_with_namespace=False)
