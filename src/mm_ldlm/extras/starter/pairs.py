"""Pairs of sentences of the starter corpus, with the answer to "which has more words?"."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from mm_ldlm.data.corpus.record import LABEL
from mm_ldlm.data.corpus.sources.base import BadRow, Row
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.extras.starter.corpus import StarterSentence, generate_starter_corpus
from mm_ldlm.extras.starter.source import describe_grammar

SIMILAR_WORDS = 1
"""Largest difference in words at which two sentences count as similar."""


@dataclasses.dataclass(frozen=True)
class StarterPairsSource:
    """Pairs of consecutive sentences of one split; no sentence occurs twice."""

    config: SourceConfig
    seed: int

    def rows(self) -> Iterator[Row | BadRow]:
        sentences = generate_starter_corpus(
            seed=self.seed,
            num_train=2 * self.config.num_train,
            num_validation=2 * self.config.num_validation,
            num_test=2 * self.config.num_test,
        )
        held: StarterSentence | None = None
        number = 0
        for sentence in sentences:
            if held is None:
                held = sentence
                continue
            number += 1
            meta = json.dumps({LABEL: longer(held.text, sentence.text)})
            yield Row(held.text, "starter_pairs", number, sentence.split, meta, sentence.text)
            held = None

    def describe(self) -> Any:
        return {**describe_grammar(self.seed), "similar_words": SIMILAR_WORDS}


def longer(first: str, second: str) -> str:
    """Answer which of two texts has more words: "first", "second", or "similar" (at most one word apart)."""
    difference = len(first.split()) - len(second.split())
    if abs(difference) <= SIMILAR_WORDS:
        return "similar"
    return "first" if difference > 0 else "second"
