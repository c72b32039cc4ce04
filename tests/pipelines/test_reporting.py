"""Nodes of `reporting` on a finished run: results of other weights are refused, and a chosen run stays as it is; and the
scores of a run that `evaluation` does not replace.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tests.evaluation.suites.conftest import parameters

from mm_ldlm.core import EvaluationError
from mm_ldlm.core.files import write_json
from mm_ldlm.evaluation.config import EvaluationConfig, ReportingConfig
from mm_ldlm.evaluation.suites import sections_of_suites, suites
from mm_ldlm.inference.calibration import CALIBRATION
from mm_ldlm.pipelines import evaluation as evaluating
from mm_ldlm.pipelines import reporting as nodes
from mm_ldlm.training.checkpoints.provenance import MADE_BY
from mm_ldlm.training.checkpoints.reference import CHOSEN

WRITTEN = {
    "metrics": [f"metrics_{name}" for name in suites()],
    "rows": [f"{name}_rows" for name, suite in suites().items() if suite.row_columns],
}


@pytest.fixture
def inputs(finished: Path, tmp_path: Path) -> dict[str, Any]:
    """What the nodes of reporting read, by the names of the catalog; the run folder is a copy."""
    data = finished / "data" / "test"
    found: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in (data / "08_reporting").glob("*.json")}
    found |= {name: pd.read_parquet(data / "08_reporting" / f"{name}.parquet") for name in WRITTEN["rows"]}
    run = json.loads((data / "06_models" / "run.json").read_text())
    kept = tmp_path / run["name"]
    kept.mkdir()
    source = data / "06_models" / "runs" / run["name"]
    for name in ("config.json", "training_log.jsonl", "checkpoints"):
        (kept / name).symlink_to(source / name)
    return {**found, "run": {**run, "path": str(kept)}, "runs": tmp_path}


def call(node: Callable[..., Any], inputs: dict[str, Any], names: list[str], **more: Any) -> Any:
    return node(**{name: inputs[name] for name in ("run", "runs", *names)}, **more)


def other_weights(value: Any) -> Any:
    changed = {**(value.attrs if isinstance(value, pd.DataFrame) else value)[MADE_BY], "digest": "0" * 32}
    if not isinstance(value, pd.DataFrame):
        return {**value, MADE_BY: changed}
    table = value.copy()
    table.attrs = {MADE_BY: changed}
    return table


def report(inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    import plotly.io

    plots = {name: plotly.io.from_json(json.dumps(inputs[name])) for name in nodes.data_plots()}
    names = ["metrics", "comparison", "timings", *WRITTEN["metrics"], *WRITTEN["rows"]]
    reports = {name: inputs[name] for name in ("ingestion_report", "validation_report")}
    parameters = {"seed": 0, "ingestion": {"sources": []}, "evaluation": {"bootstrap": {}}, "model": {"kind": "other"}}
    return call(
        nodes.write_report, inputs, names, reporting=ReportingConfig(), parameters=parameters, **reports, **plots
    )


def lede(page: str) -> str:
    return page.split('<p class="lede">')[1].split("</p>")[0]


@pytest.mark.parametrize("name", [*WRITTEN["metrics"], *WRITTEN["rows"], "comparison"])
def test_pitfall_27_results_of_other_weights_end_no_report(
    name: str, inputs: dict[str, Any], refuses: Callable[..., Any]
) -> None:
    inputs[name] = other_weights(inputs[name])
    with refuses(EvaluationError, name):
        report(inputs)
    if name in WRITTEN["metrics"]:
        with refuses(EvaluationError, name):
            call(nodes.collect_metrics, inputs, ["timings", *WRITTEN["metrics"]], evaluation=EvaluationConfig())
    if name != "comparison":
        with refuses(EvaluationError, name):
            compare(inputs)


def test_metrics_of_another_checkpoint_are_not_collected(inputs: dict[str, Any], refuses: Callable[..., Any]) -> None:
    names = ["timings", *WRITTEN["metrics"]]
    assert call(nodes.collect_metrics, inputs, names, evaluation=EvaluationConfig()).items() >= {
        (key, value) for key, value in inputs["metrics"].items() if "seconds" not in key and key != MADE_BY
    }
    with refuses(EvaluationError, "last weights"):
        call(nodes.collect_metrics, inputs, names, evaluation=EvaluationConfig(use_ema=False))


def compare(inputs: dict[str, Any], *others: str) -> Any:
    evaluation = EvaluationConfig()
    return call(
        nodes.compare_runs, inputs, ["metrics", *WRITTEN["metrics"], *WRITTEN["rows"]],
        reporting=ReportingConfig(compare=others), evaluation=evaluation, seed=0, from_tracking=lambda run_id: {"l2t.bleu": 1.0} if run_id == "tracked" else None,
    )  # fmt: skip


def test_a_run_keeps_its_result_unless_it_was_chosen_by_its_path(inputs: dict[str, Any]) -> None:
    folder = Path(inputs["run"]["path"])
    chosen = {**inputs, "run": {**inputs["run"], CHOSEN: None}}
    assert compare(chosen)["table"] == []
    assert not (folder / "evaluation").exists()
    assert compare(inputs)["table"] == []
    assert json.loads((folder / "evaluation" / CALIBRATION).read_text()) == inputs["metrics_calibration"]["fitted"]
    found = compare(inputs, str(folder), "tracked")
    assert found["runs"] == [folder.name, f"{folder.name} (2)", "tracked"]
    assert all(
        entry["difference"]["value"] == 0
        for suite in found["paired"][f"{folder.name} (2)"].values()
        for entry in suite["differences"].values()
    )


def test_the_report_of_a_chosen_run_shows_what_it_was_trained_with(inputs: dict[str, Any]) -> None:
    assert "<td><code>other</code></td>" in report(inputs)[0]
    assert " examples" in lede(report(inputs)[0])
    page, figures = report({**inputs, "run": {**inputs["run"], CHOSEN: None}})
    assert "<td><code>other</code></td>" not in page
    assert " examples" not in lede(page)  # of the data that it is scored on
    assert {"plot_training", "plot_calls", "plot_cosine", "plot_sts", "plot_mask_ratio"} <= figures.keys()
    assert all(figure.layout.meta[MADE_BY] == inputs["metrics"][MADE_BY] for figure in figures.values())


def test_a_figure_of_data_that_were_not_made_is_left_out(inputs: dict[str, Any]) -> None:
    assert 'data-plot="plot_lengths"' in report(inputs)[0]
    inputs["plot_lengths"] = {"data": [{"type": "bar", "x": [], "y": []}], "layout": {}}
    assert 'data-plot="plot_lengths"' not in report(inputs)[0]


def test_scores_are_replaced_by_those_of_the_same_parameters_and_data_only(
    inputs: dict[str, Any], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "load_trained", lambda *given: "loaded")
    config, metrics = parameters(finished), inputs["metrics_inversion"]
    given = {name: config[name] for name in ("evaluation", "seed", *sections_of_suites())}
    given |= {"run": inputs["run"], "runs": tmp_path, "scores": finished / "data/test/08_reporting"}
    given["dataset"] = SimpleNamespace(fingerprint=metrics[MADE_BY]["dataset"])
    write_json(tmp_path / "metrics_inversion.json", {**metrics, "skipped": "no latents"})
    other = {**inputs["run"], "name": "other"}
    for change in ({}, {"seed": 9, "run": other}, {"seed": 9, "scores": tmp_path}):
        assert evaluating.load_evaluated(**given | change) == "loaded"
    changes: list[dict[str, Any]] = [{"seed": 9}, {"dataset": SimpleNamespace(fingerprint="other")}]
    for suite in suites().values():
        for section in suite.sections:
            about = metrics[MADE_BY] | {"parameters": {section: "other"}}
            write_json(tmp_path / suite.name / f"metrics_{suite.name}.json", {MADE_BY: about})
            changes.append({"scores": tmp_path / suite.name})
    for change in (*changes, {"evaluation": replace(config["evaluation"], use_ema=False)}):
        with pytest.raises(EvaluationError, match="expected the parameters that made these scores"):
            evaluating.load_evaluated(**given | change)
