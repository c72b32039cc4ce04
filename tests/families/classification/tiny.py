"""Tiny data of the kinds `classification` and `pairwise_classification`: three classes, and second texts."""

from typing import Any

import numpy as np
from tests.training.task import SHAPE, Example

NAMES = ("first", "second", "similar")
STORE = np.array([list(name.encode().ljust(8, b"\0")) for name in NAMES], np.uint8)


def labels(draw: np.random.Generator, lengths: Any) -> Any:
    return draw.integers(0, len(NAMES), (len(lengths), 1))


def second_texts(draw: np.random.Generator, lengths: Any) -> Any:
    ids = draw.integers(3, SHAPE.vocab_size, (len(lengths), SHAPE.max_length))
    return np.where(np.arange(SHAPE.max_length) < lengths[::-1, None], ids, SHAPE.pad_id)


EXAMPLES = {
    "classification": Example(fields={"labels": labels}, stores={"label_names": STORE}),
    "pairwise_classification": Example(
        fields={"labels": labels, "pair_tokens": second_texts}, stores={"label_names": STORE}
    ),
}
