"""What a user names is opened only if it is a regular file, as reading a device may never end (pipes: `test_pipes`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mm_ldlm.inference.inputs import read_npy, read_texts

from mm_ldlm import cli
from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.evaluation.config import TextFile
from mm_ldlm.evaluation.suites.likelihood import read_lines
from mm_ldlm.extras.foreign_checkpoints.importing import read_yaml

READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "texts": (read_texts, "'{path}' {fault}. Give a UTF-8 file with one text per line."),
    "vectors": (lambda path: read_npy(path, dim=3), "'{path}' {fault}. Give a .npy file of vectors."),
    "names of tensors": (read_yaml, "{path} {fault}. Give a YAML file."),
    "options": (cli._options_in, "--config: {path} {fault}. Give a YAML file with the options of `kedro run`."),
    "other texts": (
        lambda path: read_lines(TextFile(name="mine", path=str(path))),
        "The text 'mine' of evaluation.likelihood.other_texts: {path} {fault}. Correct its path, or remove the entry.",
    ),
}


@pytest.fixture(params=["a device", "a folder", "nothing", "a link to nothing"])
def place(request: Any, tmp_path: Path) -> tuple[Path, str]:
    """A path without a regular file, and how the refusal continues."""
    path = tmp_path / "x"
    if request.param == "a device":
        return Path("/dev/null"), "is a device"
    if request.param == "a folder":
        path.mkdir()
        return path, "is a folder"
    if request.param == "a link to nothing":
        path.symlink_to(tmp_path / "y")
        return path, "is a symbolic link to a file that does not exist"
    return path, "does not exist"


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_never_opened(reader: str, place: tuple[Path, str]) -> None:
    (read, message), (path, fault) = READERS[reader], place
    with pytest.raises(MMLDLMError) as raised:
        read(path)
    assert str(raised.value) == message.format(path=path, fault=fault)


@pytest.mark.parametrize(
    "content", [b"no gzip", b"\x1f\x8b\x08\x00", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff"]
)
def test_a_damaged_archive_of_other_texts_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(content)
    with pytest.raises(MMLDLMError, match=r"^The text 'mine' of .*t\.gz cannot be read \(.+\)\. Correct the file, or"):
        read_lines(TextFile(name="mine", path=str(path)))
