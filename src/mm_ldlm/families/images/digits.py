"""Captioned handwritten digits: the 8 × 8 images that scikit-learn contains, with generated captions."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from mm_ldlm.data.corpus.sources.base import BadRow, Row
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.families.images.decoding import digits, meta_of

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CAPTIONS = (
    "a {}", "the digit {}", "the number {}", "a handwritten {}", "a picture of a {}", "this is a {}",
    "an image of the digit {}", "a small picture of the number {}", "somebody wrote the digit {}",
)  # fmt: skip
"""Forms of the captions; each image has one of them, drawn by its digest and the seed."""


@dataclasses.dataclass(frozen=True)
class DigitsSource:
    """The digits in the order of scikit-learn; the hash of an image decides its split."""

    config: SourceConfig
    seed: int

    def rows(self) -> Iterator[Row | BadRow]:
        images, labels = digits()
        for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
            meta, key = meta_of({"digits": number}, pixels, label=NAMES[label])
            form = random.Random(f"{self.seed} {key}").choice(CAPTIONS)
            yield Row(form.format(NAMES[label]), "digits", number + 1, meta=meta, image=key)

    def describe(self) -> Any:
        images, labels = digits()
        return {"seed": self.seed, "captions": CAPTIONS, "images": fingerprint([images.tolist(), labels])}
