"""The train, validation and test splits, decided by a hash of the text.

The split is a keyed hash of the text's comparison form: it does not change when data are added, and two texts that
differ only in case or encoding are always in the same split.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.config import Fraction, InvalidValue, config
from mm_ldlm.data.corpus.normalisation import comparison_digest

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@config
class SplitConfig:
    """Fractions of the hash split; the rest is training text. Another key gives other splits."""

    validation: Fraction = 0.02
    test: Fraction = 0.02
    key: str = "mm-ldlm"

    def __post_init__(self) -> None:
        if self.validation + self.test >= 1:
            raise InvalidValue(
                f"validation + test = {self.validation + self.test:g} leaves no training text", "validation", "test"
            )
        if not self.key or len(self.key.encode()) > 64:
            raise InvalidValue("the key must have 1 to 64 bytes", "key")


def splits_of(digests: npt.NDArray[np.uint64], fractions: SplitConfig) -> npt.NDArray[np.uint8]:
    """Map the first words of comparison digests to positions in `SPLITS`, (n,) uint64 -> (n,) uint8."""
    point = digests.astype(np.float64) / 2.0**64
    out = np.zeros(len(digests), np.uint8)
    out[point < fractions.test + fractions.validation] = 1
    out[point < fractions.test] = 2
    return out


def split_of(text: str, fractions: SplitConfig) -> Split:
    """Return the split of one text."""
    digest = comparison_digest(text, key=fractions.key.encode())
    return SPLITS[int(splits_of(np.frombuffer(digest[:8], "<u8"), fractions)[0])]
