"""Doors of the sections `evaluation` and `reporting`."""

from collections.abc import Callable
from typing import Any

import pytest

from mm_ldlm.core import ConfigurationError, parse
from mm_ldlm.evaluation.config import EvaluationConfig

POINT = {"label": "a", "sampler": {"kind": "confidence", "steps": 2}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("bootstrap.replicates", 19),
        ("bootstrap.level", 0.4),
        ("bootstrap.level", 1.0),
        ("inversion.sweep", [POINT, POINT]),
        ("inversion.reference", "b"),
        ("checkpoint", "newest"),
        ("likelihood.draws", 0),
        ("likelihood.other_texts", [{"name": "a", "path": "f"}, {"name": "a", "path": "g"}]),
        ("inversion.sweep", [POINT, {**POINT, "label": "A."}]),  # one key of the scores
        ("likelihood.other_texts", [{"name": "a-b", "path": "f"}, {"name": "a_b", "path": "g"}]),
    ],
)
def test_values_that_no_evaluation_can_use_are_refused(path: str, value: Any, refuses: Callable[..., Any]) -> None:
    section: Any = value
    for key in reversed(path.split(".")):
        section = {key: section}
    with refuses(ConfigurationError, f"evaluation.{path}"):
        parse(EvaluationConfig, section, at="evaluation")
