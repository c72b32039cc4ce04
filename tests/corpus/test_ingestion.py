from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import re
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SourceError
from mm_ldlm.data.corpus import ingestion
from mm_ldlm.data.corpus.cleaning import Cleaner
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.normalisation import comparison_form, normalise
from mm_ldlm.data.corpus.record import record_id
from mm_ldlm.data.corpus.report import conservation
from mm_ldlm.data.engines.local import LocalEngineConfig

slow_fixtures = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def text_file(tmp_path: Path, lines: list[str] | bytes, name: str = "a.txt") -> dict[str, Any]:
    path = tmp_path / name
    path.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
    return {"kind": "text", "path": str(path), "name": name}


# -- conservation -----------------------------------------------------------------------------------------------------

TEXT_ROWS = ["a cat", "A CAT", " a  cat ", "\ud800", "a\x00b", 1, None]
OTHER_ROWS = ["{}", "[]", "3", "{broken", "", '{"other": "x"}', "x" * 300]
JSON_ROWS = st.one_of(
    st.text(max_size=30).map(lambda text: json.dumps({"text": text})),
    st.sampled_from([json.dumps({"text": text}) for text in TEXT_ROWS]),
    st.sampled_from(OTHER_ROWS),
).map(str.encode)
BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
"""A file that begins with one is UTF-16 or UTF-32 and is refused as a whole; see tests/corpus/test_sources.py."""
ROWS = st.lists(
    st.one_of(JSON_ROWS, st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b""))), min_size=1, max_size=40
).filter(lambda rows: not rows[0].startswith(BYTE_ORDER_MARKS))


@slow_fixtures
@given(rows=ROWS, shard_rows=st.integers(3, 50))
def test_rows_in_are_accepted_duplicates_and_quarantined(
    ingest_into: Any, tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], shard_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("conservation")
    (folder / "rows.jsonl").write_bytes(b"\n".join([*rows, b'{"text": "one good row"}']) + b"\n")
    source = {"kind": "jsonl", "path": str(folder / "rows.jsonl")}
    tokens = {"max_length": 8, "too_long": "split"}
    out = ingest_into(folder, source, tokens=tokens, max_bad_fraction=1.0, max_row_bytes=250, shard_rows=shard_rows)
    report = out.report
    assert report["rows_read"] == len(rows) + 1
    assert len(out.records) == report["accepted"]
    assert len(out.quarantine) == report["quarantined"] == sum(report["quarantined_by_reason"].values())
    assert report["duplicates"] == sum(report["duplicates_by_kind"].values())
    line = conservation(report)
    assert line.startswith(f"{len(rows) + 1} rows read")
    left, right = (re.findall(r"(\d+) \w+", re.sub(r" \(.*?\)", "", side)) for side in line.split(" = "))
    assert sum(map(int, left)) == sum(map(int, right))
    assert sum(int(n) for each in re.findall(r"\((.*?)\)", line) for n in re.findall(r"(\d+) \w+", each)) == (
        report["duplicates"] + report["quarantined"]
    )
    for kept in out.rows:
        assert kept["text"] == normalise(kept["text"])
        assert kept["id"] == record_id(kept["text"])
    assert len({row["id"] for row in out.rows}) == len(out.rows)


@slow_fixtures
@given(texts=st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=20))
def test_any_unicode_text_round_trips_after_normalisation(
    ingest_into: Any, tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("unicode")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = {"kind": "jsonl", "path": str(folder / "rows.jsonl"), "split": "train"}
    wanted = dict.fromkeys(normalise(text) for text in texts if "\x00" not in text)
    wanted.pop("", None)
    if not wanted:
        return
    out = ingest_into(folder, source, max_bad_fraction=1.0)
    assert out.texts == list(wanted)


def test_a_lost_row_is_detected(ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cleaner, "_duplicate", lambda *_: None)
    with pytest.raises(SourceError, match="rows were lost: 3 rows were read, but 2 were accepted"):
        ingest_into(tmp_path, text_file(tmp_path, ["a", "b", "a"]))


# -- splits ------------------------------------------------------------------------------------------------------------


@slow_fixtures
@given(
    a=st.lists(
        st.sampled_from(["Cat", "cat", "CAT ", "dog", "Dog.", "ﬁne", "fine", "x", "y"]), min_size=1, max_size=12
    ),
    b=st.lists(st.sampled_from(["cAt", "dog", "dOg.", "Fine", "X", "z"]), min_size=1, max_size=12),
    shard_rows=st.integers(1, 4),
)
def test_pitfall_14_splits_are_disjoint_after_normalisation(
    ingest_into: Any, tmp_path_factory: pytest.TempPathFactory, a: list[str], b: list[str], shard_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("splits")
    one = {**text_file(folder, a, "a.txt"), "split": "test"}
    two = {**text_file(folder, b, "b.txt"), "split": "train"}
    three = text_file(folder, a[::-1] + b, "c.txt")
    out = ingest_into(folder, one, two, three, shard_rows=shard_rows, splits={"validation": 0.3, "test": 0.3})
    found: dict[str, set[str]] = {}
    for row in out.rows:
        found.setdefault(comparison_form(row["text"]), set()).add(row["split"])
    assert all(len(splits) == 1 for splits in found.values())
    assert {comparison_form(text) for text in [*a, *b]} == set(found)


def test_pitfall_14_ids_are_digests_and_do_not_depend_on_the_source(tmp_path: Path, ingested: Any) -> None:
    first = ingested(text_file(tmp_path, ["one", "two"], "a.txt"))
    second = ingested(text_file(tmp_path, ["two", "three"], "b.txt"))
    ids = {row["text"]: row["id"] for row in first.rows}
    assert ids["two"] == {row["text"]: row["id"] for row in second.rows}["two"]


def test_splits_stay_where_they_are_when_data_grows(tmp_path: Path, ingested: Any) -> None:
    lines = [f"line {i}" for i in range(500)]
    small = ingested(text_file(tmp_path, lines[:200]))
    large = ingested(text_file(tmp_path, lines[::-1], "b.txt"))
    after = {row["text"]: row["split"] for row in large.rows}
    assert all(after[row["text"]] == row["split"] for row in small.rows)


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"length": {"min_characters": 9}}, "too_short"),
        ({"length": {"max_characters": 5}}, "too_long"),
        ({"length": {"min_words": 3}}, "too_short"),
        ({"length": {"max_words": 1}}, "too_long"),
        ({"language_filter": "mm_ldlm.data.corpus.filters:keep_ascii"}, "language"),
        ({"tokens": {"max_length": 3}}, "too_many_tokens"),
        ({"tokens": {"max_length": 64, "min_length": 6}}, "too_few_tokens"),
    ],
)
def test_each_filter_sends_its_rows_to_quarantine(
    tmp_path: Path, ingested: Any, parameters: dict[str, Any], reason: str
) -> None:
    odd = {
        "too_short": "a b",
        "too_few_tokens": "a b",
        "too_long": "far too long, this",
        "too_many_tokens": "a b c d e",
    }
    good = {"too_short": "good text here", "too_few_tokens": "one two three four five six"}.get(reason, "good")
    out = ingested(text_file(tmp_path, [good, odd.get(reason, "где моя книга")]), **parameters)
    assert out.texts == [good]
    (row,) = out.quarantined
    assert (row["reason"], row["line"], row["source"]) == (reason, 2, "a.txt")
    assert out.report["damaged"] == 0


def test_a_text_without_tokens_is_refused(tmp_path: Path, ingested: Any) -> None:
    out = ingested(text_file(tmp_path, ["good", "\u200b"]), tokens={"max_length": 8, "too_long": "truncate"})
    assert [row["reason"] for row in out.quarantined] == ["no_tokens"]


def test_forms_of_unicode_and_white_space_are_parameters(tmp_path: Path, ingested: Any) -> None:
    source = text_file(tmp_path, ["ﬁne\u00a0 day", "cafe\u0301"])
    assert ingested(source).texts == ["ﬁne day", "café"]
    assert ingested(source, unicode_form="NFKC").texts == ["fine day", "café"]
    assert ingested(source, unicode_form="none").texts == ["ﬁne day", "cafe\u0301"]
    assert ingested(source, collapse_whitespace=False).texts == ["ﬁne\u00a0 day", "café"]


@pytest.mark.parametrize(
    ("dotted", "message"),
    [
        ("no.such.module:f", "cannot be imported"),
        ("mm_ldlm.data.corpus.filters:nothing", "no callable 'nothing'"),
        ("mm_ldlm.data.corpus.filters", "package.module:function"),
    ],
)
def test_a_missing_language_filter_is_named(ingest_into: Any, tmp_path: Path, dotted: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ingest_into(tmp_path, text_file(tmp_path, ["a"]), language_filter=dotted)


def test_too_long_rows_are_split_into_records_of_their_own(tmp_path: Path, ingested: Any) -> None:
    words = [f"{i} apples" for i in range(10)]
    out = ingested(text_file(tmp_path, [" ".join(words)]), tokens={"max_length": 6, "too_long": "split"})
    assert " ".join(out.texts) == " ".join(words)
    assert out.report["rows_from_splitting"] == len(out.texts) - 1
    metas = [json.loads(row["meta"]) for row in out.rows]
    assert [meta["piece"] for meta in metas] == list(range(len(metas)))
    assert {meta["piece_of"] for meta in metas} == {record_id(" ".join(words))}
    assert {meta["pieces"] for meta in metas} == {len(metas)}


@pytest.mark.parametrize(
    ("keys", "tokens", "reason"),
    [
        ({"length": {"min_characters": 3}}, {}, "too_short"), ({"length": {"min_words": 2}}, {}, "too_short"),
        ({}, {"min_length": 2}, "too_few_tokens"),
    ],
)  # fmt: skip
def test_every_piece_is_tested_like_a_text_and_keeps_the_columns_of_its_row(
    tmp_path: Path, ingested: Any, keys: dict[str, Any], tokens: dict[str, Any], reason: str
) -> None:
    """Of the two pieces "one two three four" and "a", the second is refused."""
    text = "one two three four a"
    rows = [{"text": "good text", "n": 1}, {"text": text, "n": 7}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "jsonl", "path": str(tmp_path / "a.jsonl"), "meta_columns": ["n"]}
    out = ingested(source, tokens={"max_length": 4, "too_long": "split", **tokens}, **keys)
    assert out.texts == ["good text", "one two three four"]
    assert json.loads(out.rows[1]["meta"]) == {"n": 7, "piece_of": record_id(text), "piece": 0, "pieces": 2}
    assert [(each["reason"], each["excerpt"], each["line"]) for each in out.quarantined] == [(reason, "a", 2)]
    assert out.report["rows_from_splitting"] == 1


def test_truncation_keeps_the_text_and_is_counted(tmp_path: Path, ingested: Any) -> None:
    out = ingested(text_file(tmp_path, ["one two three four five"]), tokens={"max_length": 3, "too_long": "truncate"})
    assert out.texts == ["one two three four five"]
    assert out.report["truncated"] == 1


def test_near_duplicates_are_removed_only_on_request(tmp_path: Path, ingested: Any) -> None:
    long = "the quick brown fox jumps over the lazy dog near the river bank every single morning"
    source = text_file(
        tmp_path, [long, long.replace("single", "sunny"), "something else entirely, about ships and sails"]
    )
    assert ingested(source).report["duplicates"] == 0
    report = ingested(source, near_duplicates={"threshold": 0.6}).report
    assert report["duplicates_by_kind"] == {"near": 1}
    assert ingested(source, near_duplicates={"threshold": 0.95}).report["duplicates"] == 0


# -- mixing ------------------------------------------------------------------------------------------------------------


def test_weights_mix_until_a_source_runs_out(tmp_path: Path, ingested: Any) -> None:
    a = {**text_file(tmp_path, [f"a{i}" for i in range(100)], "a.txt"), "weight": 3}
    b = {**text_file(tmp_path, [f"b{i}" for i in range(20)], "b.txt"), "weight": 1}
    report = ingested(a, b).report
    assert report["sources"]["b.txt"]["read"] == 20
    assert abs(report["sources"]["a.txt"]["read"] - 60) <= 3
    assert not report["sources"]["a.txt"]["read_to_its_end"]
    assert ingested({**a, "weight": None}, {**b, "weight": None}).report["accepted"] == 120


def test_a_path_from_the_command_line_replaces_the_one_in_the_list(tmp_path: Path, ingested: Any) -> None:
    other = text_file(tmp_path, ["from the other file"], "b.txt")
    source = {**text_file(tmp_path, ["from the first"]), "path": "not/there.txt"}
    assert ingested(source, path=other["path"]).texts == ["from the other file"]
    with pytest.raises(ConfigurationError, match="0 sources have a path"):
        ingested({"kind": "starter"}, path=other["path"])


def test_a_column_from_the_command_line_replaces_those_of_the_table(tmp_path: Path, ingested: Any) -> None:
    table = tmp_path / "a.csv"
    table.write_text('id,review\n1,"good, said I"\n2,bad\n3,"cut in the middle" x\n')
    source = {"kind": "csv", "path": "not/there.csv", "columns": ["text"]}
    given = {"path": str(table), "text_column": "review", "max_bad_fraction": 0.5}
    found = ingested(source, **given)
    assert found.texts[:2] == ["good, said I", "bad"]
    assert conservation(found.report).startswith("3 rows read = 2 accepted + 0 duplicates + 1 quarantined (1 ")
    with pytest.raises(
        SourceError, match=r"no column 'text'; found id, review\..*`--params ingestion\.text_column=NAME`"
    ):
        ingested(source, path=str(table))


@pytest.mark.parametrize("kinds", [["starter"], ["text"], ["csv", "csv"]])
def test_a_column_of_no_table_is_refused(kinds: list[str]) -> None:
    sources = [{"kind": kind, "name": str(i), "path": "a"} for i, kind in enumerate(kinds)]
    sources = [each if each["kind"] != "starter" else {"kind": "starter"} for each in sources]
    with pytest.raises(ConfigurationError, match=r"'ingestion\.text_column': .* exactly one source .*--env=own_csv"):
        parse(IngestionConfig, {"sources": sources, "text_column": "review"}, at="ingestion")


def test_a_table_without_a_new_key_has_the_fingerprint_of_before(tmp_path: Path, ingested: Any) -> None:
    (tmp_path / "a.csv").write_text("review\na\n")
    source = {"kind": "csv", "path": str(tmp_path / "a.csv")}
    named = ingested(source, text_column="review").records.manifest.fingerprints
    assert named == ingested({**source, "columns": ["review"]}).records.manifest.fingerprints


def test_max_samples_stops_a_source(tmp_path: Path, ingested: Any) -> None:
    assert ingested({**text_file(tmp_path, ["a", "b", "c"]), "max_samples": 2}).texts == ["a", "b"]


# -- what stops a run --------------------------------------------------------------------------------------------------


def test_a_path_without_a_source_that_has_one_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match=r"0 sources have a path\..*--env=own_text --params"):
        parse(IngestionConfig, {"sources": [{"kind": "starter"}], "path": "mine.txt"}, at="ingestion")


def test_damage_above_the_fraction_stops_with_counts(ingest_into: Any, tmp_path: Path) -> None:
    source = text_file(tmp_path, b"good\n" * 1 + b"bad \xff\n" + b"".join(b"line %d\n" % i for i in range(97)))
    with pytest.raises(
        SourceError, match=r"(?s)1 of 99 rows are damaged \(1.0 %\).*a.txt, line 2: byte 0xff at byte 9 "
    ):
        ingest_into(tmp_path / "x", source, max_bad_fraction=0.01)
    assert ingest_into(tmp_path / "y", source, max_bad_fraction=0.02).report["damaged"] == 1


def test_a_file_in_another_encoding_is_explained(ingest_into: Any, tmp_path: Path) -> None:
    source = text_file(tmp_path, "ascii\ncafé\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"a.txt, line 2: byte 0xe9 at byte 9 .* not utf-8.*iconv.*'encoding'"):
        ingest_into(tmp_path / "x", source)
    assert ingest_into(tmp_path / "y", {**source, "encoding": "latin-1"}).texts == ["ascii", "café"]


def test_much_damage_stops_early(ingest_into: Any, tmp_path: Path) -> None:
    lines = b"\xff\n" * 5_000 + b"".join(b"good %d\n" % i for i in range(200_000))
    with pytest.raises(SourceError, match=r"of (4096|8192) rows are damaged"):
        ingest_into(tmp_path, text_file(tmp_path, lines), max_bad_fraction=0.01)


def test_an_empty_corpus_is_named(ingest_into: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"source 'a.txt' is empty"):
        ingest_into(tmp_path, text_file(tmp_path, b""))


def test_a_corpus_of_too_long_lines_names_the_limit(ingest_into: Any, tmp_path: Path) -> None:
    source = text_file(tmp_path, ["a long line of words", "another long line of words"])
    with pytest.raises(SourceError, match=r"none of the 2 rows was accepted: 2 too_long .*max_characters is 5"):
        ingest_into(tmp_path / "x", source, length={"max_characters": 5})
    with pytest.raises(SourceError, match=r"2 too_many_tokens .*tokenizer.max_length is 2"):
        ingest_into(tmp_path / "y", source, tokens={"max_length": 2})


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "at least one source"),
        ([{"kind": "text", "path": "a"}, {"kind": "text", "path": "b"}], "several sources are called"),
        ([{"kind": "text", "path": "a", "weight": 1}, {"kind": "starter"}], "have no weight"),
        ([{"kind": "text", "path": "a", "columns": ["x"]}], "'columns' is not read by kind 'text'"),
        ([{"kind": "text"}], "kind 'text' needs 'path'"),
        ([{"kind": "hub", "dataset": "x"}], "needs 'dataset' and 'splits'"),
        ([{"kind": "text", "path": "a", "encoding": "utf-16"}], "not one byte"),
        ([{"kind": "text", "path": "a", "encoding": "klingon"}], "unknown to Python"),
        ([{"kind": "txt", "path": "a"}], "starter"),
        ([{"kind": "text", "pathh": "a"}], "Did you mean 'path'"),
        ([{"kind": "csv", "path": "a", "split": "train", "split_column": "s"}], "not both"),
    ],
)
def test_contradictory_parameters_are_refused(sources: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(IngestionConfig, {"sources": sources}, at="ingestion")


# -- resuming ----------------------------------------------------------------------------------------------------------


def _bytes(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix == ".arrow" or path.name == "manifest.json"
    }


class _Ahead:
    """An engine that takes three chunks before it returns the first result, and pickles what a node would receive."""

    def run(self, function: Any, tasks: Any, *, ordered: bool) -> Iterator[tuple[int, Any]]:
        function, tasks = pickle.loads(pickle.dumps(function)), enumerate(tasks)
        waiting: deque[tuple[int, Any]] = deque()
        while True:
            waiting.extend(itertools.islice(tasks, 4 - len(waiting)))
            if not waiting:
                return
            position, task = pickle.loads(pickle.dumps(waiting.popleft()))
            yield position, pickle.loads(pickle.dumps(function(task)))


@pytest.fixture
def reads_ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the engine `local` behave as one that runs elsewhere, from then on."""

    def change() -> None:
        monkeypatch.setattr(LocalEngineConfig, "here", property(lambda _: False))
        monkeypatch.setattr(LocalEngineConfig, "started", lambda _: contextlib.nullcontext(_Ahead()))

    return change


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("cut", "weighted", "near"), [(4, False, False), (9, True, False), (13, False, True), (20, True, True)]
)
def test_an_interrupted_run_ends_with_the_same_bytes(
    ingest_into: Any, tmp_path_factory: pytest.TempPathFactory, cut: int, weighted: bool, near: bool, ahead: bool,
    reads_ahead: Callable[[], None],
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("resume")
    words = ["one cat", "One cat", "two dogs", "", "three birds in a tree", "bad \x00"]
    a = text_file(folder, [words[i % 6] + " " * (i % 2) + str(i // 7) for i in range(60)], "a.txt")
    b = text_file(folder, [words[i % 5] + str(i // 3) for i in range(40)], "b.txt")
    sources = [{**a, "weight": 2, "split": "test"}, {**b, "weight": 1}] if weighted else [a, b]
    keys: dict[str, Any] = {"shard_rows": 4, "max_bad_fraction": 1.0, "tokens": {"max_length": 5, "too_long": "split"}}
    keys |= {"near_duplicates": {"threshold": 0.8}} if near else {}
    whole = ingest_into(folder / "whole", *sources, **keys)
    if ahead:
        reads_ahead()

    real, calls = Cleaner.clean, iter(range(1000))

    def killed(self: Any, chunk: Any) -> None:
        if next(calls) == cut:
            raise KeyboardInterrupt
        real(self, chunk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cleaner, "clean", killed)
        try:
            ingest_into(folder / "parts", *sources, **keys)
        except KeyboardInterrupt:
            (folder / "parts" / "records" / "part-000099.arrow").write_bytes(b"half")
    parts = ingest_into(folder / "parts", *sources, **keys)
    assert _bytes(folder / "parts") == _bytes(folder / "whole")
    timing = {"seconds", "rows_per_second", "resumed_after_rows"}
    assert {k: v for k, v in parts.report.items() if k not in timing} == {
        k: v for k, v in whole.report.items() if k not in timing
    }


def test_a_finished_store_is_kept_and_another_one_is_rewritten(
    ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_file(tmp_path, ["a", "b"])
    first = ingest_into(tmp_path / "out", source)
    with monkeypatch.context() as patch:
        patch.setattr(ingestion, "_run", lambda *_: pytest.fail("ran again"))
        again = ingest_into(tmp_path / "out", source)
    assert again.manifest == first.manifest
    text_file(tmp_path, ["a", "c"])
    changed = ingest_into(tmp_path / "out", source)
    assert changed.texts == ["a", "c"]
    assert changed.manifest.fingerprint != first.manifest.fingerprint


def test_the_times_of_the_report_are_those_of_this_run(
    ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion, "time", SimpleNamespace(monotonic=iter([100.0, 104.0, 50.0, 52.0]).__next__))
    source = text_file(tmp_path, [f"line {i}" for i in range(20)])
    for resumed, seconds, rate in ((0, 4.0, 5.0), (20, 2.0, 0.0)):
        report = ingest_into(tmp_path / "out", source).report
        assert (report["resumed_after_rows"], report["seconds"], report["rows_per_second"]) == (resumed, seconds, rate)


@pytest.mark.parametrize(("early", "read"), [(20, 24), (10_000, 400)])
def test_a_source_of_damaged_rows_is_not_read_to_its_end(
    early: int, read: int, ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fourth row is damaged and every fifth may be: after `early` rows the run stops with the next chunk."""
    assert ingestion.EARLY_STOP_ROWS == 10_000
    monkeypatch.setattr(ingestion, "EARLY_STOP_ROWS", early)
    monkeypatch.setattr(ingestion, "CHUNK_ROWS", 8)
    lines = b"".join(b"bad \xff\n" if i % 4 == 0 else b"line %d\n" % i for i in range(400))
    with pytest.raises(SourceError, match=rf"{read // 4} of {read} rows are damaged \(25\.0 %\)"):
        ingest_into(tmp_path / "out", text_file(tmp_path, lines), max_bad_fraction=0.2)


def test_a_damaged_shard_is_rewritten(ingest_into: Any, tmp_path: Path) -> None:
    source = text_file(tmp_path, [f"line {i}" for i in range(30)])
    before = ingest_into(tmp_path / "out", source, shard_rows=10).texts
    shard = tmp_path / "out" / "records" / "part-000001.arrow"
    shard.write_bytes(shard.read_bytes()[:-1] + b"X")
    assert ingest_into(tmp_path / "out", source, shard_rows=10).texts == before


def test_memory_does_not_grow_with_one_absurd_line(ingest_into: Any, tmp_path: Path) -> None:
    path = tmp_path / "absurd.txt"
    with open(path, "wb") as file:
        file.write(b"good\n")
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b"\nalso good\n")
    tracemalloc.start()
    out = ingest_into(tmp_path, {"kind": "text", "path": str(path)}, max_bad_fraction=0.5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out.texts == ["good", "also good"]
    (row,) = out.quarantined
    assert (row["reason"], row["line"]) == ("oversized", 2)
    assert "100000001 bytes" in row["detail"]
    assert peak < 20_000_000
