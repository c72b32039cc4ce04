"""Every name that decides something: reasons of damage, words of splits, suffixes of tables, marks and formats."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.ingestion import _LATER_KEYS
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.base import DAMAGE
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.sources.table import _KINDS
from mm_ldlm.families.images.decoding import FORMATS, ImageLimits, UnusableImage, decode


def read(**keys: Any) -> list[Row | BadRow]:
    return list(open_source(parse(SourceConfig, keys, at="source"), seed=0, max_row_bytes=10_000).rows())


DAMAGED = {
    "encoding", "nul", "oversized", "broken_json", "broken_csv", "missing_column", "wrong_type", "missing_file",
    "broken_image", "unsafe_path", "unreadable_file", "filter_error", "no_vector", "wrong_dimension", "not_finite",
    "other_tokens",
}  # fmt: skip
FILTERED = {
    "empty", "too_short", "too_long", "language", "no_tokens", "too_few_tokens", "too_many_tokens", "no_label",
    "unknown_label", "unlisted_file",
}  # fmt: skip


def test_damage_is_what_a_sound_source_does_not_have() -> None:
    """A row that a limit or a filter leaves out stops no run, however many there are."""
    for number, reason in enumerate(sorted(DAMAGED | FILTERED), start=1):
        counts = Counts.empty(1)
        counts.quarantined_by[reason] = number
        assert counts.damaged == (number if reason in DAMAGED else 0), reason
    assert set(DAMAGE) == DAMAGED


@pytest.mark.parametrize(
    ("word", "split"),
    [("train", "train"), ("TRAIN", "train"), ("validation", "validation"), ("valid", "validation"),
     ("Dev", "validation"), ("val", "validation"), ("test", "test"), ("tests", None), ("training", None), ("", None),
     (" test", None)],
)  # fmt: skip
def test_words_for_a_split(word: str, split: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'text,s\nt,"{word}"\n')
    (row,) = read(kind="csv", path=str(tmp_path / "a.csv"), split_column="s")
    assert (row.split if isinstance(row, Row) else None) == split
    assert isinstance(row, BadRow) == (split is None)


TABLES = {
    "a.parquet": ("parquet", ","), "a.arrow": ("arrow", ","), "a.feather": ("arrow", ","), "a.jsonl": ("jsonl", ","),
    "a.ndjson": ("jsonl", ","), "a.csv": ("csv", ","), "a.tsv": ("csv", "\t"), "a.txt": ("text", ","),
    "A.CSV": ("csv", ","), "A.TSV": ("csv", "\t"), "a.tsv.gz": ("csv", "\t"), "a.jsonl.zst": ("jsonl", ","),
    "a.csv.gz": ("csv", ","), "a.b.txt": ("text", ","),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_the_suffix_of_a_table_chooses_its_reader_and_its_delimiter(name: str) -> None:
    source: Any = open_source(parse(SourceConfig, {"kind": "table", "path": name}, at="s"), seed=0, max_row_bytes=7)
    (found,) = source._sources()
    assert (found.config.kind, found.config.delimiter) == TABLES[name]
    assert found.config.paths == (name,)
    assert getattr(found, "max_row_bytes", 7) == 7
    assert {Path(each).suffix for each in TABLES} >= set(_KINDS)


@pytest.mark.parametrize("name", ["a", "a.json", "a.gz", "a.xlsx", "parquet"])
def test_a_name_that_is_no_table_is_refused(name: str) -> None:
    with pytest.raises(SourceError, match=rf"expected a file with one of the suffixes \.parquet, .* found {name}\."):
        read(kind="table", path=name)


@pytest.mark.parametrize("name", ["UTF-16-LE", "UTF-16-BE", "UTF-32-LE", "UTF-32-BE"])
@pytest.mark.parametrize("unit", ["line", "file"])
def test_files_of_wide_characters_are_recognised_by_their_mark(name: str, unit: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffa text\n".encode(name))
    with pytest.raises(SourceError, match=rf"found {name[:6]}\. Convert the file first: iconv -f {name[:6]} -t UTF-8"):
        read(kind="text", path=str(tmp_path / "a.txt"), unit=unit)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "ICO", "TGA"])
def test_only_the_listed_formats_are_decoded(kind: str) -> None:
    sink = io.BytesIO()
    Image.fromarray(np.full((16, 16), 128, np.uint8)).save(sink, kind)
    if kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF"):
        assert decode(sink.getvalue(), limits=ImageLimits()).shape[:2] == (16, 16)
        assert kind in FORMATS
        return
    with pytest.raises(UnusableImage, match="not a readable image") as error:
        decode(sink.getvalue(), limits=ImageLimits())
    assert error.value.reason == "broken_image"


def test_keys_that_were_added_later_have_their_defaults() -> None:
    """Their defaults are left out of the fingerprint, so that records of an earlier version are kept."""
    defaults = {field: getattr(SourceConfig(kind="starter"), field) for field in _LATER_KEYS}
    assert defaults == _LATER_KEYS
    assert set(_LATER_KEYS) == {
        "label_column", "labels", "pair_column", "image_column", "vector_column", "tokens", "latents"
    }  # fmt: skip
