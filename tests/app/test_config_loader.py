"""Environments of several layers and the texts of parameters: which value wins, and what is refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kedro.config import MissingConfigException

from mm_ldlm.app.config_loader import LayeredConfigLoader, UnreadableConfiguration, _log_once, merge
from mm_ldlm.settings import CONFIG_LOADER_ARGS

Load = Callable[..., LayeredConfigLoader]
Refuses = Callable[..., Any]
CONF: dict[str, dict[str, Any]] = {
    "base/globals.yml": {"data": "data", "results": ""},
    "base/parameters/model.yml": {"model": {"kind": "mmdit", "dim": 192, "heads": 6}},
    "base/parameters/training.yml": {"training": {"lr": 0.1, "steps": "${training.lr}", "betas": [0.9, 0.95]}},
    "base/catalog/all.yml": {
        "_results": "${runtime_params:data,${globals:data}}${globals:results}",
        "run": {"type": "json.JSONDataset", "filepath": "${_results}/run.json", "metadata": {"layer": "models"}},
        "runs": {"type": "json.JSONDataset", "filepath": "${_results}/runs.json"},
    },
    "text/globals.yml": {"data": "data/text"},
    "text/parameters.yml": {"training": {"lr": 0.2, "betas": [0.8]}},
    "dit/globals.yml": {"results": "/dit"},
    "dit/parameters.yml": {"model": {"kind": "dit", "depth": 2}, "training": {"lr": 0.3}},
    "dit/catalog.json": {"run": {"type": "json.JSONDataset", "filepath": "${_results}/other.json"}},
    "large/parameters/size.yml": {"model": {"dim": 1024}},
    "local/parameters.yml": {"training": {"lr": 0.9}},
    ".hidden/parameters.yml": {},
}
ALIASES = b"x0: &x0 [1]\n" + b"".join(
    b"x%d: &x%d [%s]\n" % (n + 1, n + 1, b",".join([b"*x%d" % n] * 9)) for n in range(9)
)
MERGES = b"a0: &a0 {k: 1}\n" + b"".join(b"a%d: &a%d {<<: [*a%d, *a%d]}\n" % (n + 1, n + 1, n, n) for n in range(40))
"""Texts of a few lines that stand for more values than memory holds"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A loader over `CONF` (with changes), for an environment and runtime parameters."""

    def loader(env: str | None, *, files: dict[str, Any] | None = None, **runtime: Any) -> LayeredConfigLoader:
        shutil.rmtree(tmp_path / "conf", ignore_errors=True)
        for name, content in {**CONF, **(files or {})}.items():
            path = tmp_path / "conf" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content))
        return LayeredConfigLoader(tmp_path / "conf", env=env, runtime_params=runtime or None, **CONFIG_LOADER_ARGS)

    return loader


# --- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "layers", "lr"),
    [
        (None, ("base", "local"), 0.9), ("base", ("base",), 0.1), ("text", ("base", "text"), 0.2),
        ("text+dit+local", ("base", "text", "dit", "local"), 0.9), ("dit+text", ("base", "dit", "text"), 0.2),
    ],
)  # fmt: skip
def test_the_last_layer_that_sets_a_key_wins(load: Load, env: str, layers: tuple[str, ...], lr: float) -> None:
    loader = load(env)
    assert loader.layers() == layers
    assert loader["parameters"]["training"]["lr"] == loader["parameters"]["training"]["steps"] == lr


def test_pitfall_24_a_layer_keeps_the_siblings_of_what_it_sets(load: Load) -> None:
    # a list is replaced
    assert load("text")["parameters"]["training"] == {"lr": 0.2, "steps": 0.2, "betas": [0.8]}


def test_another_kind_replaces_the_mapping_and_the_same_kind_merges(load: Load) -> None:
    assert load("dit")["parameters"]["model"] == {"kind": "dit", "depth": 2}
    assert load("dit+large")["parameters"]["model"] == {"kind": "dit", "depth": 2, "dim": 1024}
    assert load("large", model={"kind": "mmdit", "heads": 2})["parameters"]["model"]["dim"] == 1024
    assert load("large", model={"kind": "dit"})["parameters"]["model"] == {"kind": "dit"}


@pytest.mark.parametrize(
    ("env", "runtime", "dropped"),
    [
        ("large+text+dit", {}, "dit sets other kinds; dropped: model (mmdit)"),
        ("text+dit", {"model": {"kind": "mmdit"}}, "--params sets other kinds; dropped: model (dit)"),
        ("text+dit+large", {}, None),
        ("large", {"model": {"kind": "mmdit"}}, None),
    ],
)
def test_a_section_that_another_kind_replaces_is_logged_once_unless_it_is_of_base(
    load: Load, caplog: pytest.LogCaptureFixture, env: str, runtime: dict[str, Any], dropped: str | None
) -> None:
    _log_once.cache_clear()
    caplog.set_level("INFO")
    loader = load(env, **runtime)
    assert loader["parameters"] == loader["parameters"]
    assert caplog.messages == ([] if dropped is None else [dropped])


def test_paths_and_catalog_entries_layer_too_and_every_loader_keeps_its_globals(load: Load) -> None:
    loaders = [load("text+dit"), load("dit", data="/large")]
    assert [each["catalog"]["runs"]["filepath"] for each in loaders * 2] == [
        "data/text/dit/runs.json", "/large/dit/runs.json"
    ] * 2  # fmt: skip
    assert loaders[1]["catalog"]["run"] == {"type": "json.JSONDataset", "filepath": "/large/dit/other.json"}


TREES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from(["kind", "a", "b"]), inner), max_leaves=12
)
MAPPINGS = st.dictionaries(st.sampled_from(["kind", "a", "b", "c"]), TREES)


@given(MAPPINGS, MAPPINGS)
def test_merging_keeps_every_value_of_the_upper_layer(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    before = json.dumps([lower, upper])
    merged = merge(lower, upper)
    assert merge(merged, upper) == merged
    assert merged.keys() == lower.keys() | upper.keys()
    assert all(merged[key] == upper[key] for key in upper if not isinstance(upper[key], dict))
    assert json.dumps([lower, upper]) == before


def test_credentials_read_the_environment_and_an_archive_is_a_source(load: Load, tmp_path: Path) -> None:
    loader = load("text", files={"text/credentials.yml": {"key": "${oc.env:HOME}"}})
    assert loader["credentials"] == {"key": os.environ["HOME"]}
    archive = shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path, "conf")
    packed = LayeredConfigLoader(archive, env="text", **CONFIG_LOADER_ARGS)
    assert packed["parameters"] == load("text")["parameters"]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env",
    ["txet", "text+", "+text", "text++dit", "text+text", "base+text", "text+txet", " ", ".", "http://user:S3cret@host"],
)
def test_a_layer_that_is_unknown_empty_or_repeated_is_refused(load: Load, refuses: Refuses, env: str) -> None:
    with refuses(UnreadableConfiguration, "text"):
        load(env)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("text/parameters.yml", b"a: [1", "line 1"), ("text/parameters.yml", b"a: 1\na: 2", "line 2"),
        ("text/parameters.yml", b"a: \xff", "position 3"), ("text/parameters.yml", b"- 1", "parameters.yml"),
        ("text/parameters.yml", b"1: 2", "parameters.yml"), ("text/parameters.yml", b"a: !!python/name:os.system", "line 1"),
        ("text/parameters.yml", b"a: ${nothing}", "nothing"), ("text/parameters.yml", b"a: ${a}", "text"),
        ("text/parameters.yml", b"a: ${nothing:http://user:S3cret@host}", "nothing"),
        ("text/parameters.yml", b"a: http://user:S3cret@host: x", "line 1"), ("text/parameters.yml", b"\x00", "position 0"),
        ("text/parameters.yml", b"a: &a [*a]", "text"), ("text/parameters.yml", ALIASES, "values"),
        ("text/parameters.yml", MERGES, "values"),
        ("text/parameters.yml", b"a: 1" + b":59" * 10_000 + b".5", "parameters.yml"),
        ("text/parameters.yml", b"x: [" * 5000, "parameters.yml"),
        ("text/parameters.yml", b"a: 1\n" + b"#" * 200_001, "parameters.yml"),
        ("text/parameters/other.yml", b"training: {lr: 3}", "training"),
        ("text/params.yml", b"a: 1", "params.yml"), ("text/parametres.yml", b"a: 1", "parameters.yml"),
        ("text/globals.yaml", b"a: 1", "globals.yml"), ("text/parameters.txt", b"a: 1", "parameters.txt"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_message_that_names_it(
    load: Load, name: str, content: bytes, named: str
) -> None:
    with pytest.raises(UnreadableConfiguration, match=named) as raised:
        load("text", files={name: content})["parameters"]
    message = str(raised.value)
    assert isinstance(raised.value, click.ClickException)  # which every command of Kedro prints without a traceback
    assert len(message) < 3000
    assert "S3cret" not in message


def test_a_pipe_in_the_place_of_a_file_is_never_opened(load: Load, tmp_path: Path) -> None:
    loader = load("text")
    (tmp_path / "conf/text/parameters.yml").unlink()
    os.mkfifo(tmp_path / "conf/text/parameters.yml")
    with pytest.raises(UnreadableConfiguration, match=r"parameters\.yml"):
        loader["parameters"]


def test_files_of_editors_are_no_configuration(load: Load) -> None:
    files = {
        f"text/{name}": b"[" for name in (".parameters.yml.swp", "parameters.yml~", "notes.md", "_old/parameters.yml")
    }
    assert load("text", files=files)["parameters"] == load("text")["parameters"]


def test_a_missing_folder_or_type_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(UnreadableConfiguration, match="nowhere"):
        LayeredConfigLoader(tmp_path / "nowhere", env="text", **CONFIG_LOADER_ARGS)
    with pytest.raises(MissingConfigException):
        load("text")["credentials"]


@pytest.mark.parametrize("value", [{"a": None}, ["x"], 3, None, "s3://bucket/x", "a\0b", True])
@pytest.mark.parametrize("key", ["data", "results", "run"])
def test_a_folder_is_a_path_on_this_machine(load: Load, key: str, value: Any) -> None:
    for where in ({key: value}, {"files": {"text/globals.yml": {key: value}}}):
        with pytest.raises(UnreadableConfiguration, match=f"'{key}'"):
            load("text", **where)["catalog"]
