"""Every registered suite, of the core, of families and of other packages, on a finished quick run."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.evaluation.suites.conftest import Run

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.suites import SUITES, flat_metrics, suites
from mm_ldlm.evaluation.suites.base import score
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.training.checkpoints.provenance import MADE_BY

# -- properties of every suite -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SUITES))
def test_an_evaluation_repeats_itself_and_names_its_weights(name: str, run: Run) -> None:
    suite = suites()[name]
    metrics, rows = score(suite, run.of(name))
    written = run.metrics(name)
    assert metrics[MADE_BY] == rows.attrs[MADE_BY]
    assert {"bootstrap", *suite.sections} <= metrics[MADE_BY]["parameters"].keys()
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    assert ("skipped" in metrics) is ("skipped" in written)
    if "skipped" not in metrics:
        repeated, first = suite.numbers(metrics), suite.numbers(written)
        assert {k: v for k, v in repeated.items() if "second" not in k} == {k: v for k, v in first.items() if "second" not in k}  # fmt: skip
    assert (len(rows) > 0) is bool(suite.row_columns and "skipped" not in metrics)
    assert not len(rows) or {"id", *suite.row_columns} <= set(rows)


@pytest.mark.parametrize("name", list(SUITES))
def test_a_suite_presents_what_it_found(name: str, run: Run) -> None:
    suite, metrics = suites()[name], run.metrics(name)
    assert suite.name == name
    numbers = flat_metrics({name: metrics}, {})
    assert numbers.items() <= json.loads((run.written / "metrics.json").read_text()).items()
    assert all(math.isfinite(value) for value in numbers.values())
    drawn = {} if "skipped" in metrics else suite.figures(metrics)
    for figure in drawn.values():
        json.loads("null" if figure is None else figure.to_json())
    assert len({each.key for each in suite.headlines(numbers)}) == len(suite.headlines(numbers))
    assert ("skipped" in metrics) or {each.key for each in suite.headlines(numbers)} & numbers.keys()


@pytest.mark.parametrize("name", list(SUITES))
def test_a_run_that_cannot_do_it_is_skipped_with_a_reason(name: str, run: Run) -> None:
    able_to_nothing = Capabilities(uses=frozenset(), trained_as="objective none")
    model: Any = SimpleNamespace(capabilities=able_to_nothing, no_encoder=None)
    empty = {task: table.iloc[:0] for task, table in run.of(name).samples.items()}
    reason = suites()[name].skip_reason(replace(run.given, model=model, samples=empty))
    assert "objective none" in reason or "sampl" in reason


@pytest.mark.parametrize("name", [name for name in SUITES if SUITES.load(name).samples])
def test_pitfall_27_samples_of_other_weights_are_refused(name: str, run: Run, refuses: Callable[..., Any]) -> None:
    given = run.of(name)
    task, table = list(given.samples.items())[-1]
    for change in ({"digest": "0" * 32}, {"weights": "last"}, None):
        other = table.copy()
        other.attrs = {MADE_BY: {**table.attrs[MADE_BY], **change}} if change else {}
        with refuses(EvaluationError, f"samples_{task}"):
            score(suites()[name], replace(given, samples={**given.samples, task: other}))


# -- metrics.json ------------------------------------------------------------------------------------------------------


def test_the_seconds_of_a_report_that_is_still_written_are_left_out() -> None:
    assert flat_metrics({}, {"training": 3, "sampling": math.inf, "reporting": 1}) == {"seconds.training": 3.0}
