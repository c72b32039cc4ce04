"""Registry of the pipelines that `kedro run --pipelines=` can name."""

from __future__ import annotations

import importlib

from kedro.pipeline import Pipeline

from mm_ldlm.pipelines import MAIN

ALONE = ("sanity", "comparison", "export")
"""Pipelines that are not part of the main job."""


def register_pipelines() -> dict[str, Pipeline]:
    """Create all pipelines by name; `__default__` is the main job, from raw text to the report."""
    built = {name: _create(name) for name in (*MAIN, *ALONE)}
    return {"__default__": sum((built[name] for name in MAIN), Pipeline([])), **built}


def _create(name: str) -> Pipeline:
    pipeline: Pipeline = importlib.import_module(f"mm_ldlm.pipelines.{name}.pipeline").create_pipeline()
    return pipeline
