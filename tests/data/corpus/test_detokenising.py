"""Spaces at punctuation: every rule by itself, and no rule changes the tokens of a text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core import parse
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.detokenising import detokenise
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer

BERT = load_tokenizer(TokenizerConfig(max_length=64))
RULES: dict[str, list[tuple[str, str]]] = {
    "no space before a closing mark": [
        pair for mark in ".,:;!?%)]}…" for pair in ((f"a {mark} b", f"a{mark} b"), (f"a {mark} {mark}", f"a{mark}{mark}"))
    ],
    "no space after an opening mark": [(f"a {mark} b", f"a {mark}b") for mark in "([{$€£#"],
    "other marks keep their spaces": [(f"a {mark} b", f"a {mark} b") for mark in "&+=<>|~^*_@\\"],
    "hyphens, numbers and initials": [
        ("a - b", "a-b"), ("a / b", "a/b"), ("1 - 2", "1-2"), ("a -b", "a-b"), ("a- b", "a-b"), ("- - a", "-- a"),
        ("a - -", "a --"), ("- a", "- a"), (". - b", ". - b"),
        ("3 . 5", "3.5"), ("10 : 30", "10:30"), ("3 . a", "3. a"), ("a . 5", "a. 5"), ("3 , 5", "3, 5"),
        ("10 , 000", "10,000"), ("10 , 000 , 000", "10,000,000"), ("10 , 00", "10, 00"), ("10 , 0000", "10, 0000"),
        ("a , 000", "a, 000"),
        ("u . s . a .", "u.s.a."), ("e . g . this", "e.g. this"), ("ab . c .", "ab. c."), ("1 . a .", "1. a."),
    ],
    "endings and French beginnings have their apostrophe next to them": [
        pair for mark in "'’" for pair in (
            *((f"we {mark} {end} here", f"we{mark}{end} here") for end in ("s", "t", "d", "m", "re", "ve", "ll")),
            *((f"[UNK] {mark} {end}", f"[UNK]{mark}{end}") for end in ("s", "t", "d", "m", "re", "ve", "ll")),
            *((f"we {mark} {end}x here",) * 2 for end in ("s", "t", "d", "m", "re", "ve", "ll")),
            *((f"{begin} {mark} eau", f"{begin}{mark}eau") for begin in "dljo"),
            *((f"{begin} {mark} 5",) * 2 for begin in "dljo"),
            *((f"x{begin} {mark} eau",) * 2 for begin in "dljo"),
            (f"k {mark} eau",) * 2,
        )
    ],
    "quotation marks open and close in turn": [
        pair for mark in "\"'" for pair in (
            *((f"x {mark} a {mark} {after}", f"x {mark}a{mark}{after}") for after in ".,:;!?)"),
            *((f"{before} {mark} a {mark} y", f"{before}{mark}a{mark} y") for before in "(["),
            (f"{mark} a {mark}", f"{mark}a{mark}"),
            (f"{mark} a {mark} x {mark} b {mark} y", f"{mark}a{mark} x {mark}b{mark} y"),
            (f"{mark} a {mark} x {mark} b",) * 2,
        )
    ],
    "the first possessive of a plural makes an odd number even": [
        ("the dogs ' bone", "the dogs' bone"), ("' the dogs ' bone '", "'the dogs' bone'"),
        ("the dogs ' bone ' here", "the dogs 'bone' here"), ("the dog ' bone", "the dog ' bone"),
        ('the dogs " bone', 'the dogs " bone'),
    ],
    "special tokens stay whole words in their order": [
        pair for special in ("[MASK]", "[UNK]", "[PAD]") for pair in (
            (f"a {special} , [MASK] . {special}", f"a {special}, [MASK]. {special}"),
            (f"( {special} )", f"({special})"),
            ("a [ CLS ] b", "a [CLS] b"),
        )
    ],
}  # fmt: skip
"""Rule → (text with spaces, text as it is written)"""


@pytest.mark.parametrize("rule", RULES)
def test_spaces_follow_every_rule(rule: str) -> None:
    assert [detokenise(spaced) for spaced, _ in RULES[rule]] == [written for _, written in RULES[rule]]


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


PUBLISHED = [
    ("wikitext", "= = A title = = \n The ( 2 @-@ 0 ) team 's \" 1 @,@ 234 @.@ 5 \" fans ' cheer : [ no ] ; yes ! why ? 5 ° C , N more .",
     "== A title ==\nThe (2-0) team's \"1,234.5\" fans' cheer: [no]; yes! why? 5°C, 1 more ."),
    ("lm1b", "See http : / / a.b , he 'll ask : \" is it ( now ) ? \" or / and [ so ] ; yes ! It cost $ 5 or £ 3 . A dog . Why ?",
     "See http://a.b, he'll ask: \"is it (now)?\" or/and [so]; yes! It cost $5 or £3. A dog. Why?"),
    ("ptb", "the <unk> 's plan did n't cost $ N or # N and\\/or N N % of firms ' money",
     "the ?'s plan didn't cost $1 or #1 and/or 1 1 % of firms' money"),
    ("lambada", " “ yes , ” he said . ", "\" yes , \" he said ."),
    ("scientific_papers", "it 's ( 1 @-@ 2 ) , https : / / a / b . The end !", "it's (1-2), https:// a/b. The end!"),
    (None, "as it 's written ( here ) .", "as it 's written ( here ) ."),
]  # fmt: skip
"""Corpus, a text of it, and the text that publications score"""


@pytest.mark.parametrize(("corpus", "text", "written"), PUBLISHED)
def test_texts_published_as_tokens_are_ingested_as_publications_score_them(
    corpus: str | None, text: str, written: str
) -> None:
    keys = {"sources": [{"kind": "starter"}], "detokeniser": corpus, "collapse_whitespace": False}
    assert parse(IngestionConfig, keys, at="ingestion").normalise(text) == written


@settings(max_examples=100)
@given(st.lists(st.sampled_from([*"'\"()[]$%.,:;!?-/’", "a", "s", "t", "o", "is", "12", "345", "##ing", "[UNK]"])))
def test_spaces_never_change_the_tokens(tokens: list[str]) -> None:
    spaced = BERT.base.decode([BERT.base.token_to_id(token) for token in tokens], skip_special_tokens=False)
    written = detokenise(spaced)
    assert BERT.base.encode(written).tokens == BERT.base.encode(spaced).tokens
    assert sorted(written.replace(" ", "")) == sorted(spaced.replace(" ", ""))
