"""Kedro pipelines, one folder each: nodes that turn catalog objects into calls of the rooms below, and back.

Nothing is computed here. A node is a pure function of its arguments, without catalog, environment or path literals; it
parses its parameters with `core.config.parse` and imports heavy packages inside its body. Pipelines do not import
one another. The name of a pipeline is the tag and the namespace of its nodes (`training.plan_training`); its datasets
have no prefix, because they connect the pipelines.
"""

MAIN = ("ingestion", "embedding", "validation", "training", "sampling", "evaluation", "reporting")
"""Pipelines of the main job (`kedro run` without options), in order."""
