"""The messages of samples with images and of layouts that are none, word for word, and limits that reach readers."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_ldlm.config import parse
from mm_ldlm.corpus.images import ImageLimits
from mm_ldlm.corpus.sources import BadRow, Row, SourceConfig, digits, image_folder
from mm_ldlm.corpus.sources.registry import open_source
from mm_ldlm.errors import SourceError


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
    import gzip

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
