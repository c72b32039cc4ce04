"""Exact and near duplicates: a map of digests, and MinHash."""

import functools
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import Size, bounded, config

_LATEST = 1 << 16
_WEIGHTS = (0.1, 0.9)
"""Weights of false positives and false negatives for datasketch. False candidates are cheap because each is checked;
missed duplicates are lost."""


class DigestMap:
    """A map from digests of 16 bytes to small numbers: a sorted array, and a dictionary of the latest ones.

    A dictionary of ten million digests takes over a gigabyte, the array 170 MB.
    """

    def __init__(self) -> None:
        self._keys, self._values = np.empty(0, "S16"), np.empty(0, np.uint8)
        self._latest: dict[bytes, int] = {}

    def get(self, digest: bytes) -> int | None:
        """Return the number that was stored with a digest; None for an unknown one."""
        if digest in self._latest:
            return self._latest[digest]
        place = int(self._keys.searchsorted(digest))
        known = place < len(self._keys) and self._keys[place] == digest.rstrip(b"\0")  # as numpy shows it
        return int(self._values[place]) if known else None

    def put(self, digest: bytes, number: int) -> None:
        """Store a number with a digest; one that is known has the same number."""
        self._latest[digest] = number
        if len(self._latest) > max(_LATEST, len(self._keys) // 8):
            keys = np.concatenate([self._keys, np.array(list(self._latest), "S16")])
            order = np.argsort(keys, kind="stable")  # two runs, one of them sorted
            values = np.concatenate([self._values, np.array(list(self._latest.values()), np.uint8)])
            self._keys, self._values, self._latest = keys[order], values[order], {}


@config
class NearDuplicateConfig:
    """MinHash over character shingles of the comparison form.

    Attributes:
        threshold: estimated Jaccard similarity at which a text counts as a near duplicate of an earlier one; exact
            duplicates are always removed.
        remove: "all" near duplicates, or only those "across_splits", so that no training text is a near duplicate of a
            held-out one.
        num_perm: number of hash functions; the standard error of the estimate is about 1 / (2 sqrt(num_perm)), which
            is too large with fewer than 64.
        shingle_characters: length of a shingle.
    """

    threshold: Annotated[float, bounded(ge=0.1, le=0.95)] = 0.8
    remove: Literal["all", "across_splits"] = "all"
    num_perm: Annotated[int, bounded(ge=64, le=65_536)] = 64
    shingle_characters: Size = 5

    def signature(self, form: str) -> Any:
        """Compute the MinHash of a comparison form, without the state for further updates."""
        from datasketch import LeanMinHash

        size = self.shingle_characters
        sketch = _empty_sketch(self.num_perm).copy()
        sketch.update_batch({form[i : i + size].encode() for i in range(max(1, len(form) - size + 1))})
        return LeanMinHash(sketch)


@functools.cache
def _empty_sketch(num_perm: int) -> Any:
    """Make a MinHash once, because its permutations take longer than the shingles of a sentence."""
    from datasketch import MinHash

    return MinHash(num_perm=num_perm)


class NearDuplicates:
    """Index of near duplicates by locality-sensitive hashing; takes about half a kilobyte and 0.2 ms per text."""

    def __init__(self, config: NearDuplicateConfig) -> None:
        from datasketch import MinHashLSH

        self.config = config
        self._index = MinHashLSH(threshold=config.threshold, num_perm=config.num_perm, weights=_WEIGHTS)
        self._known: list[tuple[npt.NDArray[np.uint32], int]] = []

    def split_of(self, sketch: Any, *, split: int) -> int | None:
        """Return the split of an earlier text that is too similar for a text of `split`; None if there is none.

        Each candidate of the index is checked.
        """
        values = sketch.hashvalues.astype(np.uint32)
        for key in self._index.query(sketch):
            known, other = self._known[int(key)]
            removed = other != split or self.config.remove == "all"
            if removed and float(np.mean(known == values)) >= self.config.threshold:
                return other
        return None

    def add(self, sketch: Any, *, split: int) -> None:
        """Add the signature of an accepted text."""
        self._index.insert(len(self._known), sketch, check_duplication=False)
        self._known.append((sketch.hashvalues.astype(np.uint32), split))


def joined(signatures: Sequence[Any]) -> Any:
    """Return the signature of the union of several texts, or the only signature; None without signatures."""
    if len(signatures) == 1 or signatures[0] is None:
        return signatures[0]
    from datasketch import LeanMinHash

    return LeanMinHash.union(*signatures)
