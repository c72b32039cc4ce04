"""Exported runs: the same model from a folder and from the hub, its encoder elsewhere, and nothing of a damaged folder."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tests.data.encoders.tiny import bert
from tests.inference.runs import DIM, LATENTS, tokenizer, write_run

from mm_ldlm import MMLDLM
from mm_ldlm.core import CheckpointError, StoreError, to_dict
from mm_ldlm.core.files import write_json
from mm_ldlm.data.encoders import LocalEncoderConfig
from mm_ldlm.evaluation.compare import Result, keep
from mm_ldlm.evaluation.suites.inversion import score_rows
from mm_ldlm.extras.huggingface import card
from mm_ldlm.extras.huggingface.commands import export, push
from mm_ldlm.extras.huggingface.stores import open_store
from mm_ldlm.training.checkpoints.provenance import MADE_BY, weights_of

TEXTS = ["the cat sat on the mat", "a b c " * 20]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> LocalEncoderConfig:
    """An encoder with a prompt, in a folder of sentence-transformers."""
    folder = tmp_path_factory.mktemp("encoder")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        bert(folder / "base")
        dense = Dense(32, DIM, activation_function=torch.nn.Identity())
        modules = [Transformer(str(folder / "base"), max_seq_length=24), Pooling(32, "mean"), dense, Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return LocalEncoderConfig(name="me/own", path=str(folder / "model"), prompt="query ")


def run_of(place: Path, encoder: LocalEncoderConfig) -> Path:
    return write_run(place, encoder=to_dict(encoder), fingerprints={"encoder": encoder.locate().fingerprint})


def exported(run: Path, target: Path, *options: str) -> Any:
    result = CliRunner().invoke(export, [str(run), str(target), *options])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, encoder: LocalEncoderConfig) -> Path:
    place = tmp_path_factory.mktemp("runs")
    exported(run_of(place / "run-1", encoder), place / "shared", "--licence", "mit")
    return place / "shared"


def test_an_exported_run_answers_as_the_run(folder: Path) -> None:
    ours = MMLDLM.from_run(folder.parent / "run-1", device="cpu")
    theirs = MMLDLM.from_pretrained(folder, device="cpu")
    assert theirs.invert(LATENTS).texts == ours.invert(LATENTS).texts
    assert theirs.generate(3, seed=1).texts == ours.generate(3, seed=1).texts
    np.testing.assert_array_equal(theirs.encode(TEXTS[:1]), ours.encode(TEXTS[:1]))
    assert theirs.encoder.located.folder.parent == folder  # type: ignore[attr-defined]
    assert len({file.stat().st_mode for file in folder.rglob("*") if file.is_file()}) == 1
    assert {file.suffix for file in folder.rglob("*") if file.is_file()} <= {".safetensors", ".json", ".txt", ".md", ""}


def test_sentence_transformers_loads_the_vectors_that_the_model_inverts(folder: Path) -> None:
    found = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(
        found, MMLDLM.from_pretrained(folder, device="cpu").encoded(TEXTS, too_long="truncate"), atol=1e-6
    )


@pytest.mark.parametrize("change", [{"truncate_dim": 4}, {"max_length": 9}])
def test_an_encoder_that_sentence_transformers_would_run_otherwise_is_left_out(
    change: dict[str, Any], encoder: LocalEncoderConfig, tmp_path: Path
) -> None:
    result = exported(run_of(tmp_path / "run", replace(encoder, **change)), tmp_path / "out")
    assert "other vectors" in result.output
    assert not (tmp_path / "out" / "modules.json").exists()
    assert "SentenceTransformer" not in (tmp_path / "out" / "README.md").read_text()
    other = write_run(tmp_path / "other", encoder=to_dict(encoder), fingerprints={"encoder": "0" * 32})
    assert "cannot load" in exported(other, tmp_path / "changed").output


def test_the_hub_is_read_from_its_cache_by_name_and_revision(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Callable[..., Any]
) -> None:
    commit, cache = "a" * 40, tmp_path / "models--me--shared"
    for file in (each for each in folder.rglob("*") if each.is_file()):
        link = cache / "snapshots" / commit / file.relative_to(folder)
        blob = cache / "blobs" / str(file.relative_to(folder)).replace("/", "-")
        for path in (link, blob):
            path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("mm_ldlm.inference.files.PRETRAINED", tmp_path / "none")
    expected = MMLDLM.from_pretrained(folder, device="cpu").invert(LATENTS).texts
    for revision in (None, "main", commit):
        assert MMLDLM.from_pretrained("me/shared", revision=revision, device="cpu").invert(LATENTS).texts == expected
    with refuses(CheckpointError, "me/other"):
        MMLDLM.from_pretrained("me/other")
    (cache / "snapshots" / commit / "x.py").symlink_to("../../blobs/config.json")
    with refuses(CheckpointError, "x.py", "again"):
        MMLDLM.from_pretrained("me/shared")


@pytest.mark.parametrize(
    "file",
    ["config.json", "model.safetensors", "tokenizer/tokenizer.json", "encoder/1_Pooling/config.json", "new.json"],
)
def test_a_folder_that_was_changed_is_not_loaded(file: str, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with open(copy / file, "ab") as changed:
        changed.write(b" ")
    refused(copy, Path(file).name)


def refused(copy: Path, named: str) -> None:
    """Check that a folder is not loaded, and that the message does not advise as for the checkpoint of a training."""
    for load in (MMLDLM.from_pretrained, MMLDLM.from_run):
        with pytest.raises(CheckpointError, match=named) as raised:
            load(copy, device="cpu")
        assert "xport the run again" in str(raised.value)
        assert not re.search("older one|Train the run", str(raised.value))


@pytest.mark.parametrize(
    "files", ["COMPLETE", "config.json", "model.safetensors", "tokenizer/tokenizer.json", "COMPLETE model.safetensors"]
)
def test_a_folder_without_some_of_its_files_is_not_loaded(files: str, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    for file in files.split():
        (copy / file).unlink()
    refused(copy, Path(files.split()[0]).name)


ADDED = ("x.py", "encoder/pytorch_model.bin", "tokenizer/merges.txt", "README.md/x.py")


@pytest.mark.parametrize(
    ("file", "link"), [*((file, link) for file in ADDED for link in (False, True)), ("README.md", True)]
)
def test_only_the_card_and_files_of_downloads_may_be_added(file: str, link: bool, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "README.md").unlink()
    for name in (".git/config", ".cache/huggingface/x.json", ".gitattributes"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("{}")
    MMLDLM.from_pretrained(copy, device="cpu")
    (copy / file).parent.mkdir(exist_ok=True)
    if link:
        (copy / file).symlink_to(tmp_path)
    else:
        (copy / file).touch()
    refused(copy, Path(file).name)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": {"kind": "local", "name": "minilm", "path": "/etc"}},
        {
            "encoder": {
                "kind": "http",
                "name": "m",
                "url": "https://else.where/v1",
                "dim": 6,
                "key_variable": "HF_TOKEN",
            }
        },
        {"model": {"kind": "antigravity:Model"}},
        {"model": {"kind": "antigravity:Ä"}},
        {"objective": {"kind": "multimodal", "process": {"kind": "absorbing", "schedule": {"kind": "os.path:join"}}}},
    ],
)
def test_a_folder_of_another_author_imports_no_module_and_sends_nothing(
    change: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    write_json(copy / "config.json", json.loads((copy / "config.json").read_text()) | change)
    with pytest.raises(CheckpointError, match=r"import paths|without path"):
        MMLDLM.from_pretrained(copy)


def test_the_card_counts_the_examples_of_the_dataset_of_the_run(write_dataset: Any, tmp_path: Path) -> None:
    data = write_dataset(tmp_path, [f"w{i}" for i in range(6)], ["train"] * 3 + ["validation"] * 2 + ["test"])
    found = [
        card._examples(SimpleNamespace(folder=tmp_path / "run", config={"dataset": "dataset", "fingerprints": marks}))  # type: ignore[arg-type]
        for marks in (data.fingerprints, {**data.fingerprints, "tokens": "others"})
    ]
    assert ({split: sum(counts.values()) for split, counts in found[0].items()}, found[1]) == (
        {"train": 3, "validation": 2, "test": 1}, {}
    )  # fmt: skip


def test_the_card_has_the_scores_of_these_weights_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(card, "calibration_of", lambda checkpoint, *, use_ema: asked.append(use_ema))
    run = shutil.copytree(folder.parent / "run-1", tmp_path / "run-1")
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    scores = {"nll.per_token": 2.5, "nll.per_token.low": 2.25, "nll.per_token.high": 2.75, "nll.exact": 0.0}
    texts = [f"w{i} w{i + 1} w{i + 2}" for i in range(4)]
    made = [*texts[:3], "w1 w2 w3"]
    references, hypotheses = (tokenizer().encode(each) for each in (texts, made))
    rows = score_rows(tokenizer(), references, hypotheses, ids=texts, written=[texts[0].upper(), *texts[1:]])
    rows = rows.assign(source=["a", "a", "b", "b"])
    keep(Result("run-1", {**scores, MADE_BY: weights_of(checkpoint, use_ema=True)}, {"inversion": rows}), run)
    exported(run, tmp_path / "averaged", "--licence", "mit", "--without-encoder")
    exported(run, tmp_path / "last", "--last", "--without-encoder")
    averaged, last = ((tmp_path / name / "README.md").read_text() for name in ("averaged", "last"))
    assert "2.500 [2.250, 2.750]" in averaged
    assert re.search(r"\| a \| 2 \| 50.0 %.*? \| 100.0 %", averaged), "as written, and up to case"
    assert re.search(r"\| b \| 2 \| 50.0 %.*? \| 50.0 %", averaged)
    assert "| a | 2 |" not in last
    assert "license: mit\n" in averaged
    assert ("`mmdit`" in averaged, "averaged weights of step 3" in averaged, "last weights" in last) == (True,) * 3
    assert "2.500" not in last
    assert "license: unknown\n" in last
    assert (asked, card._by_source(rows[:2])) == ([True, False], []), "of one source"


def test_matrices_of_half_the_size_are_loaded_as_float32_and_the_card_has_the_notes(
    folder: Path, tmp_path: Path
) -> None:
    run, notes = folder.parent / "run-1", tmp_path / "notes.md"
    words = [str(run), str(tmp_path / "small"), "--without-encoder", "--dtype", "bfloat16", "--notes", str(notes)]
    missing = CliRunner().invoke(export, words)
    assert (missing.exit_code, (tmp_path / "small").exists()) == (1, False)
    notes.write_text("## Data\n\nSentences by Müller, CC BY 2.0.\n", encoding="utf-8")
    exported(*map(Path, words[:2]), *words[2:])
    sizes = [(each / "model.safetensors").stat().st_size for each in (tmp_path / "small", folder)]
    assert sizes[0] < 0.6 * sizes[1]
    small, whole = (MMLDLM.from_pretrained(each, device="cpu") for each in (tmp_path / "small", folder))
    for (name, ours), theirs in zip(small.model.model.named_parameters(), whole.model.model.parameters(), strict=True):
        assert ours.dtype == torch.float32
        assert bool(((ours - theirs).abs() <= theirs.abs() * (2**-8 if ours.dim() > 1 else 0)).all()), name
    text = (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    assert "\n## Data\n\nSentences by Müller, CC BY 2.0.\n\n## Use\n" in text
    assert "bfloat16" in text


def test_an_upload_needs_credentials_and_an_intact_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []

    class Hub:
        def __init__(self, **_: Any) -> None: ...

        def create_repo(self, name: str, **options: Any) -> None:
            if "HF_TOKEN" not in os.environ:
                raise OSError("no token")
            sent.append({"name": name, **options})

        def upload_folder(self, **given: Any) -> str:
            sent.append(given)
            return "https://hub/commit"

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    copy = shutil.copytree(folder, tmp_path / folder.name)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert "credentials" in CliRunner().invoke(push, [str(copy), "me/shared"]).output
    assert not sent
    monkeypatch.setenv("HF_TOKEN", "hf_S3cret")
    for private in (["--private"], []):
        assert CliRunner().invoke(push, [str(copy), "me/shared", *private]).output == "https://hub/commit\n"
    assert [each.get("private", each.get("repo_id")) for each in sent] == [True, "me/shared", False, "me/shared"]
    assert 'from_pretrained("me/shared")' in (copy / "README.md").read_text()
    (copy / "config.json").write_text("{}")
    assert CliRunner().invoke(push, [str(copy), "me/shared"]).exit_code == 1
    assert len(sent) == 4


def test_a_run_is_also_exported_in_the_format_of_older_trainers(folder: Path, tmp_path: Path) -> None:
    exported(folder.parent / "run-1", tmp_path / "older", "--as", "model.pt")
    assert {"model.pt", "config.json", "tokenizer", "normaliser"} <= {
        path.name for path in (tmp_path / "older").iterdir()
    }


def test_a_store_is_a_dataset_without_a_copy(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    count = 3000
    vectors = np.random.default_rng(0).normal(size=(count, 64)).astype(np.float32)
    texts = [f"w{i % 20} w{i // 20 % 20} w{i // 400}" for i in range(count)]
    write_dataset(tmp_path, texts, ["train"] * count, latents=vectors, shard_rows=1000)
    before = pa.total_allocated_bytes()
    found = open_store(tmp_path / "latents")
    assert pa.total_allocated_bytes() - before < vectors.nbytes / 4
    np.testing.assert_array_equal(found.with_format("numpy")[1990:2010]["latent"], vectors[1990:2010])
    assert open_store(tmp_path / "records")["text"][1234] == texts[1234]
    shard = sorted((tmp_path / "latents").glob("*.arrow"))[1]
    shard.write_bytes(shard.read_bytes()[:-9] + b"\0" * 9)
    with pytest.raises(StoreError):
        open_store(tmp_path / "latents")
