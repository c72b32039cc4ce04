"""Duplicate removal: exact duplicates by digests in sorted arrays, near duplicates by MinHash.

A Python set of ten million digests takes over a gigabyte. Sorted arrays of two words per digest take 170 MB, and a
whole batch is looked up in one call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.config import Fraction, InvalidValue, Size, config

Words = npt.NDArray[np.uint64]
"""Digests of 16 bytes as (n, 2) little-endian words."""


def as_words(digests: list[bytes]) -> Words:
    """Convert n digests of 16 bytes to (n, 2) words."""
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


class DigestMap:
    """A map from digests to small numbers, kept as sorted runs that are merged as they grow.

    Runs are sorted by the first word; the second word is compared where the first words agree. Two digests that share
    the first word and differ in the second (probability 1 in 400,000 among ten million) would at worst let a duplicate
    of one of them pass.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Words, Words, npt.NDArray[np.uint8]]] = []

    def __len__(self) -> int:
        return sum(len(run[0]) for run in self._runs)

    def lookup(self, keys: Words) -> npt.NDArray[np.int16]:
        """Return the number stored with each key, or -1 for unknown keys. (n, 2) -> (n,)."""
        found = np.full(len(keys), -1, np.int16)
        first, second = keys[:, 0], keys[:, 1]
        for run_first, run_second, values in self._runs:
            at = np.searchsorted(run_first, first)
            at[at == len(run_first)] = 0
            hit = (run_first[at] == first) & (run_second[at] == second)
            found[hit] = values[at[hit]]
        return found

    def add(self, keys: Words, values: npt.NDArray[np.uint8]) -> None:
        """Store keys that `lookup` did not find."""
        if not len(keys):
            return
        order = np.argsort(keys[:, 0], kind="stable")
        self._runs.append((keys[order, 0], keys[order, 1], values[order].astype(np.uint8)))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            newer, older = self._runs.pop(), self._runs.pop()
            first = np.concatenate([older[0], newer[0]])
            order = np.argsort(first, kind="stable")  # two sorted runs: a merge
            second = np.concatenate([older[1], newer[1]])[order]
            self._runs.append((first[order], second, np.concatenate([older[2], newer[2]])[order]))


_WEIGHTS = (0.1, 0.9)
"""Weights of false positives and false negatives for datasketch. False candidates are cheap because each is checked;
missed duplicates are lost."""


@config
class NearDuplicateConfig:
    """MinHash over character shingles of the comparison form.

    Attributes:
        threshold: estimated Jaccard similarity at which a text counts as a near duplicate of an earlier one.
        num_perm: number of hash functions; the standard error of the estimate is about 1 / (2 sqrt(num_perm)).
        shingle_characters: length of a shingle.
    """

    threshold: Fraction = 0.8
    num_perm: Size = 64
    shingle_characters: Size = 5

    def __post_init__(self) -> None:
        if not 0.1 <= self.threshold <= 0.95:
            raise InvalidValue(
                f"threshold {self.threshold:g} is outside 0.1 to 0.95; exact duplicates are always removed", "threshold"
            )
        if self.num_perm < 64:
            raise InvalidValue(f"num_perm {self.num_perm} is below 64, which makes the estimate too noisy", "num_perm")


def signature(text: str, config: NearDuplicateConfig) -> Any:
    """Compute the MinHash of a comparison form, without what only further updates would need."""
    from datasketch import LeanMinHash, MinHash

    size = config.shingle_characters
    shingles = {text[i : i + size].encode() for i in range(max(1, len(text) - size + 1))}
    sketch = MinHash(num_perm=config.num_perm)
    sketch.update_batch(shingles)
    return LeanMinHash(sketch)


class NearDuplicates:
    """Finds near duplicates by locality-sensitive hashing; takes about half a kilobyte and 0.2 ms per text."""

    def __init__(self, config: NearDuplicateConfig) -> None:
        from datasketch import MinHashLSH

        self.config = config
        self._index = MinHashLSH(threshold=config.threshold, num_perm=config.num_perm, weights=_WEIGHTS)
        self._signatures: list[npt.NDArray[np.uint32]] = []

    def signature(self, text: str) -> Any:
        """Compute the MinHash of a comparison form."""
        return signature(text, self.config)

    def seen(self, sketch: Any) -> bool:
        """Return whether an earlier text is at least `threshold` similar; each candidate of the index is checked."""
        values = sketch.hashvalues.astype(np.uint32)
        return any(
            float(np.mean(self._signatures[int(key)] == values)) >= self.config.threshold
            for key in self._index.query(sketch)
        )

    def add(self, sketch: Any) -> None:
        """Add the MinHash of an accepted text."""
        self._index.insert(len(self._signatures), sketch, check_duplication=False)
        self._signatures.append(sketch.hashvalues.astype(np.uint32))
