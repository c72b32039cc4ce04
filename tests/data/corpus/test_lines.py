"""Lines and documents: encodings, compression, limits, and the vectors that belong to lines."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tests.data.corpus.examples import described, read, read_raw, reasons, texts

from mm_ldlm.core import ConfigurationError, SourceError
from mm_ldlm.data.corpus.sources import lines as module

RAW = "one\r\ntwo é\n\n\ufeffthree\nlast".encode()


def keys(path: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "text", "path": str(path), **more}


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_end_at_lf_and_the_first_byte_order_mark_is_dropped(tmp_path: Path, suffix: str, mark: bytes) -> None:
    path = tmp_path / f"a.txt{suffix}"
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    path.write_bytes(pack(mark + RAW))
    found = read(keys(path))
    assert texts(found) == ["one", "two é", "", "\ufeffthree", "last"]
    assert [row.line for row in found] == [1, 2, 3, 4, 5]
    if suffix:
        for end in range(1, len(path.read_bytes()) - 1, 7):
            path.write_bytes(pack(mark + RAW)[:end])
            with pytest.raises(SourceError, match="damaged"):
                read(keys(path))


def test_a_line_is_bounded_and_its_neighbours_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUFFER", 16)  # a long line is read in several pieces
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\n" + b"x" * 100 + b"\n" + b"y" * 10 + b"\nnul \0\n\xff\n" + b"z" * 50)
    found = read(keys(path), max_row_bytes=10)
    assert texts(found) == ["fine", "y" * 10]
    assert reasons(found) == ["oversized", "nul", "encoding", "oversized"]
    assert [row.line for row in found] == [1, 2, 3, 4, 5, 6]
    for raw, place in ((b"\xef\xbb\xbfa\xff", 4), (b"\xef\xbb\xbfab\nc\0", 7)):
        assert f"byte {place} of the file" in read_raw("text", raw)[-1].detail  # type: ignore[union-attr]


def test_a_document_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUFFER", 16)  # a piece of the long one ends with a line
    for name, raw in (("a", RAW), ("b", b""), ("c", (b"x" * 15 + b"\n") * 13), ("d", b"\xff\n")):
        (tmp_path / name).write_bytes(raw)
    found = read(keys(tmp_path / "*", unit="file"), max_row_bytes=95)
    assert texts(found) == [RAW.decode(), ""]
    assert reasons(found) == ["oversized", "encoding"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_text_whose_line_breaks_are_not_one_byte_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("some text\n".encode(encoding))
    with pytest.raises(SourceError, match="UTF-16"):
        read(keys(tmp_path / "a.txt"))


@pytest.mark.parametrize(
    "encoding", ["base64", "rot13", "undefined", "utf-16", "klingon", "", "a\0", "\ud800", "cp037"]
)
def test_encodings_of_anything_else_are_refused(encoding: str) -> None:
    with pytest.raises(ConfigurationError, match="encoding"):
        read(keys(Path("a"), encoding=encoding))


@pytest.mark.parametrize("encoding", ["cp1252", "idna", "koi8_r", "raw_unicode_escape", "shift_jis", "utf_7"])
def test_other_encodings_of_python_read_any_bytes(tmp_path: Path, encoding: str) -> None:
    inner = bytes(range(1, 256)).replace(b"\n", b"").replace(b"\r", b"")
    (tmp_path / "a").write_bytes(b"plain\n" + inner + b"\nlast\n")
    found = read(keys(tmp_path / "a", encoding=encoding))
    assert (len(found), texts(found[:1]), texts(found[2:])) == (3, ["plain"], ["last"])


@pytest.mark.parametrize("vectors", ["beside", "a.npy"])
def test_a_line_has_the_vector_of_its_number(tmp_path: Path, vectors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    array = np.arange(15, dtype=np.float32).reshape(5, 3)
    (tmp_path / "a.txt").write_bytes(RAW)
    np.save(tmp_path / "a.npy", array)
    found = read(keys(tmp_path / "a.txt", vectors=vectors))
    assert np.array_equal([row.vector for row in found], array)  # type: ignore[union-attr]
    known = described(keys(tmp_path / "a.txt", vectors=vectors))
    for wrong in (array[:4], np.ones((6, 3), np.float32)):
        np.save(tmp_path / "a.npy", wrong)
        assert described(keys(tmp_path / "a.txt", vectors=vectors)) != known
        with pytest.raises(SourceError, match="5 lines"):
            read(keys(tmp_path / "a.txt", vectors=vectors))
    if vectors != "beside":
        (tmp_path / "b.txt").write_bytes(RAW)
        with pytest.raises(SourceError, match="beside"):
            read(keys(tmp_path / "*.txt", vectors=vectors))
