"""The classifier learns the topics of the starter corpus (slow)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_the_classifier_is_above_logistic_regression_on_the_same_latents(
    run_kedro: Callable[..., Any], workshop: Path
) -> None:
    params = "training.max_steps=800,tracking.enabled=false"
    run_kedro("run", "--env=classification", f"--params={params}")
    metrics = json.loads((workshop / "data" / "classification" / "08_reporting" / "metrics.json").read_text())
    model, baseline = metrics["classification.accuracy"], metrics["baseline.logistic_regression.accuracy"]
    print(f"classifier {model:.3f}, logistic regression {baseline:.3f}")
    assert model > baseline + 0.05
