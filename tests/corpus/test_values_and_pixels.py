"""Values of `meta`, cells, functions and images in every form: what is kept, how long, and what is told of the rest."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.data.corpus.filters import describe_function
from mm_ldlm.data.corpus.json_text import parse_json
from mm_ldlm.data.corpus.record import META_DEPTH, is_decoded, meta_text, meta_value
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig, arrow_files, base
from mm_ldlm.data.corpus.sources.columnar import batch_rows
from mm_ldlm.families.classification.text_labels import num_words
from mm_ldlm.families.images.decoding import ImageLimits, UnusableImage, decode, read_image

# -- meta and values ---------------------------------------------------------------------------------------------------


def test_meta_is_ascii_with_any_value_as_text_and_a_greatest_depth() -> None:
    when = datetime.date(2024, 5, 6)
    assert meta_text({"é": when, "n": [1.5, None, True]}) == '{"\\u00e9": "2024-05-06", "n": [1.5, null, true]}'
    for make in (lambda inner: [inner], lambda inner: (inner,), lambda inner: {"k": inner}):
        value: Any = 1
        for _ in range(META_DEPTH - 1):
            value = make(value)
        assert meta_text({"k": value})
        with pytest.raises(ValueError, match=f"nested deeper than {META_DEPTH} levels"):
            meta_text({"k": make(value)})
    wide = {f"k{number}": [[number]] for number in range(META_DEPTH)}
    assert json.loads(meta_text(wide)) == wide, "many lists beside each other are no depth"
    for fields, words in (([1], "expected a mapping, found list"), (None, "expected a mapping, found NoneType")):
        with pytest.raises(ValueError, match=f"^{words}$"):
            meta_text(fields)


@pytest.mark.parametrize(
    ("meta", "value"),
    [(None, None), ("{}", None), ('{"key": 5}', 5), ('{"other": "key"}', None), ('{"a": {"key": 1}}', None),
     ('{"key": null}', None), ('{"key": false}', False)],
)  # fmt: skip
def test_a_key_of_meta_is_one_of_its_outer_level(meta: str | None, value: Any) -> None:
    assert meta_value(meta, "key") == value


def test_only_a_record_that_says_so_was_decoded() -> None:
    for value, found in (("true", True), ("false", False), ("1", False), ('"yes"', False), ("null", False)):
        assert is_decoded(f'{{"decoded_from_tokens": {value}}}') is found
    assert not is_decoded(None)


def test_a_long_key_that_occurs_twice_is_shortened() -> None:
    key = "k" * 200
    with pytest.raises(ValueError, match="occurs 2 times") as raised:
        parse_json(json.dumps({key: 1})[:-1] + f', "{key}": 2}}')
    assert str(raised.value) == f"the key '{'k' * 79} occurs 2 times in one object"


@pytest.mark.parametrize("error", [RecursionError, ValueError, OverflowError])
def test_a_value_without_a_form_is_named_by_its_type(error: type[Exception]) -> None:
    class Absurd:
        def __repr__(self) -> str:
            raise error("why")

    assert base.excerpt(Absurd()) == "Absurd (why)"
    assert base.excerpt(["a\0" * 200]) == base.printable(repr(["a\0" * 200])[:160])
    assert base.excerpt("\0" * 161) == "\\x00" * 160, "the length is that of the text"


def test_numbers_of_words_have_two_digits() -> None:
    for count, label in ((0, "00"), (1, "01"), (12, "12"), (99, "99"), (100, "99"), (5000, "99")):
        assert num_words("word " * count) == label


def test_a_function_of_a_module_without_a_file_has_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("builtins", "math"):
        assert describe_function(f"{name}:abs")["source"] == describe_function("builtins:len")["source"]
    assert (
        describe_function("mm_ldlm.data.corpus.filters:keep_ascii")["source"] != describe_function("math:f")["source"]
    )


# -- images ------------------------------------------------------------------------------------------------------------


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("mode", "color", "pixel"),
    [("1", 1, [255]), ("L", 7, [7]), ("LA", (9, 0), [9]), ("P", 0, [0, 0, 0]), ("RGB", (1, 2, 3), [1, 2, 3]),
     ("RGBA", (4, 5, 6, 0), [4, 5, 6]), ("I;16", 257 * 8, [8])],
)  # fmt: skip
def test_every_mode_has_one_or_three_channels(mode: str, color: Any, pixel: list[int]) -> None:
    found = decode(encoded(Image.new(mode, (5, 2), color)), limits=ImageLimits())
    assert (found.shape, found[1, 4].tolist(), found.dtype) == ((2, 5, len(pixel)), pixel, np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_images_of_any_depth_are_turned_upright(dtype: Any) -> None:
    scale = 257 if dtype == np.uint16 else 1
    image = Image.fromarray((np.arange(6).reshape(2, 3) * scale).astype(dtype))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    found = decode(encoded(image, exif=exif), limits=ImageLimits())
    assert found[..., 0].tolist() == [[3, 0], [4, 1], [5, 2]]


def test_sizes_of_images_are_told_as_width_and_height() -> None:
    data = encoded(Image.new("L", (7, 3)))
    assert decode(data, limits=ImageLimits(max_pixels=21, max_bytes=len(data))).shape == (3, 7, 1)
    for limits, detail in ((ImageLimits(max_pixels=20), "7 × 3 pixels, at most 20 are decoded"),
                           (ImageLimits(max_bytes=len(data) - 1),
                            f"{len(data)} bytes, at most {len(data) - 1} are decoded")):  # fmt: skip
        with pytest.raises(UnusableImage) as raised:
            decode(data, limits=limits)
        assert (raised.value.reason, raised.value.detail) == ("oversized", detail)


def test_no_more_of_an_archive_is_read_than_may_be_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar").write_bytes(bytes(range(200)))
    seen: list[bytes] = []
    monkeypatch.setattr("mm_ldlm.families.images.decoding.decode", lambda data, limits: seen.append(data))
    for most, count in ((5, 6), (50, 20)):
        read_image({"tar": str(tmp_path / "a.tar"), "offset": 10, "bytes": 20}, limits=ImageLimits(max_bytes=most))
        assert seen[-1] == bytes(range(10, 10 + count))


def test_the_columns_of_a_missing_text_are_those_of_every_batch() -> None:
    """Cells of other columns are not read, but their names are told."""
    config = parse(
        SourceConfig, {"kind": "arrow", "path": "p", "columns": ["b", "none"], "meta_columns": ["n"]}, at="s"
    )
    batch = pa.record_batch({"b": ["x", "y"], "n": [1, 2], "o": [5, 6]})
    found = list(batch_rows(batch, config=config, file="f", start=10, split="test"))
    detail = "no column 'none'; found b, n, o."
    assert found[0] == Row("x", "f", 11, "test", '{"n": 1}')
    assert found[1] == BadRow("f", 11, "missing_column", detail, repr({"b": "x", "n": 1, "o": None}))
    assert [row.line for row in found] == [11, 11, 12, 12]


def test_a_batch_is_validated_before_its_columns() -> None:
    checked: list[str] = []

    def validate() -> None:
        checked.append("batch")
        raise pa.ArrowInvalid("lengths differ")

    with pytest.raises(pa.ArrowInvalid, match="lengths differ"):
        arrow_files.valid(SimpleNamespace(validate=validate, columns=[]))  # type: ignore[arg-type]
    assert checked == ["batch"]
