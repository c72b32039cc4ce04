"""Bounds of the parameters of evaluation and reporting that depend on one another, each from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.evaluation.config import (
    BootstrapConfig,
    ClassificationEvalConfig,
    InversionConfig,
    LatentsConfig,
    ReportingConfig,
    StsConfig,
    SweepPoint,
)
from mm_ldlm.evaluation.sts_sets import StsSource
from mm_ldlm.sampling.registry import text_sampler

POINTS = tuple(SweepPoint(label=label, sampler=text_sampler("confidence", steps=1)) for label in ("a", "b"))


@pytest.mark.parametrize(
    ("kind", "given", "refused"),
    [
        (BootstrapConfig, {"replicates": 20}, {"replicates": 19}),
        (BootstrapConfig, {"level": 0.5}, {"level": 0.4999}),
        (BootstrapConfig, {"level": 0.9999}, {"level": 1.0}),
        (InversionConfig, {"length_edges": (3, 5)}, {"length_edges": (5, 3)}),
        (InversionConfig, {"length_edges": (3,)}, {"length_edges": (3, 3)}),
        (InversionConfig, {"sweep": POINTS}, {"sweep": POINTS[:1] * 2}),
        (InversionConfig, {"sweep": POINTS, "reference": "b"}, {"sweep": POINTS, "reference": "c"}),
        (InversionConfig, {"reference": None}, {"reference": "a"}),
        (LatentsConfig, {"calibration_samples": 2}, {"calibration_samples": 1}),
        (LatentsConfig, {"calibration_sentences": 0, "calibration_samples": 1},
         {"calibration_sentences": 1, "calibration_samples": 1}),
        (ClassificationEvalConfig, {"baseline_grid": (0.5,)}, {"baseline_grid": ()}),
        (ReportingConfig, {"smoothing": 0.9999}, {"smoothing": 1.0}),
        (StsConfig, {"files": {"a-b_1": "f"}}, {"files": {"a.b": "f"}}),
        (StsConfig, {"sets": (StsSource(format="starter", name="a"),), "files": {"b": "f"}},
         {"sets": (StsSource(format="starter", name="a"),), "files": {"a": "f"}}),
        (SweepPoint, {"label": "a", "sampler": POINTS[0].sampler, "length": "top-2"},
         {"label": "a", "sampler": POINTS[0].sampler, "length": "longest"}),
        (SweepPoint, {"label": "a", "sampler": POINTS[0].sampler, "length": 1},
         {"label": "a", "sampler": POINTS[0].sampler, "length": 0}),
    ],
)  # fmt: skip
def test_a_bound_from_both_sides(kind: Any, given: dict[str, Any], refused: dict[str, Any]) -> None:
    made = kind(**given)
    assert {name: getattr(made, name) for name in given} == given
    with pytest.raises(ConfigurationError):
        kind(**refused)


def test_an_unknown_reference_is_refused_with_the_nearest_label() -> None:
    points = tuple(SweepPoint(label=label, sampler=POINTS[0].sampler) for label in ("one step", "search"))
    with pytest.raises(
        ConfigurationError, match=r"a label of the sweep \(\['one step', 'search'\]\), found 'one stpe'"
    ):
        InversionConfig(sweep=points, reference="one stpe")


def test_the_name_of_a_file_is_refused_under_the_key_of_the_files() -> None:
    with pytest.raises(ConfigurationError, match=r"evaluation\.sts\.files.*a name must contain letters"):
        parse(StsConfig, {"files": {"a.b": "f.csv"}}, at="evaluation.sts")


SAMPLER = {"kind": "confidence", "steps": 1}


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (BootstrapConfig, {"replicates": 19}, "'x.replicates': replicates must be at least 20, found 19."),
        (BootstrapConfig, {"level": 0.25}, "'x.level': level must lie between 0.5 and 1, found 0.25."),
        (InversionConfig, {"sweep": [{"label": label, "sampler": SAMPLER} for label in "bab"]},
         "'x.sweep': expected sweep points with different labels, found ['b', 'a', 'b']."),
        (InversionConfig, {"sweep": [{"label": "one step", "sampler": SAMPLER}], "reference": "one stpe"},
         "'x.reference' and 'x.sweep': expected reference to be a label of the sweep (['one step']), found 'one stpe'. "
         "Did you mean 'one step'?"),
        (InversionConfig, {"length_edges": [5, 3, 3]},
         "'x.length_edges': length_edges must increase, found [5, 3, 3]."),
        (StsConfig, {"files": {"b": "f", "a b": "g"}},
         "'x.files': a name must contain letters, digits, '-' and '_' only, found 'a b'."),
        (StsConfig, {"sets": [{"format": "starter", "name": "a"}], "files": {"b": "f", "a": "g"}},
         "'x.sets' and 'x.files': expected sets and files with different names, found ['a', 'b', 'a']."),
        (StsSource, {"format": "sick", "name": "a"}, "'x.path': an STS set of format 'sick' needs a path."),
        (StsSource, {"format": "hub", "name": "a"}, "'x.path': an STS set of format 'hub' needs a path."),
        (LatentsConfig, {"calibration_sentences": 3, "calibration_samples": 1},
         "'x.calibration_samples': calibration_samples must be at least 2, found 1."),
        (ClassificationEvalConfig, {"baseline_grid": []},
         "'x.baseline_grid': expected at least one value in baseline_grid, found none."),
        (ReportingConfig, {"smoothing": 1.5}, "'x.smoothing': smoothing must be below 1, found 1.5."),
    ],
)  # fmt: skip
def test_a_refusal_contains_what_was_expected_and_what_was_found(
    kind: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(kind, given, at="x")
    assert str(refused.value) == f"parameter{'s' if ' and ' in message.split(':')[0] else ''} {message}"


def test_the_files_follow_the_sets_in_their_order() -> None:
    config = StsConfig(sets=(StsSource(format="starter", name="z"),), files={"b": "1.csv", "a": "2.csv"})
    assert [(source.name, source.format, source.path) for source in config.sources] == [
        ("z", "starter", None), ("b", "stsb", "1.csv"), ("a", "stsb", "2.csv")
    ]  # fmt: skip
