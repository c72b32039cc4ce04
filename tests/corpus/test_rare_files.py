"""Files and rows that are rare and allowed: archives without members, folders beside the splits, images that fail."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mm_ldlm.core.config import InvalidValue, parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus import ingestion, row_tests
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.progress import Progress
from mm_ldlm.data.corpus.record import text_digest
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig, arrow_files
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.extras.layout.reading import Folder
from mm_ldlm.extras.own_vectors.source import column_vectors
from mm_ldlm.families.images import image_folder, webdataset
from mm_ldlm.families.images.decoding import ImageLimits, digest, digits, read_image, reference_of
from mm_ldlm.families.images.digits import CAPTIONS, NAMES


def read(*, seed: int = 0, **keys: Any) -> list[Row | BadRow]:
    return list(open_source(parse(SourceConfig, keys, at="source"), seed=seed, max_row_bytes=5_000).rows())


@pytest.mark.parametrize("folders", [[], ["a", "a/b"]])
def test_a_tar_without_files_has_no_samples(folders: list[str], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in folders:
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
    assert read(kind="webdataset", path=str(tmp_path / "a.tar")) == []


def test_tokens_beside_the_folders_of_the_splits_are_not_read(tmp_path: Path) -> None:
    for name in ("train/1.npz", "dev/2.npz", "train/1.txt", "notes/3.npz"):
        (tmp_path / "tokens" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tokens" / name).write_bytes(b"")
    with Folder(tmp_path) as folder:
        found = [(entry.split, entry.text_path, entry.token_path) for entry in folder.entries()]
        assert folder.splits() == ["train", "validation"]
    assert found == [("validation", None, "tokens/dev/2.npz"), ("train", None, "tokens/train/1.npz")]
    for name in ("train/1.npz", "dev/2.npz"):
        (tmp_path / "tokens" / name).unlink()
    with Folder(tmp_path) as folder, pytest.raises(SourceError, match=r"or tokens/<split>/\*\.npz, found neither"):
        list(folder.entries())


def test_an_image_that_the_system_refuses_costs_its_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    for number in range(2):
        Image.fromarray(np.full((2, 2), 40 * number, np.uint8)).save(tmp_path / f"{number}.png")
    lines = [json.dumps({"text": f"text {number}", "image": f"{number}.png"}) for number in range(2)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    decode = image_folder.decode

    def refused(data: bytes, *, limits: ImageLimits) -> Any:
        if data == (tmp_path / "0.png").read_bytes():
            raise PermissionError(13, "Permission denied")
        return decode(data, limits=limits)

    monkeypatch.setattr(image_folder, "decode", refused)
    bad, good = read(kind="image_folder", path=str(tmp_path / "a.jsonl"))
    file = str(tmp_path / "a.jsonl")
    assert bad == BadRow(file, 1, "unreadable_file", "image '0.png': Permission denied", "text 0")
    assert isinstance(good, Row)
    assert (good.text, good.line) == ("text 1", 2)


def test_a_type_without_a_view_as_bytes_is_validated_with_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "_bytes_instead_of_text", lambda kind: pa.int8())
    batch = pa.record_batch({"text": ["a", "b"]})
    assert arrow_files.valid(batch) is batch
    damaged = pa.record_batch({"text": pa.array([b"\xff"]).view(pa.string())})
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        arrow_files.valid(damaged)


def test_every_digit_has_a_caption_of_its_own_draw() -> None:
    rows = [row for row in read(kind="digits", seed=3) if isinstance(row, Row)]
    pixels, labels = digits()
    assert [row.line for row in rows] == list(range(1, 1798))
    assert {row.file for row in rows} == {"digits"}
    forms: Counter[str] = Counter()
    for row, label in zip(rows, labels, strict=True):
        assert json.loads(row.meta or "")["label"] == NAMES[label]
        forms[next(form for form in CAPTIONS if form.format(NAMES[label]) == row.text)] += 1
    assert set(forms) == set(CAPTIONS)
    assert min(forms.values()) > 150, "each of 9 forms is drawn for about 200 images"
    reference = reference_of(rows[-1].meta) or {}
    assert reference["digits"] == 1796
    assert digest(read_image(reference, limits=ImageLimits())) == rows[-1].image == digest(pixels[1796])
    again = [row.text for row in read(kind="digits", seed=4) if isinstance(row, Row)]
    assert sum(one.text != two for one, two in zip(rows, again, strict=True)) > 1000


def test_a_kind_without_a_reader_is_refused_where_types_are_not_checked() -> None:
    unchecked = SimpleNamespace(kind="csw")
    with pytest.raises(InvalidValue, match="kind 'csw' is unknown; expected one of starter, starter_pairs, ") as error:
        SourceConfig.__post_init__(unchecked)  # type: ignore[arg-type]
    assert error.value.keys == ("kind",)


def test_rows_of_a_hub_that_are_not_taken_to_the_end_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    ended: list[str] = []

    def loaded(*_: Any, **__: Any) -> Any:
        try:
            yield from ({"text": f"text {number}"} for number in range(9))
        finally:
            ended.append("closed")

    monkeypatch.setattr(datasets, "load_dataset", loaded)
    source = open_source(
        parse(SourceConfig, {"kind": "hub", "dataset": "o/d", "splits": {"train": "hash"}}, at="source"),
        seed=0, max_row_bytes=99,
    )  # fmt: skip
    rows: Any = source.rows()
    assert next(rows) == Row("text 0", "o/d[train]", 1)
    rows.close()
    assert ended == ["closed"]


# -- resumed mixtures, pieces of texts ---------------------------------------------------------------------------------


def test_a_mixture_of_which_a_source_was_exhausted_is_not_continued() -> None:
    sources = tuple(SourceConfig(kind="starter", name=name, weight=1.0) for name in ("one", "two"))
    progress = Progress.start("p", 2)
    progress.consumed, progress.exhausted = [3, 2], [False, True]
    readers: Any = [SimpleNamespace(rows=lambda: iter(range(9))) for _ in sources]
    chunks = ingestion._Chunks(IngestionConfig(sources=sources), readers, progress, size=2)
    assert list(chunks) == []
    chunks.finish()
    assert (progress.consumed, progress.exhausted) == ([3, 2], [False, True])


def test_every_piece_of_a_text_is_kept_or_refused_by_its_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [("good piece", 2), ("x", 4), ("short", 1), ("y", 3)]

    class Tokenizer:
        def encode_base(self, texts: list[str]) -> tuple[Any, Any]:
            return np.zeros(10, np.int64), np.array([0, 10])

    monkeypatch.setattr(row_tests, "split_text", lambda text, tokenizer, *, max_length: pieces)
    config = IngestionConfig(
        sources=(SourceConfig(kind="starter"),), length={"min_characters": 2}  # type: ignore[arg-type]
    )  # fmt: skip
    limits = TokenizerConfig(max_length=3, min_length=2, too_long="split")
    out = RowTests(config, Tokenizer(), limits)([(0, Row("the whole text", "f", 7, meta='{"a": 1}', image="i"))])  # type: ignore[arg-type]
    assert [(refused.reason, refused.detail, refused.text, refused.line) for refused in out.refusals] == [
        ("too_many_tokens", "4 tokens in a piece that cannot be split further", "x", 7),
        ("too_few_tokens", "a piece of 1 tokens, tokenizer.min_length is 2", "short", 7),
        ("too_short", "1 characters, min_characters is 2", "y", 7),
    ]
    assert (dict(out.from_splitting), dict(out.read)) == ({0: 3}, {0: 1})
    (kept,) = out.candidates
    whole = text_digest("the whole text", "i").hex()
    assert json.loads(kept.meta or "") == {"a": 1, "piece_of": whole, "piece": 0, "pieces": 4}
    assert (kept.text, kept.row.image, kept.pair) == ("good piece", "i", None)


def test_the_rest_of_a_record_that_is_none_is_read_again() -> None:
    """A line that the division gives back is read as it would have been without the broken line before it."""
    from mm_ldlm.data.corpus.sources.csv_records import CsvRecords, Record
    from mm_ldlm.data.corpus.sources.files import Line

    texts = ["a,b", "1,2", '3,"x"y', "5,6", '7,"8', "9,10", "11,12"]
    lines = iter([Line(number, text) for number, text in enumerate(texts, start=1)])
    found = list(CsvRecords(lines, delimiter=",", file="f", max_bytes=99))
    assert [record for record in found if isinstance(record, Record)] == [
        (1, ["a", "b"]), (2, ["1", "2"]), (4, ["5", "6"]), (6, ["9", "10"]), (7, ["11", "12"])
    ]  # fmt: skip
    assert [(bad.line, bad.reason, bad.excerpt) for bad in found if isinstance(bad, BadRow)] == [
        (3, "broken_csv", '3,"x"y'), (5, "broken_csv", '7,"8')
    ]  # fmt: skip


# -- readers of tables, vectors and archives ---------------------------------------------------------------------------


def test_the_files_of_a_table_have_the_name_of_its_source(tmp_path: Path) -> None:
    for name, label in ((None, "table"), ("mine", "mine")):
        keys = {} if name is None else {"name": name}
        for suffix in ("csv", "jsonl", "parquet", "txt"):
            with pytest.raises(SourceError, match=rf"source '{label}': file .*away\.{suffix} does not exist"):
                read(kind="table", path=f"{tmp_path}/away.{suffix}", **keys)


def test_the_vector_of_a_line_does_not_keep_its_file_mapped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    np.save(tmp_path / "a.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    for row, expected in zip(read(kind="text", path=str(tmp_path / "a.txt"), vectors="beside"), ([1, 2], [3, 4]),
                             strict=True):  # fmt: skip
        assert isinstance(row, Row)
        assert (type(row.vector), getattr(row.vector, "base", 0)) == (np.ndarray, None)
        assert np.asarray(row.vector).tolist() == expected


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_column_of_vectors_has_any_number_of_chunks(chunks: int) -> None:
    kind = pa.list_(pa.float32(), 2)
    column = pa.chunked_array([pa.array([[number, 1.0]], kind) for number in range(chunks)], kind)
    assert [row.tolist() for row in column_vectors(column) or []] == [[number, 1.0] for number in range(chunks)]


@pytest.mark.parametrize(("zeros", "whole"), [(0, False), (1, False), (511, False), (512, True), (1024, True)])
def test_an_archive_ends_with_a_block_of_zeros(zeros: int, whole: bool, tmp_path: Path) -> None:
    data = tarfile.TarInfo("a").tobuf() + bytes(zeros)
    (tmp_path / "a.tar").write_bytes(data)
    if whole:
        webdataset._check_end(tmp_path / "a.tar", 512)
    else:
        with pytest.raises(OSError, match=f"the archive ends at byte {512 + zeros} without its end marker"):
            webdataset._check_end(tmp_path / "a.tar", 512)
