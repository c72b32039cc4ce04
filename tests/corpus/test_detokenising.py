from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.data.corpus.detokenising import detokenise
from mm_ldlm.data.corpus.tokenizer import TextTokenizer

AS_WRITTEN = [
    "the nurse's house",
    "it's 5 o'clock, isn't it? (yes) \"no\"",
    "i don't think we'll go; they've said they'd come.",
    "10,000 people at 10:30 paid $3.50, or 5%...",
    "on october 10, 1972 he left",
    "a twenty-one-year-old and/or an e.g. in the u.s.",
    "the dogs' bone is here",
    "the 1970's were that’s all",
    '"yes," he said, "no." ("really?")',
    "'hello,' she said -- and left!",
]


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_wordpiece_text_is_decoded_as_it_was_written(bert: TextTokenizer, text: str) -> None:
    ids = [bert.base.token_to_id(token) for token in bert.base.encode(text).tokens if token not in ("[CLS]", "[SEP]")]
    assert bert.decode(ids) == text


def test_special_tokens_are_words() -> None:
    assert detokenise("a [MASK] in ( [UNK] ) ' s house .") == "a [MASK] in ([UNK]) ' s house."
    assert detokenise("a [UNK] ' s house") == "a [UNK]'s house"


def test_a_single_quotation_mark_stays_where_its_partner_is_missing() -> None:
    assert detokenise('he said " no .') == 'he said " no.'


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from([*"'\"()[]$%.,:;!?-/’", "a", "s", "t", "o", "is", "12", "345", "##ing", "[UNK]"])))
def test_spaces_never_change_the_tokens(bert: TextTokenizer, tokens: list[str]) -> None:
    spaced = bert.base.decode([bert.base.token_to_id(token) for token in tokens], skip_special_tokens=False)
    written = detokenise(spaced)
    assert bert.base.encode(written).tokens == bert.base.encode(spaced).tokens
    assert sorted(written.replace(" ", "")) == sorted(spaced.replace(" ", ""))
