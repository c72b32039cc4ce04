"""Traces of written texts in words: the states of a text, the model's predictions, and the choices of a search.

n tokens of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.inference.writer import Reembed
from mm_ldlm.sampling.traces import WORDS, Frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Step:
    """A text after a step, with the model's prediction in that step."""

    words: tuple[str | None, ...]
    """(n,) None where no word is written yet"""
    fixed: tuple[int, ...]
    """(n,) number of the step that last changed each word; 0 for words that were given, or are not written yet"""
    likely: tuple[tuple[tuple[str, float], ...], ...]
    """(n,) the most probable words with their probabilities, best first; () where the step evaluated nothing"""
    probabilities: tuple[float | None, ...]
    """(n,) probability of the word, or of the most probable one where none is written yet; None without a prediction"""
    entropies: tuple[float | None, ...]
    """(n,) entropy of the distribution in nats; None without a prediction"""
    cosine: float | None
    """Cosine of the text to its target, with the most probable words where none are written yet; None if it was not
    embedded"""
    tried: tuple[float, ...]
    """Cosines of the texts that a search compared with the one that it had; () for a step of a sampler"""
    accepted: int | None
    """Which of them the search accepted; None: it kept the text that it had"""


@dataclass(frozen=True)
class Trace:
    """How a text was written: the text before the first step, and after each one."""

    steps: tuple[Step, ...]

    def to_frame(self) -> pd.DataFrame:
        """Convert to a table with one row per (step, position)."""
        import pandas as pd

        parts = [
            pd.DataFrame(
                {
                    "step": number, "position": range(len(step.words)), "word": step.words, "fixed": step.fixed,
                    "probability": np.array(step.probabilities, dtype=float),
                    "entropy": np.array(step.entropies, dtype=float), "accepted": step.accepted,
                    "cosine": np.full(len(step.words), step.cosine, dtype=float),
                }
            )
            for number, step in enumerate(self.steps)
        ]  # fmt: skip
        return pd.concat(parts, ignore_index=True)


def traces_of(
    recorded: Sequence[Sequence[Frame]], tokenizer: TextTokenizer, *, reembed: Reembed | None = None
) -> tuple[Trace, ...]:
    """Convert the frames of each text to words; with `reembed` the text of each step has a cosine."""
    made = []
    for row, frames in enumerate(recorded):
        known = [frame.cosine for frame in frames]
        guesses = {} if reembed is None else {place: _guess(frame, tokenizer) for place, frame in enumerate(frames)}
        guesses = {place: ids for place, ids in guesses.items() if ids}
        if reembed is not None and guesses:
            cosines_n, _ = reembed([*guesses.values()], [row] * len(guesses))
            for place, value in zip(guesses, cosines_n.tolist(), strict=True):
                known[place] = value
        steps, fixed, before = list[Step](), (0,) * len(frames[0].tokens), frames[0].tokens
        for number, (frame, cosine) in enumerate(zip(frames, known, strict=True)):
            fixed = _fixed(before, frame.tokens, fixed, number, mask_id=tokenizer.mask_id)
            before = frame.tokens
            steps.append(_step(frame, fixed, tokenizer, cosine))
        made.append(Trace(tuple(steps)))
    return tuple(made)


def _step(frame: Frame, fixed: tuple[int, ...], tokenizer: TextTokenizer, cosine: float) -> Step:
    noise = (tokenizer.mask_id, *range(tokenizer.vocab_size, max(frame.tokens, default=0) + 1))
    words = tuple(None if token in noise else _word(token, tokenizer) for token in frame.tokens)
    likely = [
        tuple((_word(word, tokenizer), float(p)) for word, p in zip(ids_K, numbers, strict=False) if word >= 0)
        for ids_K, numbers in zip(frame.words.tolist(), frame.numbers, strict=True)
    ]
    probabilities, entropies = (tuple(map(_known, column)) for column in frame.numbers[:, WORDS:].T)
    return Step(words, fixed, tuple(likely), probabilities, entropies, _known(cosine), frame.tried, frame.accepted)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _word(token: int, tokenizer: TextTokenizer) -> str:
    """Return a token as plain text; models that end their texts have an id beyond the vocabulary for the end."""
    return tokenizer.written(token) if token < tokenizer.vocab_size else "(end)"


def _guess(frame: Frame, tokenizer: TextTokenizer) -> list[int]:
    """Return the ids of a text, with the most probable words where none is written yet, if there are any."""
    pairs = zip(frame.tokens, frame.words[:, 0].tolist(), strict=True)
    ids = [best if token == tokenizer.mask_id else token for token, best in pairs]
    return [token for token in ids if 0 <= token < tokenizer.vocab_size]


def _fixed(
    before: Sequence[int], after: Sequence[int], fixed: tuple[int, ...], number: int, *, mask_id: int
) -> tuple[int, ...]:
    """Return the step that last changed each token, after the step `number`, which may change the number of tokens."""
    if len(before) != len(after):
        same = [a == b for a, b in zip(before, after, strict=False)]
        start = (*same, False).index(False)
        room = min(len(before), len(after)) - start
        tail = [a == b for a, b in zip(reversed(before), reversed(after), strict=False)][:room]
        stop = (*tail, False).index(False)
        middle = (number,) * (len(after) - start - stop)
        return (*fixed[:start], *middle, *fixed[len(before) - stop :])
    changed = [number if old != new else step for old, new, step in zip(before, after, fixed, strict=True)]
    return tuple(0 if token == mask_id else step for token, step in zip(after, changed, strict=True))
