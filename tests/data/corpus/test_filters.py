"""Filters: a function of the user is a predicate, and whatever it does costs at most its rows.

Duplicates: the map of digests is a dictionary, and near duplicates are those above the threshold.
"""

import gc
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus.examples import ingested, jsonl

from mm_ldlm.core import ConfigurationError, SourceError
from mm_ldlm.data.corpus import duplicates
from mm_ldlm.data.corpus.duplicates import DigestMap, NearDuplicateConfig, NearDuplicates
from mm_ldlm.data.corpus.filters import LengthConfig
from mm_ldlm.data.corpus.quarantine import Unusable

MODULE = """
import asyncio, numpy, sys
def letters(text): return numpy.bool_(text.isalpha())
async def asynchronous(text): return False
def generator(text): yield False
def word(text): return "no"
def number(text): return float("nan")
class bool_: pass
def alike(text): return bool_()
def nothing(text): pass
def odd(text):
    if text == "bad": raise RuntimeError("x" * 900_000)
    if text == "out": sys.exit(3)
    if text == "5 %": raise GeneratorExit
    return True
constant = 5
"""


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Ingest four texts with a filter of the module above."""
    (tmp_path / "filters_of_a_test.py").write_text(MODULE)
    (tmp_path / "broken_filter.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = {"kind": "jsonl", **jsonl(tmp_path, [{"text": text} for text in ("good", "bad", "out", "5 %")])}
    return lambda name, **keys: ingested(tmp_path / "out", source, language_filter=name, **keys)


def test_a_filter_keeps_the_texts_for_which_it_is_true(keep: Callable[..., Any]) -> None:
    out = keep("filters_of_a_test:letters")
    assert out.texts == ["good", "bad", "out"]
    assert out.report["quarantined_by_reason"] == {"language": 1}
    assert out.report["damaged"] == 0
    kept = keep("filters_of_a_test:letters").report["resumed_after_rows"]
    Path(sys.modules["filters_of_a_test"].__file__).write_text(f"{MODULE}# another one\n")
    assert (kept, keep("filters_of_a_test:letters").report["resumed_after_rows"]) == (4, 0)


@pytest.mark.parametrize("name", ["asynchronous", "generator", "word", "number", "nothing", "alike"])
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_pitfall_43_anything_but_a_boolean_is_refused_at_the_first_row(
    name: str, keep: Callable[..., Any], refuses: Callable[..., Any]
) -> None:
    with refuses(ConfigurationError, "ingestion.language_filter", f"filters_of_a_test:{name}"):
        keep(f"filters_of_a_test:{name}")
    gc.collect()  # a coroutine that was never awaited warns here


def test_a_filter_that_raises_costs_its_rows_and_stops_a_hopeless_run(keep: Callable[..., Any]) -> None:
    out = keep("filters_of_a_test:odd")
    assert out.report["quarantined_by_reason"] == {"filter_error": 3}
    assert all(len(row["detail"]) < 600 for row in out.refused)
    with pytest.raises(SourceError) as raised:
        keep("filters_of_a_test:odd", max_bad_fraction=0.1, replace=True)
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize(
    "name",
    [
        "broken_filter:keep",
        "no_such:keep",
        "filters_of_a_test:missing",
        "filters_of_a_test:constant",
        ":keep",
        "..:a",
        "a",
    ],
)
def test_a_name_that_is_not_a_function_is_refused(name: str, keep: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"ingestion\.language_filter"):
        keep(name)


@given(st.text(), st.integers(1, 4), st.integers(4, 8), st.integers(1, 2), st.integers(2, 3))
def test_bounds_are_inclusive(text: str, low: int, high: int, few: int, many: int) -> None:
    bounds = LengthConfig(min_characters=low, max_characters=high, min_words=few, max_words=many)
    fits = low <= len(text) <= high and few <= len(text.split()) <= many
    if fits:
        bounds.check(text)
    else:
        with pytest.raises(Unusable) as refused:
            bounds.check(text)
        assert (refused.value.reason == "empty") == (text == "")


# -- duplicates --------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2)), max_size=200))
def test_a_digest_map_is_a_dictionary(items: list[tuple[int, int]]) -> None:
    found, model = DigestMap(), dict[bytes, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_LATEST", 5)
        for number, value in items:
            digest = hashlib.md5(str(number).encode()).digest()[: 16 - number % 3] + bytes(number % 3)  # ends in NUL
            assert found.get(digest) == model.get(digest)
            if digest not in model:
                found.put(digest, value)
                model[digest] = value
        assert all(found.get(digest) == value for digest, value in model.items())


@pytest.mark.parametrize("remove", ["all", "across_splits"])
def test_near_duplicates_are_those_above_the_threshold(remove: Any) -> None:
    config = NearDuplicateConfig(threshold=0.7, remove=remove)
    seen, text = (
        NearDuplicates(config),
        "a long enough sentence about a dog that runs through the garden in the morning",
    )
    assert seen.split_of(config.signature(text), split=0) is None
    seen.add(config.signature(text), split=2)
    assert seen.split_of(config.signature(text + " sun"), split=0) == 2
    assert seen.split_of(config.signature(text + " sun"), split=2) == (2 if remove == "all" else None)
    other = "quite another sentence about ships that sail over the sea at night"
    assert seen.split_of(config.signature(other), split=0) is None
    seen.add(config.signature(other), split=0)
    assert seen.split_of(config.signature(f"{other} again"), split=2) == 0
    whole_n = config.signature(text).hashvalues
    assert (config.signature("abcdefg").hashvalues != config.signature("abcdefx").hashvalues).any()
    for end in range(10, len(text)):  # the index alone would also find some that are less similar
        part = config.signature(text[:end])
        assert seen.split_of(part, split=0) is None or float((part.hashvalues == whole_n).mean()) >= 0.7
