"""The starter corpus: distinct sentences of the grammar, split by a keyed hash of their combinations."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b

from mm_ldlm.core import SourceError

from .scenes import Draw
from .shapes import SHAPES

SPLITS = ("train", "validation", "test")
_HELD_OUT_SHARE = {"validation": 0.06, "test": 0.08}  # of the combinations
_ATTEMPTS_PER_SENTENCE = 300


@dataclass(frozen=True)
class StarterSentence:
    text: str
    split: str  # one of SPLITS
    shape: str  # a name in SHAPES
    combinations: tuple[str, ...]  # one for each scene told; every one belongs to `split`


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def split_of(combination: str, *, seed: int) -> str:
    """The split that owns ``combination``: a hash keyed by ``seed``, so it depends on neither order nor counts."""
    digest = blake2b(combination.encode(), key=str(seed).encode(), digest_size=8).digest()
    position = int.from_bytes(digest, "big") / 2**64
    for split, fraction in _HELD_OUT_SHARE.items():
        if position < fraction:
            return split
        position -= fraction
    return "train"


def _belongs(owner: Callable[[str], str], split: str, combination: str) -> bool:
    return owner(combination) == split


def generate_starter_corpus(
    *, seed: int, num_train: int = 24_000, num_validation: int = 500, num_test: int = 600
) -> Iterator[StarterSentence]:
    """Sentences of everyday scenes, train first, the shapes in turn; deterministic, every text distinct.

    A held-out sentence tells only combinations that no training sentence tells, in words that training sentences use.
    A shape that runs out of new sentences stands back for the others. Raises `SourceError` when all have run out.
    """
    rng = random.Random(seed)
    owner = lru_cache(maxsize=None)(lambda combination: split_of(combination, seed=seed))
    seen: set[str] = set()
    known_words: set[str] = set()
    for split, count in zip(SPLITS, (num_train, num_validation, num_test), strict=True):
        shapes = list(SHAPES)
        belongs = partial(_belongs, owner, split)
        made = 0
        turn = 0
        while made < count:
            if not shapes:
                raise SourceError(
                    f"the starter grammar has no more {split} sentences: {count} were asked for, {made} are new and "
                    f"use words of the {len(seen)} sentences before; ask for fewer, or for more training sentences"
                )
            name = shapes[turn % len(shapes)]
            for _ in range(_ATTEMPTS_PER_SENTENCE):
                draw = Draw(rng, belongs)
                text = SHAPES[name](draw)
                new = text not in seen and (split == "train" or known_words.issuperset(words_of(text)))
                if new:
                    break
            else:
                shapes.remove(name)
                continue
            seen.add(text)
            if split == "train":
                known_words.update(words_of(text))
            yield StarterSentence(text, split, name, tuple(draw.combinations))
            made += 1
            turn += 1
