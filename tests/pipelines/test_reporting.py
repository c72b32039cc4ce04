"""The pipeline `reporting`: its graph fits its nodes, and it writes a page for a run without metrics."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset

from mm_ldlm.evaluation import compare, run_result
from mm_ldlm.evaluation.report import cards, figures, inputs, page, theme
from mm_ldlm.pipelines.reporting import nodes
from mm_ldlm.pipelines.reporting.pipeline import create_pipeline
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.provenance import MADE_BY, weights_of


def test_a_run_without_measurements_has_metrics_plots_and_a_page(tmp_path):
    run = tmp_path / "runs" / "x"
    checkpoint = folder.write(run / "checkpoints", 7, Contents({}, {"training_state.json": {}}))
    (run / "training_log.jsonl").write_text('{"step": 7, "seconds": 61.0}\n')
    made_by = {MADE_BY: weights_of(checkpoint, use_ema=True)}
    skipped = {"skipped": "not trained", **made_by}
    values = {
        "run": {"name": "x", "path": "data/runs/x"},
        "runs": tmp_path / "runs",
        "metrics_inversion": skipped,
        "metrics_latents": skipped,
        "metrics_generation": skipped,
        "metrics_classification": skipped,
        "metrics_images": skipped,
        "metrics_sts": made_by,
        "metrics_likelihood": made_by,
        "timings": {"training": 4.0, "sampling": 2.0},  # the call that found the run finished
        "inversion_rows": pd.DataFrame({"id": pd.Series(dtype="string"), "reference": pd.Series(dtype="string")}),
        "likelihood_rows": pd.DataFrame({"id": pd.Series(dtype="string"), "nll": pd.Series(dtype="float64")}),
        "samples_unconditional": pd.DataFrame(),
        "ingestion_report": {},
        "validation_report": {"findings": []},
        "tracking_reference": {"tracking_uri": None, "run_id": None},
        "params:reporting": {},
        "params:evaluation": {},
        "params:seed": 0,
        "parameters": {"reporting": {}, "seed": 0},
    }
    for name in ("inversion_rows", "likelihood_rows", "samples_unconditional"):
        values[name].attrs = made_by
    values |= {name: theme.empty() for name in nodes.DATA_PLOTS}
    catalog = DataCatalog({name: MemoryDataset(value, copy_mode="assign") for name, value in values.items()})
    catalog["metrics"] = JSONDataset(filepath=str(tmp_path / "metrics.json"))
    found = SequentialRunner().run(create_pipeline(), catalog)
    page = found["report"].load()
    assert set(nodes.PLOTS) < set(found)
    assert "Left out: not trained" in page
    assert "in 61 s" in page
    assert "in 4 s" not in page, "the time of the run, not that of the call which found it finished"
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "seconds.training": 61.0,
        "seconds.sampling": 2.0,
        **made_by,
    }
    kept = json.loads((tmp_path / "runs" / "x" / "evaluation" / "metrics.json").read_text())
    assert kept["seconds.training"] == 61.0
    assert kept[MADE_BY] == made_by[MADE_BY]
    assert all(found[name].load().layout.meta == made_by for name in nodes.PLOTS)


def test_the_report_shows_what_a_chosen_run_was_trained_with() -> None:
    own = ("model", "objective", "training", "encoder")
    environment = {name: f"{name} of the environment" for name in (*own, "sampling", "tokenizer")}
    config = {name: f"{name} of the run" for name in (*own, "sampling", "shape")}
    assert nodes._as_trained(environment, {"name": "a"}, config) == environment
    shown = nodes._as_trained(environment, {"name": "a", "chosen": None}, config)
    assert shown == {**environment, **{name: config[name] for name in own}}
    del config["encoder"]  # a run of texts alone
    assert nodes._as_trained(environment, {"name": "a", "chosen": "x"}, config)["encoder"] == environment["encoder"]


@pytest.mark.parametrize("chosen", [None, "step-00000007"])
def test_the_folder_of_a_run_that_was_chosen_stays_as_it_is(
    chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is chosen with its newest checkpoint (None) or with one of its checkpoints."""
    monkeypatch.setattr(run_result, "keep", lambda *_: pytest.fail("a result was kept"))
    monkeypatch.setattr(compare, "compare", lambda ours, others, **_: {"of": ours.name})
    rows = pd.DataFrame()
    rows.attrs = made_by = {MADE_BY: {"run": "x"}}
    found = nodes.compare_runs({"name": "x", "chosen": chosen}, Path(), made_by, rows, rows, {}, {}, 0, {})
    assert found == {"of": "x", **made_by}


def test_the_log_lists_the_cards_of_the_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mm_ldlm")
    shown = [
        SimpleNamespace(label="Exact matches", value="93 %", interval="91, 95"),
        SimpleNamespace(label="Training", value="61 s", interval=None),
    ]
    monkeypatch.setattr(cards, "cards", lambda metrics: shown if metrics == made_by else [])
    monkeypatch.setattr(figures, "all_figures", lambda **_: {})
    monkeypatch.setattr(page, "render", lambda made_of, drawn, *, made_at: sorted(drawn))
    for name in ("training_log", "training_events", "run_config", "own_timings"):
        monkeypatch.setattr(inputs, name, lambda *_: {})
    rows = pd.DataFrame()
    rows.attrs = made_by = {MADE_BY: {"run": "x"}}
    found = nodes.write_report(
        {"name": "x"}, Path(), made_by, made_by, *[made_by] * 7, rows, rows, {}, {}, {}, {"reporting": {}, "seed": 0},
        *[theme.empty()] * len(nodes.DATA_PLOTS),
    )  # fmt: skip
    assert found == {"report": sorted(nodes.DATA_PLOTS)}
    assert caplog.messages == [f"{'Exact matches':<24} 93 %  [91, 95]", f"{'Training':<24} 61 s"]
