"""Every refusal of a row as a whole: its source, place, reason, detail and text; and what passes unchanged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.filters import LengthConfig
from mm_ldlm.data.corpus.record import is_storable
from mm_ldlm.data.corpus.row_tests import Refusal, RowTests
from mm_ldlm.data.corpus.sources.base import BadRow, Row, StoredTokens
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from stand_ins import Letters

SOURCES = (SourceConfig(kind="starter", name="one"), SourceConfig(kind="starter", name="two"))
ASCII = "mm_ldlm.data.corpus.filters:keep_ascii"


def outcome_of(*rows: Row | BadRow, tokens: dict[str, Any] | None = None, dim: int | None = None, **keys: Any) -> Any:
    """The outcome of rows of the second source."""
    limits = None if tokens is None else TokenizerConfig(**tokens)
    config = IngestionConfig(sources=SOURCES, **keys)
    tests = RowTests(config, Letters() if limits else None, limits, dim)  # type: ignore[arg-type]
    return tests([(1, row) for row in rows])


def stored(letters: str, *, decoded: bool = False) -> StoredTokens:
    return StoredTokens(np.array([ord(letter) for letter in letters], np.int32), decoded)


def other_tokens(place: int, theirs: str, ours: str, *, decoded: bool = False) -> tuple[str, str]:
    of = ", of the text decoded from the tokens" if decoded else ""
    return "other_tokens", (
        f"token {place} is {theirs} in the source and {ours} by the configured tokenizer{of}: tokenizer.name must be "
        "that of the stored tokens"
    )


TOKENS = {"max_length": 6, "min_length": 2}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], tuple[str, str], str]] = [
    ({"text": "a \x00  b"}, {}, ("nul", "NUL character in the text"), "a \x00  b"),
    ({"text": "é \ud800"}, {}, (
        "encoding", "lone surrogate at character 2: the source was decoded with the wrong encoding"), "é \ud800"),
    ({"text": "éb  c"}, {"max_row_bytes": 5}, ("oversized", "6 bytes, at most 5 are read"), "éb  c"),
    ({"text": "a   b"}, {"max_row_bytes": 4}, ("oversized", "5 bytes, at most 4 are read"), "a   b"),
    ({"text": " \t "}, {}, ("empty", "only white space"), ""),
    ({"text": " a  b "}, {"length": LengthConfig(min_characters=4)},
     ("too_short", "3 characters, min_characters is 4"), "a b"),
    ({"text": " a  b "}, {"length": LengthConfig(max_words=1)}, ("too_long", "2 words, max_words is 1"), "a b"),
    ({"text": " где  я "}, {"language_filter": ASCII}, ("language", f"refused by {ASCII}"), "где я"),
    ({"text": " a  b "}, {"dim": 2},
     ("no_vector", "the source contains no vector for this text, and encoder.kind is precomputed"), " a  b "),
    ({"text": " a  b ", "vector": np.ones(3)}, {"dim": 2},
     ("wrong_dimension", "a vector of dimension 3, encoder.dim is 2"), " a  b "),
    ({"text": " a  b ", "vector": np.array([1.0, np.nan])}, {"dim": 2},
     ("not_finite", "the vector contains NaN or infinity"), " a  b "),
    ({"text": " a  b ", "vector": np.array([1.0, -np.inf])}, {"dim": 2},
     ("not_finite", "the vector contains NaN or infinity"), " a  b "),
    ({"text": " a  b ", "vector": np.array([1.0, -1e39])}, {"dim": 2},
     ("not_finite", "the vector contains a number beyond float32"), " a  b "),
    ({"text": " a "}, {"tokens": TOKENS}, ("too_few_tokens", "1 tokens, tokenizer.min_length is 2"), "a"),
    ({"text": " a  bcdefg "}, {"tokens": TOKENS},
     ("too_many_tokens", "7 tokens, tokenizer.max_length is 6"), "a bcdefg"),
    ({"text": " ab  c", "pair": "x"}, {"tokens": TOKENS},
     ("too_few_tokens", "1 tokens in the second text, tokenizer.min_length is 2"), "ab c"),
    ({"text": " ab  c", "pair": "tuvwxyz"}, {"tokens": TOKENS},
     ("too_many_tokens", "7 tokens in the second text, tokenizer.max_length is 6"), "ab c"),
    ({"text": "ab", "pair": "éé"}, {"language_filter": ASCII}, ("language", f"refused by {ASCII}"), "éé"),
    ({"text": "ab  cd", "tokens": stored("abx")}, {"tokens": TOKENS}, other_tokens(2, "120", "99"), "ab cd"),
    ({"text": "abcd", "tokens": stored("axcx")}, {"tokens": TOKENS}, other_tokens(1, "120", "98"), "abcd"),
    ({"text": "abcd", "tokens": stored("xbcdef")}, {"tokens": TOKENS}, other_tokens(0, "120", "97"), "abcd"),
    ({"text": "abcd", "tokens": stored("abcde")}, {"tokens": TOKENS}, other_tokens(4, "101", "none"), "abcd"),
    ({"text": "abcd", "tokens": stored("")}, {"tokens": TOKENS}, other_tokens(0, "none", "97"), "abcd"),
    ({"text": "abcd", "tokens": stored("abc", decoded=True)}, {"tokens": TOKENS},
     other_tokens(3, "none", "100", decoded=True), "abcd"),
    ({"text": "abcd", "tokens": stored("xbcd", decoded=True)}, {"tokens": TOKENS},
     other_tokens(0, "120", "97", decoded=True), "abcd"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "keys", "why", "text"), REFUSED)
def test_a_refused_row_is_named_as_a_whole_and_its_neighbors_stay(
    fields: dict[str, Any], keys: dict[str, Any], why: tuple[str, str], text: str
) -> None:
    vector = np.ones(2) if "dim" in keys else None
    good = [Row("good", "g", line, vector=vector) for line in (1, 3)]
    out = outcome_of(good[0], Row(file="f", line=2, **fields), good[1], **keys)
    assert out.refusals == [Refusal(1, "f", 2, *why, text)]
    assert [(candidate.source, candidate.text, candidate.row.line) for candidate in out.candidates] == [
        (1, "good", 1), (1, "good", 3)
    ]  # fmt: skip
    assert (dict(out.read), dict(out.from_splitting), out.truncated) == ({1: 3}, {}, 0)
    assert len(out.ids) == len(out.forms) == 2


@pytest.mark.parametrize("length", [0, 1])
def test_a_text_without_any_token_has_a_reason_of_its_own(length: int) -> None:
    """The first of a pair and the second alike."""

    class Few(Letters):
        def encode_base(self, texts: list[str]) -> tuple[Any, Any]:
            return super().encode_base([text.replace("z", "") for text in texts])

    limits = TokenizerConfig(max_length=9, min_length=2)
    reason, text = ("too_few_tokens" if length else "no_tokens"), "z" + "a" * length
    tests = RowTests(IngestionConfig(sources=SOURCES), Few(), limits)  # type: ignore[arg-type]
    out = tests([(0, Row(text, "f", 1)), (0, Row("abc", "f", 2, pair=text))])
    assert [(refusal.line, refusal.reason, refusal.detail) for refusal in out.refusals] == [
        (2, reason, f"{length} tokens in the second text, tokenizer.min_length is 2"),
        (1, reason, f"{length} tokens, tokenizer.min_length is 2"),
    ]


def test_a_row_that_was_bad_before_is_refused_as_it_is() -> None:
    out = outcome_of(BadRow("b", 9, "broken_csv", "why", "beginning"), BadRow("c", 8, "nul", "because"))
    assert out.refusals == [Refusal(1, "b", 9, "broken_csv", "why", "beginning"),
                            Refusal(1, "c", 8, "nul", "because", "")]  # fmt: skip
    assert (out.candidates, dict(out.read)) == ([], {1: 2})


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_a_vector_is_kept_as_float32_and_one_that_is_not_declared_is_left_out(kind: Any) -> None:
    given = np.array([3, -2], kind)
    (kept,) = outcome_of(Row("ab", "f", 1, vector=given), dim=2).candidates
    assert (kept.row.vector.dtype, kept.row.vector.tolist()) == (np.float32, [3, -2])
    (plain,) = outcome_of(Row("ab", "f", 1, vector=given)).candidates
    assert plain.row == Row("ab", "f", 1)


def test_the_texts_and_the_meta_of_a_candidate_are_those_of_its_row() -> None:
    row = Row("  One  TWO ", "f", 4, split="test", meta='{"k": "é", "pair": "old"}', pair=" Three ", image="i")
    (found,) = outcome_of(row).candidates
    assert (found.source, found.text, found.pair, found.row) == (1, "One TWO", "Three", row)
    assert (found.whole, found.form) == ("One TWO\0Three", "one two\0three")
    assert json.loads(found.meta or "") == {"k": "é", "pair": "Three"}
    (plain,) = outcome_of(row._replace(pair=None)).candidates
    assert (plain.whole, plain.meta) == ("One TWO", row.meta)
    (bare,) = outcome_of(row._replace(meta=None)).candidates
    assert json.loads(bare.meta or "") == {"pair": "Three"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [("", True), ("a", True), ("é", True), ("a\x00b", False), ("\x00", False), ("é\x00", False), ("\ud800", False),
     ("a\udfffb", False)],
)  # fmt: skip
def test_every_store_accepts_texts_without_nul_and_lone_surrogates(text: str, kept: bool) -> None:
    assert is_storable(text) is kept
