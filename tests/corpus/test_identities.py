"""What stored things are known by: digests, splits, fingerprints and references in closed form, and second cases."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.data.corpus import ingestion, row_tests, text_splitting
from mm_ldlm.data.corpus.cleaning import Cleaner
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.dedup import NearDuplicateConfig, NearDuplicates, signature
from mm_ldlm.data.corpus.normalisation import comparison_digest, comparison_form, normalise
from mm_ldlm.data.corpus.record import record_id, text_digest
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources import Row, SourceConfig
from mm_ldlm.data.corpus.sources.base import StoredTokens
from mm_ldlm.data.corpus.splits import SplitConfig, split_of
from mm_ldlm.data.corpus.text_splitting import split_text
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.store import Manifest, ShardStore, write_shard
from mm_ldlm.families.images.decoding import digest, meta_of
from stand_ins import Letters

SOURCES = (SourceConfig(kind="starter", name="one"), SourceConfig(kind="starter", name="two"))


def blake(data: bytes, **options: Any) -> str:
    return hashlib.blake2b(data, digest_size=16, **options).hexdigest()


# -- digests -----------------------------------------------------------------------------------------------------------


def test_the_ids_of_records_are_digests_of_their_texts_and_images() -> None:
    """Stores of earlier versions have these ids."""
    for given, whole in (
        (("é",), "é"), (("a", "b"), "a\0b"), (("a", None, "ff"), "a\0\0ff"), (("a", "b", "ff"), "a\0b\0\0ff"),
        (("",), ""),
    ):  # fmt: skip
        assert record_id(*given) == blake(whole.encode("utf-8"))
    assert text_digest("é", "ff").hex() == blake("é\0\0ff".encode())
    assert len({record_id("a", None, "b"), record_id("a", "b"), record_id("ab"), record_id("a", "", "b")}) == 4


def test_the_digest_of_an_image_is_that_of_its_shape_and_its_pixels() -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    assert digest(pixels) == blake(b"2,3,1\0" + bytes(range(6)))
    turned = pixels.transpose(1, 0, 2)
    assert digest(turned) == blake(b"3,2,1\0" + bytes([0, 3, 1, 4, 2, 5])), "in the order of the rows"
    meta, key = meta_of({"file": "é"}, pixels, k="é")
    assert meta == f'{{"k": "\\u00e9", "image": {{"file": "\\u00e9", "digest": "{key}"}}}}'


def test_the_split_of_a_text_is_the_fraction_of_the_first_word_of_its_keyed_digest() -> None:
    """The smallest fractions are for testing, the next for validation."""
    fractions = SplitConfig(validation=0.25, test=0.5, key="ké")
    for number in range(60):
        text = f"  Text  NUMBER {number} ﬁ"
        form = f"text number {number} fi"
        raw = hashlib.blake2b(form.encode(), digest_size=16, key="ké".encode()).digest()
        assert comparison_digest(text, key="ké".encode()) == raw
        point = int.from_bytes(raw[:8], "little") / 2**64
        assert split_of(text, fractions) == ("test" if point < 0.5 else "validation" if point < 0.75 else "train")


@pytest.mark.parametrize(
    ("text", "form"),
    [("A\tb \n C", "a b c"), ("ÀB", "àb"), ("ß", "ss"), ("\u2163 x", "iv x"), ("I\u0307", "i\u0307"),
     ("\u00a0a\u3000", "a"),
     ("\u017f", "s"), ("\u212b", "\u00e5")],
)  # fmt: skip
def test_comparison_forms(text: str, form: str) -> None:
    assert comparison_form(text) == form
    assert comparison_form(text.encode("ascii", "ignore").decode()) == comparison_form(form) or not text.isascii()


def test_white_space_inside_a_text_stays_on_request_and_none_outside() -> None:
    for text, collapsed, kept in (
        (" a \t b\n", "a b", "a \t b"),
        ("\u2003é\u2003 x ", "é x", "é\u2003 x"),
        (" ", "", ""),
    ):
        assert normalise(text, "NFC") == normalise(text, "none") == collapsed
        assert normalise(text, "none", collapse_whitespace=False) == kept


def test_the_version_of_the_format_is_in_the_fingerprint_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    config = IngestionConfig(sources=SOURCES)
    before = ingestion._fingerprints(config, [], None, None)
    monkeypatch.setattr(ingestion, "FORMAT_VERSION", 2)
    after = ingestion._fingerprints(config, [], None, None)
    assert {name for name in before if before[name] != after[name]} == {"parameters"}


@pytest.mark.parametrize("changed", ["parameters", "sources", "token_limits"])
def test_an_interrupted_run_is_continued_only_by_one_of_the_same_rows(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\n")
    source = {"kind": "text", "path": str(tmp_path / "a.txt")}
    limits, keys = {"max_length": 9}, {"shard_rows": 2}

    def run() -> Any:
        config = parse(IngestionConfig, {"sources": [source], "progress": False, **keys}, at="i")
        return ingestion.ingest(
            config, seed=0, workspace=tmp_path / "r", quarantine=tmp_path / "q", tokenizer=Letters(),  # type: ignore[arg-type]
            tokens=TokenizerConfig(**limits),
        )  # fmt: skip

    def killed(*given: Any) -> None:
        commit(*given)
        raise KeyboardInterrupt

    commit = ingestion._commit
    with monkeypatch.context() as patch:
        patch.setattr(ingestion, "_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            run()
        with pytest.raises(KeyboardInterrupt):
            run()
    records, _, report = run()
    assert (report["resumed_after_rows"], report["rows_in"], records.rows) == (4, 4, 4)
    if changed == "sources":
        (tmp_path / "a.txt").write_text("one\ntwo\nthree\nFOUR\n")
    elif changed == "parameters":
        keys["shard_rows"] = 3
    else:
        limits["max_length"] = 8
    assert run()[2]["resumed_after_rows"] == 0
    assert run()[2]["resumed_after_rows"] == 4


# -- cleaning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["mm-ldlm", "another"])
def test_an_interrupted_run_finds_case_variants_with_its_own_key(key: str, tmp_path: Path) -> None:
    config = IngestionConfig(sources=SOURCES, splits=SplitConfig(key=key))
    first, again = (Cleaner(config, Counts.empty(2)) for _ in range(2))
    tests = RowTests(config)
    first.clean(tests([(0, Row("One text", "f", 1, split="test"))]))
    shard = write_shard(tmp_path, "part-000000.arrow", first.take_tables()[0])
    again.restore(ShardStore(tmp_path, Manifest(kind="records", rows=1, shards=(shard,))))
    for cleaner in (first, again):
        cleaner.clean(tests([(1, Row("one TEXT", "f", 2, split="train"))]))
        assert cleaner.counts.duplicates_by == {"in_test_but_for_case": 1}


def test_short_texts_are_near_duplicates_of_themselves_alone() -> None:
    """A text that is shorter than a shingle is one shingle."""
    config = NearDuplicateConfig(shingle_characters=5)
    seen = NearDuplicates(config)
    for text in ("a", "b", "abcd", "abce", "abcde"):
        sketch = seen.signature(text)
        assert not seen.seen(sketch), text
        seen.add(sketch)
    assert all(seen.seen(signature(text, config)) for text in ("a", "b", "abcd"))


def test_captions_of_images_are_no_near_duplicates_of_texts() -> None:
    config = IngestionConfig(sources=SOURCES, near_duplicates=NearDuplicateConfig())
    cleaner, tests = Cleaner(config, Counts.empty(2)), RowTests(config)
    text = "a long sentence about a dog that runs"
    for number, image in enumerate((None, "i", "j", None)):
        cleaner.clean(tests([(0, Row(f"{text}{number}", "f", number, image=image))]))
    assert cleaner.take_tables()[0]["text"].to_pylist() == [f"{text}{number}" for number in range(3)]


# -- tests of rows -----------------------------------------------------------------------------------------------------


def keep_short(text: str) -> bool:
    if text == "end":
        raise SystemExit(3)
    return len(text) < 6


def test_a_language_filter_is_told_with_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "filter_of_a_user", SimpleNamespace(keep=keep_short))
    dotted = "filter_of_a_user:keep"
    tests = RowTests(IngestionConfig(sources=SOURCES, language_filter=dotted))
    assert tests.keep_language is keep_short
    again = pickle.loads(pickle.dumps(tests))
    assert ("keep_language" in vars(tests), "keep_language" in vars(again)) == (True, False)
    out = again([(1, Row("  a  b ", "f", 1)), (1, Row(" too   long ", "f", 2)), (0, Row("end", "f", 3))])
    assert [tuple(each) for each in out.refusals] == [
        (1, "f", 2, "language", f"refused by {dotted}", "too long"),
        (0, "f", 3, "filter_error", f"ingestion.language_filter {dotted} raised SystemExit: 3", "end"),
    ]
    assert [candidate.text for candidate in out.candidates] == ["a b"]


def outcome(*rows: Row, **limits: Any) -> Any:
    tests = RowTests(IngestionConfig(sources=SOURCES), Letters(), TokenizerConfig(**limits))  # type: ignore[arg-type]
    return tests([(1, row) for row in rows])


def stored(ids: str, *, decoded: bool = False) -> StoredTokens:
    return StoredTokens(np.array([ord(letter) for letter in ids], np.int32), decoded)


@pytest.mark.parametrize(
    ("ids", "decoded", "place", "theirs", "ours"),
    [("abx", False, 2, "120", "99"), ("xbc", False, 0, "120", "97"), ("abcde", False, 4, "101", "none"),
     ("", False, 0, "none", "97"), ("abc", True, 3, "none", "100"), ("axy", True, 1, "120", "98")],
)  # fmt: skip
def test_the_first_token_that_differs_is_named(ids: str, decoded: bool, place: int, theirs: str, ours: str) -> None:
    out = outcome(Row("abcd", "f", 7, tokens=stored(ids, decoded=decoded)), max_length=9)
    of = ", of the text decoded from the tokens" if decoded else ""
    assert [tuple(each) for each in out.refusals] == [
        (1, "f", 7, "other_tokens",
         f"token {place} is {theirs} in the source and {ours} by the configured tokenizer{of}: tokenizer.name must be "
         "that of the stored tokens", "abcd")
    ]  # fmt: skip


def test_lengths_stay_beside_their_rows_where_rows_with_other_tokens_are_left_out() -> None:
    rows = [Row("abcdef", "f", 1, tokens=stored("x")), Row("ab", "f", 2, tokens=stored("ab")), Row("abcde", "f", 3),
            Row("abc", "f", 4), Row("y", "f", 5, tokens=stored("yz"))]  # fmt: skip
    out = outcome(*rows, max_length=4, min_length=2)
    assert [(candidate.text, candidate.row.line) for candidate in out.candidates] == [("ab", 2), ("abc", 4)]
    assert [(each.line, each.reason, each.detail[:8]) for each in out.refusals] == [
        (1, "other_tokens", "token 0 "), (5, "other_tokens", "token 1 "), (3, "too_many_tokens", "5 tokens")
    ]  # fmt: skip


@pytest.mark.parametrize("image", [None, "ff"])
def test_pieces_name_the_record_that_their_text_would_have_been(
    image: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_tests, "split_text", lambda text, tokenizer, max_length: [("ab", 2), ("cd", 2), ("e", 1)])
    out = outcome(Row("ab cd e", "f", 3, meta='{"k": "é", "piece": 9}', image=image), max_length=2, too_long="split")
    assert [json.loads(each.meta) for each in out.candidates] == [
        {"k": "é", "piece": number, "piece_of": record_id("ab cd e", None, image), "pieces": 3} for number in range(3)
    ]
    assert [(each.source, each.text, each.row.line, each.row.image, each.pair) for each in out.candidates] == [
        (1, text, 3, image, None) for text in ("ab", "cd", "e")
    ]
    assert all(each.meta.isascii() for each in out.candidates)
    assert out.from_splitting == {1: 2}
    whole = outcome(Row("ab cd e", "f", 3), max_length=2, too_long="split").candidates
    assert json.loads(whole[0].meta) == {"piece_of": record_id("ab cd e"), "piece": 0, "pieces": 3}


def test_pieces_have_single_spaces_and_a_character_of_several_tokens_stays_whole() -> None:
    def encode(text: str, add_special_tokens: bool) -> Any:
        letters = [i for i, letter in enumerate(text) if letter.strip() for _ in range(3 if letter == "é" else 1)]
        places = [(i, i + 1) for i in letters]
        return SimpleNamespace(offsets=places, ids=places)

    ours: Any = SimpleNamespace(base=SimpleNamespace(encode=encode))
    for text, longest, pieces in (
        ("a \n\t b   c", 2, [("a b", 2), ("c", 1)]), ("a \n b", 9, [("a b", 2)]), ("é", 2, [("é", 3)]),
        ("aé", 2, [("a", 1), ("é", 3)]), ("é é", 3, [("é", 3), ("é", 3)]), ("", 2, [("", 0)]),
    ):  # fmt: skip
        assert split_text(text, ours, max_length=longest) == pieces
    assert text_splitting._split_in_halves("é", ours, 2) == [("é", 3)]
    assert text_splitting._split_in_halves("éa", ours, 2) == [("é", 3), ("a", 1)]


@pytest.mark.parametrize("too_long", ["drop", "split", "truncate"])
def test_pairs_and_rows_with_vectors_stay_whole(too_long: str) -> None:
    pair, vector = Row("abcd", "f", 1, pair="x"), Row("efgh", "f", 2, vector=np.ones(2))
    second = Row("a", "f", 3, pair="uvwxyz")
    config, limits = IngestionConfig(sources=SOURCES), TokenizerConfig(max_length=3, too_long=too_long)  # type: ignore[arg-type]
    out = RowTests(config, Letters(), limits, None)([(0, pair), (0, second)])  # type: ignore[arg-type]
    assert [(each.line, each.reason) for each in out.refusals] == (
        [] if too_long == "truncate" else [(3, "too_many_tokens"), (1, "too_many_tokens")]
    )
    out = RowTests(config, Letters(), limits, 2)([(0, vector)])  # type: ignore[arg-type]
    assert len(out.candidates) == out.truncated == (too_long == "truncate")
