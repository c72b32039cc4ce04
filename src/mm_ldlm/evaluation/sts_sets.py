"""Readers of STS sets in the formats in which they were published.

A set is read completely or not at all: a line that cannot be read, a gold score outside its scale, and an input file
without its scores are errors with file and line. The one exception is part of SemEval: in 2015 and 2016 many pairs of
an input file were never annotated (an empty line in the gs file) and do not belong to the set.

Published scores of SICK-R use different parts: SimCSE and SentEval the test part (4,927 pairs), MTEB all three parts
together (9,927 pairs). `StsSource.split` names the part.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mm_ldlm.core.config import InvalidValue, config
from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.core.files import InputFile

SEMEVAL_SUBSETS: dict[str, tuple[str, ...]] = {
    "sts12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "sts13": ("FNWN", "headlines", "OnWN"),  # SMT has a licence of its own; SentEval and later work leave it out
    "sts14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "sts15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "sts16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""Subsets that the literature (SentEval, SimCSE) scores in each year."""

SICK_PARTS: dict[str, str] = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
"""Part → its file as published for SemEval 2014; SICK.txt, published later, contains all three."""
_SEMEVAL_INPUT = re.compile(r"STS(?:\d{4})?\.input\.(.+)\.txt")

HUB_SETS: dict[str, str] = {
    "stsb": "mteb/stsbenchmark-sts",
    "sickr": "mteb/sickr-sts",
    **{f"sts{year}": f"mteb/sts{year}-sts" for year in range(12, 17)},
}


@dataclass(frozen=True)
class StsSet:
    """Sentence pairs with gold scores; `subset_N` names the subset of each pair ("" if the set has none)."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold_N: np.ndarray
    subset_N: tuple[str, ...]

    def __post_init__(self) -> None:
        sizes = {len(self.first), len(self.second), len(self.gold_N), len(self.subset_N)}
        if len(sizes) != 1:
            raise EvaluationError(f"STS set '{self.name}': its sides have unequal lengths {sorted(sizes)}.")
        if len(self.first) < 2:
            raise EvaluationError(f"STS set '{self.name}': {len(self.first)} pairs; a correlation needs at least two.")
        if not np.isfinite(self.gold_N).all():
            raise EvaluationError(f"STS set '{self.name}': some gold scores are not finite.")
        if np.ptp(self.gold_N) == 0:
            raise EvaluationError(f"STS set '{self.name}': every gold score is {self.gold_N[0]}; nothing to correlate.")
        for row, (a, b) in enumerate(zip(self.first, self.second, strict=True)):
            if not a.strip() or not b.strip():
                raise EvaluationError(f"STS set '{self.name}': pair {row} has an empty sentence.")

    def __len__(self) -> int:
        return len(self.first)

    @property
    def subsets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.subset_N))

    @property
    def sentences(self) -> list[str]:
        """List the distinct sentences of both sides, in order of appearance; these are embedded."""
        return list(dict.fromkeys([*self.first, *self.second]))


StsFormat = Literal["starter", "stsb", "semeval", "sick", "hub"]


@config
class StsSource:
    """Source of one STS set.

    format:
        starter  the generated set that belongs to the starter corpus
        stsb     STS-B: the original tab-separated file, GLUE's, or a CSV "sentence 1, sentence 2, score" with or
                 without a header
        semeval  a folder with STS.input.NAME.txt and STS.gs.NAME.txt of one year (2016: STS2016.input.NAME.txt)
        sick     SICK.txt, one of SICK_train.txt, SICK_trial.txt and SICK_test_annotated.txt, or a folder with either
        hub      a data set of the hub, or a folder saved by `datasets`
    name: the name in the metrics. path: file, folder, or hub name.
    split: for sick, the part: train, trial, test, or all three parts together ("all"); for hub, the split.
    subsets: for semeval, the subsets to expect; empty means those the literature scores for sts12 … sts16, else all
    found.
    """

    format: StsFormat
    name: str
    path: str | None = None
    split: str = "test"
    revision: str | None = None
    subsets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.format != "starter" and self.path is None and not (self.format == "hub" and self.name in HUB_SETS):
            raise InvalidValue(f"an STS set of format '{self.format}' needs a path", "path")
        refuse_name(self.name, key="name")


def refuse_name(name: str, *, key: str) -> None:
    """Raise InvalidValue for `key` unless `name` can be part of the name of a metric."""
    if not name.replace("_", "").replace("-", "").isalnum():
        raise InvalidValue(f"a name must contain letters, digits, '-' and '_' only, found '{name}'", key)


def load_sts(source: StsSource, *, seed: int = 0) -> StsSet:
    """Read one set from its source.

    Raises:
        EvaluationError: a file is missing or unreadable, a line is malformed, or a subset is missing.
    """
    if source.format == "starter":
        return _starter(source.name, seed)
    if source.format == "hub":
        return _hub(source)
    assert source.path is not None
    path = Path(source.path)
    if not os.path.isdir(path):
        remedy, name = "Give the file (or folder) in `path`.", f"STS set '{source.name}', {path}"
        InputFile(path, remedy=remedy, error=EvaluationError, name=name).check()
    if source.format == "stsb":
        return read_stsb(path, name=source.name)
    if source.format == "sick":
        return read_sick(path, name=source.name, split=source.split)
    return read_semeval(path, name=source.name, subsets=source.subsets)


def from_pairs(name: str, pairs: Sequence[tuple[str, str, float]], *, subsets: Sequence[str] | None = None) -> StsSet:
    """Make a set from (sentence, sentence, gold) triples."""
    first, second, gold = zip(*pairs, strict=True) if pairs else ((), (), ())
    names = tuple(subsets) if subsets is not None else ("",) * len(first)
    return StsSet(name, tuple(first), tuple(second), np.array(gold, dtype=np.float64), names)


# -- STS-B -----------------------------------------------------------------------------------------------------------


def read_stsb(path: Path, *, name: str = "stsb") -> StsSet:
    """Read STS-B in any of its published formats; the first line decides between tabs and commas.

    Original TSV (no header): genre, file, year, index, score, sentence 1, sentence 2 [, sources]. GLUE TSV: a header
    that names sentence1, sentence2, score. CSV: sentence 1, sentence 2, score, quoted where needed, header or not.
    Gold 0 to 5.
    """
    text = _read(path)
    first_line = text.split("\n", 1)[0]
    # only the tab-separated files leave quotation marks unbalanced inside sentences
    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if "\t" in first_line else {"delimiter": ","}
    rows = [(number, row) for number, row in _csv_rows(text, dialect) if row]
    if not rows:
        raise EvaluationError(f"{path}: empty; expected STS-B pairs.")
    header = [cell.strip().lower() for cell in rows[0][1]]
    if "sentence1" in header and "sentence2" in header:
        gold_name = next((n for n in ("score", "similarity_score", "label") if n in header), None)
        if gold_name is None:
            raise EvaluationError(
                f"{path}: the header {header} names no score column (score, similarity_score, label)."
            )
        columns = (header.index("sentence1"), header.index("sentence2"), header.index(gold_name))
        rows = rows[1:]
    else:
        columns = (5, 6, 4) if "\t" in first_line else (0, 1, 2)
    pairs = []
    for number, row in rows:
        if len(row) <= max(columns):
            raise EvaluationError(f"{path}:{number}: expected at least {max(columns) + 1} columns, found {len(row)}.")
        gold = _score(row[columns[2]], path, number, low=0, high=5)
        pairs.append((row[columns[0]].strip(), row[columns[1]].strip(), gold))
    return from_pairs(name, pairs)


# -- SemEval 2012 to 2016 --------------------------------------------------------------------------------------------


def read_semeval(folder: Path, *, name: str, subsets: Sequence[str] = ()) -> StsSet:
    """Read one year's STS.input.NAME.txt and STS.gs.NAME.txt, searched below `folder`.

    The files of 2016 begin with STS2016 instead of STS, and their lines have two more columns, the sources of the
    sentences, which are not used.

    Raises:
        EvaluationError: a subset is missing on either side, occurs twice, or its two files differ in length.
    """
    inputs: dict[str, Path] = {}
    for path in sorted(folder.rglob("STS*.input.*.txt")):
        found = _SEMEVAL_INPUT.fullmatch(path.name)
        if found is None or found.group(1) == "ALL":  # STS12 ships the concatenation as a file of its own
            continue
        if (earlier := inputs.setdefault(found.group(1), path)) != path:
            raise EvaluationError(
                f"{folder}: expected each subset once, found '{found.group(1)}' in {earlier} and {path}. Give the "
                "folder of one year, and only its training or its test data."
            )
    if not inputs:
        raise EvaluationError(
            f"{folder}: expected SemEval's own folder of one year, found no STS.input.*.txt (2016: "
            "STS2016.input.*.txt) below it. Give the folder that contains these files."
        )
    expected = list(subsets) or list(SEMEVAL_SUBSETS.get(name.lower(), sorted(inputs)))
    if missing := [s for s in expected if s not in inputs]:
        raise EvaluationError(
            f"{folder}: subsets {missing} of '{name}' are missing (found {sorted(inputs)}). "
            "A part of a year is not comparable with published scores; to score it on purpose, name the `subsets`."
        )
    pairs, labels = [], []
    for subset in expected:
        source = inputs[subset]
        gold_path = source.with_name(source.name.replace(".input.", ".gs.", 1))
        if not gold_path.exists():
            raise EvaluationError(f"{source}: its scores {gold_path.name} are missing beside it.")
        lines = _lines(source)
        golds = _lines(gold_path, expected=len(lines))
        if len(lines) != len(golds):
            raise EvaluationError(f"{source}: {len(lines)} pairs, but {len(golds)} scores in {gold_path.name}.")
        for number, (line, gold) in enumerate(zip(lines, golds, strict=True), start=1):
            if not gold.strip():
                continue
            cells = line.split("\t")
            if len(cells) < 2:
                raise EvaluationError(
                    f"{source}:{number}: expected two sentences separated by a tab, found {line!r:.80}."
                )
            pairs.append((cells[0].strip(), cells[1].strip(), _score(gold, gold_path, number, low=0, high=5)))
            labels.append(subset)
    return from_pairs(name, pairs, subsets=labels)


# -- SICK-R ----------------------------------------------------------------------------------------------------------


def read_sick(path: Path, *, name: str = "sickr", split: str = "test") -> StsSet:
    """Read one part of SICK ("train", "trial", "test"), or all three together in this order ("all").

    `path` is SICK.txt, whose column SemEval_set names the part of each pair, the file of one part, or a folder with
    either. Gold 1 to 5.

    Raises:
        EvaluationError: a file is missing, malformed, or contains another part.
    """
    if split not in (*SICK_PARTS, "all"):
        raise EvaluationError(
            f"STS set '{name}': expected the part train, trial, test or all of SICK, found '{split}'. Correct `split`."
        )
    if not path.is_dir():
        return from_pairs(name, _read_sick_file(path, split))
    if (path / "SICK.txt").is_file():
        return from_pairs(name, _read_sick_file(path / "SICK.txt", split))
    files = {part: path / SICK_PARTS[part] for part in SICK_PARTS if split in (part, "all")}
    if absent := [file.name for file in files.values() if not file.is_file()]:
        raise EvaluationError(
            f"{path}: expected {', '.join(absent)} (or SICK.txt) for the part '{split}', found no such file. Put it "
            "there, or choose another `split`."
        )
    return from_pairs(name, [pair for part, file in files.items() for pair in _read_sick_file(file, part)])


def _read_sick_file(path: Path, split: str) -> list[tuple[str, str, float]]:
    """Read the pairs of a part from a tab-separated file by its header: sentence_A, sentence_B, relatedness_score."""
    rows = [(n, row) for n, row in _csv_rows(_read(path), {"delimiter": "\t", "quoting": csv.QUOTE_NONE}) if row]
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    if absent := [c for c in ("sentence_A", "sentence_B", "relatedness_score") if c not in header]:
        raise EvaluationError(
            f"{path}: columns {absent} are missing from the header {header}; expected SICK's tab file."
        )
    a, b, gold = (header.index(c) for c in ("sentence_A", "sentence_B", "relatedness_score"))
    which = header.index("SemEval_set") if "SemEval_set" in header else None
    own = next((part for part, file in SICK_PARTS.items() if path.name.startswith(file.split(".")[0])), None)
    if which is None and split != (own or "test"):
        raise EvaluationError(
            f"{path}: expected the part '{split}' of SICK, found a file of one part{f' ({own})' if own else ''}. Give "
            "SICK.txt, or the folder of all parts."
        )
    pairs, seen = [], set()
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise EvaluationError(f"{path}:{number}: {len(row)} columns, the header has {len(header)}.")
        if which is not None:
            seen.add(row[which].strip().lower())
            if split not in ("all", row[which].strip().lower()):
                continue
        pairs.append((row[a].strip(), row[b].strip(), _score(row[gold], path, number, low=1, high=5)))
    if not pairs:
        raise EvaluationError(f"{path}: no pairs of split '{split}' (splits found: {sorted(seen)}).")
    return pairs


# -- hub and starter -------------------------------------------------------------------------------------------------


def _hub(source: StsSource) -> StsSet:
    import datasets

    target = source.path or HUB_SETS[source.name]
    try:
        if Path(target).is_dir() and (
            (Path(target) / "dataset_dict.json").exists() or (Path(target) / "state.json").exists()
        ):
            loaded = datasets.load_from_disk(target)
            rows = loaded[source.split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            rows = datasets.load_dataset(target, split=source.split, revision=source.revision)
    except Exception as error:  # the hub raises many exceptions, which mean the same to the caller
        raise EvaluationError(
            f"STS set '{source.name}': '{target}' (split '{source.split}') cannot be loaded: "
            f"{type(error).__name__}: {error}. "
            "Without the hub, give a folder saved by `datasets`, or the original files, as `path`."
        ) from error
    names = set(rows.column_names)
    gold = next((c for c in ("score", "similarity_score", "relatedness_score", "label") if c in names), None)
    if not {"sentence1", "sentence2"} <= names or gold is None:
        raise EvaluationError(
            f"STS set '{source.name}': expected sentence1, sentence2, score; '{target}' has {sorted(names)}."
        )
    subsets = rows["subset"] if "subset" in names else None
    pairs = list(zip(rows["sentence1"], rows["sentence2"], map(float, rows[gold]), strict=True))
    return from_pairs(source.name, pairs, subsets=subsets)


def _starter(name: str, seed: int) -> StsSet:
    from mm_ldlm.extras.starter.corpus import generate_starter_sts

    made = generate_starter_sts(seed=seed)
    return from_pairs(name, [(pair.sentence1, pair.sentence2, float(pair.score)) for pair in made])


# -- text ------------------------------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    remedy = "Correct the path, or save the file as UTF-8."
    return InputFile(path, remedy=remedy, error=EvaluationError).text().replace("\r\n", "\n")


def _lines(path: Path, *, expected: int | None = None) -> list[str]:
    """Return the lines of a file.

    An empty last line without a line break of its own counts if there are then `expected` lines, of which others are
    empty as well; without them, the file may have been cut.
    """
    text = _read(path)
    lines = text.split("\n")
    if len(lines) == expected and "" in lines[:-1]:
        return lines
    return text.removesuffix("\n").split("\n") if text else []


def _csv_rows(text: str, dialect: dict) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), **dialect)
    return [(reader.line_num, row) for row in reader]


def _score(text: str, path: Path, line: int, *, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise EvaluationError(f"{path}:{line}: expected a score, found {text!r:.60}.") from None
    if not low <= value <= high:
        raise EvaluationError(f"{path}:{line}: score {value} outside {low} to {high}.")
    return value
