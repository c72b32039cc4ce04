"""Files, folders and devices that parameters name: checked before the first node, also when a run is finished."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mm_ldlm.settings
from mm_ldlm.app.config_loader import LayeredConfigLoader, merge
from mm_ldlm.app.parameters import check_files, check_machine, check_parameters
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.settings import CONFIG_LOADER_ARGS

ABSENT = "/no/such/place"
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "training.resume": ("training", {"resume": ABSENT}),
    "training.init_from": ("training", {"init_from": ABSENT}),
    "reporting.compare.0": ("reporting", {"compare": [ABSENT]}),
    "reporting.compare.1": ("reporting", {"compare": ["0123456789abcdef" * 2, "0123"]}),
    "sampling.l2t.files.0": ("sampling", {"l2t": {"files": [ABSENT]}}),
    "sampling.t2l.files.0": ("sampling", {"t2l": {"files": [ABSENT]}}),
    "evaluation.sts.files.mine": ("evaluation", {"sts": {"files": {"mine": ABSENT}}}),
    "evaluation.sts.sets.0.path": ("evaluation", {"sts": {"sets": [
        {"format": "stsb", "name": "mine", "path": ABSENT}
    ]}}),
    "evaluation.likelihood.other_texts.0.path": ("evaluation", {"likelihood": {"other_texts": [
        {"name": "mine", "path": ABSENT}
    ]}}),
    "ingestion.sources.0.path": ("ingestion", {"sources": [{"kind": "text", "path": ABSENT}]}),
    "ingestion.path": ("ingestion", {"sources": [{"kind": "text", "path": "replaced"}], "path": f"{ABSENT}/*.txt"}),
    "tokenizer.path": ("tokenizer", {"path": ABSENT}),
    "encoder.path": ("encoder", {"path": ABSENT}),
}  # fmt: skip
READER = {"tokenizer": "ingestion", "encoder": "embedding"}
"""Section of a path → the section of the pipeline that reads it."""


@pytest.fixture(scope="module")
def base(project: Path) -> dict[str, Any]:
    found: dict[str, Any] = LayeredConfigLoader(project / "conf", env="base", **CONFIG_LOADER_ARGS)["parameters"]
    return found


@pytest.fixture(scope="module")
def changed(base: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    typed = check_parameters(base)

    def make(section: str, changes: dict[str, Any]) -> dict[str, Any]:
        return check_parameters({"seed": 0, **typed, section: merge(base[section], changes)})

    return make


@pytest.mark.parametrize("section", ["ingestion", "embedding"])
def test_an_engine_that_is_not_installed_is_refused_before_the_run(
    section: str, changed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    typed = changed(section, {"engine": {"kind": "ray"}})
    with pytest.raises(ConfigurationError, match=rf"'{section}.engine.kind': the engine ray needs the package 'ray'"):
        check_files({name: typed[name] for name in typed if name != "encoder"}, read={section})
    check_files(typed, read=set())


@pytest.mark.parametrize("key", PLACES)
def test_a_path_that_leads_nowhere_is_refused_by_its_key(
    key: str, changed: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    section, changes = PLACES[key]
    typed = changed(section, changes)
    with pytest.raises(ConfigurationError, match=rf"^parameter '{key}': ") as error:
        check_files(typed, read={section, READER.get(section, section)}, runs=tmp_path)
    assert len(str(error.value).splitlines()) == 1
    unread = {"training": None}.get(section, tmp_path)
    check_files(typed, read=set(), runs=unread)  # a run that does not read the section


@pytest.mark.parametrize("path", ["a" * 300, "a" * 5000, "a/\x1b[31m/b", "~", "//"])
def test_names_that_no_file_system_accepts_are_refused(
    path: str, changed: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    typed = changed("sampling", {"t2l": {"files": [path]}})
    if not Path("/").joinpath(path).exists() if len(path) < 200 else True:
        with pytest.raises(ConfigurationError, match=r"'sampling\.t2l\.files\.0'") as error:
            check_files(typed, read={"sampling"})
        assert len(str(error.value)) < 1500
    typed = changed("training", {"resume": path})
    with pytest.raises(ConfigurationError, match=r"'training\.resume'"):
        check_files(typed, read={"training"}, runs=tmp_path)


@pytest.mark.parametrize("beneath", ["", "/b", "/*.npy"])
@pytest.mark.parametrize("name", ["a\0", "\ud800", "a" * 5000], ids=["nul", "no unicode", "too long"])
def test_a_name_that_no_file_system_accepts_is_a_missing_file(name: str, beneath: str) -> None:
    name += beneath
    sampling = SimpleNamespace(l2t=SimpleNamespace(files=[name]), t2l=SimpleNamespace(files=[]))
    typed = {"sampling": sampling, "reporting": SimpleNamespace(compare=[name])}
    for section, key in (("sampling", "sampling.l2t.files.0"), ("reporting", "reporting.compare.0")):
        with pytest.raises(ConfigurationError, match=f"^parameter '{re.escape(key)}': "):
            check_files(typed, read={section})


def test_a_folder_without_a_checkpoint_is_none(changed: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for key in ("resume", "init_from"):
        with pytest.raises(ConfigurationError, match=rf"'training\.{key}': .*no complete checkpoint"):
            check_files(changed("training", {key: "other"}), read={"training"}, runs=tmp_path)
    for word in ("auto", "never"):
        check_files(changed("training", {"resume": word}), read={"training"}, runs=tmp_path)


def test_a_checkpoint_of_another_trainer_is_read_before_the_first_node(
    changed: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "older").mkdir()
    for names in (["module.text_head.linear.weight"], ["anything"]):
        torch.save(dict.fromkeys(names, torch.ones(2)), tmp_path / "older" / "model.pt")
        for path in ("older", "older/model.pt"):
            check_files(changed("training", {"init_from": path}), read={"training"}, runs=tmp_path)
        with pytest.raises(ConfigurationError, match=r"'training\.resume'"):
            check_files(changed("training", {"resume": "older"}), read={"training"}, runs=tmp_path)
    names = ["blocks.0.joint_attn.to_qkv.0.weight", "blocks.0.joint_attn.to_out.0.weight"]
    torch.save(dict.fromkeys(names, torch.ones(2)), tmp_path / "older" / "model.pt")
    with pytest.raises(ConfigurationError, match=r"'training\.init_from': .*joint attention without rotary positions"):
        check_files(changed("training", {"init_from": "older"}), read={"training"}, runs=tmp_path)


def test_existing_files_globs_and_run_ids_pass(changed: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    sources = {"sources": [{"kind": "text", "path": [str(tmp_path / "*.txt"), str(tmp_path / "a.txt")]}]}
    check_files(changed("ingestion", sources), read={"ingestion"})
    check_files(changed("reporting", {"compare": ["0123456789abcdef" * 2, str(tmp_path)]}), read={"reporting"})
    for name in ("0123456789abcdef" * 2 + "0", "0123456789abcdef" * 2 + "/x", "0123456789ABCDEF" * 2):
        with pytest.raises(ConfigurationError, match=r"'reporting\.compare\.0': .*32 hexadecimal digits"):
            check_files(changed("reporting", {"compare": [name]}), read={"reporting"})


def test_only_a_resumed_run_may_name_a_checkpoint_that_it_went_back_from(
    changed: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that begins with other weights has no later checkpoint to continue from."""
    monkeypatch.setattr("mm_ldlm.training.resuming.went_back", lambda path: True)
    gone = "run/checkpoints/step-9"
    check_files(changed("training", {"resume": gone}), read={"training"}, runs=tmp_path)
    with pytest.raises(ConfigurationError, match=r"'training\.init_from': expected the folder of a run"):
        check_files(changed("training", {"init_from": gone}), read={"training"}, runs=tmp_path)


def test_the_device_of_the_encoder_is_checked_where_something_is_embedded(
    changed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    typed = changed("encoder", {"device": "cuda"})
    check_machine(typed, read={"encoder", "training", "sampling"}, trains=False)
    with pytest.raises(ConfigurationError, match=r"'encoder\.device': cuda is not on this machine, which has 0 GPUs"):
        check_machine(typed, read={"encoder", "embedding"}, trains=False)


@pytest.mark.parametrize("key", ["training", "encoder", "sampling", "evaluation"])
def test_a_gpu_that_this_machine_lacks_is_refused_by_its_key(
    key: str, changed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    read = {key, "embedding"}
    check_machine(changed(key, {"device": "cuda:0"}), read=read, trains=True)
    with pytest.raises(ConfigurationError, match=rf"'{key}\.device': cuda:1 is not on this machine, which has 1 GPU"):
        check_machine(changed(key, {"device": "cuda:1"}), read=read, trains=True)
    check_machine(changed("training", {"device": "cuda:1"}), read=read, trains=False)  # it is planned for another one


def test_a_batch_of_the_encoder_beyond_the_memory_is_refused(
    changed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.training.memory.memory_of", lambda device: ("CPU", 2**30))
    large = {"batch_tokens": 10**8, "batch_rows": 10**6}
    with pytest.raises(ConfigurationError, match=r"^parameter 'encoder\.batch_tokens': .* 1\.0 GiB \(CPU\)"):
        check_machine(changed("encoder", large), read={"encoder", "embedding"}, trains=False)
    check_machine(changed("encoder", large), read={"encoder"}, trains=False)
    check_machine(
        changed("encoder", {"batch_tokens": 10**8}), read={"encoder", "embedding"}, trains=False
    )  # of 64 rows


def test_an_encoder_that_computes_elsewhere_needs_no_memory_here(changed: Callable[..., dict[str, Any]]) -> None:
    """The check read `batch_tokens` of an encoder behind a service, which has none: `kedro run --env=http` failed."""
    service = {"kind": "http", "url": "http://127.0.0.1:1/v1", "name": "model"}
    typed = changed("encoder", {}) | {"encoder": parse_encoder(service)}
    check_machine(typed, read={"encoder", "embedding"}, trains=False)


def test_a_model_beyond_the_memory_is_refused_before_the_first_node(
    changed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = changed("model", {"dim": 49_152, "heads": 6, "depth": 128})
    with pytest.raises(ConfigurationError, match=r"^parameter 'model': training needs at least .* GiB"):
        check_machine(large, read={"training", "model"}, trains=True)
    check_machine(large, read={"training", "model"}, trains=False)
    check_machine(large, read={"training", "model", "sampling"}, trains=False)
    check_machine(changed("training", {}), read={"training", "model"}, trains=True)


@pytest.mark.parametrize(("vectors", "missing"), [(ABSENT, True), (__file__, False), ("beside", False), (None, False)])
def test_the_vectors_of_a_source_are_looked_for(vectors: str | None, missing: bool) -> None:
    source = {"kind": "text", "path": __file__, "vectors": vectors}
    typed = {"ingestion": parse(IngestionConfig, {"sources": [source]}, at="ingestion")}
    if missing:
        with pytest.raises(ConfigurationError, match=r"^parameter 'ingestion\.sources\.0\.vectors': "):
            check_files(typed, read={"ingestion"})
    else:
        check_files(typed, read={"ingestion"})


@pytest.mark.parametrize("own", [None, "77"])
def test_settings_of_the_user_stay_and_telemetry_is_off(own: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {"TIMEOUT": "4", "MAX_RETRIES": "1", "BACKOFF_FACTOR": "1"}
    usual = {f"MLFLOW_HTTP_REQUEST_{name}": value for name, value in defaults.items()}
    usual["TOKENIZERS_PARALLELISM"] = "false"
    off = {"KEDRO_DISABLE_TELEMETRY": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1",
           "HF_HUB_DISABLE_TELEMETRY": "1"}  # fmt: skip
    for name in usual:
        monkeypatch.delenv(name, raising=False) if own is None else monkeypatch.setenv(name, own)
    for name in off:
        monkeypatch.setenv(name, "0")
    runpy.run_path(str(Path(mm_ldlm.settings.__file__)))
    assert {name: os.environ[name] for name in usual} == (dict.fromkeys(usual, own) if own else usual)
    assert {name: os.environ[name] for name in off} == off
