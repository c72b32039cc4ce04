"""Damaged checkpoint folders: wrong markers, unlisted files, copies beside the originals, stores that disappeared."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from damage import damaged
from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents


def contents(**folders: Path) -> Contents:
    return Contents({"model.safetensors": {"w": torch.ones(4)}}, {"training_state.json": {"step": 1}}, folders)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x40
    file.write_bytes(bytes(data))


def test_every_damaged_marker_is_refused(tmp_path: Path) -> None:
    path = folder.write(tmp_path, 5, contents())
    marker = path / folder.MARKER
    document = json.loads(marker.read_text())
    for change, other in damaged(document):
        marker.write_text(json.dumps(other))
        if isinstance(other, dict) and other.get("step") not in (5, True) and other | {"step": 5} == document:
            continue  # another number as the step: the name of the folder says which step it is
        with pytest.raises(CheckpointError, match="step-00000005"):
            pytest.fail(f"accepted: {change}: {folder.check(path)}")


@pytest.mark.parametrize(
    ("step", "good"),
    [(-1, False), (0, True), (2**63 - 1, True), (2**63, False), (True, False), (1.0, False), ("1", False)],
)
def test_the_step_of_a_marker_is_a_number_that_int64_holds(step: Any, good: bool, tmp_path: Path) -> None:
    """Under another name, the marker alone says which step a checkpoint is."""
    path = folder.write(tmp_path, 5, contents()).rename(tmp_path / "renamed")
    marker = json.loads((path / folder.MARKER).read_text())
    (path / folder.MARKER).write_text(json.dumps({**marker, "step": step}))
    if good:
        assert folder.step_of(path) == step
    else:
        with pytest.raises(CheckpointError, match="expected a step, found"):
            folder.step_of(path)


@pytest.mark.parametrize("listed", [{}, {"training_state.json"}, {"model.safetensors"}])
def test_a_marker_cannot_switch_off_the_checksums_of_a_file(listed: set[str], tmp_path: Path) -> None:
    path = folder.write(tmp_path, 5, contents())
    marker = json.loads((path / folder.MARKER).read_text())
    files = {name: promised for name, promised in marker["files"].items() if name in listed}
    (path / folder.MARKER).write_text(json.dumps({**marker, "files": files}))
    with pytest.raises(CheckpointError, match=r"expected the (files|checksum)"):
        folder.check(path)
    assert folder.newest_whole(tmp_path)[0] is None


@pytest.mark.parametrize("how", ["path", "latest", "5", "best"])
def test_a_changed_byte_is_found_however_the_checkpoint_is_named(how: str, tmp_path: Path) -> None:
    path = folder.write(tmp_path, 5, contents())
    folder.point(tmp_path, "best", path)
    name = (path, "latest") if how == "path" else (tmp_path, how)
    assert folder.find(name[0], which=name[1]) == path
    flip(path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        folder.find(name[0], which=name[1])


@pytest.mark.parametrize(
    "name", ["step-00000060 (copy)", "step-00000060.bak", "step-", "step-x", "step-00000060~", "step-６０", "step--1"]
)
def test_a_copied_folder_disturbs_no_run_and_can_be_named(name: str, tmp_path: Path) -> None:
    original = folder.write(tmp_path, 60, contents())
    folder.write(tmp_path, 20, contents())
    copy = shutil.copytree(original, tmp_path / name)
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [20, 60]
    assert folder.newest_whole(tmp_path)[0] == original
    assert folder.apply_retention(tmp_path, last=1, every=None) == [20]
    assert copy.is_dir()
    assert folder.step_of(folder.find(copy)) == 60


def test_a_copy_under_the_name_of_another_step_is_no_checkpoint_of_that_step(tmp_path: Path) -> None:
    """It counted as the newest one, so the checkpoints of the training that followed were removed in its favour."""
    shutil.copytree(folder.write(tmp_path, 6, contents()), copy := tmp_path / "step-00000099")
    newest = folder.write(tmp_path, 12, contents())
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [6, 12]
    assert folder.find(tmp_path) == newest
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 99; there are 6, 12"):
        folder.find(tmp_path, which="99")
    assert folder.apply_retention(tmp_path, last=1, every=None) == [6]
    assert folder.step_of(folder.find(copy)) == 6


def test_the_record_of_verified_files_is_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "manifest.json").write_text("{}")
    (tmp_path / "store" / ".verified").write_text("part-000000.arrow 1 2 3 x\n")
    path = folder.write(tmp_path / "c", 5, contents(store=tmp_path / "store"))
    assert not (path / "store" / ".verified").exists()
    (path / "store" / ".verified").write_text("written when the store in the checkpoint is read\n")
    folder.check(path)


@pytest.mark.parametrize("left", ["nothing", "a file fewer"])
def test_a_store_that_was_deleted_during_training_is_named(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "tokenizer"
    if left == "a file fewer":
        store.mkdir()
        (store / "a.json").write_text("{}")

        def gone(*arguments: Any, **named: Any) -> None:
            raise shutil.Error([(str(store / "b.json"), "", "[Errno 2] No such file or directory")])

        monkeypatch.setattr(folder.shutil, "copytree", gone)
    with pytest.raises(CheckpointError, match=r"deleted or moved during the training") as raised:
        folder.write(tmp_path / "c", 5, contents(tokenizer=store))
    assert "tokenizer" in str(raised.value)
    assert "disk space" not in str(raised.value)


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "Free some disk space"), (errno.EROFS, "Correct the permissions")]
)
def test_a_failed_write_names_its_remedy(
    number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **named: Any) -> None:
        raise OSError(number, "why")

    monkeypatch.setattr(folder, "save_file", fails)
    with pytest.raises(CheckpointError, match=words):
        folder.write(tmp_path, 5, contents())


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_a_pointer_names_a_folder_beside_it(pointer: str, tmp_path: Path) -> None:
    """A whole checkpoint inside another folder of the run is none of its checkpoints."""
    folder.write(tmp_path / "elsewhere", 5, contents())
    (tmp_path / pointer).write_text("elsewhere/step-00000005\n")
    with pytest.raises(CheckpointError, match="the name 'elsewhere/step-00000005' contains a folder"):
        folder.pointer(tmp_path, pointer)


@pytest.mark.parametrize("name", ["more.safetensors", "more.json", "tokenizer/more.json", "token_clusters/more.arrow"])
def test_every_file_that_is_read_has_a_checksum(name: str, tmp_path: Path) -> None:
    path = folder.write(tmp_path, 5, contents())
    (path / "notes.txt").touch()  # is not read
    folder.check(path)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=f"expected the checksum of {name} in COMPLETE, found none"):
        folder.check(path)
