"""Parameters of the command line that no node of a run reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mm_ldlm.hooks.names import ORDER
from mm_ldlm.messages import escape, shorten
from mm_ldlm.overrides import nested

if TYPE_CHECKING:
    from kedro.pipeline import Pipeline

_PREFIX = "params:"


def unread(given: Mapping[str, Any], pipeline: Pipeline, pipelines: Mapping[str, Pipeline]) -> str | None:
    """Describe the given parameters that change nothing in this run, because only other pipelines read them.

    Sections that no pipeline reads, such as `tracking` and `data`, are read by hooks and by the catalog. A comparison
    gives the parameters to its sessions.

    Args:
        given: the parameters of the command line.
        pipeline: what this run executes.
        pipelines: all pipelines by name.
    """
    if any("comparison" in node.tags for node in pipeline.nodes):
        return None
    read = pipeline.inputs()
    readers = {
        section: [name for name in ORDER if name in pipelines and _PREFIX + section in pipelines[name].inputs()]
        for section in nested(given)
        if _PREFIX + section not in read
    }
    if not (found := {section: names for section, names in readers.items() if names}):
        return None
    words = "; ".join(f"'{shorten(escape(section))}' is read by {', '.join(names)}" for section, names in found.items())
    return f"parameters of the command line without effect, because this run does not include their pipelines: {words}"
