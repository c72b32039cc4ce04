"""Limits, intervals and tolerances that no parameter sets: each has the value that was chosen, and its reason."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

LIMITS: list[tuple[str, str, Any, str]] = [
    ("training.preview", "MOST", 0.01, "sentences take at most a hundredth of the time of a training"),
    ("training.status", "LOCK_SECONDS", 20.0, "the workers of a killed launcher save before they end"),
    ("training.trial", "TEXTS", 4096, "the vocabulary of a corpus is extrapolated from so many texts"),
    ("training.trial", "SECONDS", 1.0, "a first run is not delayed"),
    ("training.trial", "LONGEST", 20.0, "a first run is not delayed, even by one slow step"),
    ("training.trial", "MOST_PARAMETERS", 30_000_000, "one step of a larger model takes seconds"),
    ("training.trial", "MOST_EXAMPLES", 1_000_000, "a plan of more examples takes seconds"),
    ("training.trial", "DRAWS", 64, "a kind of a tenth of the steps is drawn six times"),
    ("training.trial", "RARE", 0.1, "rarer kinds hardly change the mean"),
    ("training.precision", "GAIN", 1.3, "a whole step gains less than its matrix products (decision 0180)"),
    ("distributed.launch", "_AGENT_KILLS_AFTER", 30, "PyTorch's agent waits so long before SIGKILL"),
    ("distributed.logs", "_INTERVAL", 5.0, "a rank that writes without end does not fill the disk"),
    ("comparison.sessions", "LAST_LINES", 6, "the reason of a failed session fits a cell of the table"),
    ("comparison.sessions", "POLL_SECONDS", 0.2, "sessions that end are followed by others at once"),
    ("comparison.sessions", "QUIET_SECONDS", 60.0, "one line a minute says that sessions still run"),
    ("comparison.sessions", "GRACE_SECONDS", 120.0, "a session that is asked to end writes its checkpoint"),
    ("tracking.opening", "LONGEST", 12.0, "a server that is away does not hold up a run"),
    ("tracking.opening", "LONGEST_LOCAL", 120.0, "the first run creates the tables of its database"),
    ("tracking.mlflow", "_LONGEST_DIGEST", 36, "MLflow refuses longer digests"),
    ("tracking.mlflow", "_LONGEST_VALUE", 6000, "MLflow refuses longer values"),
    ("tracking.mlflow", "_BATCH", 100, "MLflow refuses more parameters in one request"),
    ("tracking.outlook", "_SHORTEST", 1.0, "shorter pipelines are not worth a line"),
    ("tracking.progress", "_LONGEST_SENTENCE", 160, "two sentences fit a few lines of a terminal"),
    ("hooks.first_run", "FEWEST_STEPS", 200, "a shorter training soon estimates its own time"),
    ("pipelines.sampling.nodes", "NEIGHBOUR_CANDIDATES", 50_000, "the nearest sentence is one of most of the corpus"),
    ("checkpoints.converting", "NEVER", -1e4, "the softmax of such a logit is exactly 0 in float32, and it is finite"),
    ("checkpoints.formats", "ROUNDING", 128, "other projects round rows up to a multiple of 128"),
    ("gpu_check.compiling", "TOLERANCE", 1e-3, "float32 sums in another order"),
    ("gpu_check.extraction", "TOLERANCE", 2e-4, "smaller than the rounding of TF32"),
    ("gpu_check.models", "LOSS_TOLERANCE", 1e-4, "float32 without TF32"),
    ("gpu_check.models", "GRADIENT_TOLERANCE", 1e-3, "float32 without TF32, after a backward pass"),
    ("gpu_check.precision", "LOSS_TOLERANCE", 0.05, "the rounding of bf16 over a few steps"),
    ("gpu_check.ranks", "TOLERANCE", 1e-3, "sums over ranks have another order"),
    ("gpu_check.rank", "REPEATS", 10, "one all-reduce is too short to be timed"),
    ("gpu_check.report", "FORMAT_VERSION", 1, "programs that read the report know this version"),
]


@pytest.mark.parametrize(("module", "name", "value", "reason"), LIMITS, ids=[f"{m}.{n}" for m, n, *_ in LIMITS])
def test_a_limit_that_no_parameter_sets_has_its_value(module: str, name: str, value: Any, reason: str) -> None:
    found = getattr(importlib.import_module(f"mm_ldlm.{module}"), name)
    assert (found, type(found)) == (value, type(value)), reason


def test_lines_that_mlflow_did_not_accept_are_kept_and_sent_again_after_a_minute() -> None:
    from mm_ldlm.tracking.mlflow import MlflowSink

    assert (MlflowSink.PAUSE, MlflowSink.KEPT) == (60.0, 100_000)


def test_the_tolerances_of_kernels_are_below_tf32_and_above_the_rounding_of_each_type() -> None:
    import torch

    from mm_ldlm.gpu_check.kernels import TOLERANCE

    assert {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3} == TOLERANCE
