"""Warning about parameters of the command line that no node of the run reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mm_ldlm.app.hooks.names import ORDER
from mm_ldlm.core.messages import escape, shorten
from mm_ldlm.core.overrides import nested

if TYPE_CHECKING:
    from kedro.pipeline import Pipeline

_PREFIX = "params:"


def unread(given: Mapping[str, Any], pipeline: Pipeline, pipelines: Mapping[str, Pipeline]) -> str | None:
    """Describe the given parameters that have no effect in this run, because only other pipelines read them.

    Returns None if there are none. Sections that no pipeline reads, such as `tracking` and `data`, are read by the
    hooks and the catalog. A comparison passes all parameters to its sessions, so that none is without effect.

    Args:
        given: the parameters of the command line.
        pipeline: the nodes of this run.
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
    words = "; ".join(
        f"'{shorten(escape(section))}' is read only by {', '.join(names)}" for section, names in found.items()
    )
    return (
        f"some parameters of the command line have no effect in this run: {words}. Run a pipeline that reads "
        "them as well, or leave them out."
    )
