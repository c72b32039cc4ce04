"""The graph and the catalog: every node is named and documented, every dataset is declared, used and drawn in its layer."""

import ast
import graphlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kedro.io import CatalogConfigResolver, DataCatalog
from tests.environments import CONF

import mm_ldlm
from mm_ldlm.app.config_loader import LayeredConfigLoader
from mm_ldlm.app.parameters import SECTIONS
from mm_ldlm.pipeline_registry import register_pipelines
from mm_ldlm.pipelines import MAIN, PIPELINES
from mm_ldlm.settings import CONFIG_LOADER_ARGS

FOUND = register_pipelines()
LAYERS = {
    "02_intermediate": "intermediate", "03_primary": "primary", "04_feature": "feature", "05_model_input": "model_input",
    "06_models": "models", "07_model_output": "model_output", "08_reporting": "reporting",
}  # fmt: skip
OTHER_THAN_ITS_FOLDER = {
    "validation_report": "model_input",
    "layout_workspace": None,
    "scores": "models",
}
"""Entries that decide about a later layer, or are written next to an earlier one, are drawn with it."""
PARTS = {
    "data": "/D",
    "features": "/F",
    "results": "/R",
    "starter": {"num_train": 1, "num_validation": 1, "num_test": 1},
}
"""What each part of the paths of the catalog becomes here"""


@pytest.fixture(scope="module")
def entries() -> dict[str, Any]:
    """The configuration of every entry, and of every dataset of a pipeline that a factory makes."""
    loader = LayeredConfigLoader(CONF, env="base", **CONFIG_LOADER_ARGS)
    loader["globals"] = PARTS
    declared = loader["catalog"]
    resolver = CatalogConfigResolver(declared)
    used = set().union(*(pipeline.datasets() for pipeline in FOUND.values()))
    names = {name for name in declared if not resolver.is_pattern(name)}
    return {
        name: resolver.resolve_pattern(name) for name in names | {x for x in used if resolver.match_dataset_pattern(x)}
    }


def datasets(name: str) -> set[str]:
    return {each for each in FOUND[name].datasets() if not each.startswith("params:") and each != "parameters"}


def test_the_main_job_is_every_main_pipeline_in_order() -> None:
    assert FOUND.keys() == {"__default__", *PIPELINES}
    nodes = [node.name for node in FOUND["__default__"].nodes]
    assert {*nodes} == {node.name for name in MAIN for node in FOUND[name].nodes}
    assert nodes[0].startswith(MAIN[0])
    assert nodes[-1].startswith(MAIN[-1])


@pytest.mark.parametrize("name", list(PIPELINES))
def test_every_node_is_named_by_its_pipeline_and_says_what_it_does(name: str) -> None:
    for node in FOUND[name].nodes:
        assert name in node.tags
        assert re.fullmatch(rf"{name}\.[a-z][a-z0-9_]*", node.name)
        assert inspect.getdoc(node.func)
        assert all(not parameter.startswith("params:") or parameter.removeprefix("params:").partition("_workspace")[0]
                   for parameter in node.inputs)  # fmt: skip


def test_every_dataset_is_declared_and_every_entry_is_used(entries: dict[str, Any]) -> None:
    assert set().union(*(datasets(name) for name in FOUND)) == entries.keys()


def test_every_parameter_of_a_node_is_a_section_a_seed_or_a_workspace(entries: dict[str, Any]) -> None:
    named = {each.removeprefix("params:") for pipeline in FOUND.values() for each in pipeline.inputs() if ":" in each}
    assert named <= {*SECTIONS, "seed", *(f"{name}_workspace" for name in entries)}


def test_every_entry_becomes_a_dataset_in_the_layer_of_its_folder(entries: dict[str, Any]) -> None:
    catalog = DataCatalog.from_config(entries)
    for name, entry in entries.items():
        assert catalog.get(name) is not None
        assert "pickle" not in entry["type"].lower()
        folder = next((LAYERS[part] for part in Path(str(entry.get("filepath", ""))).parts if part in LAYERS), None)
        layer = entry.get("metadata", {}).get("kedro-viz", {}).get("layer")
        assert layer == OTHER_THAN_ITS_FOLDER.get(name, folder or layer), name


def test_environments_share_the_outputs_that_do_not_depend_on_them(entries: dict[str, Any]) -> None:
    start = {"ingestion": "/D/0", "embedding": "/D/F/0"}
    for name in MAIN:
        for dataset in FOUND[name].all_outputs():
            if path := entries[dataset].get("filepath"):
                assert path.startswith(start.get(name, "/D/F/R/0")), dataset


def test_paths_of_different_entries_differ(entries: dict[str, Any]) -> None:
    written = [entry for entry in entries.values() if "filepath" in entry and not entry.get("optional")]
    paths = [(entry["filepath"], entry["type"]) for entry in written]
    shared = {path for path, _ in paths if [each for each, _ in paths].count(path) > 1}
    assert all(kind.endswith("JsonDataset") for path, kind in paths if path in shared)


PROGRAMS = {
    "the registry imports nothing heavy, telemetry is off and values of the user stay": """
import os, sys
os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "77"
from mm_ldlm.pipeline_registry import register_pipelines
import mm_ldlm.settings
register_pipelines()
found = {"torch", "mlflow", "transformers", "datasets", "plotly", "scipy", "sklearn"} & sys.modules.keys()
assert not found, found
assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
for name in ("KEDRO_DISABLE_TELEMETRY", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY"):
    assert os.environ[name] in ("1", "true")
""",
    "the package lists its API, and a run folder its names, without torch; a worker has neither Kedro nor MLflow nor pandas": """
import sys, mm_ldlm
assert "MMLDLM" in dir(mm_ldlm) and not hasattr(mm_ldlm, "nothing")
import mm_ldlm.training.checkpoints.reference
assert "torch" not in sys.modules
import mm_ldlm.data.held_out, mm_ldlm.training.worker
from mm_ldlm.models.base import MODELS
from mm_ldlm.objectives.base import OBJECTIVES
for kinds in (MODELS, OBJECTIVES):
    for kind in kinds.known:
        kinds.load(kind)
found = {"kedro", "mlflow", "datasets", "pandas", "sklearn", "plotly", "transformers"} & sys.modules.keys()
assert not found, found
assert mm_ldlm.MMLDLM
""",
}


@pytest.mark.parametrize("promise", PROGRAMS)
def test_a_new_process_imports_what_it_needs_only(promise: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAMS[promise]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_are_no_import_cycles_between_files() -> None:
    """Imports under TYPE_CHECKING and inside functions count too."""
    root = Path(mm_ldlm.__path__[0])
    imports: dict[str, set[str]] = {}
    for file in root.rglob("*.py"):
        name = ".".join(("mm_ldlm", *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        imports[name] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mm_ldlm") and node.level == 0:
                imports[name] |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    known = {
        name: {each for each in found if each in imports and not name.startswith(each)}
        for name, found in imports.items()
    }
    graphlib.TopologicalSorter(known).prepare()  # raises CycleError, which lists the files
