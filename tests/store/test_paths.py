"""Names in files stay inside their folder, and a path that is no regular file says what it is."""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm_ldlm.core.errors import UnsafePathError
from mm_ldlm.data.store.paths import check_name, inside, is_taken, problem, refuse_no_file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files, and links that stay inside, lead out, lead nowhere and form a loop."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("secret")
    root = tmp_path_factory.mktemp("root")
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_text("fine")
    (root / "a/good").symlink_to(root / "a/b/file")
    (root / "out").symlink_to(outside)
    sibling = root.with_name(f"{root.name}-2")  # a folder whose name begins like the root's
    sibling.mkdir()
    (sibling / "secret").write_text("secret")
    (root / "beside").symlink_to(sibling)
    (root / "a/leak").symlink_to(outside / "secret")
    (root / "again").symlink_to(root / "a")  # stays inside, and leads to links that do not
    (root / "a/nothing").symlink_to(outside / "nothing")
    (root / "a/up").symlink_to("../..")
    (root / "a/loop").symlink_to("loop")
    return root


FINE = ("a/good", "a/b/file", "missing", "a/b", "a/b/file/below")
PARTS = st.sampled_from(
    [
        "a",
        "b",
        "file",
        "good",
        "out",
        "beside",
        "leak",
        "again",
        "nothing",
        "up",
        "loop",
        "secret",
        "..",
        ".",
        "",
        "/",
        "x" * 300,
        "\0",
        "~",
        "\ud800",
    ]
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(name=st.lists(PARTS, max_size=5).map("/".join) | st.text(max_size=8))
@example(name="/etc/hostname")
@example(name="../secret")
@example(name="a/../a/b/file")
@example(name="beside/secret")
@example(name="again/leak")
@example(name="again/up/secret")
@example(name="a/good")
@example(name="a/b/file")
@example(name="a/b")
@example(name="a/b/file/below")
@example(name="missing")
@example(name="out/secret/below")
def test_a_name_never_leads_out(root: Path, name: str) -> None:
    try:
        path = inside(root, name)
    except UnsafePathError:
        assert name not in FINE
        return
    assert ".." not in path.parts
    assert Path(os.path.realpath(path)).is_relative_to(root.resolve())


ROOTS = ("link to the folder", "link to a link", "relative link", "link in the path", "name with ..")
"""Ways to reach the same folder by another path."""


def reached(root: Path, way: str, folder: Path) -> Path:
    """Another path of `root`, by links that are made in `folder`."""
    if way == "name with ..":
        return root / "a" / ".."
    links = {
        "link to the folder": {"link": root},
        "link to a link": {"first": root, "link": folder / "first"},
        "relative link": {"link": os.path.relpath(root, folder)},
        "link in the path": {"link": root.parent},
    }  # fmt: skip
    for name, target in links[way].items():
        (folder / name).symlink_to(target)
    return folder / "link" / root.name if way == "link in the path" else folder / "link"


@pytest.mark.parametrize("way", ROOTS)
def test_a_folder_that_is_reached_by_a_link_has_the_same_names(root: Path, way: str, tmp_path: Path) -> None:
    """A data folder may lie on another disk behind a link; only links below it can lead out of it."""
    other = reached(root, way, tmp_path)
    for name in (*FINE, "again", "again/b/file", "again/good", "again/none"):
        assert inside(other, name) == other / name
        assert str(check_name(other, name)) == name
        assert problem(other / name) == problem(root / name)
    for name in ("out", "out/secret", "beside/secret", "a/leak", "a/nothing", "a/up/x", "again/leak", "again/up"):
        with pytest.raises(UnsafePathError, match="symbolic link that leads out of the folder"):
            inside(other, name)
    assert is_taken(other)
    refuse_no_file(other / "again/good")


@pytest.mark.parametrize("name", [None, 5, ["a"], b"a"])
def test_a_name_that_is_no_text_is_refused(root: Path, name: object) -> None:
    with pytest.raises(UnsafePathError, match="instead of text"):
        inside(root, name)


def test_the_error_survives_a_process_boundary(root: Path) -> None:
    with pytest.raises(UnsafePathError) as caught:
        inside(root, "../x")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.detail) == (str(caught.value), caught.value.detail)


def test_what_is_no_regular_file_is_named(root: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # the address of a socket has at most 108 bytes
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
    expected = {
        root / "a/b/file": None,
        root / "a/good": None,
        root / "a": "is a folder",
        root / "missing": "does not exist",
        root / "a/b/file/x": "a part of its path is a file",
        root / "a/nothing": "symbolic link to a file that does not exist",
        root / "a/loop": "loop of symbolic links",
        tmp_path / "pipe": "named pipe",
        tmp_path / "socket": "socket",
        Path("/dev/null"): "device",
        tmp_path / ("x" * 300): "too long",
        tmp_path / "a\0b": "not a valid path",
        tmp_path / "a\ud800": "not a valid path",
    }
    for path, words in expected.items():
        found = problem(path)
        assert found is None if words is None else words in (found or ""), (path, found)
