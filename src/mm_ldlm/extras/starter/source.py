"""The starter corpus as a source: its sentences, or pairs of them with the answer to "which has more words?"."""

from collections.abc import Iterator
from importlib import resources
from typing import Any

from mm_ldlm.core import Rows, RowsOrNone, config
from mm_ldlm.data.corpus.record import LABEL
from mm_ldlm.data.corpus.sources import Opening, Row, SourceConfig
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.starter.corpus import generate_starter_corpus

SIMILAR_WORDS = 1
"""Largest difference in words at which two sentences count as similar"""


@config
class StarterConfig(SourceConfig):
    """The generated starter corpus, which has its own splits.

    Attributes:
        num_train, num_validation, num_test: number of sentences to generate.
    """

    kind: str = "starter"
    num_train: Rows = 20_000
    num_validation: RowsOrNone = 500
    num_test: RowsOrNone = 500

    def rows(self, opening: Opening) -> Iterator[Row]:
        sentences = generate_starter_corpus(
            seed=opening.seed, num_train=self.num_train, num_validation=self.num_validation, num_test=self.num_test
        )
        for number, sentence in enumerate(sentences, start=1):
            yield Row(sentence.text, self.kind, number, sentence.split, {"shape": sentence.shape})

    def describe(self, opening: Opening) -> Any:
        """Describe the sentences by the seed and the source code of the grammar."""
        folder = resources.files("mm_ldlm.extras.starter.corpus")
        code = {item.name: item.read_text("utf-8") for item in folder.iterdir() if item.name.endswith(".py")}
        return {"seed": opening.seed, "grammar": fingerprint(code), "similar_words": SIMILAR_WORDS}


@config
class StarterPairsConfig(StarterConfig):
    """Pairs of consecutive sentences of one split; no sentence occurs twice.

    Attributes:
        num_train, num_validation, num_test: number of pairs to generate.
    """

    kind: str = "starter_pairs"

    def rows(self, opening: Opening) -> Iterator[Row]:
        doubled = {name: 2 * getattr(self, name) for name in ("num_train", "num_validation", "num_test")}
        sentences = StarterConfig(**doubled).rows(opening)
        for number, first in enumerate(sentences, start=1):
            second = next(sentences)
            label = longer(first.text, second.text)
            yield first._replace(file=self.kind, line=number, meta={LABEL: label}, pair=second.text)


def longer(first: str, second: str) -> str:
    """Answer which of two texts has more words: "first", "second", or "similar" (at most one word apart)."""
    difference = len(first.split()) - len(second.split())
    if abs(difference) <= SIMILAR_WORDS:
        return "similar"
    return "first" if difference > 0 else "second"
