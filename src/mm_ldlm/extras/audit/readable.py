"""Compare texts with the ones read from their vectors: texts, words, names, numbers, addresses and rare words.

A text is compared with the one that was read from its vector in four ways: as written; up to case and spaces; nearly,
with a token-set F1 of `NEARLY` or more; and word by word. A word is a run of letters and digits. A name, a number, an
address or a rare word counts as recovered if its words occur in the other text, one after another.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from mm_ldlm.data.corpus.record import comparison_form
from mm_ldlm.evaluation.bootstrap import Bootstrap, Interval
from mm_ldlm.evaluation.suites.inversion import token_set_f1

NEARLY = 0.8
RAREST = 2
"""Largest number of sampled rows in which a rare word occurs"""
LENGTHS = (5, 10, 20, 40)
"""Ends of the classes of length, in words; the last class is open"""
SHARES: dict[str, tuple[str, str | None]] = {
    "as_written": ("as_written", None), "exact": ("exact", None), "nearly": ("nearly", None),
    "words": ("hits", "words"),
}  # fmt: skip
"""Name of a fraction → its column, and the column that it is divided by (None: the number of rows)"""
KINDS = ("numbers", "addresses", "names", "rare")
"""Kinds of words that matter; each has a column with its count and one that begins with `found_`"""

_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"[^\W_]*\d[^\W_]*(?:[.,:/-]\d+)*")
_STREET = "street|st|road|rd|avenue|ave|lane|ln|drive|dr|boulevard|blvd|square|way|court|straße|rue|via|calle"
_ADDRESS = re.compile(
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"  # electronic mail
    r"|\b(?:https?://|www\.)[^\s<>\"]+"
    r"|\+?\d[\d ()/-]{6,}\d"  # telephone
    rf"|\b\d+\w?(?: [^\W\d_]+){{1,3}} (?:{_STREET})\b|\b(?:{_STREET}) (?:[^\W\d_]+ ){{1,3}}\d+",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?:;\"'“”‘’«»(\[\n—–-]\s*$")


def words_of(text: str) -> list[str]:
    """Divide a text into words, up to case."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def masked(text: str) -> str:
    """Hide the characters of a text, vowel signs and symbols as well; capitals, lengths and punctuation stay."""
    kept = {c for c in text if c.isspace() or unicodedata.category(c).startswith("P")}
    return "".join(c if c in kept else "X" if c.isupper() else "9" if c.isdigit() else "x" for c in text)


class Vocabulary:
    """The words of a collection, which decide what a name is and which words are rare in it."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.rows, self._capital, self._lower = Counter[str](), Counter[str](), Counter[str]()
        for text in texts:
            self.rows.update(set(words_of(text)))
            for word, inside in _cased(text):
                if not word[0].isupper():
                    self._lower[word] += 1
                elif inside:
                    self._capital[word.casefold()] += 1

    def is_name(self, word: str) -> bool:
        """Whether a word has a capital inside sentences, and mostly has one."""
        low = word.casefold()
        return word[0].isupper() and len(word) > 1 and self._capital[low] > self._lower[low]

    def items(self, text: str) -> dict[str, list[list[str]]]:
        """Return the items of each of `KINDS` in a text, each as its words; no word is in two kinds."""
        addresses = [match.group() for match in _ADDRESS.finditer(text)]
        rest = _ADDRESS.sub(" ", text)
        numbers = [match.group() for match in _NUMBER.finditer(rest)]
        rest = _NUMBER.sub(" ", rest)
        cased = [word for word, _ in _cased(rest)]
        names = [word for word in cased if self.is_name(word)]
        rare = [w for w in cased if not self.is_name(w) and len(w) > 3 and self.rows[w.casefold()] <= RAREST]
        found = {"numbers": numbers, "addresses": addresses, "names": names, "rare": rare}
        return {kind: [words for item in found[kind] if (words := words_of(item))] for kind in KINDS}


def _cased(text: str) -> list[tuple[str, bool]]:
    """Return the words of a text as written, and whether each is inside a sentence instead of at its beginning."""
    plain = unicodedata.normalize("NFKC", text)
    found = [(match.group(), match.start()) for match in _WORD.finditer(plain)]
    return [(word, place > 0 and not _SENTENCE_END.search(plain[max(0, place - 4) : place])) for word, place in found]


def compare(texts: Sequence[str], outputs: Sequence[str], vocabulary: Vocabulary) -> pd.DataFrame:
    """Compare texts with those that were read from their vectors: one row for each, with counts."""
    return pd.DataFrame([_row(text, output, vocabulary) for text, output in zip(texts, outputs, strict=True)])


def _row(text: str, output: str, vocabulary: Vocabulary) -> dict[str, Any]:
    truth, guess = words_of(text), words_of(output)
    f1, items = token_set_f1(text.casefold(), output.casefold()), vocabulary.items(text)
    exact = comparison_form(text) == comparison_form(output)
    counts = {kind: len(items[kind]) for kind in KINDS}
    found = {f"found_{kind}": sum(_contains(guess, item) for item in items[kind]) for kind in KINDS}
    return {
        "as_written": text == output, "exact": exact, "nearly": exact or f1 >= NEARLY, "f1": f1, "words": len(truth),
        "hits": (Counter(truth) & Counter(guess)).total(), **counts, **found,
    }  # fmt: skip


def _contains(words: Sequence[str], item: Sequence[str]) -> bool:
    return any(list(words[place : place + len(item)]) == list(item) for place in range(len(words) - len(item) + 1))


# --- a table of compared texts ----------------------------------------------------------------------------------------


def shares(rows: pd.DataFrame, bootstrap: Bootstrap) -> dict[str, Interval]:
    """Compute the recovered fractions of texts and of words, each with its interval."""
    return {
        name: bootstrap.proportion(rows[top]) if bottom is None else _ratio(rows, top, bottom, bootstrap)
        for name, (top, bottom) in SHARES.items()
    }


def by_kind(rows: pd.DataFrame, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """Compute the recovered fraction of each of `KINDS` that occurs."""
    return [
        {
            "kind": kind, "count": int(rows[kind].sum()), "rows": int((rows[kind] > 0).sum()),
            "recovered": _ratio(rows, f"found_{kind}", kind, bootstrap),
        }
        for kind in KINDS
        if rows[kind].any()
    ]  # fmt: skip


def by_length(rows: pd.DataFrame, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """Compute the fractions of the texts of each class of length that occurs."""
    found = []
    for low, high in zip((0, *LENGTHS), (*LENGTHS, None), strict=True):
        part = rows[(rows["words"] > low if low else rows["words"] >= 0) & (rows["words"] <= (high or 1e9))]
        if len(part):
            name = f"{low + 1}–{high}" if high else f"more than {low}"
            found.append({"length": name, "rows": len(part), **shares(part, bootstrap)})
    return found


def most_readable(rows: pd.DataFrame, count: int) -> list[int]:
    """Return the numbers of the most readable rows: exact ones first, then by F1, then those with most items."""
    order = rows.assign(
        items=sum(rows[f"found_{kind}"] for kind in KINDS), row=range(len(rows))
    ).sort_values(["exact", "f1", "items", "words", "row"], ascending=[False, False, False, False, True])  # fmt: skip
    return [int(row) for row in order["row"][:count]]


def _ratio(rows: pd.DataFrame, top: str, bottom: str, bootstrap: Bootstrap) -> Interval:
    """Compute Σ top ÷ Σ bottom over the rows that have any; Wilson's interval where all or none is recovered."""
    part = rows[rows[bottom] > 0]
    if not len(part):
        return {"value": 0.0, "low": 0.0, "high": 1.0, "level": bootstrap.level}
    fraction = part[top].sum() / part[bottom].sum()
    return bootstrap.proportion(part[top] > 0) if fraction in (0, 1) else bootstrap.ratio(part[top], part[bottom])
