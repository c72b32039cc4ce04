"""The cost of starter sentences under the grammar that wrote them: `python -m benchmarks starter_entropy`.

A text has the probability of all derivations that write it, which are found by following every choice of its shape that
the words of the text permit. Shapes have their frequencies in the training texts. The grammar knows nothing of the
combinations that a split holds out, as a model does not.
"""

import collections
import contextlib
import math
import re
from collections.abc import Sequence
from typing import Any
from unittest import mock

from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer
from mm_ldlm.extras.starter.corpus import generate_starter_corpus, scenes, shapes
from mm_ldlm.extras.starter.corpus.activities import Activity
from mm_ldlm.extras.starter.corpus.words import Agent

TEXTS = 300
SIZES = {"num_train": 48_000, "num_validation": 600, "num_test": 1200}
DEPTH = 14


class NotThisText(Exception):
    """No option leads to the text."""


class Derivation(scenes.Draw):
    """Draws what a path of choices says, then the first option that may be in the text; `others` are further paths."""

    def __init__(self, text: str, path: list[int]) -> None:
        super().__init__(self, lambda combination: True)  # type: ignore[arg-type]
        self.text, self.path, self.taken, self.probability = text, path, 0, 1.0
        self.others: list[list[int]] = []

    def pick(self, fitting: list[int], probabilities: Sequence[float]) -> int:
        if not fitting or self.taken > DEPTH:
            raise NotThisText
        if self.taken == len(self.path):
            self.others += [[*self.path, each] for each in fitting[1:]]
            self.path = [*self.path, fitting[0]]
        self.taken += 1
        self.probability *= probabilities[self.path[self.taken - 1]]
        return self.path[self.taken - 1]

    def in_text(self, option: Any) -> bool:
        if isinstance(option, Activity):
            return any(f" {word} " in self.text for word in (option.base, option.past, option.participle))
        name = option.text if isinstance(option, Agent) else option
        if not isinstance(name, str):
            return True
        return re.sub(r"^(a|an|some|the) ", "", name.split("{")[0].strip()).lower() in self.text

    def choice(self, options: Sequence[Any]) -> Any:
        every = list(range(len(options)))
        return options[
            self.pick([i for i in every if self.in_text(options[i])] or every, [1 / len(options)] * len(options))
        ]

    def maybe(self, options: Sequence[str], *, fraction: float = 0.6) -> str:
        if not options:
            return ""
        fitting = [i for i, each in enumerate(options) if self.in_text(each)]
        return [*options, ""][
            self.pick([*fitting, len(options)], [fraction / len(options)] * len(options) + [1 - fraction])
        ]

    def sample(self, population: Sequence[Any], count: int) -> list[Any]:
        """Draw two of a population; the caller sorts them."""
        pairs = [(a, b) for a in population for b in population if a < b]
        return list(pairs[self.pick(list(range(len(pairs))), [1 / len(pairs)] * len(pairs))])


def probability(text: str, shape: str) -> float:
    """Compute the probability of a text given its shape."""
    words = f" {re.sub('[.,?]', ' ', text).lower()} "
    found, waiting = 0.0, [list[int]()]
    plain = scenes.Draw
    with mock.patch.object(
        shapes, "Draw", lambda rng, belongs: rng if isinstance(rng, Derivation) else plain(rng, belongs)
    ):
        while waiting:
            draw = Derivation(words, waiting.pop())
            with contextlib.suppress(NotThisText):
                found += draw.probability if shapes.SHAPES[shape](draw) == text else 0.0
            waiting += draw.others
    return found


def run() -> list[dict[str, Any]]:
    """The mean cost of test sentences, per sentence and per token."""
    corpus = list(generate_starter_corpus(seed=0, **SIZES))
    shapes_of = collections.Counter(each.shape for each in corpus if each.split == "train")
    test = [each for each in corpus if each.split == "test"]
    test = test[:: len(test) // TEXTS]
    costs = [-math.log(probability(e.text, e.shape) * shapes_of[e.shape] / shapes_of.total()) for e in test]
    mean = sum(costs) / len(costs)
    error = (sum((cost - mean) ** 2 for cost in costs) / len(costs) ** 2) ** 0.5
    tokens = sum(map(len, load_tokenizer(TokenizerConfig(max_length=24)).encode([e.text for e in test]))) / len(test)
    note = f"{len(test)} test sentences; 95 % interval of the mean per sentence ± {1.96 * error:.2f}"
    return [
        {"name": "starter_entropy.sentence", "value": mean, "unit": "nats", "note": note},
        {"name": "starter_entropy.token", "value": mean / tokens, "unit": "nats", "note": note},
    ]
