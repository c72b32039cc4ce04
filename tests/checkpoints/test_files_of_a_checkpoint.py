"""The whole files of a checkpoint, the words about each fault of them, and the thread that writes them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.training.checkpoints.writer import Writer
from safetensors import SafetensorError

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training.checkpoints import folder, writer
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.reference import results_of


def contents(value: float = 1.0, **folders: Path) -> Contents:
    return Contents({"model.safetensors": {"w": torch.full((2, 3), value)}}, {"a.json": {"value": value}}, folders)


def test_the_marker_names_every_file_with_its_size_and_checksum(tmp_path: Path) -> None:
    (tmp_path / "tok" / "deep").mkdir(parents=True)
    (tmp_path / "tok" / "deep" / "b.txt").write_text("word")
    path = folder.write(tmp_path / "c", 12, contents(tok=tmp_path / "tok"))
    marker = json.loads((path / "COMPLETE").read_text())
    names = ("a.json", "model.safetensors", "tok/deep/b.txt")
    assert marker == {
        "format_version": 2,
        "step": 12,
        "files": {
            name: {
                "bytes": (path / name).stat().st_size,
                "sha256": hashlib.sha256((path / name).read_bytes()).hexdigest(),
            }
            for name in names
        },
    }
    assert list(marker["files"]) == sorted(names), "in a fixed order"
    assert folder.check(path) == marker
    assert json.loads((path / "a.json").read_text()) == {"value": 1.0}
    assert (path / "tok" / "deep" / "b.txt").read_text() == "word"


def test_tensors_of_any_memory_layout_are_written(tmp_path: Path) -> None:
    """As states of an optimizer may have it."""
    turned = torch.arange(6.0).reshape(2, 3).T
    assert not turned.is_contiguous()
    path = folder.write(tmp_path, 1, Contents({"o.safetensors": {"t": turned, "ids": torch.arange(3)}}, {}))
    found = folder.tensors(path, "o.safetensors")
    assert torch.equal(found["t"], turned)
    assert found["ids"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda path: (path / "a.json").unlink(), "a.json is missing."),
        (lambda path: (path / "a.json").write_text("12345"), "expected 17 bytes in a.json, found 5."),
        (lambda path: (path / "a.json").write_text('{\n "value": 2.0\n}\n'),
         "a.json is damaged (its checksum differs)."),
        (lambda path: (path / "more.json").touch(), "expected the checksum of more.json in COMPLETE, found none. "
         "Remove the file if it was added, or choose another checkpoint."),
    ],
    ids=["missing", "size", "bytes", "added"],
)  # fmt: skip
def test_each_fault_of_a_file_has_its_words(harm: Any, words: str, tmp_path: Path) -> None:
    path = folder.write(tmp_path, 5, contents())
    size = (path / "a.json").stat().st_size
    harm(path)
    with pytest.raises(CheckpointError) as refused:
        folder.check(path)
    assert str(refused.value) == f"{path}: {words.replace('17 bytes', f'{size} bytes')}"


GONE = "a file was deleted or moved during the training ({}). Restore it, then continue."
FORBIDDEN, FULL = "{}. Correct the permissions of the folder.", "{}. Free some disk space."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), GONE), (OSError("gone"), GONE),
        (OSError(errno.EACCES, "no"), FORBIDDEN), (OSError(errno.EPERM, "no"), FORBIDDEN),
        (OSError(errno.EROFS, "no"), FORBIDDEN), (OSError(errno.ENOSPC, "full"), FULL), (OSError(errno.EIO, "x"), FULL),
        (SafetensorError("full"), FULL),
    ],
    ids=str,
)  # fmt: skip
def test_every_error_of_a_write_has_its_remedy(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(folder, "save_file", fails)
    with pytest.raises(CheckpointError) as refused:
        folder.write(tmp_path, 5, contents())
    assert str(refused.value) == (
        f"checkpoint {tmp_path / 'step-00000005'} could not be written: {words.format(error)} Earlier checkpoints are "
        "unchanged."
    )
    assert refused.value.__cause__ is error
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_gone_or_empty_are_named_before_any_other_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("full", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "x").touch()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(folder, "save_file", fails)
    given = {name: tmp_path / name for name in ("full", "empty", "none")}
    with pytest.raises(CheckpointError) as refused:
        folder.write(tmp_path / "c", 5, contents(**given))
    words = f"{tmp_path / 'empty'}, {tmp_path / 'none'}, which every checkpoint contains, was deleted or moved during"
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["latest", "best"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "bytes", "long"])
def test_a_pointer_that_cannot_be_read_is_refused_at_once(kind: str, name: str, tmp_path: Path) -> None:
    """Reading a pipe would wait for a writer."""
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\xfe" if kind == "bytes" else b"../x")
    words = "expected the name of a checkpoint of this run" if kind == "long" else "not readable .* Remove it"
    with pytest.raises(CheckpointError, match=words):
        folder.pointer(tmp_path, name)


def test_a_pointer_is_one_line_with_the_name_of_a_folder(tmp_path: Path) -> None:
    path = folder.write(tmp_path, 5, contents())
    for name in ("latest", "best"):
        folder.point(tmp_path, name, path)
        assert (tmp_path / name).read_text() == "step-00000005\n"
        assert folder.pointer(tmp_path, name) == "step-00000005"


def test_the_run_that_saved_last_is_told_apart_within_a_second(tmp_path: Path) -> None:
    for name, nanoseconds in (("a", 5_000_000_200), ("b", 5_000_000_300), ("c", 5_000_000_100)):
        for step, more in ((1, -1000), (2, 0)):
            path = folder.write(tmp_path / name / "checkpoints", step, contents())
            os.utime(path / "COMPLETE", ns=(nanoseconds + more,) * 2)
    assert folder.newest_run(tmp_path) == tmp_path / "b"
    (tmp_path / "of one" / "checkpoints").mkdir(parents=True)
    assert folder.newest_run(tmp_path / "of one") == tmp_path / "of one"


def test_nothing_is_left_of_a_checkpoint_that_was_removed(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        folder.write(tmp_path, step, contents())
    assert folder.apply_retention(tmp_path, last=2, every=None) == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_the_folder_of_results_is_a_function_of_the_path_of_the_run() -> None:
    """The same run has the same folder in every version of the project."""
    for path, name in (("/runs/mine", "mine"), ("/runs/mine/checkpoints/step-00000005", "mine-step-00000005")):
        digest = hashlib.sha256(b"/runs/mine").hexdigest()[:8]
        assert results_of("out", path) == f"out/other_runs/{name}-{digest}"


# -- the writer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [True, False])
def test_a_checkpoint_is_written_by_a_thread_that_keeps_the_process_alive(
    background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ended before would leave no checkpoint."""
    seen: list[Any] = []
    now = [100.0]
    plain = folder.write

    def write(*given: Any) -> Path:
        seen.append(threading.current_thread())
        now[0] += 2.5
        return plain(*given)

    monkeypatch.setattr(folder, "write", write)
    monkeypatch.setattr(writer, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    reported: list[Any] = []
    made = Writer(
        tmp_path, keep_last=2, keep_every=None, background=background, report=lambda *given: reported.append(given)
    )
    made.save(3, contents(), best=True)
    made.wait()
    made.wait()  # nothing is left to wait for
    (thread,) = seen
    assert (thread.name, thread.daemon) == (("checkpoint", False) if background else ("MainThread", False))
    assert not background or not thread.is_alive()
    assert reported == [(3, 2.5, None)]
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "best", "step-00000003"}


@pytest.mark.parametrize(("last", "every", "left"), [(1, 4, [4, 8, 9]), (3, None, [7, 8, 9]), (2, 5, [5, 8, 9])])
def test_the_writer_keeps_what_it_was_told_to_keep(
    last: int, every: int | None, left: list[int], tmp_path: Path
) -> None:
    made = Writer(tmp_path, keep_last=last, keep_every=every, background=False, report=lambda *_: None)
    for step in range(1, 10):
        made.save(step, contents(), best=False)
        assert folder.pointer(tmp_path, "latest") == folder.name_of(step)
        assert folder.pointer(tmp_path, "best") is None
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == left
