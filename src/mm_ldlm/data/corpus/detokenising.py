"""Spaces around punctuation: in texts of a WordPiece vocabulary, and in corpora that were published as tokens.

A WordPiece vocabulary does not record where spaces were:
"the nurse's house" and "the nurse ' s house" have the same tokens. `detokenise` writes them as English is usually
written. It only removes and moves spaces next to punctuation, so the text has the same tokens as before.
"""

import re
from typing import Literal

_SPACING = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r" (?=[.,:;!?%)\]}…])", ""),
        (r"(?<=[(\[{$€£#]) ", ""),
        (r"- (?=-)", "-"),
        (r"(?<=[\w\x00]) (['’]) (?=(?:s|t|d|m|re|ve|ll)\b)", r"\1"),
        (r"(?<=\b[dljo]) (['’]) (?=[^\W\d_])", r"\1"),
        (r"(?<=\w) ?([-/]) ?(?=\w)", r"\1"),
        (r"(?<=\d)([.:]) (?=\d)", r"\1"),
        (r"(?<=\d), (?=\d{3}\b)", ","),
        (r"(?<=\b[^\W\d_]\.) (?=[^\W\d_]\.)", ""),
    )
]
_POSSESSIVE = re.compile(r"(?<=s) '(?= )")
_SPECIAL = re.compile(r"\[(?:MASK|UNK|PAD)\]")


def _marks(marks: str) -> list[tuple[str, str]]:
    return [(rf" {re.escape(mark)} ", f"{mark} ") for mark in marks]


_WIKITEXT = [
    ("s '", "s'"), (" @-@ ", "-"), (" @,@ ", ","), (r" @\.@ ", "."), *_marks(":;.!?,"),
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"), (r"\[\s*([^\]]*?)\s*\]", r"[\1]"), (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r'"\s*([^"]*?)\s*"', r'"\1"'), (r"'\s*([^']*?)\s*'", r"'\1'"),
    ("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" ° ", "°"), (" \n", "\n"), ("\n ", "\n"),
    (" N ", " 1 "), (" 's", "'s"),
]  # fmt: skip
_LM1B = [
    ("http : / / ", "http://"), ("https : / / ", "https://"), (r" '(\w+)", r"'\1"), (r" (\w+) \. ", r" \1. "),
    (r" (\w+) \.$", r" \1."), *_marks("?"), (r" \?$", "?"), *_marks("!"), (r" !$", "!"), *_marks(",:;"), (" / ", "/"),
    (r'" ([^"]+) "', r'"\1"'), (r"' ([^']+) '", r"'\1'"), (r"\( ([^\(\)]+) \)", r"(\1)"),
    (r"\[ ([^\[\]]+) \]", r"[\1]"), (r"\$ ", "$"), ("£ ", "£"),
]  # fmt: skip
_PTB = [
    (" 's", "'s"), ("s ' ", "s' "), (" n't", "n't"), (" \n ", "\n"), (r"\\/", "/"), ("(?<= )N(?= )", "1"),
    (r"\$ 1", "$1"), ("# 1", "#1"), ("<unk>", "?"),
]  # fmt: skip
_LAMBADA = [("[“”]", '"'), (r"(?s)^\s*(.*?)\s*$", r"\n\1")]
PUBLISHED = {
    "wikitext": _WIKITEXT, "lm1b": _LM1B, "ptb": _PTB, "lambada": _LAMBADA, "scientific_papers": _WIKITEXT + _LM1B,
}  # fmt: skip
"""Name → replacements by which publications (SEDD, MDLM, BD3-LM, Duo) turn the tokens of a corpus into text"""
Published = Literal["wikitext", "lm1b", "ptb", "lambada", "scientific_papers"]


def detokenise_published(text: str, corpus: Published | None) -> str:
    """Turn a text of a corpus that was published as tokens into the text that publications score; None: as it is."""
    for pattern, new in PUBLISHED.get(corpus or "", ()):
        text = re.sub(pattern, new, text)
    return text


def detokenise(text: str) -> str:
    """Remove the spaces around punctuation that a reader would not write; quotation marks open and close in turn."""
    # [MASK] is a word here: its brackets must not attach to its neighbours.
    specials = _SPECIAL.findall(text)
    text = _SPECIAL.sub("\x00", text)
    for pattern, new in _SPACING:
        text = pattern.sub(new, text)
    for mark in ('"', "'"):
        text = _quoted(text, mark)
    found = iter(specials)
    return re.sub("\x00", lambda _: next(found), text)


def _quoted(text: str, mark: str) -> str:
    """Attach quotation marks that stand alone: the first opens, the next closes, and so on.

    If their number is odd, a single apostrophe after "s" marks a possessive plural, and others stay as they are.
    """
    alone = re.compile(rf"(?:(?<=[ (\[])|^){mark}(?=[ .,:;!?)]|$)")
    if len(alone.findall(text)) % 2:
        text = _POSSESSIVE.sub("'", text, count=1) if mark == "'" else text
    if len(alone.findall(text)) % 2:
        return text
    parts = alone.split(text)
    out = parts[0]
    for number, part in enumerate(parts[1:]):
        out = out + mark + part.removeprefix(" ") if number % 2 == 0 else out.removesuffix(" ") + mark + part
    return out
