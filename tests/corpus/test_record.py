from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.normalisation import comparison_form, normalise
from mm_ldlm.data.corpus.record import record_id
from mm_ldlm.data.corpus.splits import SplitConfig, split_of, splits_of

FORMS = st.sampled_from(["NFC", "NFKC", "none"])


@given(st.text(), FORMS, st.booleans())
def test_normalising_twice_is_normalising_once(text: str, form: str, collapse: bool) -> None:
    once = normalise(text, form, collapse_whitespace=collapse)
    assert normalise(once, form, collapse_whitespace=collapse) == once


@given(st.text())
def test_the_comparison_form_ignores_case_width_and_space(text: str) -> None:
    form = comparison_form(text)
    assert comparison_form(form) == form
    assert comparison_form(f"  {text}\t") == form
    assert comparison_form(unicodedata.normalize("NFD", text)) == comparison_form(unicodedata.normalize("NFC", text))


@pytest.mark.parametrize("pair", [("Straße", "STRASSE"), ("A  b", "a b"), ("ﬁne", "FINE"), ("Ｈｅｌｌｏ", "hello")])
def test_texts_that_differ_only_in_form_share_a_split(pair: tuple[str, str]) -> None:
    fractions = SplitConfig(validation=0.3, test=0.3)
    assert comparison_form(pair[0]) == comparison_form(pair[1])
    assert split_of(pair[0], fractions) == split_of(pair[1], fractions)


def test_the_id_is_the_text_and_nothing_else() -> None:
    assert record_id("a cat") == record_id("a cat")
    assert record_id("a cat") != record_id("A cat")
    assert len(record_id("")) == 32


def test_fractions_are_kept_and_the_key_matters() -> None:
    texts = [f"sentence number {i}" for i in range(20_000)]
    fractions = SplitConfig(validation=0.1, test=0.2)
    found = [split_of(text, fractions) for text in texts]
    assert abs(found.count("validation") / len(texts) - 0.1) < 0.01
    assert abs(found.count("test") / len(texts) - 0.2) < 0.01
    other = [split_of(text, SplitConfig(validation=0.1, test=0.2, key="other")) for text in texts]
    assert np.mean([a == b for a, b in zip(found, other, strict=True)]) < 0.9


def test_a_larger_fraction_takes_from_training_only() -> None:
    digests = np.random.default_rng(0).integers(0, 2**63, 5000, dtype=np.uint64) * np.uint64(2)
    small, large = splits_of(digests, SplitConfig(test=0.1)), splits_of(digests, SplitConfig(test=0.2))
    assert (large[small == 2] == 2).all()


def test_fractions_without_training_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="leaves no training text"):
        parse(SplitConfig, {"validation": 0.5, "test": 0.5}, at="ingestion.splits")
