"""The pipeline graph: every dataset is declared, factories match only their names, and layers are drawn."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.pipeline import Pipeline
from mm_ldlm.sampling.config import TASKS

from mm_ldlm.pipeline_registry import ALONE
from mm_ldlm.pipelines import MAIN
from mm_ldlm.pipelines.evaluation.nodes import SUITES
from mm_ldlm.pipelines.reporting.nodes import DATA_PLOTS, PLOTS
from mm_ldlm.pipelines.validation import nodes as validation

MADE_BY_FACTORIES = {
    *(f"samples_{task}" for task in TASKS),
    *(f"metrics_{suite}" for suite in SUITES),
    *("inversion_rows", "likelihood_rows"),
    *PLOTS,
    *(f"plot_{name}" for name in validation.PLOTS),
}
"""Every name that a dataset factory of the catalog may stand for."""


@pytest.fixture(scope="module")
def entries(project: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted((project / "conf" / "base" / "catalog").glob("*.yml")):
        found |= {name: entry for name, entry in yaml.safe_load(file.read_text()).items() if not name.startswith("_")}
    return found


@pytest.fixture(scope="module")
def pipelines(project: Path) -> dict[str, Pipeline]:
    bootstrap_project(project)
    from mm_ldlm.pipeline_registry import register_pipelines

    return register_pipelines()


def data_of(pipeline: Pipeline) -> set[str]:
    return {name for name in pipeline.datasets() if not name.startswith(("params:", "parameters"))}


def undeclared(names: set[str], entries: dict[str, Any]) -> set[str]:
    """Names that are neither a catalog entry nor one that a factory is meant for; a pattern alone declares nothing."""
    return names - {name for name in entries if "{" not in name} - MADE_BY_FACTORIES


def test_every_dataset_is_declared_by_name(pipelines: dict[str, Pipeline], entries: dict[str, Any]) -> None:
    for name, pipeline in pipelines.items():
        assert undeclared(data_of(pipeline), entries) == set(), name


def test_what_a_factory_stands_for_is_written_by_one_node(pipelines: dict[str, Pipeline]) -> None:
    """A misspelt input would be a free input, and a misspelt output a name that is not expected."""
    whole = pipelines["__default__"]
    assert {name for name in MADE_BY_FACTORIES if name in whole.all_outputs()} == MADE_BY_FACTORIES
    assert not MADE_BY_FACTORIES & whole.inputs()


@pytest.mark.parametrize("misspelt", ["plot_lenghts", "metrics_inversions", "samples_t2t", "latent_rows", "recrods"])
def test_a_misspelt_dataset_is_not_taken_for_one_of_a_factory(entries: dict[str, Any], misspelt: str) -> None:
    assert undeclared({misspelt, "records", "plot_lengths"}, entries) == {misspelt}


def test_no_pattern_matches_everything(project: Path, entries: dict[str, Any]) -> None:
    bootstrap_project(project)
    catalog = KedroSession.create(project, env="test").load_context().catalog
    assert all(re.sub(r"\{\w+\}", "", pattern) for pattern in entries if "{" in pattern)
    for misspelt in ("recrods", "dataste", "sampels_l2t", "run_", "sampling_modle"):
        assert misspelt not in catalog, misspelt
    for name in MADE_BY_FACTORIES:
        assert name in str(catalog.get(name)._describe()["filepath"])
        assert catalog.get(name).metadata["kedro-viz"]["layer"], name


def test_the_dataset_finds_its_stores_from_any_working_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer and the normaliser are looked for where their own catalog entries save them."""
    bootstrap_project(project)
    catalog = KedroSession.create(project, env="test").load_context().catalog
    monkeypatch.chdir(tmp_path)
    for name, entry in (("tokenizer", "tokenizer_files"), ("normaliser", "normaliser")):
        assert catalog.get("dataset")._folder(name, None).as_posix() == catalog.get(entry)._describe()["filepath"]
        assert catalog.get("dataset")._folder(name, None).is_absolute()


def test_every_pipeline_is_one_box(pipelines: dict[str, Pipeline]) -> None:
    """The namespace of each node is its pipeline; datasets keep their own names, by which the pipelines connect."""
    for name in (*MAIN, *ALONE):
        assert {node.namespace for node in pipelines[name].nodes} == {name}
        assert {tag for node in pipelines[name].nodes for tag in node.tags} == {name}
        assert not [data for data in pipelines[name].datasets() if data.startswith(f"{name}.")]


def test_layers_flow_forward_through_nodes_and_boxes(
    pipelines: dict[str, Pipeline], entries: dict[str, Any], project: Path
) -> None:
    """kedro-viz draws no layers at all when their order has a cycle; a collapsed pipeline counts as one node."""
    bootstrap_project(project)
    catalog = KedroSession.create(project, env="test").load_context().catalog
    order = ["intermediate", "primary", "feature", "model_input", "models", "model_output", "reporting"]

    def layer(name: str) -> int | None:
        about = (getattr(catalog.get(name), "metadata", None) or {}).get("kedro-viz", {})
        return order.index(about["layer"]) if "layer" in about else None

    whole = pipelines["__default__"]
    boxes = {node.name: (set(node.inputs), set(node.outputs)) for node in whole.nodes}
    boxes |= {name: (pipelines[name].inputs(), pipelines[name].outputs()) for name in MAIN}
    backwards = [
        (box, source, target)
        for box, (sources, targets) in boxes.items()
        for source in sources
        for target in targets
        if not source.startswith("param")
        and (first := layer(source)) is not None
        and (second := layer(target)) is not None
        and first > second
    ]
    assert backwards == []


def test_training_sampling_and_evaluation_take_one_dataset(pipelines: dict[str, Pipeline]) -> None:
    stores = {"records", "tokens", "latents", "index", "tokenizer_files", "normaliser", "token_vectors"}
    for name in ("training", "sanity", "sampling", "evaluation"):
        assert "dataset" in pipelines[name].inputs()
        assert not stores & pipelines[name].datasets(), name


def test_every_node_gets_as_many_inputs_as_it_takes(pipelines: dict[str, Pipeline]) -> None:
    for pipeline in pipelines.values():
        for node in pipeline.nodes:
            takes = inspect.signature(node.func).parameters.values()
            named = [each for each in takes if each.kind is not inspect.Parameter.VAR_POSITIONAL]
            more = len(DATA_PLOTS) if len(named) < len(takes) else 0
            assert len(node.inputs) == len(named) + more, node.name
