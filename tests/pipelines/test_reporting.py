"""Nodes of `reporting` on a finished run: results of other weights are refused, and a chosen run stays as it is; and the
scores of a run that `evaluation` does not replace, and what the tasks of `sampling` ask the model.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.evaluation.suites.conftest import parameters
from tests.inference.runs import LATENTS, BagEncoder, make, write_run

from mm_ldlm.core import CheckpointError, EvaluationError, FingerprintError, SamplingError, parse
from mm_ldlm.core.files import write_json
from mm_ldlm.data.held_out import held_out
from mm_ldlm.data.latents.recognition import cosines_of, unit
from mm_ldlm.evaluation.config import EvaluationConfig, ReportingConfig
from mm_ldlm.evaluation.suites import sections_of_suites, suites
from mm_ldlm.inference.calibration import CALIBRATION
from mm_ldlm.pipelines import evaluation as evaluating
from mm_ldlm.pipelines import reporting as nodes
from mm_ldlm.pipelines.ingestion import prepare_records
from mm_ldlm.pipelines.sampling import TASKS
from mm_ldlm.pipelines.sampling.config import SamplingConfig
from mm_ldlm.pipelines.sampling.pipeline import node_of
from mm_ldlm.pipelines.trained import load_trained
from mm_ldlm.pipelines.training import plan_training, run_training
from mm_ldlm.sampling.search import SearchConfig
from mm_ldlm.training.checkpoints.provenance import KEEP, MADE_BY
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
    parameters = {
        "seed": 0,
        "ingestion": {"sources": []},
        "evaluation": {"bootstrap": {}},
        **{key: {"kind": "other"} for key in ("model", "objective", "training", "encoder")},
    }
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
    found = call(nodes.collect_metrics, {**inputs, "timings": {"sampling": 7.0}}, names, evaluation=EvaluationConfig())
    assert found["seconds.sampling"] == 7
    with refuses(EvaluationError, "last weights"):
        call(nodes.collect_metrics, inputs, names, evaluation=EvaluationConfig(use_ema=False))
    with pytest.raises(CheckpointError, match="77"):
        call(nodes.collect_metrics, inputs, names, evaluation=EvaluationConfig(checkpoint="77"))


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
    elsewhere = {"evaluation": replace(config["evaluation"], device="cuda:1", batch_tokens=9)}
    for change in (elsewhere, {"seed": 9, "run": other}, {"seed": 9, "scores": tmp_path}):
        assert evaluating.load_evaluated(**given | change) == "loaded"
    changes: list[tuple[str, dict[str, Any]]] = [
        ("seed", {"seed": 9}), ("dataset", {"dataset": SimpleNamespace(fingerprint="other")}),
        ("use_ema", {"evaluation": replace(config["evaluation"], use_ema=False)}),
    ]  # fmt: skip
    given["of another name"] = "ours"
    for suite in suites().values():
        monkeypatch.setattr(type(suite), "sections", (*suite.sections, "of another name"))
        for section in suite.sections:
            about = metrics[MADE_BY] | {"parameters": metrics[MADE_BY]["parameters"] | {section: "other"}}
            write_json(tmp_path / suite.name / section / f"metrics_{suite.name}.json", {MADE_BY: about})
            changes.append((section, {"scores": tmp_path / suite.name / section}))
    for name, change in changes:
        with pytest.raises(EvaluationError, match=rf"expected the parameters .* found others \({name}\)"):
            evaluating.load_evaluated(**given | change)


def test_tasks_ask_for_the_sentences_files_and_texts_of_their_parameters(write_dataset: Any, tmp_path: Path) -> None:
    """The held-out sentences with their stored tokens, which are fewer than those of their texts."""
    texts = [f"w{row % 20} w{3 * row % 20} w{row // 20}" + " w7" * (row % 5) for row in range(40)]
    splits = [("validation", "train", "test", "validation")[row % 4] for row in range(40)]
    dataset = write_dataset(tmp_path, texts, splits, latents=BagEncoder().encode(texts), max_length=4)
    for number, lines in enumerate((["w1 w2", "w3"], ["w4"])):
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
        np.save(tmp_path / f"{number}.npy", LATENTS[number:])
    vectors, lines = ([str(tmp_path / f"{number}.{kind}") for number in (0, 1)] for kind in ("npy", "txt"))
    drawn, ddpm = {"kind": "ancestral", "steps": 2}, {"kind": "ddpm", "steps": 2}
    free = {"count": 3, "order": "latent_first", "text": drawn, "latent": ddpm, "length": 5}
    given = {
        "rows": 5, "split": "validation", "length": "sample", "text": drawn, "latent": ddpm, "search": {"candidates": 2},
        "l2t": {"files": vectors, "texts": ["w1", "w5 w6"], "samples": 2}, "t2l": {"files": lines, "texts": ["w9"]},
    }  # fmt: skip
    sampling, model = parse(SamplingConfig, {**given, "unconditional": free}, at="sampling"), make()
    found = {name: node_of(name)(model, dataset, 3, sampling=sampling) for name in ("l2t", "t2l", "unconditional")}
    held, own = held_out(dataset, count=5, seed=3, split="validation"), sampling.unconditional
    how: dict[str, Any] = {
        "sampler": sampling.text,
        "search": sampling.search,
        "length": "sample",
        "samples": 2,
        "keep": "all",
    }
    inverted = [model.invert(each, seed=3, **how) for each in (held.latents, LATENTS, LATENTS[1:], ["w1", "w5 w6"])]
    embedded = [model.embed(each, ids=ids, sampler=sampling.latent, seed=3)
                for each, ids in ((held.texts, held.tokens), (["w1 w2", "w3"], None), (["w4"], None), (["w9"], None))]  # fmt: skip
    made = model.generate(3, order="latent_first", sampler=own.text, latent_sampler=own.latent, length=5, seed=3)
    for name, results in (("l2t", inverted), ("t2l", embedded), ("unconditional", [made])):
        expected, table = pd.concat([each.to_frame() for each in results], ignore_index=True), found[name]
        same = [*({*expected} & {*table} - {"source"})]
        pd.testing.assert_frame_equal(table[same], expected[same], check_dtype=False)
        assert (table.attrs[MADE_BY]["seed"], table.attrs[MADE_BY]["parameters"]["precision"]) == (3, "fp32")
        assert KEEP not in table.attrs
        assert {column: str(kind) for column, kind in table.dtypes.items()} == TASKS.load(name).columns
    rows = found["l2t"][["id", "origin", "source"]].fillna("").to_numpy().tolist()
    assert (
        rows[:10:2]
        == rows[1:10:2]
        == [[each, "validation", text] for each, text in zip(held.ids, held.texts, strict=True)]
    )
    places = [vectors[0]] * 8 + [vectors[1]] * 6
    assert rows[10:] == [["", place, ""] for place in places] + [
        ["", "texts", text] for text in ("w1", "w1", "w5 w6", "w5 w6")
    ]
    assert found["t2l"]["cosine"].dropna().tolist() == pytest.approx(cosines_of(embedded[0].latents, held.latents))
    among = unit(made.latents) @ unit(dataset.values("latents")[dataset.rows("train")]).T
    nearest = dataset.rows("train")[among.argmax(axis=1)]
    assert found["unconditional"]["neighbour"].tolist() == [texts[row] for row in nearest]
    plain = replace(sampling, search=SearchConfig(), l2t=replace(sampling.l2t, texts=()), tasks=("l2t",))
    for each, how in ((model, plain), (make(encoder=None), replace(plain, search=sampling.search))):
        embedded_n = node_of("l2t")(each, dataset, 3, sampling=how)["cosine"].notna()
        assert embedded_n.all() if each is model else not embedded_n.any()
    assert node_of("unconditional")(model, dataset, 3, sampling=plain).attrs.keys() == {MADE_BY, KEEP}


def test_the_model_is_loaded_as_the_section_says_and_fits_the_data(tmp_path: Path) -> None:
    write_run(tmp_path / "run-1", fingerprints={"tokenizer": "ours"})
    section = EvaluationConfig(checkpoint="3", use_ema=False, device="cpu", precision="bf16", batch_tokens=7)
    given: Any = {"name": "run-1"}, tmp_path, SimpleNamespace(fingerprints={"tokenizer": "ours"})
    model = load_trained(*given, section)
    assert (model.parts.weights["weights"], model.parts.precision, model.batch_tokens) == ("last", "bf16", 7)
    changes: Any = ({"checkpoint": "4"}, CheckpointError), ({"device": "cuda:99"}, SamplingError)
    for change, error in changes:
        with pytest.raises(error):
            load_trained(*given, replace(section, **change))
    with pytest.raises(FingerprintError):
        load_trained(*given[:2], SimpleNamespace(fingerprints={"tokenizer": "theirs"}), section)


@pytest.mark.parametrize(("node", "work"), [
    (plan_training, "mm_ldlm.training.spec.plan"), (run_training, "mm_ldlm.training.session.run_session"),
    (prepare_records, "mm_ldlm.data.corpus.ingestion.ingest"), (prepare_records, "mm_ldlm.data.corpus.wrapping.ingest_wrapped"),
])  # fmt: skip
def test_a_node_passes_on_all_of_its_arguments(node: Any, work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    received, done = list[Any](), SimpleNamespace(to_dict=lambda: "done")
    monkeypatch.setattr(work, lambda *given, **named: received.extend([*given, *named.values()]) or done)
    monkeypatch.setattr("mm_ldlm.data.encoders.base.side_store", lambda encoder, folder: encoder)
    kind = SimpleNamespace(wrap="wrapped" if "wrapped" in work else None)
    given = {name: SimpleNamespace(**vars(kind)) for name in inspect.signature(node).parameters}
    assert node(**given) in (done, "done")
    assert {*map(id, given.values())} <= {*map(id, received)}
