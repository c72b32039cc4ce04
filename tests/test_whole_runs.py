"""`kedro run` of the families whose data are not the plain sentences of base, from ingestion to the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

TINY = (
    "training.max_steps=4,training.launch.processes=1,training.optimizer.warmup_steps=1,"
    "evaluation.bootstrap.replicates=20,tracking.enabled=false"
)
SMALL = f"{TINY},training.batch.examples=8,model.dim=32,model.depth=1,model.heads=2"
IMAGES = f"{SMALL},sampling.images.joint_count=4,sampling.images.joint_steps=2"
DIGITS = [
    ("digits", IMAGES, "digits", "images"),
    ("digits+continuous_captions", IMAGES, "digits/continuous_captions", "images"),
]
OTHERS = [
    ("classification+test", TINY, "test/classification", "classification"),
    ("classification_trunk+test", TINY, "test/classification_trunk", "classification"),
    ("starter_pairs+pairwise_classification", SMALL, "starter_pairs/pairwise_classification", "classification"),
    *((f"{name}+test", TINY, f"test/{name}", "nll") for name in ("ccdd", "atat", "hdlm", "uniform")),
]
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in (DIGITS[1], *OTHERS)]


@pytest.mark.parametrize(("environment", "params", "folder", "metric"), [DIGITS[0], *SLOW])
def test_a_run_goes_from_ingestion_to_the_report(
    run_kedro: Callable[..., CompletedProcess[str]],
    workshop: Path,
    environment: str,
    params: str,
    folder: str,
    metric: str,
) -> None:
    result = run_kedro("run", f"--env={environment}", f"--params={params}")
    assert result.returncode == 0, result.stderr[-3000:]
    reporting = workshop / "data" / folder / "08_reporting"
    metrics = json.loads((reporting / "metrics.json").read_text())
    assert any(name.startswith(f"{metric}.") for name in metrics), sorted(metrics)
    assert (reporting / "report.html").stat().st_size > 10_000
