"""STS sets and their sources."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from mm_ldlm.core import EvaluationError, Registry, bounded, config, nearest, refuse_if, show
from mm_ldlm.core.files import InputFile

FORMATS = Registry("format of STS sets", {}, "sts_formats")
"""Formats: functions from (source, seed) to an `StsSet`, or to pairs"""

Name = Annotated[str, bounded(pattern=r"^[\w-]+$")]
"""Part of the name of a metric"""
Pair = tuple[str, str, float]
"""Sentence, sentence, gold score"""


@dataclass(frozen=True)
class StsSet:
    """Sentence pairs with gold scores; `subset_N` names the subset of each pair ("" if the set has none)."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold_N: np.ndarray
    subset_N: tuple[str, ...]
    part: str = ""
    """The part of the published set that was read, if it has several"""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def subsets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.subset_N))

    @property
    def sentences(self) -> list[str]:
        """List the distinct sentences of both sides, in order of appearance; these are embedded."""
        return list(dict.fromkeys([*self.first, *self.second]))


@config
class StsSource:
    """Source of one STS set.

    Attributes:
        format: stsb (STS-B: the original tab-separated file, GLUE's, or a CSV "sentence 1, sentence 2, score" with or
            without a header), semeval (a folder with STS.input.NAME.txt and STS.gs.NAME.txt of one year, 2016:
            STS2016.input.NAME.txt), sick (SICK.txt, one of SICK_train.txt, SICK_trial.txt and SICK_test_annotated.txt,
            or a folder with either), hub (a data set of the hub, or a folder saved by `datasets`), or a registered one.
        name: the name in the metrics.
        path: file, folder, or hub name.
        split: for sick, the part: train, trial, test, or all three parts together ("all"); for hub, the split.
        subsets: for semeval, the subsets to expect; empty means those the literature scores for sts12 … sts16, else
            all found.
        published: name of an encoder → its published Spearman × 100 on this set.
    """

    format: str
    name: Name
    path: str | None = None
    split: str = "test"
    revision: str | None = None
    subsets: tuple[str, ...] = ()
    published: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = ", ".join(FORMATS)
        refuse_if(
            self.format not in FORMATS,
            f"expected {known}, found '{self.format}'.{nearest(self.format, FORMATS)}",
            "format",
        )

    def file(self, path: str | Path | None = None) -> InputFile:
        """Return the door to a file of the set; by default `path` itself."""
        remedy = f"Correct the file, or evaluation.sts.sets ('{self.name}')."
        return InputFile(path or self.path or "", remedy=remedy, error=EvaluationError)

    def below(self, folder: str | Path, name: str) -> InputFile:
        """Return the door to the only file of a name at any depth below a folder; several are refused."""
        found = sorted(Path(folder).rglob(name))
        if len(found) > 1:
            self.file(folder).refuse(f"one file {name} below it", show(list(map(str, found)), 600))
        return self.file(found[0] if found else Path(folder) / name)


def load_sts(source: StsSource, *, seed: int = 0) -> StsSet:
    """Read one set from its source; `seed` is for generated sets.

    Raises:
        EvaluationError: a file is missing or unreadable, a line is malformed, or a subset is missing.
    """
    found = FORMATS.load(source.format)(source, seed)
    return found if isinstance(found, StsSet) else from_pairs(source.name, found)


def from_pairs(name: str, pairs: Iterable[Pair], *, subsets: Sequence[str] | None = None, part: str = "") -> StsSet:
    """Make a set from (sentence, sentence, gold) triples.

    Raises:
        EvaluationError: there are fewer than two pairs, a sentence is empty or contains NUL, or the gold scores do not
            differ.
    """
    listed = [(first.strip(), second.strip(), gold) for first, second, gold in pairs]
    gold_N = np.array([gold for *_, gold in listed], dtype=np.float64)
    unusable = sum(not (first and second) or "\0" in first + second for first, second, _ in listed)
    if len(listed) < 2 or unusable or not np.ptp(gold_N) > 0:
        raise EvaluationError(
            f"STS set '{name}': expected at least two pairs of sentences with different finite scores, found "
            f"{len(listed)} pairs, {unusable} with a sentence that is empty or contains NUL, and the scores "
            f"{show(gold_N.tolist(), 60)}. Correct the set, or remove it from evaluation.sts."
        )
    first_N, second_N = tuple(pair[0] for pair in listed), tuple(pair[1] for pair in listed)
    return StsSet(name, first_N, second_N, gold_N, tuple(subsets or [""] * len(listed)), part)
