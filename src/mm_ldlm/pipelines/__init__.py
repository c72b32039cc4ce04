"""Kedro pipelines, one file or folder each: nodes that turn catalog objects into calls of the rooms below, and back.

Nothing is computed here. A node is a pure function of its arguments, without catalog, environment or path literals; its
parameters arrive typed (`app.parameters`), and heavy packages are imported inside its body. The types of parameters are
imported for type checkers only, because Kedro would convert parameters whose types it can resolve. Pipelines do not
import one another. The name of a pipeline is the tag and the namespace of its nodes (`training.plan_training`); its
datasets have no prefix, because they connect the pipelines.
"""

from collections.abc import Mapping, Sequence

from kedro.pipeline import Pipeline

from mm_ldlm.core import Registry

MAIN = ("ingestion", "embedding", "validation", "training", "sampling", "evaluation", "reporting")
"""Pipelines of the main job (`kedro run` without options), in order."""
PIPELINES = Registry(
    "pipeline",
    {
        "ingestion": "mm_ldlm.pipelines.ingestion:create_pipeline",
        "embedding": "mm_ldlm.pipelines.embedding:create_pipeline",
        "validation": "mm_ldlm.pipelines.validation:create_pipeline",
        "training": "mm_ldlm.pipelines.training:create_pipeline",
        "sampling": "mm_ldlm.pipelines.sampling.pipeline:create_pipeline",
        "evaluation": "mm_ldlm.pipelines.evaluation:create_pipeline",
        "reporting": "mm_ldlm.pipelines.reporting:create_pipeline",
    },
    group="pipelines",
)
"""Functions that create the pipelines that `--pipelines` can name."""


def executed_by(pipeline: Pipeline) -> dict[str, list[str]]:
    """Return the names of the nodes of each registered pipeline, in order; without empty ones."""
    found = {name: [node.name for node in pipeline.nodes if name in node.tags] for name in PIPELINES}
    return {name: nodes for name, nodes in found.items() if nodes}


def partly(executed: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the pipelines of which a run executes only some nodes."""
    from kedro.framework.project import pipelines

    return {name for name, nodes in executed.items() if len(nodes) < len(pipelines[name].nodes)}
