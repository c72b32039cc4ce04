"""The project from a user's point of view: registry, catalog, lineage, notebook, documented commands, a full run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.io import CatalogConfigResolver

from mm_ldlm.app.config_loader import LayeredConfigLoader
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.pipeline_registry import ALONE
from mm_ldlm.pipelines import MAIN
from mm_ldlm.settings import CONFIG_LOADER_ARGS

Run = Callable[..., subprocess.CompletedProcess[str]]
LAYERS = {
    "01_raw": "raw",
    "02_intermediate": "intermediate",
    "03_primary": "primary",
    "04_feature": "feature",
    "05_model_input": "model_input",
    "06_models": "models",
    "07_model_output": "model_output",
    "08_reporting": "reporting",
}
LAYER_OTHER_THAN_FOLDER = {
    "quarantine_ingestion": "intermediate",
    "validation_report": "model_input",
}
"""What is written beside an earlier or decides about a later layer is drawn with it."""
HEADLINES = {
    "l2t.exact_match",
    "l2t.token_accuracy",
    "l2t.bleu",
    "l2t.cosine",
    "t2l.cosine",
    "sts.starter.spearman",
    "sts.starter.encoder_spearman",
    "nll.per_token",
    *(f"seconds.{name}" for name in MAIN if name != "reporting"),
}


PARTS = {"data": "/D", "features": "/F", "results": "/R"}
"""What each part of the paths in the catalog becomes in these tests (conf/base/globals.yml explains the parts)."""
PART_OF_WRITER = {"ingestion": "/D/", "embedding": "/D/F/"}
"""Pipeline → where its outputs lie; those of the other pipelines lie in /D/F/R/."""


@pytest.fixture(scope="session")
def declared(project: Path) -> dict[str, Any]:
    """The catalog as its files declare it, entries and factories, with `PARTS` in the paths."""
    loader = LayeredConfigLoader(project / "conf", env="base", **CONFIG_LOADER_ARGS)
    loader["globals"] = PARTS
    return loader["catalog"]


@pytest.fixture(scope="session")
def catalog_entries(project: Path, declared: dict[str, Any]) -> dict[str, Any]:
    """The configuration of every entry, and of every dataset of a pipeline that a factory makes."""
    resolver = CatalogConfigResolver(declared)
    used = set().union(*(pipeline.datasets() for pipeline in pipelines(project).values()))
    names = {name for name in declared if not resolver.is_pattern(name)}
    names |= {name for name in used if resolver.match_dataset_pattern(name)}
    return {name: resolver.resolve_pattern(name) for name in sorted(names)}


def pipelines(project: Path) -> dict[str, Any]:
    bootstrap_project(project)
    from mm_ldlm.pipeline_registry import register_pipelines

    return register_pipelines()


# -- graph and catalog -------------------------------------------------------------------------------------------------


def test_the_main_job_is_every_main_pipeline_in_order(project: Path) -> None:
    found = pipelines(project)
    assert set(found) == {"__default__", *MAIN, *ALONE}
    assert {n.name for n in found["__default__"].nodes} == {n.name for name in MAIN for n in found[name].nodes}
    order = {node.name: position for position, node in enumerate(found["__default__"].nodes)}
    first, last = (found[name].nodes for name in ("ingestion", "reporting"))
    assert max(order[n.name] for n in first) < min(order[n.name] for n in last)


def test_every_node_is_named_and_tagged_by_its_pipeline(project: Path) -> None:
    found = pipelines(project)
    for name in (*MAIN, *ALONE):
        for node in found[name].nodes:
            assert name in node.tags, node.name
            assert re.fullmatch(rf"{name}\.[a-z][a-z0-9_]*", node.name), node.name


def test_every_catalog_entry_is_used_and_has_the_layer_of_its_folder(
    project: Path, declared: dict[str, Any], catalog_entries: dict[str, Any]
) -> None:
    used = set().union(*(pipeline.datasets() for pipeline in pipelines(project).values()))
    assert [name for name in catalog_entries if name not in used] == []
    resolver = CatalogConfigResolver(declared)
    matched = {resolver.match_dataset_pattern(name) for name in used}
    assert [name for name in declared if resolver.is_pattern(name) and name not in matched] == []
    for name, entry in catalog_entries.items():
        if entry["type"].endswith("WorkspaceDataset") and "metadata" not in entry:
            continue  # an empty folder for a pipeline to fill; a layer would order it after that pipeline's own outputs
        layer = layer_of(entry)
        if entry["type"] == "MemoryDataset":  # passed between the nodes of one pipeline, not kept
            assert layer in LAYERS.values(), name
            continue
        folder = re.fullmatch(r"(?:/D|/D/F|/D/F/R)/(\d\d_[a-z_]+)/.+", entry["filepath"])
        assert folder, (name, entry["filepath"])
        assert layer == LAYER_OTHER_THAN_FOLDER.get(name, LAYERS[folder[1]]), name


def layer_of(entry: dict[str, Any]) -> str | None:
    layer: str | None = entry.get("metadata", {}).get("kedro-viz", {}).get("layer")
    return layer


def test_environments_share_the_outputs_that_do_not_depend_on_them(
    project: Path, catalog_entries: dict[str, Any]
) -> None:
    """--env=tatoeba+mdlm reads the records of --env=tatoeba and keeps its own results."""
    for name in (*MAIN, *ALONE):
        for output in pipelines(project)[name].all_outputs():
            if path := catalog_entries[output].get("filepath"):
                assert re.split(r"\d\d_", path)[0] == PART_OF_WRITER.get(name, "/D/F/R/"), (name, output, path)


def test_every_catalog_entry_becomes_a_dataset(workshop: Path, catalog_entries: dict[str, Any]) -> None:
    catalog = load(workshop)
    for name, entry in catalog_entries.items():
        if entry["type"] != "MemoryDataset":
            assert str(workshop / "data" / "test") in str(catalog.get(name)._describe()["filepath"]), name


def test_no_catalog_entry_is_a_pickle(catalog_entries: dict[str, Any]) -> None:
    for name, entry in catalog_entries.items():
        assert "ickle" not in json.dumps(entry), name


def test_the_registry_lists_quickly_because_it_imports_nothing_heavy(run_kedro: Run) -> None:
    result = run_kedro("registry", "list", PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0, result.stderr
    assert set(yaml.safe_load(result.stdout)) == {"__default__", *MAIN, *ALONE}
    imported = set(re.findall(r"\| +(\S+)$", result.stderr, flags=re.MULTILINE))
    assert not {"torch", "mlflow", "transformers", "datasets", "sentence_transformers"} & imported


# -- a whole run -------------------------------------------------------------------------------------------------------


def load(root: Path) -> Any:
    bootstrap_project(root)
    return KedroSession.create(root, env="test").load_context().catalog


def test_kedro_run_leaves_every_artifact_and_the_headline_numbers(
    finished: Path, catalog_entries: dict[str, Any]
) -> None:
    catalog = load(finished)
    outputs = pipelines(finished)["__default__"].all_outputs()
    kept = {name for name, entry in catalog_entries.items() if entry["type"] != "MemoryDataset"}
    missing = [name for name in sorted(outputs & kept) if not catalog.exists(name)]
    others = ["image_normaliser", "images", "label_names", "labels", "pair_tokens", "state_normaliser"]
    others += ["token_clusters", "token_states", "vectors"]
    assert missing == others, "the objective of base reads none of them"
    metrics = catalog.load("metrics")
    assert set(metrics) >= HEADLINES, HEADLINES - set(metrics)
    made_by = metrics.pop("made_by")
    assert made_by["run"] == catalog.load("run")["name"]
    assert all(isinstance(value, (int, float)) for value in metrics.values()), metrics
    assert 0 <= metrics["l2t.token_accuracy"] <= 1
    assert metrics["sts.starter.encoder_spearman"] > 50  # × 100
    assert "<html" in catalog.load("report")[:1000].lower()


def test_one_mlflow_run_holds_parameters_curves_headlines_and_report(finished: Path) -> None:
    from mm_ldlm.app.tracking.mlflow import client

    reference = load(finished).load("tracking_reference")
    tracking = client(reference["tracking_uri"])
    run = tracking.get_run(reference["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["training.max_steps"]
    assert run.data.tags["environment"] == "test"
    assert run.data.metrics["1_headline/l2t.exact_match"] >= 0
    # live, one for each logged step
    assert len(tracking.get_metric_history(reference["run_id"], "1_headline/loss")) > 1
    assert "report.html" in {file.path for file in tracking.list_artifacts(reference["run_id"])}


def test_each_pipeline_runs_alone_from_what_the_catalog_holds(finished: Path) -> None:
    for name, made in (("validation", "validation_report.json"), ("reporting", "report.html")):
        (artifact,) = finished.glob(f"data/**/08_reporting/{made}")
        artifact.unlink()
        bootstrap_project(finished)
        with KedroSession.create(finished, env="test", runtime_params={"tracking": {"enabled": False}}) as session:
            session.run(pipeline_names=[name])
        assert artifact.stat().st_size > 0


def test_a_checkpoint_is_sampled_evaluated_and_reported_by_its_path(finished: Path) -> None:
    """The results of the current run stay, and so does the folder of the run that the path names."""
    (results,) = (path.parents[1] for path in finished.glob("data/**/06_models/run.json"))
    (checkpoint,) = results.glob("06_models/runs/*/checkpoints/step-00000006")
    current = ("07_model_output", "08_reporting", "06_models/runs", "06_models/run.json")
    before = {path: path.stat().st_mtime_ns for name in current for path in (results / name).rglob("*")}
    bootstrap_project(finished)
    quick = {
        "sampling": {"tasks": ["l2t"], "rows": 4, "search": {"candidates": 1, "rounds": 0}},
        "evaluation": {
            "likelihood": {"sentences": 2},
            "inversion": {"baseline_rows": 0, "sweep_sentences": 2},
            "sts": {"sets": []},
        },
    }
    params = {"run": str(checkpoint), "tracking": {"enabled": False}, **quick}
    with KedroSession.create(finished, env="test", runtime_params=params) as session:
        session.run(pipeline_names=["sampling", "evaluation", "reporting"])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (other,) = (results / "other_runs").iterdir()
    assert other.name.startswith(f"{checkpoint.parents[1].name}-step-00000006-")
    made_by = json.loads((other / "08_reporting" / "metrics.json").read_text())["made_by"]
    assert (made_by["run"], made_by["checkpoint"]) == (checkpoint.parents[1].name, checkpoint.name)
    assert checkpoint.parents[1].name in (other / "08_reporting" / "report.html").read_text()
    with (
        KedroSession.create(finished, env="test", runtime_params=params) as session,
        pytest.raises(ConfigurationError, match=r"expected only pipelines that use a finished run, found training"),
    ):
        session.run(pipeline_names=["training"])


def test_stores_and_tables_preview_in_kedro_viz(finished: Path, catalog_entries: dict[str, Any]) -> None:
    catalog = load(finished)
    shown = set()
    for name, entry in catalog_entries.items():
        names = [name] if "{" not in name else [n for n in ("samples_l2t", "likelihood_rows") if match_pattern(name, n)]
        for found in names:
            if entry["type"].endswith(("StoreDataset", "SamplesDataset", "TableDataset")) and catalog.exists(found):
                preview = catalog.get(found).preview(nrows=3)
                assert len(preview["data"]) <= 3, found
                json.dumps(preview, allow_nan=False)
                shown.add(found)
    assert shown >= {"records", "latents", "samples_t2l", "samples_l2t", "likelihood_rows"}


def match_pattern(pattern: str, name: str) -> bool:
    """Return whether the catalog's pattern, such as samples_{task}, fits the name."""
    before, _, after = re.sub(r"\{.*\}", "{}", pattern).partition("{}")
    return name.startswith(before) and name.endswith(after)


def test_kedro_viz_builds_offline_with_layers_and_previews(finished: Path, run_kedro: Run) -> None:
    nowhere = "http://127.0.0.1:9"
    options = ("viz", "build", "--include-previews")
    result = run_kedro(*options, KEDRO_ENV="test", HTTP_PROXY=nowhere, HTTPS_PROXY=nowhere)
    assert result.returncode == 0, result.stderr[-2000:]
    panels = [json.loads(path.read_text()) for path in (finished / "build" / "api" / "nodes").iterdir()]
    assert sum("preview" in panel and bool(panel["preview"]) for panel in panels) > 10
    drawn = json.loads((finished / "build" / "api" / "main").read_text())
    assert set(drawn["layers"]) >= {"intermediate", "primary", "feature", "models", "model_output", "reporting"}
    assert {"records", "latents", "run", "report", "prepare_records"} <= {node["name"] for node in drawn["nodes"]}


def test_the_notebook_walks_through_the_finished_run(project: Path, finished: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbmake", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "notebooks"],
        cwd=finished,
        env={**os.environ, "KEDRO_ENV": "test", "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-4000:]


# -- documentation -----------------------------------------------------------------------------------------------------

PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/*.md", "docs/families/*.md")


def commands(project: Path) -> list[tuple[str, list[str]]]:
    """Every line of a bash block in the documentation, without its comment, as words."""
    found = []
    for pattern in PAGES:
        for page in sorted(project.glob(pattern)):
            for block in re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL):
                for line in block.replace("\\\n", " ").splitlines():
                    if words := shlex.split(line, comments=True):
                        found.append((page.name, words))
    return found


def test_documented_kedro_commands_name_what_there_is(project: Path) -> None:
    """Options exist, pipelines and environments are there, parameters parse: everything short of running them."""
    from mm_ldlm.app.parameters import check_parameters
    from mm_ldlm.cli import cli

    bootstrap_project(project)

    seen = 0
    for page, words in commands(project):
        words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
        if words[:2] != ["kedro", "run"]:
            continue
        seen += 1
        options = cli.commands["run"].make_context("run", words[2:]).params
        options["params"].pop("run", None)  # a path that is an example
        names = [options["pipeline"]] if options["pipeline"] else options["pipelines"]
        assert set(names) <= {*MAIN, *ALONE, "__default__"}, (page, words)
        check_parameters(merged(project, options["env"] or "base", options["params"]))  # refuses unknown layers
    assert seen > 5


def merged(project: Path, environment: str, runtime: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = LayeredConfigLoader(
        project / "conf", env=environment, runtime_params=runtime, **CONFIG_LOADER_ARGS
    )["parameters"]
    return loaded


def test_documented_python_runs(
    project: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python blocks of a page run one after the other, on the run of `--env=test` in place of base's.

    Pages of the families need runs of their own models, as does the block about images; the gradients of parameters
    are written only where they are asked for.
    """
    (tmp_path / "data").symlink_to(finished / "data" / "test")
    pairs = [f"A man plays song {i}.,A man plays a song.,{i % 6}.0" for i in range(12)]
    (tmp_path / "gradients.jsonl").write_text('{"step": 1, "parameters": {"a": {"norm": 2.0}, "b": {"norm": 1.0}}}')
    (tmp_path / "stsb-en-dev.csv").write_text("\n".join(pairs) + "\n")
    monkeypatch.chdir(tmp_path)
    ran = []
    for page in [project / "README.md", *sorted(project.glob("docs/*.md"))]:
        names: dict[str, Any] = {"catalog": load(finished), "Path": Path}
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            if "data/digits/" in block:
                continue
            code = block.replace("/runs/run-…", "/runs").replace("/runs/NAME", "/runs")
            exec(compile(code, page.name, "exec"), names)
            ran.append(page.name)
    assert {"README.md", "sampling.md", "encoders.md", "data-contracts.md"} <= set(ran)


def test_documented_make_targets_exist(project: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (project / "Makefile").read_text(), flags=re.MULTILINE))
    documented = {words[1] for _, words in commands(project) if words[0] == "make" and "=" not in words[1]}
    assert {"run", "test"} <= documented
    assert documented <= targets
    for target in documented:
        subprocess.run(["make", "--dry-run", target], cwd=project, check=True, capture_output=True)


def test_documented_modules_and_scripts_exist(project: Path) -> None:
    import importlib.util

    for page, words in commands(project):
        if "-m" in words and words[0] in ("python", "torchrun", "python3"):
            module = words[words.index("-m") + 1]
            assert importlib.util.find_spec(module), (page, words)


def test_cheap_documented_commands_run(run_kedro: Run) -> None:
    for words in (["registry", "list"], ["catalog", "describe-datasets"]):
        result = run_kedro(*words)
        assert result.returncode == 0, result.stderr


def test_links_between_pages_lead_somewhere(project: Path) -> None:
    for pattern in PAGES:
        for page in project.glob(pattern):
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
