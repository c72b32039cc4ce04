"""Conformance of all kinds of sources, those of families and extras included: no row is lost, whatever the bytes."""

import json
import logging
import os
import random
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.damage import damaged_bytes
from tests.data.corpus.examples import described, example_of, ingested, read, texts, written

from mm_ldlm.core import SourceError, UnsafePathError
from mm_ldlm.data.corpus.quarantine import BadRow
from mm_ldlm.data.corpus.record import normalise
from mm_ldlm.data.corpus.sources import SOURCES, Row

OF_FILES = [kind for kind in sorted(SOURCES) if example_of(kind) is not None]
KINDS = [*OF_FILES, *(kind for kind in sorted(SOURCES) if "path" not in SOURCES.find(kind, at="kind").__annotations__)]
"""All but the kinds of files that have no rows of their own, such as one long line"""
LOCAL = [kind for kind in OF_FILES if kind != "hub"]
QUICK = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r"), max_size=12)
"""One line of any valid Unicode"""


def rows_of(*lines: str) -> list[dict[str, Any]]:
    return [{"text": line, "n": number} for number, line in enumerate(lines)]


@pytest.mark.parametrize("kind", OF_FILES)
@QUICK
@given(lines=st.lists(TEXT, min_size=1, max_size=8))
def test_every_text_is_a_row_in_order(kind: str, lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = read(written(kind, Path(folder), rows_of(*lines)))
    assert [row.text if isinstance(row, Row) else row for row in found] == lines


@pytest.mark.parametrize("kind", OF_FILES)
@QUICK
@given(
    lines=st.lists(TEXT, min_size=1, max_size=8), form=st.sampled_from(["NFC", "NFKC", "none"]), collapse=st.booleans()
)
def test_accepted_texts_are_normalised_and_unique_and_no_row_is_lost(
    kind: str, lines: list[str], form: str, collapse: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = written(kind, Path(folder) / "input", rows_of("an  ordinary text", *lines))
        out = ingested(Path(folder), keys, unicode_form=form, collapse_whitespace=collapse)
        report = out.report
        assert report["rows_read"] == len(lines) + 1
        assert report["rows_in"] == report["accepted"] + report["duplicates"] + report["quarantined"]
        assert report["accepted"] == len(out.rows) == len({row["id"] for row in out.rows})
        assert report["quarantined"] == len(out.refused)
        for row in out.rows:
            row["text"].encode()
            assert row["text"] == normalise(row["text"], form, collapse_whitespace=collapse) != ""  # type: ignore[arg-type]
            assert form == "none" or unicodedata.is_normalized(form, row["text"])  # type: ignore[arg-type]
        assert out.texts[0] == ("an ordinary text" if collapse else "an  ordinary text")


def small(kind: str) -> dict[str, int]:
    """Few rows of a kind that generates them."""
    counts = {"num_train": 20, "num_validation": 0, "num_test": 0}
    return {name: count for name, count in counts.items() if hasattr(SOURCES.find(kind, at="kind"), name)}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_descriptions_repeat_themselves(kind: str, tmp_path: Path) -> None:
    """An interrupted run reads a source again and skips the rows that it has consumed."""
    keys = {**written(kind, tmp_path, rows_of(*(f"text {number}" for number in range(20)))), **small(kind)}
    first, second, other = (list(map(repr, read(keys, seed=seed))) for seed in (0, 0, 1))
    assert first == second
    assert len(first) >= 10
    contents = [json.dumps(described(keys, seed=seed)) for seed in (0, 0, 1)]
    assert contents[0] == contents[1]
    generated = example_of(kind) is None
    assert generated == (other != first) == (contents[0] != contents[2])


@pytest.mark.parametrize("kind", LOCAL)
def test_a_description_is_that_of_the_content_and_not_of_its_place(kind: str, tmp_path: Path) -> None:
    keys = written(kind, tmp_path / "a", rows_of("one", "two"))
    same = written(kind, tmp_path / "b", rows_of("one", "two"))
    other = written(kind, tmp_path / "c", rows_of("one", "owt"))
    kept = described(keys)
    assert described(other) != kept
    if kind != "disk":  # names of the library
        assert described(same) == kept


@pytest.mark.parametrize("kind", LOCAL)
def test_hostile_bytes_end_in_quarantine_or_in_one_error(kind: str, tmp_path: Path) -> None:
    """Flipped, cut, repeated and foreign bytes in any file of a source: every row that is read has a text or a reason."""
    keys = written(kind, tmp_path / "whole", rows_of(*(f"text {number}" for number in range(7))))
    files = sorted(path for path in (tmp_path / "whole").rglob("*") if path.is_file())
    draw, messages = random.Random(kind), list[str]()
    for _ in range(60):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "copy")
        path = tmp_path / "copy" / draw.choice(files).relative_to(tmp_path / "whole")
        path.write_bytes(damaged_bytes(path.read_bytes(), draw))
        moved = {name: str(value).replace("whole", "copy") for name, value in keys.items()}
        try:
            found = read(moved, max_row_bytes=500)
        except (SourceError, UnsafePathError) as error:
            messages.append(str(error))
            continue
        for row in found:
            assert isinstance(row, (Row, BadRow))
            assert isinstance(row, BadRow) or isinstance(row.text, str)
    assert len(messages) < 60
    assert all(str(tmp_path / "copy") in message for message in messages)


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("name", ["missing", "pipe", "loop", "x" * 300, "no\0name"])
def test_a_path_without_a_file_is_refused_and_never_waited_for(kind: str, name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    keys = {"kind": kind, "path": str(tmp_path / f"{name}.jsonl")}
    for use in (lambda: described(keys), lambda: read(keys)):
        with pytest.raises(SourceError, match=re.escape(str(tmp_path))):
            use()


def test_a_missing_file_is_named_with_its_source_and_a_folder_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses(SourceError, "missing.txt", "my_texts"):
        read({"kind": "text", "name": "my_texts", "path": "missing.txt"})
    Path("folder").mkdir()
    Path("folder/a.csv").touch()
    for kind in ("text", "jsonl"):
        with refuses(SourceError, "`--params 'ingestion.path=folder/*.csv'`"):
            read({"kind": kind, "path": "folder"})


@pytest.mark.parametrize("kind", [kind for kind in LOCAL if kind not in ("disk", "table", "layout")])
def test_files_of_a_list_and_a_glob_are_read_once_in_order(kind: str, tmp_path: Path) -> None:
    keys = [written(kind, tmp_path / name, rows_of(name)) for name in ("b", "a")]
    paths = [each["path"] for each in keys]
    assert texts(read({**keys[0], "path": [*paths, paths[0]]})) == ["b", "a"]
    assert texts(read({**keys[0], "path": str(tmp_path / "*" / Path(paths[0]).name)})) == ["a", "b"]


@pytest.mark.parametrize("kind", ["text", "table", "jsonl"])
def test_files_of_a_glob_are_counted_and_files_below_it_are_announced(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    suffix = "txt" if kind == "text" else "jsonl"
    for name in ("a", "b", "c", "below/d", "below/e", ".hidden/f"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.{suffix}").write_text('{"text": "a"}\n')
    for pattern, count in (("*", 3), ("**/*", 5)):
        keys = {"kind": kind, "name": "mine", "path": str(tmp_path / f"{pattern}.{suffix}")}
        caplog.clear()
        with caplog.at_level(logging.INFO, "mm_ldlm"):
            described(keys)
        assert f"source 'mine': {count} files" in caplog.text
        assert len(read(keys)) == count
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert [("2 files" in each, f"path={tmp_path}/**/*.{suffix}" in each) for each in said] == [(True, True)] * (
            count == 3
        )


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("a line\n")
    keys = {"kind": "text", "path": str(tmp_path / "caf*")}  # parameters are Unicode, the names of files need not be
    assert texts(read(keys)) == ["a line"]
    assert ingested(tmp_path / "out", keys).texts == ["a line"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_and_the_number_of_samples_are_those_of_the_parameters(kind: str, tmp_path: Path) -> None:
    keys = written(kind, tmp_path / "input", rows_of("one", "two", "three", "four"))
    out = ingested(tmp_path, {**keys, **small(kind), "name": "mine", "max_samples": 3})
    assert out.report["rows_read"] == 3
    assert {row["source"] for row in out.rows} == {"mine"}
