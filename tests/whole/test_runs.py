"""Whole runs by `kedro run`: what they leave, how they continue, and how kedro-viz, MLflow and a notebook show them."""

import io
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kedro.framework.cli.cli import KedroCLI
from kedro.framework.session import KedroSession
from kedro.runner import ParallelRunner, ThreadRunner
from tests.environments import CONF, ENVIRONMENTS, bootstrapped, layer, paths, run_in_process, sections

from mm_ldlm.core import EvaluationError, MMLDLMError, purposeful
from mm_ldlm.extras.mlflow.client import HEADLINE, MlflowRun
from mm_ldlm.extras.starter.corpus import generate_starter_corpus
from mm_ldlm.pipeline_registry import register_pipelines
from mm_ldlm.pipelines import MAIN
from mm_ldlm.training import session

Kedro = Callable[..., Any]
HEADLINES = {
    "l2t.exact_match", "l2t.token_accuracy", "l2t.bleu", "l2t.cosine", "t2l.cosine", "sts.starter.spearman",
    "sts.starter.encoder_spearman", "nll.per_token", *(f"seconds.{name}" for name in MAIN if name != "reporting"),
}  # fmt: skip
TINY = (
    "training.max_steps=4,training.launch.processes=1,training.optimizer.warmup_steps=1,training.batch.examples=8,"
    "evaluation.bootstrap.replicates=20,tracking.enabled=false,model.dim=32,model.depth=1,model.heads=2,"
    "sampling.rows=8,sampling.unconditional.count=4,evaluation.inversion.sweep_sentences=4,"
    "evaluation.latents.candidates=50,ingestion.splits.test=0.1,ingestion.splits.validation=0.1"
)


def catalog_of(root: Path, environment: str = "test") -> Any:
    bootstrapped(root)
    return KedroSession.create(root, env=environment).load_context().catalog


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# --- the base run -----------------------------------------------------------------------------------------------------


def test_a_run_leaves_every_artifact_and_the_headline_numbers(finished: Path) -> None:
    catalog = catalog_of(finished)
    outputs = register_pipelines()["__default__"].all_outputs() - {"features", "normalisers"}  # folders
    kept = {name for name in outputs if "Memory" not in type(catalog.get(name)).__name__}
    assert not [name for name in sorted(kept) if not catalog.exists(name)]
    metrics = catalog.load("metrics")
    assert metrics.keys() >= HEADLINES
    assert metrics.pop("made_by")["run"] == catalog.load("run")["name"]
    assert all(isinstance(value, (int, float)) and math.isfinite(value) for value in metrics.values())
    assert "<html" in catalog.load("report")[:1000].lower()


def test_a_session_trains_once_and_names_the_run(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = finished / "data/test/06_models"
    found, runs = read(models / "run.json"), models / "runs"
    assert (found["step"], found["checkpoint"]) == (12, "step-00000012")
    assert found["metrics"]["validation/loss"] > 0
    assert {"tokenizer", "normaliser"} <= {path.name for path in (runs / found["name"]).glob("checkpoints/step-*/*")}
    events = [json.loads(line).get("event") for line in (runs / found["name"] / session.LOG).read_text().splitlines()]
    assert {"preflight", "start", "trains", "preview", "checkpoint", "end"} <= set(events)
    monkeypatch.setattr(session, "launch", None)
    assert session.run_session(read(runs / session.SPEC), runs) == found


def test_its_mlflow_run_is_finished_and_has_its_curves(finished: Path) -> None:
    reference = catalog_of(finished).load("tracking_reference")
    client = MlflowRun(reference["tracking_uri"], reference["run_id"]).client
    latest = client.get_run(reference["run_id"])  # of this project; other tests may have added theirs
    run = client.search_runs([latest.info.experiment_id], order_by=["attributes.start_time ASC"])[0]
    assert run.info.status == "FINISHED"
    assert run.data.tags["environment"] == "test"
    assert len(client.get_metric_history(run.info.run_id, f"{HEADLINE}/loss")) > 1  # live, for each logged step


@pytest.mark.parametrize(
    ("pipeline", "made", "following"),
    [
        (
            "validation",
            "validation_report.json",
            "kedro run --env=test --pipelines=training,sampling,evaluation,reporting",
        ),
        ("reporting", "report.html", "mm-ldlm invert texts.txt --search --run ROOT/data/test"),
    ],
)
def test_a_pipeline_runs_alone_from_what_the_catalog_holds(
    finished: Path, pipeline: str, made: str, following: str, caplog: pytest.LogCaptureFixture
) -> None:
    (artifact,) = finished.glob(f"data/test/08_reporting/{made}")
    artifact.unlink()
    caplog.set_level("INFO", "mm_ldlm")
    run_in_process(finished, [pipeline])
    assert artifact.stat().st_size > 0
    assert f"next: {following.replace('ROOT', str(finished))}" in caplog.text


@pytest.mark.parametrize("runner", [ParallelRunner, ThreadRunner])
def test_a_runner_that_does_not_work_is_refused_with_the_reason(workshop: Path, runner: type) -> None:
    bootstrapped(workshop)
    with KedroSession.create(workshop, env="test") as session, pytest.raises(MMLDLMError, match=runner.__name__):
        session.run(pipeline_names=["ingestion"], runner=runner())


def test_scores_of_a_run_are_not_replaced_by_those_of_other_parameters(finished: Path) -> None:
    scores = {path: path.read_bytes() for path in (finished / "data/test/08_reporting").glob("*.json")}
    run_in_process(finished, ["evaluation"], ["evaluation.load_model"])  # parameters that made them
    for other in ({"evaluation": {"likelihood": {"draws": 3}}}, {"evaluation": {"use_ema": False}}, {"seed": 1}):
        with pytest.raises(EvaluationError, match=r"run=\S+/06_models/runs/run-\w+`.* remove \S+/08_reporting/"):
            run_in_process(finished, ["evaluation"], **other)
    assert {path: path.read_bytes() for path in scores} == scores


def test_a_checkpoint_is_sampled_evaluated_and_reported_by_its_path(finished: Path) -> None:
    """The results of the current run stay, and so does the folder of the run that the path names."""
    results = finished / "data/test"
    (checkpoint,) = results.glob("06_models/runs/run-*/checkpoints/step-*")
    current = ("07_model_output", "08_reporting", "06_models/runs", "06_models/run.json")
    before = {path: path.stat().st_mtime_ns for name in current for path in (results / name).rglob("*")}
    quick = {
        "sampling": {"tasks": ["l2t"], "rows": 4, "search": {"candidates": 1, "rounds": 0}},
        "evaluation": {
            "likelihood": {"sentences": 2}, "inversion": {"baseline_rows": 0, "sweep_sentences": 2}
        },
    }  # fmt: skip
    run_in_process(finished, ["sampling", "evaluation", "reporting"], run=str(checkpoint), **quick)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (other,) = (results / "other_runs").iterdir()
    made_by = read(other / "08_reporting" / "metrics.json")["made_by"]
    assert (made_by["run"], made_by["checkpoint"]) == (checkpoint.parents[1].name, checkpoint.name)


def test_kedro_viz_builds_offline_with_layers_and_previews(finished: Path, run_kedro: Kedro) -> None:
    nowhere = "http://127.0.0.1:9"
    options = ("viz", "build", "--include-hooks", "--include-previews")
    run_kedro(*options, KEDRO_ENV="test", HTTP_PROXY=nowhere, HTTPS_PROXY=nowhere)
    panels = [read(path) for path in (finished / "build/api/nodes").iterdir()]
    kept = [panel for panel in panels if panel.get("type") and panel["filepath"] and Path(panel["filepath"]).exists()]
    unseen = {Path(panel["filepath"]).name for panel in kept if not panel["preview"]}
    assert len(kept) > 30
    assert {Path(name).suffix for name in unseen} <= {
        "",
        ".html",
        ".md",
        ".tex",
    }  # folders, pages, and tables for other programs
    drawn = read(finished / "build/api/main")
    assert {*drawn["layers"]} >= {"intermediate", "primary", "feature", "models", "model_output", "reporting"}
    names = {node["name"] for node in drawn["nodes"] if node["type"] == "data"}
    assert {"records", "latents", "run", "report"} <= names
    assert not [name for name in names if name.endswith("_workspace") and name != "layout_workspace"]


@pytest.mark.parametrize(
    "name",
    [
        "using_a_model",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (
            "adding_an_objective", "auditing_vectors", "comparing_models", "corpus", "training",
        )),
    ],
)  # fmt: skip
def test_a_notebook_runs_on_the_finished_run(project: Path, finished: Path, name: str) -> None:
    notebook = nbformat.read(finished / "notebooks" / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "no outputs are stored"
    environment = {**os.environ, "KEDRO_ENV": "test", "PYTHONPATH": str(project / "src")}
    nbclient.NotebookClient(notebook, timeout=1800, startup_timeout=1800).execute(
        cwd=str(finished / "notebooks"), env=environment
    )


@pytest.mark.parametrize("words", [("registry", "list"), ("catalog", "describe-datasets", "--env=test")])
def test_other_commands_of_kedro_read_the_environments(workshop: Path, words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(KedroCLI(workshop), words).exit_code == 0


def test_other_commands_of_kedro_refuse_an_unknown_environment_in_one_message(workshop: Path) -> None:
    refused = CliRunner().invoke(KedroCLI(workshop), ["catalog", "describe-datasets", "--env=tset"])
    assert refused.exit_code == 1
    assert "environment 'tset' is not known" in refused.output
    assert isinstance(refused.exception, SystemExit), "a message and no traceback"


def _bad_inputs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, content in (
        ("empty", b"\n\n"), ("latin", "".join(f"größe {i}\n" for i in range(200)).encode("latin-1")),
        ("long", b"".join(b"%d " % i + b"word " * 200 + b"\n" for i in range(50))),
    ):  # fmt: skip
        (folder / f"{name}.txt").write_bytes(content)
        yield name, {"ingestion": {"sources": [{"kind": "text", "path": str(folder / f"{name}.txt")}]}}
    yield "layout", {"ingestion": {"sources": [{"kind": "layout", "path": str(folder / "long.txt")}]}}
    yield "key", {"tokenizer": {"max_lenght": 8}}
    yield "data", {"data": str(folder / "empty.txt")}


def test_bad_input_ends_a_run_with_one_message(workshop: Path, tmp_path: Path) -> None:
    for name, runtime in _bad_inputs(tmp_path):
        with pytest.raises(Exception) as caught:
            run_in_process(workshop, ["ingestion"], **{"data": str(tmp_path / "data" / name), **runtime})
        error = purposeful(caught.value)
        if name == "data":
            assert isinstance(caught.value, OSError)  # `kedro run` shows it as a message (tests/test_cli.py)
        else:
            assert isinstance(error, MMLDLMError), repr(caught.value)


# --- environments -----------------------------------------------------------------------------------------------------


def _headers(environment: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (CONF / environment).glob("*.yml"))


def _runs_here(environment: str) -> bool:
    """Whether an environment needs nothing from outside this machine and no other run, and is not a comparison."""
    typed = sections(environment)
    if (
        "comparison" in layer(environment)
        or "init_from=FOLDER" in _headers(environment)
        or any(source.kind == "hub" for source in typed["ingestion"].sources)
    ):
        return False
    local = typed["encoder"] == sections("base")["encoder"]
    return local and not [pair for source in typed["ingestion"].sources for pair in source.files]


def _with_data(environment: str) -> str:
    """Return an environment with the layers below it, of the first command in its header: some need other data than base's."""
    found = re.search(rf"^# .* --env=([\w+]*\b{environment})$", _headers(environment), re.MULTILINE)
    return found[1] if found else environment


@pytest.mark.slow
@pytest.mark.parametrize("environment", [name for name in ENVIRONMENTS if paths(name) and name not in ("base", "test")])
def test_an_environment_goes_from_ingestion_to_the_report(run_kedro: Kedro, tmp_path: Path, environment: str) -> None:
    if not _runs_here(environment):
        pytest.skip("it is a comparison, or its data are elsewhere")
    params = f"training.launch.processes=1,tracking.enabled=false,data={tmp_path}"
    run_kedro("run", f"--env={_with_data(environment)}+test", f"--params={params}")
    (report,) = tmp_path.rglob("report.html")
    assert len(read(report.with_name("metrics.json"))) > 10
    assert report.stat().st_size > 10_000


# --- data of users ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_own_vectors_go_from_a_table_to_the_report(run_kedro: Kedro, workshop: Path, tmp_path: Path) -> None:
    corpus = generate_starter_corpus(seed=0, num_train=300, num_validation=10, num_test=10)
    texts = [sentence.text for sentence in corpus]
    vectors: list[Any] = np.random.default_rng(0).standard_normal((len(texts), 24)).astype(np.float32).tolist()
    vectors[5] = vectors[5][:-1]
    vectors[7][0] = float("nan")
    pq.write_table(pa.table({"text": texts, "embedding": vectors}), tmp_path / "table.parquet")
    own = f"ingestion.path={tmp_path}/table.parquet,encoder.name=mine,encoder.dim=24,encoder.normalised=false"
    run_kedro("run", "--env=own_vectors", f"--params={own},{TINY}")
    data = workshop / "data" / "own_vectors"
    ingested = read(data / "08_reporting/ingestion_report.json")
    assert ingested["quarantined_by_reason"] == {"not_finite": 1, "wrong_dimension": 1}
    metrics = read(data / "08_reporting/metrics.json")
    assert metrics["l2t.sentences"] == 8
    assert "l2t.cosine" not in metrics


@pytest.mark.slow
def test_an_exported_layout_trains_and_comes_back(finished: Path, run_kedro: Kedro, tmp_path: Path) -> None:
    """Latents are those of the layout, checked by the encoder that made them; the second export equals the first."""
    first, second = tmp_path / "first.zip", tmp_path / "second"
    run_kedro("run", "--pipeline=export", "--env=test", f"--params=export.path={first}")
    minilm = "encoder.dim=384,encoder.for_new_texts.kind=local,encoder.for_new_texts.name=minilm"
    params = f"--params=ingestion.path={first},{minilm},{TINY},sampling.search.rounds=0"
    run_kedro("run", "--env=layout", params)
    data = finished / "data" / "layout"
    ingested = read(data / "08_reporting/ingestion_report.json")
    assert (ingested["duplicates"], ingested["quarantined"], ingested["splits"]["test"]) == (0, 0, 24)
    assert "l2t.cosine" in read(data / "08_reporting/metrics.json")
    for code in (0, 1):  # nothing is written over an export
        run_kedro("run", "--pipeline=export", "--env=layout", f"--params=export.path={second},{minilm}", code=code)
    with zipfile.ZipFile(first) as archive:
        one = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    two = {str(path.relative_to(second)): path.read_bytes() for path in second.rglob("*") if path.is_file()}
    assert one.keys() == two.keys()
    for name in one:
        if name.endswith(".npz"):
            arrays = [np.load(io.BytesIO(content))["input_ids"] for content in (one[name], two[name])]
            assert arrays[0].tolist() == arrays[1].tolist()
        elif name.endswith(".json"):
            rows = [json.loads(content) for content in (one[name], two[name])]
            assert [row["id"] for row in rows[0]] == [row["id"] for row in rows[1]]
        else:
            assert one[name] == two[name]


# --- a comparison -----------------------------------------------------------------------------------------------------


def test_members_are_refused_before_anything_runs(workshop: Path) -> None:
    members = [{"name": "a"}, {"name": "b", "params": {"x": 1}}]
    with pytest.raises(MMLDLMError, match=r"member 'b'.*parameter 'x'"):
        run_in_process(workshop, ["comparison"], comparison={"members": members})
    assert not list(workshop.glob("data/**/comparison_plan.json"))
