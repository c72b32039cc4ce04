"""Filters on length and language, whose rows go to quarantine with a reason; exact and near duplicates (MinHash)."""

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import (
    ConfigurationError,
    InvalidValue,
    PositiveInt,
    Size,
    bounded,
    config,
    foreign_code,
    import_object,
    show,
)
from mm_ldlm.data.corpus.sources import Unusable
from mm_ldlm.data.store.fingerprint import fingerprint


@config
class LengthConfig:
    """Bounds on the normalised text; None means no bound. Words are separated by white space."""

    min_characters: PositiveInt = 1
    max_characters: PositiveInt | None = None
    min_words: PositiveInt = 1
    max_words: PositiveInt | None = None

    def __post_init__(self) -> None:
        for unit in ("characters", "words"):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if high is not None and high < low:
                raise InvalidValue(f"max_{unit} {high} is below min_{unit} {low}", f"max_{unit}", f"min_{unit}")

    def check(self, text: str) -> None:
        """Raise `Unusable` for a text that is out of bounds."""
        if not text:
            raise Unusable("empty", "only white space", text)
        for unit, count in (("characters", len(text)), ("words", len(text.split()))):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if count < low:
                raise Unusable("too_short", f"{count} {unit}, min_{unit} is {low}", text)
            if high is not None and count > high:
                raise Unusable("too_long", f"{count} {unit}, max_{unit} is {high}", text)


LANGUAGE_FILTER = "parameter 'ingestion.language_filter'"


def check_language(text: str, dotted: str) -> None:
    """Raise `Unusable` for a text that a function refuses, or for which it raises an error.

    Raises:
        ConfigurationError: there is no such function, or it is not a predicate: it returned anything but a boolean.
    """
    keep = load_function(dotted, at=LANGUAGE_FILTER)
    with foreign_code(  # many detectors raise for texts without letters
        lambda reason: Unusable("filter_error", f"{LANGUAGE_FILTER} {dotted} raised {reason}", text)
    ):
        kept = keep(text)
    if type(kept) not in (bool, np.bool_):
        raise ConfigurationError(
            f"{LANGUAGE_FILTER}: expected true or false from {dotted}, found {show(kept, 100)} "
            f"({type(kept).__name__}). Return a boolean; a generator or an async function is not a filter."
        )
    if not kept:
        raise Unusable("language", f"refused by {dotted}", text)


@functools.cache
def load_function(dotted: str, *, at: str) -> Callable[..., Any]:
    """Import the callable `package.module:function`; `at` names the parameter in messages.

    Raises:
        ConfigurationError: the module cannot be imported, or has no such callable.
    """
    found: Callable[..., Any] = import_object(dotted, at)
    if not callable(found):
        raise ConfigurationError(f"{at}: expected a function, found {show(found, 100)} at {dotted}. Correct the name.")
    return found


def describe_function(dotted: str) -> dict[str, str]:
    """Return the name of a function and, where available, the digest of its module's source code."""
    try:
        source = inspect.getsource(importlib.import_module(dotted.partition(":")[0]))
    except (OSError, TypeError):
        source = ""
    return {"name": dotted, "source": fingerprint(source)}


# -- duplicates --------------------------------------------------------------------------------------------------------

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
        remove: "all" near duplicates, or those "across_splits": a text that is near one of another split, so that no
            training text is a near duplicate of a held-out one.
        num_perm: number of hash functions; the standard error of the estimate is about 1 / (2 sqrt(num_perm)), which
            is too large with fewer than 64.
        shingle_characters: length of a shingle.
    """

    threshold: Annotated[float, bounded(ge=0.1, le=0.95)] = 0.8
    remove: Literal["all", "across_splits"] = "all"
    num_perm: Annotated[int, bounded(ge=64, le=65_536)] = 64
    shingle_characters: Size = 5

    def signature(self, form: str) -> Any:
        """Compute the MinHash of a comparison form, without what only further updates would need."""
        from datasketch import LeanMinHash, MinHash

        size = self.shingle_characters
        sketch = MinHash(num_perm=self.num_perm)
        sketch.update_batch({form[i : i + size].encode() for i in range(max(1, len(form) - size + 1))})
        return LeanMinHash(sketch)


class NearDuplicates:
    """Finds near duplicates by locality-sensitive hashing; takes about half a kilobyte and 0.2 ms per text."""

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
    """Return the signature of several texts together, or the only one; None if they have none."""
    if len(signatures) == 1 or signatures[0] is None:
        return signatures[0]
    from datasketch import LeanMinHash

    return LeanMinHash.union(*signatures)
