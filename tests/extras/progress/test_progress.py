"""Progress: every line of a training's log can be shown; the last lines of a run."""

import logging
import re
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
    sink = ProgressSink(4)
    for step, loss in ((1, "nan"), (2, 2.0), (4, 3.0)):
        sink([{"step": step, "loss": loss, "lr": 0.1}, {"step": step, "validation/loss": 9.0}])
    assert [message.partition(" · lr")[0] for message in caplog.messages] == [
        "step 1/4 · loss – (smoothed –)", "step 4/4 · loss 3.0000 (smoothed 2.1000)"
    ]  # fmt: skip
    sink(
        [
            {"event": "rollback", "step": 2, "reason": "loss grew"},
            {"event": "start", "step": 0, "resumed_from": "step-1"},
        ]
    )
    sink([])
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "step 2: rollback loss grew"
    ]
    assert "step-1" in caplog.text


def test_a_line_of_a_terminal_ends_before_an_event(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    sink = ProgressSink(9)
    for line in ({"step": 1, "lr": 0.1}, {"step": 2, "lr": 0.1}, {"event": "skip", "step": 2}):
        sink([line])
    assert re.fullmatch(r"\r\x1b\[2Kstep 1.*\r\x1b\[2Kstep 2[^\n]*\n[^\r]*", capsys.readouterr().err)


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
    hooks.before_pipeline_run(one(outputs="a", tag="training") + one(outputs="b", tag="evaluation"), earlier)
    assert hooks._later is None, "not yet known"


def test_sentences_are_one_line() -> None:
    shown = sentence({"step": 1, "text": "a\nb" * 1000, "original": "a"})
    assert shown.isprintable()
    assert len(shown) < 500
    same = [sentence({"step": 1, "text": text, "original": "a"}).endswith("(exact)") for text in ("a", "A")]
    assert same == [True, False]


def test_a_suite_that_runs_alone_ends_with_its_scores_and_their_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def scored(_: Any) -> dict[str, Any]:
        part = {name: {"value": 50.0, "low": 40.0, "high": 60.0} for name in ("spearman", "pearson")}
        return {"sets": {"own": {"pairs": 9, "scores": {"model": part, "encoder": part}}}}

    caplog.set_level("INFO")
    skipped = node(lambda _: {"skipped": "why"}, "params:seed", "metrics_other", name="other", tags="evaluation")
    Session(tmp_path).run(
        one("params:seed", outputs="metrics_sts", tag="evaluation", func=scored) + Pipeline([skipped])
    )
    text = caplog.text.partition("seconds:")[2]
    assert "50.0 [40.0 – 60.0]: Spearman × 100; encoder 50.0" in text
    assert f"{tmp_path}/08_reporting/metrics_sts.json" in text
    assert not re.search("next: |metrics_other", text), "a pipeline that ran in part, and no scores"


@pytest.mark.parametrize("weight", [0.0, 0.1])
@pytest.mark.parametrize("reads", [True, False])
def test_the_command_that_follows_a_run_gives_a_length_where_the_run_has_learned_none(
    weight: float, reads: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("mm_ldlm.data.encoders.no_encoder", lambda _: None if reads else "none")
    session = Session(tmp_path, objective={"length_weight": weight}, evaluation={"checkpoint": "best"})
    file = Path(session.entries["run"]["filepath"])
    (folder := file.parent / "runs/name").mkdir(parents=True)
    (folder / "config.json").write_text('{"model": {}, "objective": {}, "shape": {"max_length": 7}}')
    file.write_text('{"name": "name", "step": 100000}')
    names = [f"made_{number}" for number in range(len(create_pipeline().nodes))]
    session.run(Pipeline([node(remember, "params:seed", name, name=name, tags="reporting") for name in names]))
    asked = "invert texts.txt --search" if reads else "generate 5"
    length = " --length 7" if weight == 0 else ""
    assert f"next: mm-ldlm {asked} --run {folder} --checkpoint best{length}\n" in caplog.text
