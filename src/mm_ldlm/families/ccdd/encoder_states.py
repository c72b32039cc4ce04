"""Encoders that return their output at every token, beside the vector of the sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


class TokenStates(NamedTuple):
    """The tokens of a sentence, without special tokens, and the encoder's output at each of them."""

    ids_n: npt.NDArray[np.int64]
    """(n,) ids of the encoder's own tokenizer"""
    states_nd: npt.NDArray[np.float32]
    """(n, d)"""


@runtime_checkable
class TokenEncoder(Protocol):
    """An encoder that also returns its output at every token."""

    def token_states(self, sentences: Sequence[str]) -> list[TokenStates]:
        """Return the tokens of each sentence with their states, in the order of the sentences."""
        ...
