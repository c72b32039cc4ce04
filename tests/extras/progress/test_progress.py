"""Progress: every line of a training's log can be shown; the last lines of a run."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kedro.pipeline import Pipeline, node
from tests.app.sessions import Session
from tests.app.test_hooks import one, remember

from mm_ldlm.extras.progress.hooks import ProgressHooks, ProgressSink, progress_line, sentence
from mm_ldlm.pipelines.reporting import create_pipeline


def test_progress_is_shown_in_lines_and_events_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sink = ProgressSink(3)
    sink([{"step": 1, "loss": "nan", "lr": 0.1}, {"step": 2, "loss": 2.0, "lr": 0.1, "seconds_left": 3700.0}])
    sink(
        [
            {"event": "rollback", "step": 2, "reason": "loss grew"},
            {"event": "start", "step": 0, "resumed_from": "step-1"},
        ]
    )
    sink([])
    assert "step 2/3" in caplog.text
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "step 2: rollback loss grew"
    ]
    assert "step-1" in caplog.text


@given(st.dictionaries(st.sampled_from(["loss", "lr", "grad_norm", "tokens_per_second", "skipped"]),
                       st.one_of(st.floats(), st.sampled_from(["nan", "inf", "x", None]))),
       st.floats(0, 1e9) | st.none())  # fmt: skip
def test_any_line_of_the_log_can_be_shown(line: dict[str, Any], left: float | None) -> None:
    assert progress_line({"step": 1, "seconds_left": left, **line}, max_steps=2, smoothed=None).isprintable()


def test_the_remaining_time_includes_the_pipelines_after_the_training() -> None:
    line = {"step": 1, "seconds_left": 60.0, "seconds": 40.0}
    shown = [progress_line(line, max_steps=2, smoothed=None, later=later) for later in (0.0, 20.0, None)]
    assert ["60 s left" in shown[0], "80 s left" in shown[1], "80 s left" in shown[2]] == [True] * 3
    earlier: Any = SimpleNamespace(exists=lambda _: True, load=lambda _: {"training": 7.0, "sampling": 20.0})
    (hooks := ProgressHooks()).before_pipeline_run(
        one(outputs="a", tag="training") + one(outputs="b", tag="sampling"), earlier
    )
    assert hooks._later == 20


def test_sentences_are_one_line() -> None:
    shown = sentence({"step": 1, "text": "a\nb" * 1000, "original": "a"})
    assert shown.isprintable()
    assert len(shown) < 500


def test_a_suite_that_runs_alone_ends_with_its_scores_and_their_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def scored(_: Any) -> dict[str, Any]:
        part = {name: {"value": 50.0, "low": 40.0, "high": 60.0} for name in ("spearman", "pearson")}
        return {"sets": {"own": {"pairs": 9, "scores": {"model": part, "encoder": part}}}}

    caplog.set_level("INFO")
    Session(tmp_path).run(one("params:seed", outputs="metrics_sts", tag="evaluation", func=scored))
    text = caplog.text.partition("seconds:")[2]
    assert "50.0 [40.0 – 60.0]: Spearman × 100; encoder 50.0" in text
    assert f"{tmp_path}/08_reporting/metrics_sts.json" in text


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_the_command_that_follows_a_run_gives_a_length_where_the_run_has_learned_none(
    weight: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session = Session(tmp_path, objective={"length_weight": weight})
    file = Path(session.entries["run"]["filepath"])
    (folder := file.parent / "runs/name").mkdir(parents=True)
    (folder / "config.json").write_text('{"model": {}, "objective": {}, "shape": {"max_length": 7}}')
    file.write_text('{"name": "name", "step": 100000}')
    names = [f"made_{number}" for number in range(len(create_pipeline().nodes))]
    session.run(Pipeline([node(remember, "params:seed", name, name=name, tags="reporting") for name in names]))
    assert ("--length 7" in caplog.text.partition("next: ")[2]) == (weight == 0)
