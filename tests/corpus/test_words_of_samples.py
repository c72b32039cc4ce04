"""The messages of samples with images and of layouts that are none, word for word, and limits that reach readers."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig, columnar
from mm_ldlm.data.corpus.sources.fields import Undecodable, Unreadable, rows_of
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.families.images import digits, image_folder
from mm_ldlm.families.images.decoding import ImageLimits, UnusableImage, read_image


def read(*, max_row_bytes: int = 5_000, images: Any = None, **keys: Any) -> list[Row | BadRow]:
    config = parse(SourceConfig, keys, at="source")
    return list(open_source(config, seed=0, max_row_bytes=max_row_bytes, images=images).rows())


def refused(**keys: Any) -> str:
    with pytest.raises(SourceError) as raised:
        read(**keys)
    return str(raised.value)


def png(side: int = 2) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.arange(side * side, dtype=np.uint8).reshape(side, side)).save(sink, "PNG")
    return sink.getvalue()


# -- images ------------------------------------------------------------------------------------------------------------


def tar(path: Path, members: list[tuple[str, bytes]]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return str(path)


def test_samples_of_an_archive_that_cannot_be_used_are_told_whole(tmp_path: Path) -> None:
    deep = b"[" * 5_000
    file = tar(tmp_path / "a.tar", [
        ("a.png", png()), ("a.txt", b"first"), ("a.PNG", png()), ("f.1/b.png", png()), ("f.1/b.json", b"[1]"),
        ("c.png", png()), ("c.json", b"{"), ("d.png", png()), ("d.txt", b"caf\xe9"), ("e.txt", b"x"), ("g.bin", b""),
        ("h.gif", b"none"), ("h.txt", b"x"), ("i.png", png()), ("i.json", b'{"k": 2, "text": "z"}'),
        ("i.txt", b"caption"), ("j.png", png()), ("j.json", b'{"text": "z", "words": 1}'), ("j.txt", b"t"),
    ])  # fmt: skip
    rows = read(kind="webdataset", path=file, columns=["words"], meta_columns=["k"], max_row_bytes=len(deep) + 1)
    named = "expected one image (png, jpg, jpeg, webp, bmp, gif)"
    bad = [tuple(row) for row in rows if isinstance(row, BadRow)]
    assert [each[:4] for each in bad if each[1] != 7] == [
        (file, 1, "wrong_type", "sample 'a': several members end in .png"),
        (file, 2, "wrong_type", "sample 'f.1/b': .json contains a list, expected an object"),
        (file, 3, "broken_json", "sample 'c': .json: Expecting property name enclosed in double quotes: line 1 column "
         "2 (char 1)"),
        (file, 4, "encoding", "sample 'd': .txt is not UTF-8 ('utf-8' codec can't decode byte 0xe9 in position 3: "
         "unexpected end of data)"),
        (file, 5, "missing_file", f"sample 'e': {named}, found txt"),
        (file, 6, "missing_file", f"sample 'g': {named}, found bin"),
        (file, 9, "wrong_type", "sample 'j': both .json and .txt contain words"),
    ]  # fmt: skip
    assert next(each for each in bad if each[1] == 7)[2] == "broken_image"
    (row,) = (row for row in rows if isinstance(row, Row))
    meta = json.loads(row.meta or "")
    assert (row.text, row.line, meta["k"], meta["image"]["bytes"]) == ("caption", 8, 2, len(png()))


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "csv.gz"])
def test_images_that_cannot_be_read_are_told_whole(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no.png").write_bytes(png())
    (tmp_path / "d").mkdir()
    path, named = tmp_path / f"a.{suffix}", ["no.png", "../x.png", "d", "gone.png"]
    text = "pic,text\n" + "".join(f"{name},t\n" for name in named)
    if suffix == "jsonl":
        text = "".join(json.dumps({"pic": name, "text": "t"}) + "\n" for name in named)
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())

    def forbidden(data: bytes, *, limits: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(image_folder, "decode", forbidden)
    first, file = 1 + ("csv" in suffix), str(path)
    rows = read(kind="image_folder", path=file, image_column="pic", images=ImageLimits())
    assert [tuple(row) for row in rows] == [
        (file, first, "unreadable_file", "image 'no.png': Permission denied", "t"),
        (file, first + 1, "unsafe_path", "image: the name '../x.png' leads out of the folder", "t"),
        (file, first + 2, "missing_file", "image 'd' is a folder", "t"),
        (file, first + 3, "missing_file", "image 'gone.png' does not exist", "t"),
    ]


def test_the_limits_of_images_reach_their_readers(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(4))
    (tmp_path / "a.jsonl").write_text('{"image": "a.png", "text": "t"}\n')
    file = tar(tmp_path / "a.tar", [("a.png", png(4)), ("a.txt", b"t")])
    for keys in ({"kind": "image_folder", "path": str(tmp_path / "a.jsonl")}, {"kind": "webdataset", "path": file}):
        assert [type(row) for row in read(**keys, images=ImageLimits(max_pixels=16))] == [Row]
        (bad,) = read(**keys, images=ImageLimits(max_pixels=15))
        assert isinstance(bad, BadRow)
        assert (bad.reason, bad.detail.partition(": ")[2]) == (
            "oversized", "4 × 4 pixels, at most 15 are decoded"
        )  # fmt: skip


def test_the_description_of_the_digits_has_what_decides_the_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1), (3, 4)
    monkeypatch.setattr(digits, "digits", lambda: (pixels, labels))
    made_of = parse(SourceConfig, {"kind": "digits"}, at="s")
    found = [open_source(made_of, seed=seed, max_row_bytes=9).describe() for seed in (3, 3, 4)]
    assert found[0] == found[1] != found[2]
    for name, value in (("CAPTIONS", ("a {}",)), ("digits", lambda: (pixels, labels[::-1])),
                        ("digits", lambda: (pixels[::-1], labels))):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(digits, name, value)
            assert open_source(made_of, seed=3, max_row_bytes=9).describe() != found[0]


def test_a_layout_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("")
    layout = {"kind": "layout", "name": "mine"}
    give = "Give a folder or a .zip of the folder layout."
    assert refused(**layout, path="none") == f"none does not exist (working directory {tmp_path}). {give}"
    assert refused(**layout, path="a.txt") == f"a.txt is neither a folder nor a .zip. {give}"
    source: Any = open_source(parse(SourceConfig, {**layout, "path": ["none"]}, at="s"), seed=0, max_row_bytes=9)
    with pytest.raises(SourceError, match=r"^none does not exist"):
        source.describe()
    (tmp_path / "old").mkdir()
    lists = "expected train_data.json, validation_data.json, test_data.json"
    assert refused(**layout, path="old") == (
        f"old: {lists}, texts/<split>/*.txt or tokens/<split>/*.npz, found neither. Check that the path points to a "
        "folder layout."
    )
    (tmp_path / "old/texts/other").mkdir(parents=True)
    (tmp_path / "old/texts/other/a.txt").write_text("a")
    assert refused(**layout, path="old") == (
        f"old: {lists} or texts/<split>/*.txt, found neither. Check that the path points to a folder layout."
    )
    (tmp_path / "old/texts/dev").mkdir()
    (tmp_path / "old/texts/dev/a.txt").write_text("a")
    assert read(**layout, path="old") == [
        Row("a", "old/texts/dev/a.txt", 1, "validation"),
        BadRow("old/texts/other/a.txt", 2, "unlisted_file",
               "expected texts/<split>/*.txt with train, validation, test, valid, dev, val: it is not read"),
    ]  # fmt: skip
    for raw, words in ((b"[1", "not readable as JSON (Expecting ',' delimiter: line 1 column 3 (char 2)). Write the "
                        "list again."), (b"5", "expected a JSON list of objects, found int."),
                       (b"[[]]", "expected a JSON list of objects, found list."),
                       (b'{"data": {}}', "expected a JSON list of objects, found dict.")):  # fmt: skip
        (tmp_path / "old/test_data.json").write_bytes(raw)
        assert refused(**layout, path="old") == f"old/test_data.json: {words}"


# -- cells and images that cannot be read ------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [Undecodable(b"caf\xe9"), Unreadable("OverflowError: date value out of range")])
def test_a_cell_that_cannot_be_read_is_told_in_every_column(cell: Any) -> None:
    """That of a text, of a vector and of further columns."""
    why = "its bytes are not valid UTF-8" if isinstance(cell, Undecodable) else cell.detail
    own = ("encoding", "column 'c' has the type text, but its bytes are not valid UTF-8", "caf\\xe9")
    for keys, fields, bad in (
        ({"columns": ["c", "t"]}, {"c": cell, "t": "fine"},
         own if isinstance(cell, Undecodable) else ("wrong_type", f"column 'c' cannot be read: {why}", "")),
        ({"vector_column": "c", "columns": ["t"]}, {"c": cell, "t": "a text"},
         ("wrong_type", f"column 'c' cannot be read: {why}", "a text")),
        ({"meta_columns": ["m", "c"], "columns": ["t", "u"]}, {"c": cell, "m": 1, "t": "x", "u": "y"},
         ("wrong_type", f"column 'c' contains a value that cannot be read: {why}", "")),
    ):  # fmt: skip
        made_of = parse(SourceConfig, {"kind": "arrow", "path": "p", **keys}, at="s")
        first, *others = rows_of(fields, config=made_of, file="f", line=4)
        assert first == BadRow("f", 4, *bad)
        assert others == ([Row("fine", "f", 4)] if "t" in fields and fields["t"] == "fine" else [first] * len(others))


def test_values_of_arrow_that_python_lacks_are_told_by_their_error() -> None:
    late = pa.array([0, 10**12], pa.int64()).cast(pa.timestamp("s"))
    raw = pa.array([b"a", b"\xff"]).view(pa.string())
    inner = pa.StructArray.from_arrays([raw], names=["in"])
    assert columnar._values(late)[0] is not None
    found = columnar._values(late)[1]
    assert isinstance(found, Unreadable)
    assert re.match(r"(OverflowError|ValueError|ArrowInvalid): .+", found.detail)
    assert (columnar._values(raw)[0], columnar._values(raw)[1].raw) == ("a", b"\xff")
    assert columnar._values(raw.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()))[1].raw == b"\xff"
    assert columnar._values(inner)[1].detail == "a struct<in: string> with bytes that are not valid UTF-8"
    assert columnar._values(pa.array([1, None])) == [1, None]


def test_an_image_that_a_reference_names_in_vain_is_told_with_its_path(tmp_path: Path) -> None:
    for form in ("file", "tar"):
        for name, words in (("none", "No such file or directory"), ("", "Is a directory")):
            path = tmp_path / name
            with pytest.raises(UnusableImage) as raised:
                read_image({form: str(path), "offset": 0, "bytes": 1}, limits=ImageLimits())
            assert (raised.value.reason, raised.value.detail) == ("missing_file", f"{path}: {words}")
    assert read_image({"digits": "7"}, limits=ImageLimits()).shape == (8, 8, 1)


def test_further_refusals_of_sources_are_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    message = refused(kind="disk", name="mine", path="set")
    assert message.startswith("source 'mine': set is not a data set written by save_to_disk, or is damaged (")
    assert message.endswith("). Correct the source's 'path' or save the data set again.")
    with pytest.raises(ConfigurationError) as raised:
        read(kind="layout", name="mine", path="set", tokens=True)
    assert str(raised.value) == (
        "source 'mine': 'tokens' compares stored tokens with those of a tokenizer, but there is none. Pass one, or set "
        "'tokens' to false."
    )
    for size in (3, 300):
        (tmp_path / "a.tar").write_bytes(gzip.compress(bytes(size)))
        assert refused(kind="webdataset", path="a.tar") == (
            "a.tar: expected an uncompressed tar, whose members can be read at their offsets, found a compressed one. "
            "Decompress it (gunzip, zstd -d); its images are compressed already."
        )
    file = tar(tmp_path / "b.tar", [("a.png", png()), ("a.txt", b"t")])
    whole = Path(file).read_bytes()
    for raw, words in (
        (whole[:2048], "after line 2 (OSError: the archive ends at byte 2048 without its end marker, so members may be "
         "missing)"),
        (whole[:2560] + b"x" + whole[2561:], "after line 2 (OSError: the bytes that follow byte 2048 are neither a "
         "member nor the end of the archive)"),
    ):  # fmt: skip
        Path(file).write_bytes(raw)
        assert refused(kind="webdataset", path=file) == (
            f"{file}: damaged, or not of the type that its name suggests, {words}. Fetch the file again or take it out "
            "of the source's 'path'."
        )
