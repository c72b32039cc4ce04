"""Seconds of the pipelines of a run, added to those of earlier runs of other pipelines."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from mm_ldlm.app.hooks.names import ORDER, PIPELINES

if TYPE_CHECKING:
    from kedro.pipeline.node import Node


class PipelineSeconds:
    """The seconds of each pipeline. A pipeline of this run replaces its seconds of an earlier one."""

    def __init__(self, earlier: Mapping[str, float] | None = None) -> None:
        self.all: dict[str, float] = dict(earlier or {})
        self._counted: set[str] = set()  # pipelines that ran a node in this run
        # Node name → when the node started, and the seconds that its pipeline had used before.
        self._started: dict[str, tuple[float, float]] = {}

    def count(self, node: Node) -> None:
        """Set the seconds of the pipeline: those of its earlier nodes, plus those since this node started to load."""
        now = time.perf_counter()
        for name in node.tags & PIPELINES:
            if name not in self._counted:  # replace the seconds of an earlier run, do not add to them
                self._counted.add(name)
                self.all[name] = 0.0
            started, before = self._started.setdefault(node.name, (now, self.all[name]))
            self.all[name] = before + now - started

    def finished(self, *, without: Collection[str] = ()) -> dict[str, float]:
        """Return the seconds of all pipelines but those that are still running."""
        return {name: round(value, 3) for name, value in self.all.items() if name not in without}

    def of_this_run(self) -> dict[str, float]:
        """Return the seconds of the pipelines that ran a node in this run, in their order."""
        return {name: self.all[name] for name in ORDER if name in self._counted}
