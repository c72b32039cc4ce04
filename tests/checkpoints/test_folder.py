from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from mm_ldlm.training.checkpoints.writer import Writer

from mm_ldlm.core import files as atomic
from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents


def contents(value: float = 1.0, **folders: Path) -> Contents:
    return Contents(
        {"model.safetensors": {"w": torch.full((8, 8), value)}}, {"training_state.json": {"step": 1}}, folders
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "a.json").write_text("{}")
    path = folder.write(tmp_path / "c", 12, contents(2.0, tokenizer=tmp_path / "tok"))
    assert path.name == "step-00000012"
    assert folder.step_of(path) == 12
    marker = folder.check(path)
    assert set(marker["files"]) == {"model.safetensors", "training_state.json", "tokenizer/a.json"}
    assert torch.equal(folder.tensors(path, "model.safetensors")["w"], torch.full((8, 8), 2.0))
    assert folder.document(path, "training_state.json") == {"step": 1}


@pytest.mark.parametrize("moment", ["tensors", "marker", "rename"])
def test_pitfall_22_a_fault_at_any_moment_leaves_the_checkpoint_before(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk full while tensors are written, before the marker, and at the rename."""
    folder.write(tmp_path, 5, contents(1.0))

    def full(*arguments: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if moment == "tensors":
        monkeypatch.setattr(folder, "save_file", full)
    elif moment == "marker":
        monkeypatch.setattr(folder, "file_sha256", full)
    else:
        monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="No space left"):
        folder.write(tmp_path, 10, contents(2.0))
    monkeypatch.undo()
    newest, damaged = folder.newest_whole(tmp_path)
    assert newest is not None
    assert folder.step_of(newest) == 5
    assert not damaged
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


@pytest.mark.parametrize("file", ["model.safetensors", "training_state.json", folder.MARKER])
@pytest.mark.parametrize("harm", ["truncated", "missing", "flipped"])
def test_a_damaged_checkpoint_is_refused_and_the_previous_one_used(file: str, harm: str, tmp_path: Path) -> None:
    folder.write(tmp_path, 5, contents())
    path = folder.write(tmp_path, 10, contents()) / file
    if harm == "missing":
        path.unlink()
    elif harm == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data))
    newest, _ = folder.newest_whole(tmp_path)
    assert newest is not None
    assert folder.step_of(newest) == 5


def test_an_older_checkpoint_is_used_only_when_requested(tmp_path: Path) -> None:
    folder.write(tmp_path, 5, contents())
    (folder.write(tmp_path, 10, contents()) / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"bytes in model\.safetensors, found 4.* request it by its step \(5\)"):
        folder.find(tmp_path)
    assert folder.step_of(folder.find(tmp_path, which="5")) == 5


def test_finding_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        folder.find(tmp_path)
    for step in (1, 2, 3):
        folder.write(tmp_path / "checkpoints", step, contents())
    folder.point(tmp_path / "checkpoints", "best", tmp_path / "checkpoints" / folder.name_of(2))
    assert folder.step_of(folder.find(tmp_path)) == 3
    assert folder.step_of(folder.find(tmp_path / "checkpoints", which="best")) == 2
    assert folder.step_of(folder.find(tmp_path, which="1")) == 1
    assert folder.find(tmp_path / "checkpoints/step-00000002").name == "step-00000002"
    with pytest.raises(CheckpointError, match="there are 1, 2, 3"):
        folder.find(tmp_path, which="9")
    with pytest.raises(CheckpointError, match="latest, best or a step"):
        folder.find(tmp_path, which="newest")


def test_of_a_folder_of_runs_the_newest_is_found(tmp_path: Path) -> None:
    for name, at in (("b", 2), ("a", 3), ("c", 1)):
        folder.write(tmp_path / name / "checkpoints", 1, contents())
        os.utime(tmp_path / name / "checkpoints" / folder.name_of(1) / folder.MARKER, (at, at))
    (tmp_path / "d" / "checkpoints" / folder.name_of(9)).mkdir(parents=True)  # never finished
    assert folder.newest_run(tmp_path) == tmp_path / "a"
    assert folder.newest_run(tmp_path / "c") == tmp_path / "c"
    assert folder.newest_run(tmp_path / "nothing") == tmp_path / "nothing"


def test_checkpoints_are_in_the_order_of_their_steps_whatever_their_digits(tmp_path: Path) -> None:
    for step in (100_000_000, 99_999_999, 1_000_000_000, 7):
        folder.write(tmp_path, step, contents())
    expected = [7, 99_999_999, 100_000_000, 1_000_000_000]
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == expected


def test_retention_keeps_the_last_every_nth_and_the_best(tmp_path: Path) -> None:
    for step in range(1, 12):
        folder.write(tmp_path, step, contents())
    folder.point(tmp_path, "best", tmp_path / folder.name_of(3))
    folder.apply_retention(tmp_path, last=2, every=4)
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [3, 4, 8, 10, 11]
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("background", [True, False])
def test_the_writer_reports_success_and_failure(
    background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, bool]] = []
    writer = Writer(
        tmp_path, keep_last=2, keep_every=None, background=background,
        report=lambda step, seconds, error: told.append((step, error is None)),
    )  # fmt: skip
    for step in (1, 2, 3):
        writer.save(step, contents(), best=step == 1)
    writer.wait()
    assert told == [(1, True), (2, True), (3, True)]
    assert writer.failed is None
    assert folder.pointer(tmp_path, "latest") == "step-00000003"
    assert folder.pointer(tmp_path, "best") == "step-00000001"

    def full(*arguments: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "save_file", full)
    writer.save(4, contents(), best=False)
    writer.wait()
    assert told[-1] == (4, False)
    assert writer.failed is not None
    assert folder.pointer(tmp_path, "latest") == "step-00000003"


def test_incomplete_folders_of_killed_writers_are_no_checkpoints(tmp_path: Path) -> None:
    folder.write(tmp_path, 5, contents())
    (tmp_path / ".tmp-abc-step-00000010").mkdir()
    (tmp_path / "step-00000020").mkdir()
    (tmp_path / "step-00000020" / "model.safetensors").write_bytes(b"half")
    newest, _ = folder.newest_whole(tmp_path)
    assert newest is not None
    assert folder.step_of(newest) == 5
    atomic.remove_temporaries(tmp_path)
    assert not list(tmp_path.glob(".tmp-*"))


def test_every_damaged_checkpoint_is_named_and_a_folder_without_runs_is_itself(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        folder.write(tmp_path, step, contents(float(step)))
    for step in (10, 15):
        (tmp_path / folder.name_of(step) / "training_state.json").unlink()
    newest, damaged = folder.newest_whole(tmp_path)
    assert newest == tmp_path / "step-00000005"
    assert [text.partition(":")[0].rpartition("/")[2] for text in damaged] == ["step-00000015", "step-00000010"]
    (tmp_path / "step-00000005" / "COMPLETE").unlink()
    assert folder.newest_whole(tmp_path)[0] is None
    (tmp_path / "empty").mkdir()
    assert folder.newest_run(tmp_path / "empty") == tmp_path / "empty"
    assert folder.newest_run(tmp_path / "nowhere") == tmp_path / "nowhere"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_document_is_json_or_no_checkpoint_is_written(number: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write(tmp_path, 5, Contents({}, {"training_state.json": {"loss": number}}))
    assert folder.all_in(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "expected a file x, found none"), (b"{", "not readable"), (b"[1]", r"expected a mapping, found \[1\]")],
)
def test_a_file_that_is_not_readable_is_named(content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        folder.document(tmp_path, "x")
    words = words if content is None else "not readable"
    with pytest.raises(CheckpointError, match=words):
        folder.tensors(tmp_path, "x")


def test_a_path_that_cannot_exist_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read \(File name too long\)"):
        folder.find(Path("x" * 300))
