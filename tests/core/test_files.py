"""Files: round trips, refusals of everything that is not what it should be, atomic writes, names inside a folder."""

import contextlib
import dataclasses
import gzip
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.kills import kills

from mm_ldlm.core import EvaluationError, StoreError, UnsafePathError, files
from mm_ldlm.core.files import (
    InputFile,
    inside,
    json_document,
    new_directory,
    recorded,
    write_bytes,
    write_json,
)
from mm_ldlm.data.corpus.quarantine import Unusable
from mm_ldlm.extras.layout.source import latent_of

REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


def door(path: Any, **options: Any) -> InputFile:
    return InputFile(path, remedy="Give another one.", error=EvaluationError, **options)


# -- what is written is read --------------------------------------------------------------------------------------------


@REUSED
@example(text="\ufeffa", value=None)
@given(text=TEXTS, value=JSON)
def test_texts_and_json_are_read_as_they_were_written(text: str, value: Any, tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.txt", text)
    assert door(tmp_path / "a.txt").text() == text.removeprefix("\ufeff")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert door(tmp_path / "a.txt.gz").text() == text.removeprefix("\ufeff")
    write_json(tmp_path / "a.json", value)
    assert door(tmp_path / "a.json").json() == value


@REUSED
@example(lines=["a", ""], end="\n", closed=True)
@given(
    lines=st.lists(st.text(st.sampled_from("ab \f\x85\u2028\t"))), end=st.sampled_from(["\n", "\r\n"]),
    closed=st.booleans(),
)  # fmt: skip
def test_lines_end_at_line_feeds_only(tmp_path: Path, lines: list[str], end: str, closed: bool) -> None:
    files.write_text(tmp_path / "a.txt", end.join(lines) + (end if lines and (closed or not lines[-1]) else ""))
    assert door(tmp_path / "a.txt").lines() == lines


@REUSED
@given(
    array=hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)), fortran=st.booleans()
)
def test_arrays_are_read_as_numpy_wrote_them(array: Any, fortran: bool, tmp_path: Path) -> None:
    array = np.asfortranarray(array) if fortran else array
    np.save(tmp_path / "a.npy", array, allow_pickle=False)
    found = door(tmp_path / "a.npy").array()
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert found.shape == array.shape


@REUSED
@given(st.data())
def test_a_damaged_array_is_refused_or_as_large_as_its_header_says(tmp_path: Path, data: st.DataObject) -> None:
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int16).reshape(2, 3))
    raw = bytearray((tmp_path / "a.npy").read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    damage = data.draw(st.sampled_from(["cut", "more", "changed"]))
    raw = raw[:place] if damage == "cut" else raw + b"x" * place if damage == "more" else raw
    if damage == "changed":
        raw[place] = data.draw(st.integers(0, 255))
    (tmp_path / "a.npy").write_bytes(raw)
    for read, error in (
        (door(tmp_path / "a.npy").array, EvaluationError), (lambda: latent_of(bytes(raw)), Unusable)
    ):  # fmt: skip
        with contextlib.suppress(error):
            assert (read().nbytes, damage == "more" and place > 0) == (12, False)


def test_pickled_objects_are_never_loaded(tmp_path: Path, refuses: Any) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with refuses(EvaluationError, "objects"):
        door(tmp_path / "a.npy").array()


# -- what is not a regular file is refused -------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Paths that are no regular file, by name."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "socket"))
        names = ("pipe", "dangling", "loop", "socket", "none", "x" * 300, "a\0b", "\ud800", "file/below")
        yield {name: tmp_path / name for name in names} | {"folder": tmp_path, "device": "/dev/null"}


def test_only_regular_files_are_opened(places: dict[str, Any], refuses: Any) -> None:
    for place in places.values():
        for read in (InputFile.check, InputFile.read, InputFile.text, InputFile.lines, InputFile.json, InputFile.array):
            with pytest.raises(EvaluationError):
                read(door(place))
        assert recorded(place) is None
    for name in ("pipe", "folder", "device", "none", "dangling"):
        with refuses(EvaluationError, "that it", "Give another one."):
            door(places[name], name="the set 'x'").text()


def test_a_file_is_read_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Any) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    monkeypatch.setattr(files, "_BLOCK", 33)  # of which the limits are multiples, and the file is none
    assert door(tmp_path / "a").read(most=100) == b"x" * 100
    with refuses(EvaluationError, "at most 99 bytes"):
        door(tmp_path / "a").read(most=99)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    monkeypatch.setattr(files, "MOST_BYTES", 1_000_000)
    with pytest.raises(EvaluationError):
        door(tmp_path / "bomb.gz").text()


@pytest.mark.parametrize(
    "raw", [b"\xff", b"{", b"", b"[" * 100_000, b"[" * 250 + b"]" * 250, b"nul", b'{"a": 1}{', b"9" * 5000]
)
def test_what_is_not_json_is_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(raw)
    with pytest.raises(EvaluationError, match=r"expected .* found .* Give another one"):
        door(tmp_path / "a.json").json()
    (tmp_path / "a.gz").write_bytes(gzip.compress(raw)[:-3])
    with pytest.raises(EvaluationError):
        door(tmp_path / "a.gz").text()


@json_document
class Inner:
    name: str
    size: int | None = None


@json_document
class Outer:
    inner: tuple[Inner, ...]
    by_name: dict[str, float]
    plain: Any = None


def test_json_becomes_the_expected_type_and_nothing_else(tmp_path: Path, refuses: Any) -> None:
    whole = Outer((Inner("a", 1), Inner("b")), {"x": 1.5, "y": 2}, {"any": [1]})
    plain = dataclasses.asdict(whole)
    write_json(tmp_path / "a.json", plain)
    assert door(tmp_path / "a.json").json(Outer) == whole
    wrong: list[Any] = [
        [], None, {}, plain | {"more": 1}, plain | {"inner": {}}, plain | {"inner": [{"name": 1}]}, plain | {"by_name": []},
        plain | {"by_name": {"x": "1"}}, plain | {"by_name": {"x": True}}, plain | {"inner": [{"name": "a", "size": 1.5}]},
    ]  # fmt: skip
    for value in wrong:
        write_json(tmp_path / "b.json", value)
        with refuses(EvaluationError, "b.json"):
            door(tmp_path / "b.json").json(Outer)
        assert recorded(tmp_path / "b.json", Outer) is None


# -- atomic writes -------------------------------------------------------------------------------------------------------


def test_pitfall_22_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"old")
    for _ in kills(lambda: write_bytes(tmp_path / "a", b"new")):
        assert (tmp_path / "a").read_bytes() in (b"old", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    (tmp_path / ".tmp-of-another-program").mkdir()
    files.remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-of-another-program", "a"]


def fill(place: Path, content: str) -> None:
    with new_directory(place) as folder:
        for name in ("x", "y"):
            (folder / name).write_text(content)


def test_a_killed_writer_leaves_the_old_folder_the_new_one_or_none(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    fill(place, "old")
    for _ in kills(lambda: fill(place, "new")):
        if place.exists():
            assert {path.read_text() for path in place.iterdir()} in ({"old"}, {"new"})
            assert len(list(place.iterdir())) == 2
        fill(place, "old")
    assert {path.read_text() for path in place.iterdir()} == {"new"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_bytes_are_on_the_disk_before_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, sync, replace = list[str](), os.fsync, os.replace

    def synced(descriptor: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').resolve().name[-5:]}")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda old, new: (events.append("rename"), replace(old, new)))
    folder = tmp_path / "f"
    write_bytes(folder / "a.bin", b"x")
    assert events == ["sync a.bin", "rename", "sync f"]
    events.clear()
    with new_directory(folder) as directory:
        (directory / "b.bin").write_bytes(b"x")
    assert events == ["sync b.bin", "rename", "rename", f"sync {tmp_path.name[-5:]}"]


def test_a_failed_write_changes_nothing(places: dict[str, Any], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a", float("nan"))
    for write in (fill, write_bytes):
        with pytest.raises(TypeError):
            write(tmp_path / "b", None)  # type: ignore[operator]
    for name in ("pipe", "device", "folder"):
        with pytest.raises(StoreError):
            write_bytes(places[name], b"x")
    for name in ("pipe", "device"):
        with pytest.raises(StoreError), new_directory(places[name]):
            pass
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_to_a_folder_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "target", "old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with new_directory(tmp_path / "other"):  # two writers at a time
        fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target" / "x").read_text() == "new"


# -- names inside a folder -----------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A link to a folder with a link inside, one to a folder whose name begins alike, and one that is a loop."""
    root, folder = tmp_path / "root", tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "inner").symlink_to("sub")
    (folder / "outer").symlink_to(tmp_path / "folder-2")
    (folder / "loop").symlink_to("loop")
    root.symlink_to(folder)
    return root


@REUSED
@given(parts=st.lists(st.sampled_from(["sub", "inner", "outer", "loop", "..", ".", "", "a\0b", "\ud800", "new", "/etc"]),
                      max_size=4))  # fmt: skip
def test_pitfall_29_a_name_resolves_inside_its_folder_or_is_refused(parts: list[str], root: Path) -> None:
    try:
        found = inside(root, "/".join(parts))
    except UnsafePathError:
        assert {*parts} - {"sub", "inner", "new", ".", ""} or not {*parts} - {".", ""} or not parts[0]
        return
    assert Path(os.path.realpath(found)).is_relative_to(os.path.realpath(root))
    assert ".." not in parts
    assert [part for part in parts if part not in ("", ".")][:1] != ["outer"]


@pytest.mark.parametrize("name", [None, 1, "", ".", "/etc/passwd", "../x", "outer/x"])
def test_a_name_that_leads_out_is_refused(name: Any, root: Path, refuses: Any) -> None:
    with refuses(UnsafePathError):
        inside(root, name)


# -- every reader uses the door ------------------------------------------------------------------------------------------


def _readers() -> dict[str, Callable[[Path], Any]]:
    from mm_ldlm import cli
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer, base_from_path
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.data.latents.normaliser import Normaliser
    from mm_ldlm.data.store import Manifest
    from mm_ldlm.inference.files import read_array, read_texts
    from mm_ldlm.training.spec import TrainingSpec

    return {
        "manifest.json": lambda path: Manifest.read(path.parent),
        "dataset.json": lambda path: Dataset.open(path.parent),
        "normaliser.json": lambda path: Normaliser.load(path.parent),
        "vocabulary.json": lambda path: TextTokenizer.load(path.parent),
        "own.json": lambda path: base_from_path(path, lowercase=True),
        "vocab.txt": lambda path: base_from_path(path, lowercase=True),
        "texts.txt": read_texts,
        "vectors.npy": read_array,
        "spec.json": TrainingSpec.read,
        "run.yml": cli._options_in,
    }


@pytest.mark.parametrize("name", _readers())
@pytest.mark.parametrize("kind", ["pipe", "nothing", "device"])
def test_no_reader_waits_for_a_pipe_or_a_device(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "device":
        path.symlink_to("/dev/zero")
    with pytest.raises(files.MMLDLMError):
        _readers()[name](path)
