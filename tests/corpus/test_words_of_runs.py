"""The messages of parameters and runs of an ingestion, word for word, with the values that were found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SourceError
from mm_ldlm.data.corpus import ingestion
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.dedup import NearDuplicateConfig
from mm_ldlm.data.corpus.filters import LengthConfig, load_function, load_language_filter
from mm_ldlm.data.corpus.progress import Progress
from mm_ldlm.data.corpus.sources import SourceConfig
from mm_ldlm.data.corpus.splits import SplitConfig
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig

# -- parameters --------------------------------------------------------------------------------------------------------

CSV = {"kind": "csv", "path": "a.csv"}
TABLES = ("'text_column' names the column of exactly one source with a path and columns (csv, jsonl, parquet, arrow, "
          "disk), found ")  # fmt: skip
OWN = (". For a table of your own, name its environment (`--env=own_csv --params ingestion.path=FILE,"
       "ingestion.text_column=NAME`), or set ingestion.sources")  # fmt: skip
PATHS = (" sources have a path. For a file of your own, name an environment with a path (`--env=own_text --params "
         "ingestion.path=FILE`, or own_csv), or set ingestion.sources in an environment of your own")  # fmt: skip
SOURCE_KEYS = "delimiter, encoding, header, kind"


def _source(**keys: Any) -> Callable[[], Any]:
    return lambda: parse(SourceConfig, keys, at="at")


def _mixture(*sources: dict[str, Any], **keys: Any) -> Callable[[], Any]:
    return lambda: parse(IngestionConfig, {"sources": list(sources), **keys}, at="at")


VALUES: list[tuple[Callable[[], Any], str, str]] = [
    (_mixture(), "'sources' must name at least one source", "sources"),
    (_mixture(*({"kind": "starter", "name": name} for name in "bcabda")),
     "several sources are called ['a', 'b']: give each source a different 'name'", "sources"),
    (_mixture({"kind": "starter"}, CSV, {**CSV, "name": "x"}, path="p"),
     f"'path' replaces the path of exactly one source, but 2{PATHS}", "path"),
    (_mixture({"kind": "starter", "name": "x"}, text_column="t"), f"{TABLES}starter{OWN}", "text_column"),
    (_mixture({"kind": "starter", "name": "x"}, {"kind": "text", "path": "a", "name": "y"}, text_column="t"),
     f"{TABLES}starter, text{OWN}", "text_column"),
    (_mixture({"kind": "starter", "name": "z"}, {"kind": "starter", "name": "y"}, {"kind": "digits", "weight": 1}),
     "sources ['y', 'z'] have no weight: give a weight to every source or to none", "sources"),
    (_source(kind="digits", header=False), "'header' is not read by kind 'digits', which reads ", "header"),
    (_source(kind="starter", path="x"),
     "'path' is not read by kind 'starter', which reads num_test, num_train, num_validation", "path"),
    (_source(kind="parquet"), "kind 'parquet' needs 'path'", "path"),
    *((_source(kind="hub", **keys), "kind 'hub' needs 'dataset' and 'splits' (for example {train: hash})",
       "dataset splits") for keys in ({"dataset": "d"}, {"splits": {"train": "hash"}}, {})),
    (_source(kind="layout", path="x", splits={"z": "test", "train": "test", "dev": "test"}),
     "the layout has the splits train, validation, test, found dev, z", "splits"),
    *((_source(**keys, splits={"a": "train", "b": "held_out"}), "'held_out' is a split of kind 'layout'", "splits")
      for keys in ({"kind": "disk", "path": "x"}, {"kind": "hub", "dataset": "d"})),
    (_source(**CSV, columns=[]), "'columns' must name at least one column", "columns"),
    (_source(**CSV, split="test", split_column="s"), "give 'split' or 'split_column', not both", "split split_column"),
    (_source(**CSV, labels=["x"]), "'labels' needs 'label_column'", "labels label_column"),
    (_source(**CSV, columns=["a", "b"], pair_column="p"),
     "'pair_column' needs exactly one of 'columns', found ['a', 'b']", "pair_column columns"),
    *((_source(**CSV, vector_column="v", **keys),
       f"'vector_column' needs exactly one of 'columns' and no 'pair_column', found {found}: a vector belongs to one "
       "text", "vector_column columns")
      for keys, found in (({"columns": ["a", "b"]}, "['a', 'b']"), ({"pair_column": "p"}, "['text']"))),
    (_source(kind="text", path="a", unit="file", vectors="beside"),
     "'vectors' needs 'unit' line: a row of the .npy file belongs to one line", "vectors"),
    *((_source(**CSV, delimiter=each), f"'delimiter' must be one character, found {each!r}", "delimiter")
      for each in ("", ";;")),
    (_source(**CSV, encoding="klingön"),
     "encoding 'kling\\xf6n' is unknown to Python, or is no encoding of text (unknown encoding: klingön). Use utf-8 or "
     "another encoding of text", "encoding"),
    *((_source(**CSV, encoding=each),
       f"a line break in '{each}' is not one byte, or its letters differ from ASCII: convert the file to UTF-8 first "
       "(iconv)", "encoding") for each in ("utf-16", "utf-32-le", "cp037", "utf-8-sig")),
    (lambda: parse(LengthConfig, {"min_characters": 7, "max_characters": 5}, at="at"),
     "max_characters 5 is below min_characters 7", "max_characters min_characters"),
    (lambda: parse(LengthConfig, {"min_words": 3, "max_words": 2}, at="at"), "max_words 2 is below min_words 3",
     "max_words min_words"),
    (lambda: parse(NearDuplicateConfig, {"threshold": 0.05}, at="at"),
     "threshold 0.05 is outside 0.1 to 0.95; exact duplicates are always removed", "threshold"),
    (lambda: parse(NearDuplicateConfig, {"num_perm": 63}, at="at"),
     "num_perm 63 is below 64, which makes the estimate too noisy", "num_perm"),
    (lambda: parse(SplitConfig, {"validation": 0.75, "test": 0.5}, at="at"),
     "validation + test = 1.25 leaves no training text", "validation test"),
    (lambda: parse(SplitConfig, {"key": ""}, at="at"), "the key must have 1 to 64 bytes", "key"),
    (lambda: parse(TokenizerConfig, {"max_length": 4, "min_length": 6}, at="at"),
     "min_length 6 is above max_length 4", "min_length max_length"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "words", "keys"), VALUES, ids=lambda each: None)
def test_parameters_that_contradict_each_other(refused: Callable[[], Any], words: str, keys: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        refused()
    named, _, found = str(raised.value).partition(": ")
    assert [each.rpartition(".")[2] for each in re.findall(r"'([\w.\[\]]+)'", named)] == keys.split()
    assert found.removesuffix(".") == words


@pytest.mark.parametrize("at", ["parameter 'ingestion.language_filter'", "parameter 'objective.label'"])
def test_a_function_that_cannot_be_loaded_is_named_with_its_parameter(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_a_user.py").write_text("raise ZeroDivisionError('why')\n")
    for dotted, words in (
        ("a.b", "expected 'package.module:function', found 'a.b'."),
        ("a.b:", "expected 'package.module:function', found 'a.b:'."),
        ("no_such_package:f",
         "module 'no_such_package' cannot be imported (No module named 'no_such_package'). Install it first."),
        ("of_a_user:f", "module 'of_a_user' cannot be imported (ZeroDivisionError: why). Correct it."),
        ("mm_ldlm.data.corpus.filters:none", "'mm_ldlm.data.corpus.filters' has no callable 'none'. Correct the name."),
        ("mm_ldlm.data.corpus.splits:SPLITS", "'mm_ldlm.data.corpus.splits' has no callable 'SPLITS'. Correct the name."),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError) as raised:
            load_language_filter(dotted) if "filter" in at else load_function(dotted, at=at)
        assert str(raised.value) == f"{at}: {words}"


# -- runs --------------------------------------------------------------------------------------------------------------


def progress(**changes: Any) -> Progress:
    """Progress of two sources whose 20 rows (3 of them made by splitting) are all accounted for."""
    counts = Counts(
        read=[9, 8], accepted=[6, 5], duplicates=[2, 0], quarantined=[3, 4], from_splitting=[2, 1],
        quarantined_by=Counter(nul=1, too_long=6),
        examples={"nul": "f, line 3: a NUL", "too_long": "g, line 5: 9 words", "empty": "h, line 1: nothing"},
    )  # fmt: skip
    for name, value in changes.items():
        setattr(counts, name, value)
    return Progress("p", [9, 8], [True, True], counts, [], [])


def stopped(found: Progress, *sources: dict[str, Any], **keys: Any) -> str:
    config = parse(IngestionConfig, {"sources": list(sources), **keys}, at="ingestion")
    with pytest.raises(SourceError) as raised:
        ingestion._check(config, found)
    return str(raised.value)


TEXTS = ({"kind": "text", "name": "one", "path": ["a", "b"]}, {"kind": "text", "name": "two", "path": "c"})
NO_PATHS = ({"kind": "starter", "name": "one"}, {"kind": "starter", "name": "two"})
REASONS = "6 too_long (first: g, line 5: 9 words); 1 nul (first: f, line 3: a NUL)."


def test_what_stops_a_run_is_told_with_its_counts() -> None:
    assert stopped(progress(accepted=[6, 4]), *TEXTS) == (
        "rows were lost: 20 rows were read, but 10 were accepted, 2 are duplicates and 7 are in quarantine. This is a "
        "bug in mm_ldlm: please report it with the parameters."
    )
    empty = {"read": [20, 0], "from_splitting": [0, 0]}
    assert stopped(progress(**empty), *TEXTS) == (
        "source 'two' is empty: expected rows in 'c', found none. Check the source's 'path'."
    )
    assert stopped(progress(**{**empty, "read": [0, 20]}), *TEXTS) == (
        "source 'one' is empty: expected rows in 'a, b', found none. Check the source's 'path'."
    )
    assert stopped(progress(**empty), *NO_PATHS) == (
        "source 'two' is empty: expected rows, found none. Check the source's 'path'."
    )
    many = {**TEXTS[0], "path": [f"folder/{'x' * 20}{number}" for number in range(50)]}
    message = stopped(progress(**{**empty, "read": [0, 20]}), many, TEXTS[1])
    assert re.fullmatch(
        r"source 'one' is empty: expected rows in 'folder/x{20}0, folder/.*\.\.\..*49', found none\. .*", message
    )
    assert stopped(progress(accepted=[0, 0], duplicates=[8, 5]), *TEXTS, max_bad_fraction=0.05) == (
        f"none of the 20 rows was accepted: {REASONS} Relax the limit that the reason names (ingestion.length, "
        "tokenizer.max_length), or correct the sources."
    )


COLUMNS = (
    "Name columns that the source has: that of the text by `--params ingestion.text_column=NAME`, others by the keys "
    "of the source."
)
CSV_COLUMNS = (
    " Give a file with another delimiter, without a header or of another kind as a whole source, for example "
    "`--params 'ingestion.sources=[{kind: csv, path: FILE, columns: [NAME], delimiter: \";\"}]'`, with `header: false` "
    'and `columns: ["0"]`, or with `kind: jsonl`.'
)


@pytest.mark.parametrize(
    ("reason", "kinds", "remedy"),
    [
        ("missing_column", ("jsonl", "parquet"), COLUMNS), ("missing_column", ("jsonl", "csv"), COLUMNS + CSV_COLUMNS),
        ("missing_column", ("csv", "csv"), COLUMNS + CSV_COLUMNS),
        ("nul", ("csv", "jsonl"), "Correct the sources, or raise ingestion.max_bad_fraction to leave such rows out."),
    ],
)  # fmt: skip
def test_damage_is_told_with_its_reasons_and_what_removes_them(
    reason: str, kinds: tuple[str, str], remedy: str
) -> None:
    sources = [{"kind": kind, "path": "a", "name": str(number)} for number, kind in enumerate(kinds)]
    found = progress(quarantined_by=Counter({reason: 5, "empty": 2}), examples={reason: "f, line 1: d", "empty": "e"})
    assert stopped(found, *sources, max_bad_fraction=0.125) == (
        f"5 of 20 rows are damaged (25.0 %), but ingestion.max_bad_fraction is 12.5 %: 5 {reason} (first: f, line 1: "
        f"d); 2 empty (first: e). {remedy}"
    )


def test_damage_is_checked_early_only_where_it_is_too_much_of_many_rows(
    tmp_path: Path, ingest_into: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad rows at the beginning stop no run in which they are few in the end."""
    monkeypatch.setattr(ingestion, "CHUNK_ROWS", 2)
    monkeypatch.setattr(ingestion, "EARLY_STOP_ROWS", 10)
    source = {"kind": "text", "path": str(tmp_path / "a.txt")}
    for bad, good, read in ((2, 8, None), (3, 97, 4), (2, 7, 9)):
        lines = b"\xff\n" * bad + b"".join(b"line %d\n" % number for number in range(good))
        (tmp_path / "a.txt").write_bytes(lines)
        folder = tmp_path / f"{bad} {good}"
        if read is None:
            assert ingest_into(folder, source, max_bad_fraction=0.2).report["damaged"] == bad
            continue
        with pytest.raises(SourceError, match=rf"^{bad} of {read} rows are damaged"):
            ingest_into(folder, source, max_bad_fraction=0.2)
