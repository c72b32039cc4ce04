"""Overlap of generated texts with the training texts: whole sentences, and pairs of neighbouring words.

Training texts are read as a stream and not kept in memory.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

_WORDS = re.compile(r"\w+|[^\w\s]")


def memorised(outputs: Sequence[str], training_texts: Iterable[str]) -> np.ndarray:
    """Find the outputs that are training sentences, compared by `normal_form`: (n,) bool.

    On held-out sources a high fraction means that the model reproduces its training set and ignores the latent.
    """
    forms = [normal_form(text) for text in outputs]
    found = set(forms).intersection(map(normal_form, training_texts))
    return np.array([form in found for form in forms], dtype=bool)


def attested_bigrams(groups: Sequence[Sequence[str]], training_texts: Iterable[str]) -> list[np.ndarray]:
    """Compute the fraction of each text's word bigrams, text edges included, that occur in a training text: (n,) each.

    A text that is not fluent has few; held-out text, another group, gives the value to compare with.
    """
    pairs = [[_bigrams(text) for text in texts] for texts in groups]
    wanted = {pair for rows in pairs for row in rows for pair in row}
    found: set[tuple[str, str]] = set()
    for text in training_texts:
        found.update(wanted.intersection(_bigrams(text)))
    return [np.array([sum(pair in found for pair in row) / len(row) for row in rows]) for rows in pairs]


def _bigrams(text: str) -> list[tuple[str, str]]:
    return list(pairwise(["", *_WORDS.findall(normal_form(text)), ""]))


def normal_form(text: str) -> str:
    """Normalise a text for comparison: NFKC, case-folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
