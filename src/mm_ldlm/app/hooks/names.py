"""Names of the pipelines, and of the catalog entries that the hooks read or write."""

from __future__ import annotations

from mm_ldlm.pipelines import MAIN

TRACKING = "tracking_reference"
TIMINGS = "timings"
RUNS = "runs"
RUN = "run"
DATASET = "dataset"
TRAINING_SPEC = "training_spec"
METRICS = "metrics"
REPORT = "report"
COMPARISON_PLAN = "comparison_plan"
COMPARISON_RUNS = "comparison_runs"
COMPARISON_REPORT = "comparison_report"
FILES = {REPORT: "report.html", COMPARISON_REPORT: "comparison.html"}
"""Catalog entry → name of its copy in the MLflow run."""
ALONE = ("sanity", "comparison", "export")
ORDER = (*MAIN, *ALONE)
"""All pipelines, in the order of a run."""
PIPELINES = frozenset(ORDER)
