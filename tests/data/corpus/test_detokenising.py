"""Spaces at punctuation: every rule by itself, and no rule changes the tokens of a text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, detokenise, load_tokenizer

APOSTROPHES = ("'", "’")
BERT = load_tokenizer(TokenizerConfig(max_length=64))


@pytest.mark.parametrize("mark", ".,:;!?%)]}…")
def test_no_space_stands_before_a_closing_mark(mark: str) -> None:
    assert detokenise(f"a {mark} b") == f"a{mark} b"
    assert detokenise(f"a {mark} {mark}") == f"a{mark}{mark}"


@pytest.mark.parametrize("mark", "([{$€£#")
def test_no_space_stands_after_an_opening_mark(mark: str) -> None:
    assert detokenise(f"a {mark} b") == f"a {mark}b"


@pytest.mark.parametrize("mark", "&+=<>|~^*_@\\")
def test_other_marks_keep_their_spaces(mark: str) -> None:
    assert detokenise(f"a {mark} b") == f"a {mark} b"


@pytest.mark.parametrize(
    ("spaced", "written"),
    [
        ("a - b", "a-b"), ("a / b", "a/b"), ("1 - 2", "1-2"), ("a -b", "a-b"), ("a- b", "a-b"), ("- - a", "-- a"),
        ("a - -", "a --"), ("- a", "- a"), (". - b", ". - b"),
        ("3 . 5", "3.5"), ("10 : 30", "10:30"), ("3 . a", "3. a"), ("a . 5", "a. 5"), ("3 , 5", "3, 5"),
        ("10 , 000", "10,000"), ("10 , 000 , 000", "10,000,000"), ("10 , 00", "10, 00"), ("10 , 0000", "10, 0000"),
        ("a , 000", "a, 000"),
        ("u . s . a .", "u.s.a."), ("e . g . this", "e.g. this"), ("ab . c .", "ab. c."), ("1 . a .", "1. a."),
    ],
)  # fmt: skip
def test_hyphens_numbers_and_initials(spaced: str, written: str) -> None:
    assert detokenise(spaced) == written


@pytest.mark.parametrize("mark", APOSTROPHES)
def test_endings_and_french_beginnings_have_their_apostrophe_beside_them(mark: str) -> None:
    for ending in ("s", "t", "d", "m", "re", "ve", "ll"):
        assert detokenise(f"we {mark} {ending} here") == f"we{mark}{ending} here"
        assert detokenise(f"[UNK] {mark} {ending}") == f"[UNK]{mark}{ending}"
        assert detokenise(f"we {mark} {ending}x here") == f"we {mark} {ending}x here"
    for beginning in "dljo":
        assert detokenise(f"{beginning} {mark} eau") == f"{beginning}{mark}eau"
        assert detokenise(f"{beginning} {mark} 5") == f"{beginning} {mark} 5"
        assert detokenise(f"x{beginning} {mark} eau") == f"x{beginning} {mark} eau"
    assert detokenise(f"k {mark} eau") == f"k {mark} eau"


@pytest.mark.parametrize("mark", ['"', "'"])
def test_quotation_marks_open_and_close_in_turn(mark: str) -> None:
    for after in ".,:;!?)":
        assert detokenise(f"x {mark} a {mark} {after}") == f"x {mark}a{mark}{after}"
    for before in "([":
        assert detokenise(f"{before} {mark} a {mark} y") == f"{before}{mark}a{mark} y"
    assert detokenise(f"{mark} a {mark}") == f"{mark}a{mark}"
    assert detokenise(f"{mark} a {mark} x {mark} b {mark} y") == f"{mark}a{mark} x {mark}b{mark} y"
    assert detokenise(f"{mark} a {mark} x {mark} b") == f"{mark} a {mark} x {mark} b"


def test_the_first_possessive_of_a_plural_makes_an_odd_number_even() -> None:
    assert detokenise("the dogs ' bone") == "the dogs' bone"
    assert detokenise("' the dogs ' bone '") == "'the dogs' bone'"
    assert detokenise("the dogs ' bone ' here") == "the dogs 'bone' here"
    assert detokenise("the dog ' bone") == "the dog ' bone"
    assert detokenise('the dogs " bone') == 'the dogs " bone'


@pytest.mark.parametrize("special", ["[MASK]", "[UNK]", "[PAD]"])
def test_special_tokens_stay_whole_words_in_their_order(special: str) -> None:
    assert detokenise(f"a {special} , [MASK] . {special}") == f"a {special}, [MASK]. {special}"
    assert detokenise(f"( {special} )") == f"({special})"
    assert detokenise("a [ CLS ] b") == "a [CLS] b"


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
def test_wordpiece_text_is_decoded_as_it_was_written(text: str) -> None:
    ids = [BERT.base.token_to_id(token) for token in BERT.base.encode(text).tokens if token not in ("[CLS]", "[SEP]")]
    assert BERT.decode(ids) == text


@settings(max_examples=100)
@given(st.lists(st.sampled_from([*"'\"()[]$%.,:;!?-/’", "a", "s", "t", "o", "is", "12", "345", "##ing", "[UNK]"])))
def test_spaces_never_change_the_tokens(tokens: list[str]) -> None:
    spaced = BERT.base.decode([BERT.base.token_to_id(token) for token in tokens], skip_special_tokens=False)
    written = detokenise(spaced)
    assert BERT.base.encode(written).tokens == BERT.base.encode(spaced).tokens
    assert sorted(written.replace(" ", "")) == sorted(spaced.replace(" ", ""))
