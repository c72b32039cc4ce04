"""The messages of readers of sources, word for word: which file, which line, what was found and what to do."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.fields import refuse_duplicates, rows_of
from mm_ldlm.data.corpus.sources.files import read_document, read_lines
from mm_ldlm.data.corpus.sources.hugging_face import DatasetSource
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.extras.own_vectors.source import vector_of


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


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_that_are_none_are_named_with_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "gone.txt").symlink_to("nowhere")
    (tmp_path / "a.txt").write_text("a\n")
    mine = {"kind": "text", "name": "mine"}
    assert refused(**mine, path="no/*.txt") == (
        f"source 'mine': no file matches 'no/*.txt' (looked from {tmp_path}). Put the files there or correct the "
        "source's 'path'."
    )
    assert refused(**mine, path="*.txt") == (
        "source 'mine': gone.txt, which '*.txt' matches, is a symbolic link to a file that does not exist. Remove it, "
        "or correct the source's 'path'."
    )
    assert refused(**mine, path=["a.txt", "d"]) == (
        "source 'mine': d is a folder, expected a file. For example, write d/*.txt."
    )
    assert refused(**mine, path="x.txt") == (
        f"source 'mine': file x.txt does not exist (looked from {tmp_path}). Correct the source's 'path' or put the "
        "file there."
    )


def test_files_are_read_once_in_the_order_of_the_parameters(tmp_path: Path) -> None:
    """A name that looks like a pattern is that of the file which has it; matching folders are left out."""
    for name in ("c.txt", "a.txt", "b.txt", "[x].txt", "x.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "folder.txt").mkdir()
    paths = [str(tmp_path / name) for name in ("b.txt", "[x].txt", "?.txt", "b.txt")]
    rows = read(kind="text", path=paths)
    assert [row.text for row in rows if isinstance(row, Row)] == ["b.txt", "[x].txt", "a.txt", "c.txt", "x.txt"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_place_of_a_bad_byte_is_that_in_the_file_mark_included(mark: bytes, tmp_path: Path) -> None:
    path, first = tmp_path / "a.txt", len(mark)
    utf8 = "is not utf-8: convert the file (iconv -f latin1 -t utf-8) or set the source's 'encoding'"
    for content, line, reason, detail, shown in (
        (b"ab\xffc\nd\n", 1, "encoding", f"byte 0xff at byte {first + 2} of the file {utf8}", "ab\\xffc\n"),
        (b"a\0b\nd\n", 1, "nul", f"NUL byte at byte {first + 1} of the file", "a\\x00b\n"),
        (b"abc\r\nd\xfe\n", 2, "encoding", f"byte 0xfe at byte {first + 6} of the file {utf8}", "d\\xfe\n"),
    ):  # fmt: skip
        path.write_bytes(mark + content)
        bad = next(each for each in read_lines(path, encoding="utf-8", max_bytes=99) if isinstance(each, BadRow))
        assert tuple(bad) == (str(path), line, reason, detail, shown)
        whole = read_document(path, encoding="utf-8", max_bytes=99)
        assert tuple(whole)[:4] == (str(path), line if reason == "encoding" else 1, reason, detail)
    path.write_bytes(mark + b"abcde\n")
    (line_of,) = read_lines(path, encoding="utf-8", max_bytes=99)
    assert line_of == (1, "abcde")
    size = len(mark) + 6
    assert read_document(path, encoding="utf-8", max_bytes=size) == (1, "abcde\n")
    for most in range(1, size):
        found = read_document(path, encoding="utf-8", max_bytes=most)
        assert found[2:4] == ("oversized", f"a document of more than {most} bytes"), "no part of it is read"


def test_a_line_that_is_too_long_is_counted_whole_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b'"1234"6789\nok\r\n"\xff"\n')
    first, second, third = read_lines(path, encoding="utf-8", max_bytes=4)
    assert tuple(first) == (str(path), 1, "oversized", "11 bytes in one line, at most 4 are read", '"1234')
    assert second == (2, "ok")
    assert third.detail.startswith("byte 0xff at byte 16 of the file")  # type: ignore[union-attr]
    assert [getattr(each, "quotes", None) for each in (first, third)] == [2, 2]


# -- tables ------------------------------------------------------------------------------------------------------------


def test_every_bad_row_of_a_table_counts_once_for_each_of_its_texts() -> None:
    fields = {"a": "one", "b": "two", "l": 1.5, "s": "x", "m": {("no", "key"): 1}}
    for keys, reason, detail, shown in (
        ({"label_column": "a", "labels": ["z", "y", "z"]}, "unknown_label", "label 'one', expected one of z, y, z",
         repr(fields)),
        ({"label_column": "l"}, "wrong_type", "column 'l' contains float, expected a label: text or a whole number",
         repr(fields)),
        ({"split_column": "s"}, "wrong_type", "column 's' contains 'x', expected one of train, validation, test, "
         "valid, dev, val", repr(fields)),
        ({"meta_columns": ["m"]}, "wrong_type", "the columns of 'meta': not representable as JSON: keys must be str, "
         "int, float, bool or None, not tuple", repr({"m": fields["m"]})),
    ):  # fmt: skip
        config = parse(SourceConfig, {"kind": "jsonl", "path": "p", "columns": ["a", "b"], **keys}, at="s")
        assert list(rows_of(fields, config=config, file="f", line=3)) == [BadRow("f", 3, reason, detail, shown)] * 2


@pytest.mark.parametrize(
    "key", ["columns", "meta_columns", "split_column", "label_column", "pair_column", "vector_column"]
)
def test_every_column_that_is_read_occurs_once(key: str) -> None:
    keys: dict[str, Any] = {"columns": ["text"], key: ["c"] if key.endswith("s") else "c"}
    config = parse(SourceConfig, {"kind": "csv", "path": "p", **keys}, at="s")
    with pytest.raises(SourceError) as raised:
        refuse_duplicates(["c", "text", "c", "d", "c", "d"], config, "f.csv")
    assert str(raised.value) == (
        "f.csv: expected one column 'c', found 3. Rename or remove the others, because the source would have to choose "
        "one of them."
    )
    refuse_duplicates(["c", "text", "d", "d"], config, "f.csv")


def test_a_header_that_cannot_be_read_and_a_field_without_an_end_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\n\nte\xffxt\none\n")
    message = refused(kind="csv", path=str(path))
    assert message.startswith(f"{path}: line 3: expected the header, found a line that cannot be read (byte 0xff at ")
    assert message.endswith("). Correct the line, or set the source's 'header' to false.")
    path.write_text("text\none\n" + '"' + "x\n" * 200)
    assert refused(kind="csv", path=str(path), max_row_bytes=10) == (
        f"{path}: expected the end of the quoted field that begins in line 3, found none in the next 160 characters. "
        "Close or remove the quotation mark."
    )


def test_a_record_that_is_too_long_is_named_by_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,n\none,1\n"long\nand\nlonger",2\ntwo,3\n')
    assert read(kind="csv", path=str(path), max_row_bytes=16) == [
        Row("one", str(path), 2),
        BadRow(str(path), 3, "oversized",
               "the record of lines 3 to 5 has 20 characters, at most 16 are read", '"long'),
        Row("two", str(path), 6),
    ]  # fmt: skip


def test_a_table_of_no_known_format_is_named_with_those_that_are() -> None:
    assert refused(kind="table", name="mine", path="rows.xlsx") == (
        "source 'mine': expected a file with one of the suffixes .parquet, .arrow, .feather, .jsonl, .ndjson, .csv, "
        ".tsv, .txt or the folder of a saved data set, found rows.xlsx. Rename it, or choose the source's 'kind'."
    )


# -- saved data sets ---------------------------------------------------------------------------------------------------


def test_folders_and_splits_of_saved_data_sets_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    part = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"b": part, "a": part}).save_to_disk("set")
    (tmp_path / "file").write_text("")
    mine = {"kind": "disk", "name": "mine"}
    assert refused(**mine, path="set", splits={"z": "train", "a": "train", "y": "test"}) == (
        "source 'mine': set has no split ['y', 'z']; it has ['b', 'a']. Correct the source's 'splits'."
    )
    for path, fault in (("file", "is a file"), ("none", "does not exist")):
        assert refused(**mine, path=path) == (
            f"source 'mine': folder {path} {fault} (looked from {tmp_path}). Expected a folder that "
            "Dataset.save_to_disk wrote."
        )


def test_a_column_of_a_saved_data_set_occurs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = SimpleNamespace(column_names=["text", "n", "text"], cache_files=[])
    monkeypatch.setattr(DatasetSource, "_loaded", lambda _: {"dev": data})
    assert refused(kind="disk", path=str(tmp_path)).startswith(
        f"{tmp_path}[dev]: expected one column 'text', found 2. "
    )


def test_held_out_splits_are_read_first_and_those_for_the_hash_before_training(tmp_path: Path) -> None:
    """A text that occurs in two splits stays in the one that is read first."""
    import datasets

    names = {"a": "train", "b": "hash", "c": "validation", "d": "test", "e": "train"}
    datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": [name]}) for name in names}).save_to_disk(
        str(tmp_path / "set")
    )
    rows = read(kind="disk", path=str(tmp_path / "set"), splits=names)
    assert [(row.text, row.split) for row in rows if isinstance(row, Row)] == [
        ("d", "test"), ("c", "validation"), ("b", None), ("a", "train"), ("e", "train")
    ]  # fmt: skip


def test_a_data_set_of_the_hub_is_asked_for_with_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load(*given: Any, **named: Any) -> Any:
        asked.append((given, named))
        return [{"text": f"{named['split']} {number}"} for number in (1, 2)]

    monkeypatch.setattr(datasets, "load_dataset", load)
    keys = {"kind": "hub", "dataset": "o/d", "splits": {"x": "train", "y": "hash"}}
    for more, given, named in (
        ({}, ("o/d", None), {"revision": None, "streaming": True}),
        ({"subset": "s", "revision": "r", "streaming": False}, ("o/d", "s"), {"revision": "r", "streaming": False}),
    ):  # fmt: skip
        asked.clear()
        assert read(**keys, **more) == [
            Row(f"{name} {number}", f"o/d[{name}]", number, split)
            for name, split in (("y", None), ("x", "train")) for number in (1, 2)
        ]  # fmt: skip
        assert asked == [(given, {"split": name, **named}) for name in "yx"]


# -- vectors -----------------------------------------------------------------------------------------------------------


def test_vectors_that_do_not_belong_to_a_file_of_texts_are_named(tmp_path: Path) -> None:
    texts, vectors = tmp_path / "a.txt", tmp_path / "a.npy"
    texts.write_text("one\n\nthree\n")
    mine = {"kind": "text", "name": "mine", "path": str(texts), "vectors": "beside"}
    assert refused(**mine) == (
        f"{vectors} does not exist: expected the vectors of {texts}, one row for each line. Put the file there, or "
        "correct the source's 'vectors'."
    )
    np.save(vectors, np.ones((5, 2)))
    assert refused(**mine) == (
        f"{vectors}: expected one vector for each of the 3 lines of {texts} (blank lines included), found 5 rows: the "
        "row of a line is unknown. Write both files from the same list."
    )
    for array in (np.ones(3), np.ones((3, 2), bool), np.full((3, 2), "a")):
        np.save(vectors, array)
        assert refused(**mine) == (
            f"{vectors}: expected a matrix of numbers (lines, dimension), found shape {array.shape} and type "
            f"{array.dtype}. Write the vectors of {texts} again."
        )
    vectors.write_bytes(b"none")
    message = refused(**mine)
    assert message.startswith(f"{vectors}: not a readable .npy array (its header cannot be read (")
    assert message.endswith(f". Write the vectors of {texts} again.")
    (tmp_path / "b.txt").write_text("")
    assert refused(**{**mine, "path": [str(texts), str(tmp_path / "b.txt")], "vectors": "v.npy"}) == (
        "source 'mine': expected one text file for the vectors in v.npy, found 2. Set the source's 'vectors' to "
        "beside, and give each text file a .npy file of the same name."
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null, expected a list of numbers"), ("  ", "an empty text, expected a list of numbers"),
        (True, "bool True, expected a list of numbers"), ({"a": 1}, "dict {'a': 1}, expected a list of numbers"),
        (b"x" * 99, f"bytes b'{'x' * 38}, expected a list of numbers"),
        ([1, "x" * 99, None], f"a list with str '{'x' * 39}, expected a list of numbers"),
        (np.ones((2, 3)), "an array of shape (2, 3), expected one list of numbers"),
        (np.array([True]), "an array of type bool, expected numbers"),
        *((text, f"the text {text!r}, expected a list of numbers such as [0.1, 0.2]")
          for text in ("[1, 2", "[1, 2}", "1, 2", "[", "(1]", "[1_0]", "[\u0661]")),
        ("[" + "9, " * 50, f"the text '[{'9, ' * 13}', expected a list of numbers such as [0.1, 0.2]"),
        ("[1, " + "x" * 60 + "]", f"the text '[1, {'x' * 36}', in which not every item is a number"),
        ("[1,,2]", "the text '[1,,2]', in which not every item is a number"),
    ],
)  # fmt: skip
def test_what_is_no_vector_is_told_by_its_beginning(value: Any, words: str) -> None:
    with pytest.raises(ValueError) as raised:  # the whole message is compared below
        vector_of(value)
    assert str(raised.value) == words
