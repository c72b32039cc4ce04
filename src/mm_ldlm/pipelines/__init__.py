"""Kedro pipelines, one folder each: nodes that turn catalog objects into calls of the rooms below, and back.

Nothing is computed here. A node is a pure function of its arguments: no catalog, no environment, no path literals; it
parses its parameters with `mm_ldlm.config.parse` and imports what is heavy inside its body. Pipelines do not import one
another. Every node carries its pipeline's name as a tag.
"""

MAIN = ("ingestion", "embedding", "validation", "training", "sampling", "evaluation", "reporting")
"""The main job in order: what a bare `kedro run` runs."""
