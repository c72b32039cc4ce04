"""Ingestion: no row is lost, and the bytes depend neither on the workers nor on any interruption."""

import builtins
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus.examples import SEED, Ingested, ingested, jsonl, written
from tests.data.latents.toy import content

from mm_ldlm.core import ConfigurationError, SourceError, config, parse
from mm_ldlm.data import engines
from mm_ldlm.data.corpus import ingestion, merging
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.filters import LengthConfig
from mm_ldlm.data.corpus.ingestion import conservation
from mm_ldlm.data.corpus.merging import Counts, Merger
from mm_ldlm.data.corpus.quarantine import BadRow
from mm_ldlm.data.corpus.record import comparison_digest, comparison_form, normalise, record_id
from mm_ldlm.data.corpus.sources import Opening, Row, SourceConfig
from mm_ldlm.data.corpus.sources.base import HELD_OUT
from mm_ldlm.data.corpus.splits import SplitConfig
from mm_ldlm.data.store import Manifest, ShardStore

WORDS = ("a", "b", "Red", "red", "GREEN", "green", "é", "straße", "STRASSE", "", "\0", "ﬁ")


def lines(folder: Path, *texts: str, name: str = "lines", **keys: Any) -> dict[str, Any]:
    return {**written("jsonl", folder / name, [{"text": text} for text in texts]), "name": name, **keys}


def mixed(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randrange(1, 5))) for _ in range(count)]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingestion, "CHUNK_ROWS", 7)


# -- the outcome of every row ------------------------------------------------------------------------------------------

SPLIT = {"validation": 0.2, "test": 0.4}
PIECES = {"name": "bert-base-uncased", "max_length": 6, "too_long": "split"}
DRAWN = "tests.data.corpus.test_ingestion:Drawn"


@config
class Drawn(SourceConfig):
    """Rows of every form, with their text as their vector; `line` in `meta` is the number of the row."""

    kind: str = DRAWN
    draw: int = 0

    def rows(self, opening: Opening) -> Iterator[Row]:
        draw, texts = random.Random(f"{opening.seed} {self.draw}"), [""]
        for line in range(1, 61):
            text = draw.choice([draw.choice(texts), " ".join(draw.choices(WORDS, k=draw.randrange(1, 9)))])
            texts.append(text)
            about = draw.choice([None, None, "d" * 32, "e" * 32])
            yield Row(
                text, "drawn", line, None if about else draw.choice([None, None, HELD_OUT, "train"]),
                {"line": line, **({"describes": {"digest": about}} if about else {})},
                pair=None if about else draw.choice([None, None, f" abcdefghijklmnopqrstuvwxyz {draw.choice(WORDS)}\n"]), describes=about,
                vector=text, group=draw.choice([None, "one", "two", "three"]),
            )  # fmt: skip

    def describe(self, opening: Opening) -> Any:
        return self.draw


@settings(max_examples=30)
@given(draw=st.integers(0, 10**6), near=st.booleans(), divided=st.booleans())
def test_pitfall_14_every_row_is_in_the_split_of_its_group_a_duplicate_or_quarantined(
    tmp_path_factory: pytest.TempPathFactory, draw: int, near: bool, divided: bool
) -> None:
    folder, bounds = tmp_path_factory.mktemp("case"), LengthConfig(min_characters=2, max_words=7)
    keys = {**(in_pieces(folder) if divided else {}), "near_duplicates": {} if near else None, "splits": SPLIT}
    out = ingested(folder, {"kind": DRAWN, "draw": draw}, **keys, length=vars(bounds))
    report = out.report
    assert report["rows_in"] == 60 + report["rows_from_splitting"]
    assert report["rows_in"] == report["accepted"] + report["duplicates"] + report["quarantined"]
    assert (report["accepted"], report["quarantined"]) == (len(out.rows), len(out.refused))
    sources, fractions = list(Drawn(draw=draw).rows(Opening(SEED, 1000))), SplitConfig(**SPLIT)
    by_form: dict[str, set[str]] = {}
    for row in out.rows:
        meta = json.loads(row["meta"])
        given, pair = sources[meta["line"] - 1], meta.get("pair")
        assert row["id"] == record_id(row["text"], pair, given.describes)
        for text in (row["text"], pair or row["text"]):
            bounds.check(text)
            assert text == normalise(text)
            assert not divided or len(text.split()) <= 3
        digest = comparison_digest(given.describes or given.group or given.text, key=b"mm-ldlm")
        assert row["split"] == (
            "train" if given.split == "train" else fractions.split_of(digest, held_out=given.split == HELD_OUT)
        )
        by_form.setdefault(comparison_form(given.describes or row["text"]), set()).add(row["split"])
    assert all(len(splits) == 1 for splits in by_form.values())
    usable = [
        given
        for given in sources
        if "\0" not in f"{given.text}{given.pair}"
        and all(
            len(text) > 1 and len(text.split()) < 8 for text in map(normalise, (given.text, given.pair or given.text))
        )
    ]
    assert near or divided or {comparison_form(given.describes or given.text) for given in usable} <= by_form.keys()
    ids = {record_id(normalise(given.text), None, given.describes) for given in usable if given.describes}
    assert divided or ids <= {row["id"] for row in out.rows}, "descriptions are never near duplicates"
    assert all(f"{count} {split}" in conservation(report) for split, count in report["splits"].items())


@pytest.mark.parametrize("count", [6, 18])
def test_pitfall_35_near_duplicates_of_a_held_out_document_are_not_in_training(tmp_path: Path, count: int) -> None:
    """Of one piece, and of several; the others stay, and so do near duplicates within a split."""
    words = [" ".join(str(10_000 + 20 * number + place) for place in range(count)) for number in range(60)]
    texts = [f"{text} {more}" for more in ("", "1", "2") for text in words]
    keys = {"near_duplicates": {"threshold": 0.7, "remove": "across_splits"}, "splits": SPLIT}
    out = ingested(tmp_path, lines(tmp_path, *texts), tokens={**PIECES, "max_length": 12}, **keys)
    first: dict[int, set[str]] = {}
    for row in out.rows:
        number = max(map(int, row["text"].split())) - 10_000
        if number >= 0:  # not a piece of the last word only
            first.setdefault(number // 20, set()).add(row["split"])
    assert len(first) == 60
    assert {len(splits) for splits in first.values()} == {1}
    assert {"near_in_train", "near_in_test", "near_in_validation"} <= out.report["duplicates_by_kind"].keys()
    assert out.report["accepted"] > 60
    again = Merger(parse(IngestionConfig, {"sources": [lines(tmp_path, *texts)], **keys}, at="ingestion"), Counts({}))
    again.restore(out.records)  # as a run that continues does
    near: Any = again.config.near_duplicates
    assert all(again._near_split(near.signature(comparison_form(text)), -1) is not None for text in words)


def test_splits_have_their_fractions_and_rows_that_a_source_holds_out_are_divided_again() -> None:
    """By another part of the digest than the one by which a hash split with this key may have held them out."""
    fractions, digests = SplitConfig(validation=0.1, test=0.3), [random.Random(i).randbytes(16) for i in range(2000)]
    held = [digest for digest in digests if fractions.split_of(digest) != "train"]
    assert abs(len(held) / 2000 - 0.4) < 0.03
    assert abs(sum(fractions.split_of(digest) == "test" for digest in held) / 2000 - 0.3) < 0.03
    divided = [fractions.split_of(digest, held_out=True) for digest in held]
    assert set(divided) == {"validation", "test"}
    assert abs(divided.count("test") / len(held) - 0.75) < 0.05


def test_limits_in_tokens_drop_truncate_or_split_a_text(tmp_path: Path) -> None:
    text = "one two three four five six seven"
    for treatment, expected in (
        ("drop", ["short"]), ("truncate", [text, "short"]),
        ("split", ["one two three", "four five six", "seven", "short"]),
    ):  # fmt: skip
        tokens = {"max_length": 3, "too_long": treatment}
        out = ingested(tmp_path / treatment, lines(tmp_path, text, "short"), tokens=tokens)
        assert out.texts == expected
        assert out.report["rows_in"] == 2 + out.report["rows_from_splitting"] == 2 + 2 * (treatment == "split")
        assert out.report["truncated"] == (treatment == "truncate")


def test_weights_divide_the_rows_until_a_source_is_exhausted(tmp_path: Path) -> None:
    sources = [
        lines(tmp_path, *(f"{name} {number}" for number in range(rows)), name=name, weight=weight)
        for name, rows, weight in (("a", 100, 3.0), ("b", 1000, 1.0))
    ]
    report = ingested(tmp_path, *sources).report["sources"]
    assert {name: (each["read"], each["read_to_its_end"]) for name, each in report.items()} == {
        "a": (100, True), "b": (33, False)
    }  # fmt: skip


# -- one result, whoever computes it -----------------------------------------------------------------------------------


def in_pieces(folder: Path) -> dict[str, Any]:
    """Parameters that divide texts into pieces of three tokens of a small vocabulary."""
    (folder / "vocab.txt").write_text("\n".join(["[UNK]", "a", "b", "red", "green"]) + "\n")
    tokens = {"path": str(folder / "vocab.txt"), "max_length": 3, "too_long": "split"}
    return {"shard_rows": 16, "near_duplicates": {}, "tokens": tokens, "splits": SPLIT}


def test_the_bytes_do_not_depend_on_the_workers(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "FEW", 2)
    source, keys, reports = lines(tmp_path, *mixed(150)), in_pieces(tmp_path), list[dict[str, Any]]()
    for cores in (1, 2):
        monkeypatch.setattr(engines, "count_cores", lambda: cores)  # noqa: B023
        reports.append(ingested(tmp_path / str(cores), source, **keys).report | {"seconds": 0, "rows_per_second": 0})
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert reports[0] == reports[1]


def test_pitfall_22_the_bytes_do_not_depend_on_where_a_run_was_killed(
    tmp_path: Path, small_chunks: None, sweep: Callable[..., Iterator[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ahead(engine: Any, function: Callable[[Any], Any], tasks: Any, **_: Any) -> Iterator[tuple[int, Any]]:
        return ((number, function(task)) for number, task in enumerate([*tasks]))

    monkeypatch.setattr(engines.LocalEngine, "run", ahead)  # as processes, which take tasks before others are merged
    sources = [
        lines(tmp_path, *mixed(60), name="a"),
        lines(tmp_path, *mixed(40, seed=1), name="b", max_samples=35),
        {"kind": DRAWN},
        {**written("jsonl", tmp_path / "c", [{"text": text, "pair": f"{'abcdefgh' * 4} {text[:2]}"}
                                             for text in mixed(60, seed=2)]), "name": "pairs", "pair_column": "pair"},
    ]  # fmt: skip
    keys, folder = in_pieces(tmp_path), tmp_path / "killed"
    expected = ingested(tmp_path / "whole", *sources, **keys)
    for number in sweep(lambda: ingested(folder, *sources, **keys)):
        found = ingested(folder, *sources, **keys)
        assert content(folder) == content(tmp_path / "whole"), number
        assert found.report["splits"] == expected.report["splits"]
        assert found.report["sources"] == expected.report["sources"]
        shutil.rmtree(folder)
    assert number > 30


def test_long_texts_have_more_shards_and_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, most = [{"text": f"text {number}", "more": "x" * 50} for number in range(80)], 600
    source = {**written("jsonl", tmp_path / "in", rows), "meta_columns": ["more"]}
    expected = ingested(tmp_path / "few", source)
    monkeypatch.setattr(ingestion, "CHUNK_CHARACTERS", most // 15)
    monkeypatch.setattr(merging, "SHARD_CHARACTERS", most)
    assert ingested(tmp_path / "many", source).rows == expected.rows
    store = ShardStore.open(tmp_path / "many" / "records")
    sizes = [sum(len(row["text"] + row["meta"]) for row in store.window(*store.bounds(number)).to_pylist())
             for number in range(len(store.manifest.shards))]  # fmt: skip
    assert len(sizes) > 3
    assert all(most <= size < 2 * most for size in sizes[:-1])


def side(folder: Path, mark: str) -> Any:
    """A store of the texts of the rows, of which few fit in memory."""
    return SimpleNamespace(
        workspace=folder, fingerprint=mark, most_rows=8, accept=normalise,
        table=lambda ids, values: pa.table({"id": ids, "text": values}),
        commit=lambda shards, *, records: Manifest(kind="side", rows=records.rows, shards=tuple(shards)).write(folder),
    )  # fmt: skip


BASE = {"draw": 0, "side": "one", "shard_rows": 16, "tokens": {**PIECES, "too_long": "drop"}}


@pytest.mark.parametrize(
    ("change", "decides"),
    [
        ({"unicode_form": "NFKC"}, True), ({"collapse_whitespace": False}, True), ({"splits": {"key": "x"}}, True),
        ({"length": {"max_words": 3}}, True), ({"max_row_bytes": 500}, True), ({"near_duplicates": {}}, True), ({"draw": 1}, True),
        ({"side": "two"}, True), ({"max_bad_fraction": 0.99}, False), ({"replace": True}, False),
        *(({"tokens": {**BASE["tokens"], **limit}}, True)  # type: ignore[dict-item]
          for limit in ({"max_length": 5}, {"min_length": 2}, {"too_long": "truncate"})),
    ],
)  # fmt: skip
def test_an_unfinished_run_of_other_inputs_or_with_a_damaged_shard_begins_again(
    tmp_path: Path, change: dict[str, Any], decides: bool
) -> None:
    source = lines(tmp_path, *mixed(60), vector_column="text")

    def again(**changed: Any) -> Ingested:
        keys = BASE | changed
        sources = source, {"kind": DRAWN, "draw": keys.pop("draw")}
        keys["side"] = side(tmp_path / "out/side", keys["side"])
        return ingested(tmp_path / "out", *sources, **keys)

    out = again()
    expected, values = content(tmp_path / "out"), ShardStore.open(tmp_path / "out/side")
    assert values.table(slice(None)).to_pylist() == [{"id": row["id"], "text": row["text"]} for row in out.rows]
    assert max(shard.rows for store in (out.records, out.quarantine) for shard in store.manifest.shards) < 16
    shard = tmp_path / "out/side/part-000001.arrow"
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    (tmp_path / "out/records/part-000099.arrow").write_bytes(b"left by another run")
    assert again().report["resumed_after_rows"] == 0
    assert content(tmp_path / "out") == expected
    report = again(**change).report
    assert report["resumed_after_rows"] == (0 if decides else report["rows_in"])
    assert (report["rows_per_second"] == 0) != decides
    assert (content(tmp_path / "out") != expected) == decides


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_finished_records_of_other_sources_are_not_replaced(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    mine, other = lines(tmp_path, "one", name="mine"), lines(tmp_path, "two", name="other")
    ingested(tmp_path, mine)
    with refuses(ConfigurationError, "mine", "other", "ingestion.replace"):
        ingested(tmp_path, other)
    with refuses(ConfigurationError, "text, n"):  # the records of the first run would have no labels, or other ones
        ingested(tmp_path, {**mine, "label_column": "n"})
    assert ingested(tmp_path, {**mine, "max_samples": 5}).texts == ["one"]
    assert ingested(tmp_path, other, replace=True).texts == ["two"]


def test_too_many_damaged_rows_stop_the_run(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch, refuses: Callable[..., Any]
) -> None:
    source = {"kind": "jsonl", **jsonl(tmp_path, [{"review": f"text {number}"} for number in range(50)])}
    monkeypatch.setattr(ingestion, "EARLY_STOP_ROWS", 10)
    with refuses(SourceError, "14 of 14", "missing_column", "review", "line 1:"):
        ingested(tmp_path / "a", source, max_bad_fraction=0.5)
    assert ingested(tmp_path / "b", {**source, "columns": ["review"]}, max_bad_fraction=0.0).report["accepted"] == 50


@pytest.mark.parametrize(("damaged", "count"), [(1, 90), (7, 25), (29, 100), (13, 25)])
def test_the_option_of_the_message_leaves_out_damaged_rows_that_are_a_minority(
    tmp_path: Path, refuses: Callable[..., Any], damaged: int, count: int
) -> None:
    """Neither empty texts nor pieces of texts change the fraction."""
    texts: list[Any] = [5] * damaged + [None] + [f"{number} a b c d e f g" for number in range(count - damaged - 1)]
    source, keys = lines(tmp_path, *texts), {"tokens": {"max_length": 4, "too_long": "split"}}
    with refuses(SourceError, f"{damaged} of {count}", "wrong_type") as caught:
        ingested(tmp_path / "a", source, max_bad_fraction=0.01, **keys)
    assert "empty" not in str(caught.value)
    option = re.search(r"`--params ingestion\.max_bad_fraction=([0-9.]+)`", str(caught.value))
    assert (option is None) == (2 * damaged > count)
    if option is not None:
        fraction = float(option[1])
        assert fraction - 0.01 < damaged / count
        assert ingested(tmp_path / "b", source, max_bad_fraction=fraction, **keys).report["damaged"] == damaged


def test_empty_sources_and_sources_without_a_usable_row_stop_the_run(
    tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    with refuses(SourceError, "lines"):
        ingested(tmp_path / "a", lines(tmp_path))
    with refuses(SourceError, "too_short"):
        ingested(tmp_path / "b", lines(tmp_path, "a"), length={"min_characters": 10})


ROWS: dict[str, Any] = {
    "none": None,
    "number": 3,
    "text": "a text",
    "row": Row(b"a text", "here", 2),  # type: ignore[arg-type]
    "split": Row("b", "here", 2, "tset"),
    "damaged": BadRow(1, "here", "reason", "detail"),  # type: ignore[arg-type]
}
"""What a source must not yield"""


@config
class Failing(SourceConfig):
    kind: str = "failing"
    raised: str

    def rows(self, opening: Opening) -> Iterator[Any]:
        yield Row("a text", "here", 1)
        if self.raised in ROWS:
            yield ROWS[self.raised]
        raise getattr(builtins, self.raised)

    def describe(self, opening: Opening) -> Any:
        return object() if self.raised == "describes" else None


@pytest.mark.parametrize("raised", ["KeyError", "GeneratorExit", "SystemExit", "StopIteration", "describes", *ROWS])
def test_a_source_of_another_package_that_fails_is_refused_by_its_name(
    tmp_path: Path, refuses: Callable[..., Any], raised: str
) -> None:
    with refuses(SourceError, f"{__name__}:Failing", "expected"):
        ingested(tmp_path, {"kind": f"{__name__}:Failing", "raised": raised})


def test_a_source_of_another_package_is_read_again_when_its_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, kept in (("one", 0), ("one", 60), ("two", 0)):
        monkeypatch.setattr("mm_ldlm.data.corpus.filters.inspect.getsource", lambda _, code=code: code)
        assert ingested(tmp_path, {"kind": DRAWN}).report["resumed_after_rows"] == kept


def test_path_and_text_column_replace_those_of_the_only_source_with_a_path(
    tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    keys = {"kind": "jsonl", **jsonl(tmp_path, [{"review": "a text"}])}
    given = {"path": keys["path"], "text_column": "review"}
    starter = {"kind": "starter", "num_train": 2, "num_validation": 0, "num_test": 0}
    assert "a text" in ingested(tmp_path, {**keys, "path": "elsewhere"}, starter, **given).texts
    for sources, named in (([starter], "path"), ([keys, {**keys, "name": "second"}], "path")):
        with refuses(ConfigurationError, f"ingestion.{named}"):
            parse(IngestionConfig, {"sources": sources, "path": "a"}, at="ingestion")
    with refuses(ConfigurationError, "ingestion.text_column"):
        parse(IngestionConfig, {"sources": [{"kind": "text", "path": "a"}], "text_column": "a"}, at="ingestion")


def test_only_columns_of_vectors_are_proposed_as_vectors(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    rows = [{"vectors_of": "a text", "text": "b", "n": 1, "vec": [1.0]}, {"text": "b"}]
    source = {"kind": "jsonl", **jsonl(tmp_path, rows[:1])}
    with refuses(SourceError, "`--params ingestion.vector_column=vec`"):
        ingested(tmp_path, source, vector_column="vectors", max_bad_fraction=0.0)
    source = {"kind": "jsonl", **jsonl(tmp_path, rows[1:])}
    with refuses(SourceError, "vectors", "text"):
        ingested(tmp_path, source, vector_column="vectors", max_bad_fraction=0.0)


@pytest.mark.parametrize(
    "keys",
    [
        {"sources": []}, {"sources": [{"kind": "starter"}, {"kind": "starter"}]}, {"sources": [{"kind": "unknown"}]},
        {"sources": [{"kind": "starter", "weight": 1.0}, {"kind": "starter_pairs"}]}, {"splits": {"test": 1.0}},
        {"splits": {"key": ""}}, {"splits": {"key": "x" * 65}}, {"length": {"max_words": 1, "min_words": 2}},
        {"near_duplicates": {"threshold": 0.99}}, {"near_duplicates": {"num_perm": 8}},
    ],
)  # fmt: skip
def test_contradictory_parameters_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(keys))):
        parse(IngestionConfig, {"sources": [{"kind": "starter"}], **keys}, at="ingestion")
