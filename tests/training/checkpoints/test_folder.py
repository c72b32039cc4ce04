"""Checkpoint folders: a kill at every write leaves one that can be used; what is named and not whole is refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import CheckpointError
from mm_ldlm.core.files import remove_temporaries
from mm_ldlm.data.store.manifest import VERIFIED
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import MARKER, all_in, chosen_run, latest, name_of, pointed, weights_folder


def write(directory: Path, step: int, *folders: Path, called: str | None = None) -> Path:
    """Write a checkpoint whose weights are the number of its step."""
    tensors = {"model.safetensors": {"w": torch.full((3,), float(step))}, "ema.safetensors": {"w": torch.zeros(2, 3).T}}
    documents = {"training_state.json": {"state": {"step": step}}}
    named = {path.name: path for path in folders}
    return folder.write(directory, step, tensors=tensors, documents=documents, folders=named, called=called)


def run_of(root: Path, *steps: int) -> Path:
    """Write a run with checkpoints of these steps; return their folder."""
    directory = root / "run" / "checkpoints"
    directory.mkdir(parents=True, exist_ok=True)
    (root / "tokenizer").mkdir(exist_ok=True)
    (root / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    (root / "tokenizer" / VERIFIED).write_text("a record that readers write again")
    for step in steps:
        write(directory, step, root / "tokenizer")
    (root / "run" / "config.json").write_text(json.dumps({"model": {}, "objective": {}}))
    return directory


def loaded(path: Path) -> float:
    return float(folder.tensors(path, "model.safetensors")["w"][0])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    directory = run_of(tmp_path, 2, 4)
    assert [path.name for path in all_in(directory)] == ["step-00000002", "step-00000004"]
    for which, step in (("latest", 4), ("2", 2)):
        found = folder.find(tmp_path / "run", which=which)
        assert (loaded(found), folder.step_of(found)) == (step, step)
        assert folder.document(found, "training_state.json") == {"state": {"step": step}}
        assert [path.name for path in (found / "tokenizer").iterdir()] == ["vocab.txt"]
        assert (found / "tokenizer" / "vocab.txt").read_text() == "a\nb\n"
    folder.point(directory, "best", directory / name_of(2))
    assert folder.find(tmp_path / "run", which="best").name == name_of(2)


class Killed(BaseException):
    """Stands for SIGKILL: nothing is cleaned up."""


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, work: Callable[[], Any]) -> int:
    """Do some work that is killed at its n-th operation on files; return how many there were."""
    count = 0

    def killing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keys: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise Killed
            return real(*arguments, **keys)

        return call

    with monkeypatch.context() as patch:
        for module, names in ((os, ("replace", "fsync", "unlink")), (Path, ("unlink", "mkdir", "write_text")),
                              (folder, ("save_file",)), (shutil, ("copytree",))):  # fmt: skip
            for name in names:
                patch.setattr(module, name, killing(getattr(module, name)))
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process removes nothing
        try:
            work()
        except Killed:
            return count
    return count


def test_pitfall_22_a_kill_at_every_write_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        write(directory, 6, root / "tokenizer")
        folder.apply_retention(directory, last=1, every=None)

    at, seen, root = 0, set(), tmp_path
    while True:
        at += 1
        root = tmp_path / str(at)
        root.mkdir()
        directory = run_of(root, 2, 4)
        count = interrupted(monkeypatch, at, work)
        found = folder.find(root / "run")
        assert loaded(found) == folder.step_of(found)
        seen.add(folder.step_of(found))
        work()  # the next session writes it again
        assert [path.name for path in all_in(directory)] == [name_of(6)]
        assert loaded(folder.find(root / "run")) == 6
        remove_temporaries(directory)  # as every session
        assert {path.name for path in directory.iterdir()} == {name_of(6), "latest"}
        if count < at:
            break
    assert seen == {4, 6}
    assert at > 8


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no marker": lambda path: (path / MARKER).unlink(),
    "another step in it": lambda path: (path / MARKER).write_text((path / MARKER).read_text().replace(": 4", ": 3")),
    "renamed": lambda path: path.rename(path.with_name("kept-elsewhere")),
    "renamed to a later step": lambda path: path.rename(path.with_name(name_of(9))),
    "removed": shutil.rmtree,
    "emptied": lambda path: [file.unlink() for file in path.rglob("*") if file.is_file()],
    "one byte": lambda path: flip(path / "model.safetensors"),
    "shorter": lambda path: os.truncate(path / "model.safetensors", 40),
    "weights added": lambda path: shutil.copy(path / "model.safetensors", path / "other.safetensors"),
    "rows added in a folder": lambda path: (path / "tokenizer" / "rows.arrow").write_bytes(b""),
    "a file removed": lambda path: (path / "ema.safetensors").unlink(),
    "a folder removed": lambda path: shutil.rmtree(path / "tokenizer"),
    "a link elsewhere": lambda path: (path.rename(path.parents[2] / "x"), path.symlink_to(path.parents[2] / "x")),
}


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", DAMAGES)
def test_pitfall_38_the_latest_checkpoint_is_refused_if_it_is_not_whole(
    damage: str, tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    DAMAGES[damage](run_of(tmp_path, 2, 4) / name_of(4))
    with refuses(CheckpointError, name_of(2)):
        folder.find(tmp_path / "run")
    assert loaded(folder.find(tmp_path / "run", which="2")) == 2


@pytest.mark.parametrize("pointer", [True, False])
def test_a_newer_folder_counts_as_the_latest_even_if_the_pointer_is_older(pointer: bool, tmp_path: Path) -> None:
    directory = run_of(tmp_path, 2, 4)
    if pointer:
        folder.point(directory, "latest", directory / name_of(2))
    else:
        (directory / "latest").unlink()
    assert latest(directory) == directory / name_of(4)
    (directory / name_of(4) / MARKER).unlink()
    with pytest.raises(CheckpointError, match=name_of(4)):
        folder.find(tmp_path / "run")


def test_pitfall_38_a_run_json_that_names_a_later_checkpoint_is_not_served_an_older_one(
    tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    directory = run_of(tmp_path, 2, 4)
    reference = {"name": "run", "checkpoint": name_of(4)}
    assert weights_folder(tmp_path, reference) == tmp_path / "run"
    shutil.rmtree(directory / name_of(4))
    folder.point(directory, "latest", directory / name_of(2))
    with refuses(CheckpointError, name_of(4), name_of(2)):
        weights_folder(tmp_path, reference)
    assert weights_folder(tmp_path, {**reference, "checkpoint": name_of(1)}) == tmp_path / "run"
    with refuses(CheckpointError, name_of(4)):
        chosen_run(str(directory / name_of(4)))


@given(last=st.integers(1, 4), every=st.none() | st.integers(1, 4), best=st.integers(1, 9))
def test_retention_keeps_the_newest_multiples_and_the_best(
    tmp_path_factory: pytest.TempPathFactory, last: int, every: int | None, best: int
) -> None:
    directory, steps = tmp_path_factory.mktemp("kept"), range(99_999_991, 100_000_009)  # the names become longer
    for step in steps:
        (directory / name_of(step)).mkdir()
    folder.point(directory, "best", directory / name_of(steps[best]))
    folder.apply_retention(directory, last=last, every=every)
    kept = {step for step in steps if step in (*steps[-last:], steps[best]) or (every and step % every == 0)}
    assert all_in(directory) == [directory / name_of(step) for step in sorted(kept)]


@pytest.mark.parametrize(
    "marker",
    ["", "[]", "{}", "nan", '{"format_version": 2, "step": 4, "files": {}}',
     '{"format_version": 1, "step": 4, "files": {"a": {"bytes": 1, "sha256": "x"}}}',
     '{"format_version": 2, "step": "4", "files": {"a": {"bytes": 1, "sha256": "x"}}}',
     '{"format_version": 2, "step": 4, "files": {"a": {"bytes": -1, "sha256": "x"}}}',
     '{"format_version": 2, "step": 4, "files": {"a": [1, "x"]}}',
     '{"format_version": 2, "step": 4, "files": {"../../x": {"bytes": 1, "sha256": "x"}}}',
     '{"format_version": 2, "step": 4, "files": {"/etc/passwd": {"bytes": 1, "sha256": "x"}}}',
     "[" * 10_000],
)  # fmt: skip
def test_pitfall_29_hostile_markers_are_refused(marker: str, tmp_path: Path) -> None:
    (run_of(tmp_path, 2, 4) / name_of(4) / MARKER).write_text(marker)
    with pytest.raises(CheckpointError, match=name_of(4)):
        folder.find(tmp_path / "run")


@pytest.mark.parametrize("text", ["../other", "/etc", "step-1", "", "step-00000004\nx", "latest", "\0"])
def test_pitfall_29_hostile_pointers_are_refused(text: str, tmp_path: Path) -> None:
    directory = run_of(tmp_path, 2, 4)
    (directory / "latest").write_text(text)
    with pytest.raises(CheckpointError, match="latest"):
        folder.find(tmp_path / "run")
    (directory / "latest").unlink()
    os.mkfifo(directory / "latest")
    with pytest.raises(CheckpointError, match="FIFO"):
        pointed(directory, "latest")


@pytest.mark.parametrize("value", ['{"lr_scale": NaN}', '{"windows": [[1.0, Infinity]]}', '{"x": 1e999}', "[1]", '"x"'])
def test_pitfall_39_numbers_that_are_not_finite_are_refused(value: str, tmp_path: Path) -> None:
    (tmp_path / "training_state.json").write_text(value)
    with pytest.raises(CheckpointError, match=r"training_state\.json"):
        folder.document(tmp_path, "training_state.json")


@pytest.mark.parametrize("which", ["first", "-1", "1.5", "²"])
def test_checkpoints_are_named_by_words_or_steps(which: str, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    run_of(tmp_path, 2)
    with refuses(CheckpointError, which):
        folder.find(tmp_path / "run", which=which)
    with refuses(CheckpointError, "best", name_of(2), "`--checkpoint latest`"):
        folder.find(tmp_path / "run", which="best")
    with refuses(CheckpointError, "latest"):
        folder.find(tmp_path / "none")


def test_a_copy_under_another_name_can_be_used_but_is_not_the_latest(tmp_path: Path) -> None:
    directory = run_of(tmp_path, 2, 4)
    write(directory, 6, called="mine")
    assert folder.find(directory / "mine") == directory / "mine"
    assert folder.step_of(directory / "mine") == 6
    assert folder.find(directory) == directory / name_of(4)
    assert chosen_run(str(directory / "mine"))["checkpoint"] == "mine"
    flip(directory / "mine" / "model.safetensors")
    with pytest.raises(CheckpointError, match="damaged"):
        folder.find(directory / "mine")
