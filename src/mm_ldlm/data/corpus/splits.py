"""Assign records to splits by a keyed hash of the text, or of the document or group that a text is part of."""

import struct
from typing import Annotated, Literal

from mm_ldlm.core import Fraction, bounded, config, refuse_if

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@config
class SplitConfig:
    """Fractions of the hash split; the rest is training text. Another key gives other splits.

    The split is a function of the text's comparison form and the key: it does not change when data are added, and two
    texts that differ only in case or encoding are always in the same split.
    """

    validation: Fraction = 0.02
    test: Fraction = 0.02
    key: Annotated[str, bounded(pattern=r"^[ -~]{1,64}$")] = "mm-ldlm"

    def __post_init__(self) -> None:
        refuse_if(
            self.validation + self.test >= 1,
            f"validation + test = {self.validation + self.test:g} leaves no training text",
            "validation",
            "test",
        )

    def split_of(self, digest: bytes, *, held_out: bool = False) -> Split:
        """Return the split of a comparison digest, 16 bytes.

        A row that is held out is divided between validation and test by the second half of its digest, because a hash
        split with this key may be what has held it out.
        """
        word, other = (float(number) / 2.0**64 for number in struct.unpack("<2Q", digest))
        if held_out:
            return "test" if other * (self.test + self.validation) < self.test else "validation"
        return "test" if word < self.test else "validation" if word < self.test + self.validation else "train"
