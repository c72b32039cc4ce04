"""Environments of several layers, as `kedro run`, `kedro catalog`, kedro-viz and notebooks load them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kedro.config import MissingConfigException

from mm_ldlm.app.config_loader import LayeredConfigLoader, merge
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.settings import CONFIG_LOADER_ARGS

Load = Callable[..., LayeredConfigLoader]

CONF: dict[str, dict[str, Any]] = {
    "base/globals.yml": {"data": "data", "features": "", "results": "", "paths": {"raw": "raw", "tmp": "tmp"}},
    "base/parameters/model.yml": {"model": {"kind": "mmdit", "dim": 192, "heads": 6, "latent_tokens": 4}},
    "base/parameters/training.yml": {"training": {"lr": 0.1, "optimizer": {"betas": [0.9, 0.95], "decay": 0.01}}},
    "base/catalog/root.yml": {
        "_data": "${runtime_params:data,${globals:data}}",
        "_features": "${_data}${globals:features}",
        "_results": "${_features}${globals:results}",
    },
    "base/catalog/all.yml": {
        "records": {"type": "json.JSONDataset", "filepath": "${_data}/records.json"},
        "latents": {"type": "json.JSONDataset", "filepath": "${_features}/latents.json"},
        "run": {"type": "json.JSONDataset", "filepath": "${_results}/run.json", "metadata": {"layer": "models"}},
    },
    "text/globals.yml": {"data": "data/text", "paths": {"raw": "/large"}},
    "text/parameters.yml": {"training": {"lr": 0.2, "optimizer": {"betas": [0.8, 0.9]}}},
    "encoder/globals.yml": {"features": "/e5"},
    "dit/globals.yml": {"results": "/dit"},
    "dit/parameters.yml": {"model": {"kind": "dit", "dim": 128, "heads": 4}, "training": {"lr": 0.3}},
    "dit/catalog/all.yml": {"run": {"type": "json.JSONDataset", "filepath": "${_results}/other.json"}},
    "large/parameters/size.yml": {"model": {"dim": 1024}},
    "local/parameters.yml": {"training": {"lr": 0.9}},
}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A loader over `CONF` (with changes), for an environment and runtime parameters."""

    def loader(env: str | None, *, files: dict[str, Any] | None = None, **runtime: Any) -> LayeredConfigLoader:
        shutil.rmtree(tmp_path / "conf", ignore_errors=True)
        for name, content in {**CONF, **(files or {})}.items():
            path = tmp_path / "conf" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return LayeredConfigLoader(tmp_path / "conf", env=env, runtime_params=runtime or None, **CONFIG_LOADER_ARGS)

    return loader


# -- which layers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "layers"),
    [
        (None, ("base", "local")),
        ("", ("base", "local")),
        ("base", ("base",)),
        ("text", ("base", "text")),
        ("text+encoder+dit+local", ("base", "text", "encoder", "dit", "local")),
    ],
)
def test_layers_are_read_in_the_order_in_which_they_are_named(
    load: Load, env: str | None, layers: tuple[str, ...]
) -> None:
    assert load(env).layers() == layers


def test_without_a_default_environment_base_alone_is_read(load: Load, tmp_path: Path) -> None:
    load(None)
    shutil.rmtree(tmp_path / "conf" / "local")
    loader = LayeredConfigLoader(tmp_path / "conf", **CONFIG_LOADER_ARGS)
    assert loader.layers() == ("base",)
    assert loader["parameters"]["training"]["lr"] == 0.1


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            "texd",
            r"environment 'texd' is not known\. Did you mean 'text'\? .*conf: base, dit, encoder, large, local, t",
        ),
        ("text+dot", r"environment 'dot' is not known \(in --env=text\+dot\)\. Did you mean 'dit'\?"),
        ("../conf/text", r"environment '\.\./conf/text' is not known\."),
        ("text+", r"'text\+': expected a name on each side of '\+', found an empty layer at position 2"),
        ("+text", r"an empty layer at position 1\. Remove the extra '\+'"),
        ("text+ +dit", r"an empty layer at position 2"),
        ("+", r"an empty layer at position 1"),
        ("text+dit+text", r"expected each layer once, found 'text' repeated"),
        ("base+text", r"'base' is always the lowest layer\. Leave it out"),
        ("text+base", r"'base' is always the lowest layer"),
    ],
)
def test_a_layer_that_is_unknown_empty_or_repeated_is_refused(load: Load, env: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(env)


# -- what a layer changes ----------------------------------------------------------------------------------------------


def test_where_two_layers_set_a_key_the_last_wins(load: Load) -> None:
    assert load("text+dit")["parameters"]["training"]["lr"] == 0.3
    assert load("dit+text")["parameters"]["training"]["lr"] == 0.2
    assert load("dit+text+local")["parameters"]["training"]["lr"] == 0.9
    assert load("dit+text", training={"lr": 7})["parameters"]["training"]["lr"] == 7


def test_pitfall_24_a_layer_keeps_the_siblings_of_what_it_sets_and_replaces_lists(load: Load) -> None:
    training = load("text+dit")["parameters"]["training"]
    assert training == {"lr": 0.3, "optimizer": {"betas": [0.8, 0.9], "decay": 0.01}}
    globals_ = load("text+dit")["globals"]
    assert globals_ == {
        "data": "data/text",
        "features": "",
        "results": "/dit",
        "paths": {"raw": "/large", "tmp": "tmp"},
    }


def test_another_kind_replaces_the_mapping_and_the_same_kind_merges(load: Load) -> None:
    assert load("dit")["parameters"]["model"] == {"kind": "dit", "dim": 128, "heads": 4}  # no latent_tokens
    assert load("dit+large")["parameters"]["model"] == {"kind": "dit", "dim": 1024, "heads": 4}
    assert load("large+dit")["parameters"]["model"] == {"kind": "dit", "dim": 128, "heads": 4}
    same = {"same/parameters.yml": {"model": {"kind": "mmdit", "dim": 64}}}
    merged = load("same", files=same)["parameters"]["model"]
    assert merged == {"kind": "mmdit", "dim": 64, "heads": 6, "latent_tokens": 4}
    assert merge({"a": {"x": 1}}, {"a": {"kind": "k"}}) == {"a": {"x": 1, "kind": "k"}}, "there was none to change"
    assert merge({"a": {"kind": "k", "x": 1}}, {"a": {"y": 2}}) == {"a": {"kind": "k", "x": 1, "y": 2}}


def test_runtime_parameters_follow_the_same_rule(load: Load) -> None:
    assert load("base", model={"dim": 64})["parameters"]["model"]["latent_tokens"] == 4
    assert load("base", model={"kind": "dit", "dim": 64})["parameters"]["model"] == {"kind": "dit", "dim": 64}
    assert load("dit", model={"kind": "dit", "dim": 64})["parameters"]["model"]["heads"] == 4
    above = load("dit", model={"kind": "mmdit", "dim": 64})["parameters"]["model"]
    assert above == {"kind": "mmdit", "dim": 64}, "over the layer, which has replaced that of base"
    training = load("base", training={"optimizer": {"betas": [0.5]}})["parameters"]["training"]
    assert training["optimizer"] == {"betas": [0.5], "decay": 0.01}


def test_a_kind_inside_a_kind_follows_the_same_rule(load: Load) -> None:
    base = {"kind": "a", "process": {"kind": "absorbing", "schedule": {"name": "cosine"}, "epsilon": 1}}
    files = {"base/parameters/o.yml": {"objective": base}}
    for upper, wanted in (
        ({"process": {"kind": "uniform"}}, {"kind": "a", "process": {"kind": "uniform"}}),
        ({"process": {"epsilon": 2}}, {"kind": "a", "process": {**base["process"], "epsilon": 2}}),  # type: ignore[dict-item]
        ({"kind": "b", "process": {"kind": "absorbing"}}, {"kind": "b", "process": {"kind": "absorbing"}}),
    ):
        assert load("base", files=files, objective=upper)["parameters"]["objective"] == wanted


def test_catalog_entries_and_path_variables_layer_too(load: Load) -> None:
    def paths(env: str, **runtime: Any) -> list[str]:
        return [load(env, **runtime)["catalog"][name]["filepath"] for name in ("records", "latents", "run")]

    assert paths("base") == ["data/records.json", "data/latents.json", "data/run.json"]
    assert paths("text+encoder+dit") == [
        "data/text/records.json",
        "data/text/e5/latents.json",
        "data/text/e5/dit/other.json",
    ]
    assert paths("encoder", data="/disk") == ["/disk/records.json", "/disk/e5/latents.json", "/disk/e5/run.json"]
    assert "metadata" not in load("dit")["catalog"]["run"]  # a catalog entry is replaced as a whole
    assert set(load("dit")["catalog"]) == {"records", "latents", "run"}  # names with _ are variables


def test_the_folder_of_the_results_is_given_at_run_time(project: Path) -> None:
    """A member of a comparison writes everything that depends on the model into a folder of its own."""
    loader = LayeredConfigLoader(
        project / "conf", env="e5+mdlm", runtime_params={"results": "/R", "data": "/D"}, **CONFIG_LOADER_ARGS
    )
    paths = {name: loader["catalog"][name]["filepath"] for name in ("records", "latents", "dataset", "runs", "report")}
    assert paths == {
        "records": "/D/02_intermediate/records", "latents": "/D/e5/04_feature/latents",
        "dataset": "/R/05_model_input/dataset", "runs": "/R/06_models/runs", "report": "/R/08_reporting/report.html",
    }  # fmt: skip
    assert loader["parameters"]["results"] == "/R"


def test_references_between_parameters_find_the_value_of_the_last_layer(load: Load) -> None:
    files = {
        "base/parameters/a.yml": {"a": {"rows": 1, "twice": "${a.rows}${a.rows}"}, "folder": "${globals:data}"},
        "text/parameters/a.yml": {"a": {"rows": 2}, "name": "${runtime_params:name,nobody}"},
    }
    found = load("text", files=files)["parameters"]
    assert (found["a"]["twice"], found["folder"], found["name"]) == ("22", "data/text", "nobody")
    assert load("text", files=files, name="me")["parameters"]["name"] == "me"


def test_a_key_in_two_files_of_a_layer_is_refused_and_in_two_layers_is_not(load: Load) -> None:
    load("text+dit")["parameters"]
    with pytest.raises(ConfigurationError, match=r"environment 'text\+dit' .* Duplicate keys.*training\.lr"):
        load("text+dit", files={"dit/parameters/again.yml": {"training": {"lr": 1}}})["parameters"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model: {dim: 64}\nmodel: {dim: 65}\n", r"dit/parameters\.yml, line 2: .*: found duplicate key model"),
        ("model:\n\tdim: 3\n", r"dit/parameters\.yml, line 2: .*: found character .* cannot start any token"),
        ("model: [\n", r"dit/parameters\.yml, line 2: .*: expected the node content"),
        ("a: 1\nmodel:\n  dim: *x\n", r"dit/parameters\.yml, line 3: .*: found undefined alias 'x'"),
        ("a: 1\nmodel: \x07\n", r"dit/parameters\.yml, line 2: .*not allowed"),
        ("- a\n", r"dit/parameters\.yml: expected a mapping of keys to values, found \['a'\]"),
        ("model: {dim: '${nope}'}\n", "'nope' not found"),
        ("model: {dim: '${model.dim}'}\n", "[Rr]ecursi|leads to itself"),
        ("model: {dim: '${globals:nope}'}\n", "nope"),
        ("model: {dim: '${'}\n", "full_key: model.dim"),
        ("!!python/object:os.system x\n", "could not determine a constructor"),
    ],
)
def test_a_fault_of_a_file_is_one_sentence_that_names_the_environment(load: Load, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as error:
        load("dit", files={"dit/parameters.yml": text})["parameters"]
    assert isinstance(error.value, click.ClickException), "every Kedro command prints it without a traceback"
    assert "\n" not in str(error.value)
    assert "dit" in str(error.value)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ("https://me:secretword@host", "model: {dim: 64}\n"),
        ("dit", "- https://me:secretword@host\n"),
        ("dit", "model: {a: '${https://me:secretword@host}'}\n"),
        ("dit", "'https://me:secretword@host': 1\n'https://me:secretword@host': 2\n"),
    ],
)
def test_a_password_in_what_cannot_be_read_is_not_shown(load: Load, environment: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load(environment, files={"dit/parameters.yml": text})["parameters"]
    assert "secretword" not in str(error.value)


def test_a_top_level_key_that_is_no_text_is_refused(load: Load) -> None:
    with pytest.raises(ConfigurationError, match=r"'catalog' of the environment 'dit' .*: a top-level key is no text"):
        load("dit", files={"base/catalog/numbers.yml": "1: {type: MemoryDataset}\n"})["catalog"]


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("params.yml", "Did you mean 'parameters.yml'?"),
        ("parameter.yml", "Did you mean 'parameters.yml'?"),
        ("global.yml", "Did you mean 'globals.yml'?"),
        ("globals.yaml", "Did you mean 'globals.yml'?"),
        ("catalogue/a.yml", None),
        ("katalog.yml", "Did you mean 'catalog.yml'?"),
        ("parameters.toml", "Did you mean 'parameters.yml'?"),
        ("model.yml", ""),
        ("ingestion/sources.yml", ""),
        ("mine/parameters/a.yml", ""),
        ("mine/parameters.yml", None),
        ("parameters_model.yml", None),
        ("README.md", None),
        (".gitkeep", None),
        ("credentials.yml", None),
    ],
)
def test_a_file_that_nothing_reads_is_refused(load: Load, file: str, hint: str | None) -> None:
    """Otherwise the environment would run with base's parameters, without a word."""
    text = "" if hint is None and not file.endswith("yml") else "seed: 7\n" if "cred" not in file else "a: {b: c}\n"
    loader = load("dit", files={f"dit/{file}": text if "catalog" not in file else "a: {type: MemoryDataset}\n"})
    if hint is None:
        loader["parameters"]
        return
    with pytest.raises(ConfigurationError, match=re.escape(file)) as error:
        loader["parameters"]
    assert hint in str(error.value)


def test_a_type_of_configuration_without_files_is_reported_by_kedro(load: Load) -> None:
    with pytest.raises(MissingConfigException):
        load("dit")["credentials"]


def test_credentials_of_a_layer_read_the_environment(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM_LDLM_TOKEN", "secret")
    files = {"base/credentials.yml": {"hub": {"token": "none"}}, "text/credentials.yml": {"hub": {"token": "x"}}}
    files["dit/credentials.yml"] = {"hub": {"token": "${oc.env:MM_LDLM_TOKEN}"}}
    assert load("text+dit", files=files)["credentials"] == {"hub": {"token": "secret"}}


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_layers_are_read_from_an_archive_too(load: Load, tmp_path: Path, kind: str) -> None:
    """`kedro package` puts the configuration into an archive, which `kedro run --conf-source` takes."""
    load("text+dit")
    archive = shutil.make_archive(str(tmp_path / "conf"), kind, tmp_path, "conf")
    loader = LayeredConfigLoader(archive, env="text+dit", **CONFIG_LOADER_ARGS)
    assert loader.layers() == ("base", "text", "dit")
    assert loader["parameters"]["training"]["lr"] == 0.3
    with pytest.raises(ConfigurationError, match="Did you mean 'text'"):
        LayeredConfigLoader(archive, env="texd+dit", **CONFIG_LOADER_ARGS)


JSON = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from(["kind", "a", "b", "c"]), inner, max_size=3),
    max_leaves=8,
)
MAPPING = st.dictionaries(st.sampled_from(["kind", "a", "b", "c"]), JSON, max_size=4)


@given(MAPPING, MAPPING)
def test_merging_keeps_every_value_of_the_upper_layer_and_changes_neither(lower: Any, upper: Any) -> None:
    before = json.dumps([lower, upper])
    merged = merge(lower, upper)
    assert json.dumps([lower, upper]) == before
    assert merge(merged, upper) == merged
    assert merge(lower, {}) == lower

    def holds(found: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return isinstance(found, dict) and all(key in found and holds(found[key], wanted[key]) for key in wanted)
        return bool(found == wanted)

    assert holds(merged, upper)


# -- the same through Kedro's commands ---------------------------------------------------------------------------------

ENVIRONMENT = "tatoeba+multinode"


def test_kedro_catalog_reads_the_layers(run_kedro: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = run_kedro("catalog", "resolve-patterns", f"--env={ENVIRONMENT}+local")
    assert result.returncode == 0, result.stderr
    assert "data/tatoeba/02_intermediate/records" in result.stdout
    result = run_kedro("catalog", "describe-datasets", f"--env={ENVIRONMENT}")
    assert result.returncode == 0, result.stderr
    assert "records" in result.stdout
    result = run_kedro("catalog", "describe-datasets", "--env=tatoeba+multinod")
    assert result.returncode != 0
    assert "Did you mean 'multinode'?" in result.stderr
    assert "Traceback" not in result.stderr


SHOWN = "data/tatoeba True 2 tatoeba"
"""Data folder, base's seed, hosts of multinode, source of tatoeba."""
SHOW = """
p = catalog.load("parameters")
path = str(catalog.get("records")._describe()["filepath"])
print("data/tatoeba" if "data/tatoeba/" in path else path, p["seed"] == 0, p["training"]["launch"]["nodes"],
      p["ingestion"]["sources"][0]["name"])
"""
CLIENTS = {
    # What `kedro viz` loads its project by; it runs without the project's hooks.
    "viz": "from kedro_viz.integrations.kedro.data_loader import load_data\n"
    "catalog, *_ = load_data(Path.cwd(), env={env!r})\n" + SHOW,
    # What `kedro ipython`, `kedro jupyter` and %reload_kedro call.
    "ipython": "from IPython.testing.globalipapp import start_ipython\n"
    "shell = start_ipython()\n"
    "from kedro.ipython import reload_kedro\n"
    "reload_kedro(path='.', env={env!r})\n"
    "catalog = shell.user_ns['catalog']\n" + SHOW,
    "reload": "from IPython.testing.globalipapp import start_ipython\n"
    "shell = start_ipython()\n"
    "shell.run_line_magic('load_ext', 'kedro.ipython')\n"
    "shell.run_line_magic('reload_kedro', '--env={env}')\n"
    "catalog = shell.user_ns['catalog']\n" + SHOW,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_viz_and_notebooks_read_the_layers(client: str, project: Path, workshop: Path) -> None:
    def answer(env: str) -> subprocess.CompletedProcess[str]:
        code = "from pathlib import Path\nfrom kedro.framework.startup import bootstrap_project\n"
        code += "bootstrap_project(Path.cwd())\n" + CLIENTS[client].replace("{env!r}", repr(env)).replace("{env}", env)
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=workshop,
            env={**os.environ, "PYTHONPATH": str(project / "src")},
            capture_output=True,
            text=True,
        )

    result = answer(ENVIRONMENT)
    assert SHOWN in result.stdout, result.stdout + result.stderr
    assert "Did you mean 'tatoeba'?" in "".join((refused := answer("tatoba+multinode")).stdout + refused.stderr)
