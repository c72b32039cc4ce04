"""Every file that names another file: a hostile name is refused or quarantined, and nothing outside is read."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import CheckpointError, EvaluationError, SourceError, StoreError
from mm_ldlm.data.corpus.sources import SOURCES, BadRow, Opening, Row
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.evaluation.sts_sets import StsSource, load_sts
from mm_ldlm.training.checkpoints import folder as checkpoints
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.reference import run_folder

SECRET = "the secret of the machine"
NAMES = [
    "/etc/hostname",
    "../secret",
    "link",
    "texts/../../secret",
    "",
    ".",
    "x" * 300,
    "a\0b",
    "loop",
    "\ud800",
    "folder",
    "pipe",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder beside a secret, with links to it, a loop of links, a folder and a pipe."""
    (tmp_path / "secret").write_text(SECRET)
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    return root


def read(**keys: Any) -> list[Row | BadRow]:
    source = parse_kind(SOURCES, keys, at="source")
    json.dumps(source.describe(Opening(0, 10_000)))
    return list(source.rows(Opening(0, 10_000)))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_layout_reads_no_other_file(root: Path, name: str) -> None:
    items = [{"text_path": name}, {"text": "fine"}]
    (root / "train_data.json").write_text(json.dumps(items))
    bad, good = read(kind="layout", path=str(root))
    assert isinstance(bad, BadRow)
    assert bad.reason in ("unsafe_path", "missing_file", "wrong_type")
    assert isinstance(good, Row)
    assert good.text == "fine"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_tokens_and_latents_of_a_layout_are_inside_it(root: Path, name: str) -> None:
    np.save(root.parent / "secret", np.zeros(3, np.float32))
    os.replace(root.parent / "secret.npy", root.parent / "secret")
    item = {"id": "1", "text": "a", "latent_path": name, "token_path": name}
    (root / "train_data.json").write_text(json.dumps([item]))
    for part in ("tokens", "latents"):
        config = parse_kind(SOURCES, {"kind": "layout", "path": str(root), part: True}, at="source")
        (bad,) = config.rows(Opening(0, 10_000, tokenizer=load_tokenizer(TokenizerConfig(max_length=8))))
        assert isinstance(bad, BadRow)
        assert bad.reason in ("unsafe_path", "missing_file", "wrong_type")


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "missing", ""])
def test_an_archive_is_no_way_out(root: Path, name: str) -> None:
    path = root / "layout.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_data.json", json.dumps([{"text_path": name}, {"text": "fine"}]))
    bad, good = read(kind="layout", path=str(path))
    assert isinstance(bad, BadRow)
    assert isinstance(good, Row)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_caption_file_names_images_of_its_folder(root: Path, name: str) -> None:
    (root / "captions.jsonl").write_text(json.dumps({"text": "a", "image": name}) + "\n")
    (bad,) = read(kind="image_folder", path=str(root / "captions.jsonl"))
    assert isinstance(bad, BadRow)
    assert bad.reason in ("unsafe_path", "missing_file", "missing_column")


# -- checkpoints and runs ----------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two checkpoints, beside another run."""
    contents = Contents(tensors={}, documents={"state.json": {"a": 1}})
    for name, step in (("run", 1), ("run", 2), ("other", 3)):
        checkpoints.write(tmp_path / name / "checkpoints", step, contents)
    return tmp_path / "run"


@pytest.mark.parametrize(
    "pointer",
    ["../../other/checkpoints/step-00000003", "{other}/step-00000003", "step-00000009", "..", "a\0b", "x" * 300, "."],
)
def test_best_names_a_checkpoint_of_its_run(run: Path, pointer: str) -> None:
    directory = run / "checkpoints"
    name = pointer.format(other=run.parent / "other/checkpoints")
    (directory / "step-00000009").symlink_to(run.parent / "other/checkpoints/step-00000003")
    for which in ("best", "latest"):
        (directory / which).write_text(name + "\n")
        with pytest.raises(CheckpointError, match="of this run"):
            checkpoints.pointer(directory, which)
    with pytest.raises(CheckpointError, match="of this run"):
        checkpoints.find(run, which="best")
    (directory / "step-00000009").unlink()
    assert checkpoints.apply_retention(directory, last=1, every=None) == [1], "a wrong pointer does not stop a run"


def test_a_linked_checkpoint_of_another_run_is_not_used(run: Path) -> None:
    (run / "checkpoints/step-00000009").symlink_to(run.parent / "other/checkpoints/step-00000003")
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        checkpoints.find(run)
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        checkpoints.find(run, which="9")
    assert checkpoints.find(run, which="2").name == "step-00000002"


@pytest.mark.parametrize("content", [b"\xff\xfe", b""])
def test_an_unreadable_pointer_is_an_error_with_a_remedy(run: Path, content: bytes) -> None:
    (run / "checkpoints/best").write_bytes(content)
    with pytest.raises(CheckpointError):
        checkpoints.find(run, which="best")


def test_a_marker_lists_files_of_its_checkpoint(run: Path) -> None:
    path = run / "checkpoints/step-00000002"
    marker = json.loads((path / checkpoints.MARKER).read_text())
    marker["files"]["../step-00000001/state.json"] = marker["files"].pop("state.json")
    (path / checkpoints.MARKER).write_text(json.dumps(marker))
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        checkpoints.check(path)


@pytest.mark.parametrize("name", ["../run", "/", "", ".", "..", "a/b", "link", None, 5, "a\0b"])
def test_the_name_of_a_run_is_that_of_a_folder_beside(tmp_path: Path, name: Any) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/link").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="expected the name of a folder"):
        run_folder(tmp_path / "runs", {"name": name})


# -- stores ------------------------------------------------------------------------------------------------------------


def _to_link(path: Path) -> None:
    other = path.parent.parent / path.name
    os.replace(path, other)
    path.symlink_to(other)


def _to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [_to_link, _to_pipe, _to_loop, _to_folder])
def test_a_shard_is_a_file_of_its_store(tmp_path: Path, change: Callable[[Path], None]) -> None:
    import pyarrow as pa

    writer = StoreWriter(tmp_path / "store", kind="toy", schema=pa.schema([("id", pa.string())]))
    writer.append({"id": ["a"]})
    writer.finish()
    change(tmp_path / "store/part-000000.arrow")
    with pytest.raises(StoreError):
        ShardStore.open(tmp_path / "store")


# -- sources that are no regular files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [("pipe", "named pipe"), ("loop", "loop of symbolic links"), ("x" * 300, "too long")],
)
@pytest.mark.parametrize(
    "kind", ["text", "jsonl", "csv", "parquet", "arrow", "layout", "disk", "webdataset", "image_folder"]
)
def test_a_path_that_is_no_file_is_named_and_never_opened(root: Path, kind: str, name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read(kind=kind, path=str(root / name))


def test_a_glob_reports_what_is_no_file(root: Path) -> None:
    with pytest.raises(SourceError, match=r"which '.*\*' matches, is a"):
        read(kind="text", path=str(root / "*"))


def test_names_that_are_not_utf8_are_read(root: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(root / "caf") + b"\xe9.txt"))
    path.write_text("a line\n")
    rows = read(kind="text", path=str(root / "caf*"))  # parameters are valid Unicode, the names of files need not be
    assert [row.text for row in rows if isinstance(row, Row)] == ["a line"]
    error = SourceError(f"{path}: wrong")
    assert str(error).encode("utf-8").endswith(b"caf\\udce9.txt: wrong")


def test_a_set_of_sentence_pairs_that_is_no_file_is_named(root: Path) -> None:
    for name, message in (("pipe", "named pipe"), ("loop", "loop of symbolic links"), ("x" * 300, "too long")):
        with pytest.raises(EvaluationError, match=message):
            load_sts(StsSource(format="stsb", name="dev", path=str(root / name)))
