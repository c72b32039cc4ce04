"""The form of a stored text, the form in which texts are compared, ids, and `meta`."""

import functools
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mm_ldlm.data.corpus.record import (
    META_DEPTH,
    comparison_form,
    described_by,
    group_of,
    is_storable,
    label_text,
    meta_text,
    meta_value,
    normalise,
    record_id,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(TEXT, st.sampled_from(["NFC", "NFKC", "none"]), st.booleans())
def test_normalisation_is_idempotent_and_leaves_no_outer_white_space(text: str, form: Any, collapse: bool) -> None:
    once = normalise(text, form, collapse_whitespace=collapse)
    assert normalise(once, form, collapse_whitespace=collapse) == once == once.strip()
    assert form == "none" or unicodedata.is_normalized(form, once)
    if collapse:
        assert once == " ".join(once.split())


@example("\u00df\u0301")  # whose folded form has another normal form
@given(TEXT)
def test_texts_that_differ_in_case_encoding_or_spacing_have_one_form(text: str) -> None:
    form = comparison_form(text)
    assert comparison_form(form) == form
    for other in (unicodedata.normalize("NFD", text), f" {text}\n", unicodedata.normalize("NFKC", text)):
        assert comparison_form(other) == form
    assert comparison_form("Straße  ＡＢＣ") == comparison_form("STRASSE abc")


@given(st.lists(st.tuples(TEXT, st.none() | TEXT, st.none() | st.just("d" * 32)), unique=True, max_size=20))
def test_ids_are_equal_only_for_equal_records(records: list[tuple[str, str | None, str | None]]) -> None:
    ids = [record_id(*record) for record in records]
    assert len(set(ids)) == len(records)
    assert all(len(each) == 32 for each in ids)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("a", "a"),
        (" a ", "a"),
        ("", None),
        ("  ", None),
        (3, "3"),
        (True, "true"),
        (2.0, "2"),
        (1.5, None),
        (float("nan"), None),
        (None, None),
        ([], None),
    ],
)
def test_labels_are_texts_whole_numbers_and_truth_values(value: Any, label: str | None) -> None:
    assert label_text(value) == label


def test_meta_is_json_of_bounded_depth() -> None:
    assert meta_text({}) is None
    text = meta_text({"a": "é\ud800", "b": [1, {"c": None}]})
    assert text is not None
    assert text.isascii()
    assert meta_value(text, "b") == json.loads(text)["b"] == [1, {"c": None}]
    assert meta_value(text, "c") is None is meta_value(None, "a")
    deep, deeper, deepest = (
        functools.reduce(lambda value, _: [value], range(depth), [1])
        for depth in (META_DEPTH - 2, META_DEPTH - 1, 100_000)
    )
    assert meta_text({"a": deep})
    for value in (deeper, deepest):
        with pytest.raises(ValueError, match="nested deeper"):
            meta_text({"a": value})
    with pytest.raises(TypeError):
        meta_text({(1, 2): 3})  # type: ignore[dict-item]
    assert described_by(meta_text({"describes": {"file": "a.png", "digest": "d"}})) == "d"
    assert described_by(meta_text({"describes": "another column of this name"})) is None
    assert group_of(meta_text({"piece_of": "document", "split_group": "author"})) == "author"


@given(st.text())
def test_storable_texts_are_those_that_utf8_encodes(text: str) -> None:
    assert is_storable(text) == ("\0" not in text and not any(0xD800 <= ord(letter) < 0xE000 for letter in text))
