"""Folder layouts that are damaged or incomplete: refused, or one bad row for each missing part, by its file."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.extras.layout.reading import Folder, describe_layout, parse_tokens


def read(*, tokenizer: Any = None, **keys: Any) -> list[Row | BadRow]:
    source = open_source(
        parse(SourceConfig, {"kind": "layout", **keys}, at="source"), seed=0, max_row_bytes=5_000, tokenizer=tokenizer
    )
    return list(source.rows())


def faults(rows: list[Row | BadRow]) -> list[tuple[str, str] | None]:
    return [None if isinstance(row, Row) else (row.reason, row.detail) for row in rows]


def npz(**arrays: Any) -> bytes:
    sink = io.BytesIO()
    np.savez_compressed(sink, **arrays)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npz(input_ids=np.zeros(9_000, np.int64)), r"72\d\d\d bytes, at most 5000 are read"),
        (npz(input_ids=np.array([1, 2**31])), "found int64 with values that int32 cannot represent"),
        (npz(input_ids=np.array([1, -(2**31) - 1])), "found int64 with values that int32 cannot represent"),
        (npz(input_ids=np.array([1.0])), "found float64"),
        (npz(ids=np.array([1])), "no array 'input_ids' can be read from it"),
    ],
)
def test_tokens_that_are_none_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tokens(data, max_bytes=5_000)
    assert parse_tokens(npz(input_ids=np.array([[2**31 - 1, -(2**31)]]))).tolist() == [2**31 - 1, -(2**31)]


def test_rows_of_a_layout_without_their_files_are_bad_rows(tmp_path: Path, bert: TextTokenizer) -> None:
    items: list[dict[str, Any]] = [
        {"text": "without a file"}, {"text_path": "texts/train/a.txt"}, {"id": "x"},
        {"token_path": "tokens/train/far.npz"}, {"id": "a\0b", "text": "x"},
    ]  # fmt: skip
    for folder in ("texts/train", "tokens/train"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "texts/train/a.txt").write_bytes(b"one\nca\xe9")
    (tmp_path / "tokens/train/far.npz").write_bytes(npz(input_ids=np.array([5, 10**6])))
    (tmp_path / "train_data.json").write_text(json.dumps(items))
    keys = {"path": str(tmp_path)}
    assert [fault and fault[0] for fault in faults(read(**keys))] == [
        None, "encoding", "missing_column", "missing_column", "wrong_type",
    ]  # fmt: skip
    rows = read(**keys, tokens=True, tokenizer=bert)
    assert faults(rows)[0] == ("missing_column", "the tokens of None: the list names no file")
    assert (rows[1].file, rows[1].line) == (f"{tmp_path}/texts/train/a.txt", 1)
    reason, detail = faults(rows)[3] or ("", "")
    assert (reason, detail.partition(":")[0]) == (
        "other_tokens",
        "ids 5 to 1000000, the configured tokenizer has 30522 tokens",
    )
    assert rows[3].file == f"{tmp_path}/tokens/train/far.npz"
    with pytest.raises(ConfigurationError, match=r"'tokens' compares stored tokens .* but there is none"):
        read(**keys, tokens=True)


def test_layouts_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(SourceError, match=r"a\.zip: the archive is damaged"):
        read(path=str(tmp_path / "a.zip"))
    (tmp_path / "old/texts/elsewhere").mkdir(parents=True)
    (tmp_path / "old/texts/elsewhere/a.txt").write_text("a text")
    with pytest.raises(SourceError, match=r"expected train_data\.json, .* or texts/<split>/\*\.txt, found neither"):
        read(path=str(tmp_path / "old"))
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("train_data.json", json.dumps([{"text": "a text"}]))
    data = (tmp_path / "b.zip").read_bytes()
    (tmp_path / "b.zip").write_bytes(data.replace(b"a text", b"A TEXT"))
    with pytest.raises(SourceError, match=r"train_data\.json: cannot be read \(.*\)\. Write the list again"):
        read(path=str(tmp_path / "b.zip"))
    assert describe_layout(tmp_path / "none") == {"fingerprint": ""}


def test_a_split_whose_list_is_empty_has_no_rows(tmp_path: Path) -> None:
    for split, items in (("train", [{"text": "a"}]), ("validation", [{"text": "b"}]), ("test", [])):
        (tmp_path / f"{split}_data.json").write_bytes(
            json.dumps(items).encode("utf-8-sig" if split == "train" else "utf-16")
        )
    with Folder(tmp_path) as folder:
        assert folder.splits() == ["validation", "train"]
    rows = read(path=str(tmp_path), splits={"validation": "held_out", "test": "test"})
    assert [row.split for row in rows if isinstance(row, Row)] == ["held_out", "train"]
