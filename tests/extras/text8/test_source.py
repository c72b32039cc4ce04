"""The rows of text8 are its characters, in three splits."""

from pathlib import Path

import numpy as np
from tests.data.corpus.examples import read, reasons

from mm_ldlm.data.corpus.sources import Row


def test_joined_by_spaces_the_rows_of_each_split_are_its_part_of_the_file(tmp_path: Path) -> None:
    letters = np.random.default_rng(0).choice(list("abcdefg     "), size=300_000)
    text = " ".join("".join(letters).split())
    (tmp_path / "text8").write_text(text)
    rows = [row for row in read({"kind": "text8", "path": str(tmp_path / "text8")}) if isinstance(row, Row)]
    assert [row.line for row in rows] == list(range(1, len(rows) + 1))
    ends = [0, *(len(text) * percent // 100 for percent in (90, 95, 100))]
    for split, start, end in zip(("train", "validation", "test"), ends, ends[1:], strict=False):
        own = [row.text.strip() for row in rows if row.split == split]
        assert " ".join(own) == text[start:end].strip()
        assert all(9_900 < len(piece) <= 10_000 for piece in own[:-1])


def test_other_characters_end_in_quarantine(tmp_path: Path) -> None:
    (tmp_path / "text8").write_bytes(b"caf\xc3\xa9 " * 9)
    assert set(reasons(read({"kind": "text8", "path": str(tmp_path / "text8")}))) == {"encoding"}
