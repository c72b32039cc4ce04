"""All readers of texts divide a file into the same lines, because the number of a line is that of its vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.pretrained import from_vocabulary
from mm_ldlm.data.corpus.sources.files import read_lines as lines_of_a_source
from mm_ldlm.data.store.lines import lines_of
from mm_ldlm.evaluation.config import TextFile
from mm_ldlm.evaluation.suites.likelihood import read_lines as other_texts
from mm_ldlm.inference.inputs import read_texts

INSIDE = "a\u2028b\x0cc\x85d\x1ce\x0bf\u2029g"
"""One line, with every character that `str.splitlines` takes for a line break"""
READERS: dict[str, Callable[[Path], list[str]]] = {
    "a source": lambda path: [line.text for line in lines_of_a_source(path, encoding="utf-8", max_bytes=1000)],  # type: ignore[union-attr]
    "a request": read_texts,
    "other texts": lambda path: other_texts(TextFile(name="mine", path=str(path))),
    "a store of lines": lambda path: lines_of(path.read_bytes()),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("start", "end"), [("", "\n"), ("\ufeff", "\r\n"), ("", "")])
def test_a_line_ends_at_a_line_feed_alone(reader: str, start: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(f"{start}{INSIDE}\r\nsecond{end}".encode())
    assert READERS[reader](tmp_path / "t.txt") == [INSIDE, "second"]


@pytest.mark.parametrize(("raw", "lines"), [(b"", []), (b"\n", []), (b"a\n\n", ["a", ""]), (b"\n\na", ["", "", "a"])])
def test_empty_lines_count(raw: bytes, lines: list[str]) -> None:
    assert lines_of(raw) == lines


SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_the_number_of_a_line_is_the_id_of_its_token(tmp_path: Path) -> None:
    words = [*SPECIALS, "\u2028", "\x85", "cat"]
    (tmp_path / "vocab.txt").write_bytes(("\ufeff" + "\r\n".join(words) + "\r\n").encode())
    assert from_vocabulary(tmp_path / "vocab.txt", lowercase=True).get_vocab() == {w: i for i, w in enumerate(words)}


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (b"\xff\n", r"expected UTF-8, found the byte 0xff at byte 31\. Correct 'tokenizer\.path'"),
        (b"cat\ndog\ncat\n", r"expected each token once, found 'cat' in the lines 6 and 8\. Correct the file"),
        (b"\n\n", r"expected each token once, found '' in the lines 6 and 7\."),
    ],
)
def test_a_vocabulary_whose_lines_are_no_ids_is_refused(end: bytes, message: str, tmp_path: Path) -> None:
    path: Any = tmp_path / "vocab.txt"
    path.write_bytes("\n".join([*SPECIALS, ""]).encode() + end)
    with pytest.raises(ConfigurationError, match=message):
        from_vocabulary(path, lowercase=True)
