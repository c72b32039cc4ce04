"""Readers of STS sets in the formats in which they were published.

A set is read completely or not at all: a line that cannot be read, a gold score outside its scale, and an input file
without its scores are errors with file and line. The one exception is part of SemEval: in 2015 and 2016 many pairs of
an input file were never annotated (an empty line in the gs file) and do not belong to the set.

Published scores of SICK-R use different parts: SimCSE and SentEval the test part (4,927 pairs), MTEB all three parts
together (9,927 pairs). `StsSource.split` names the part.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mm_ldlm.core import EvaluationError, InvalidValue, Registry, bounded, config, nearest, reason_of, show
from mm_ldlm.core.files import InputFile

FORMATS = Registry(
    "format of STS sets",
    {
        "stsb": "mm_ldlm.evaluation.sts_sets:read_stsb",
        "semeval": "mm_ldlm.evaluation.sts_sets:read_semeval",
        "sick": "mm_ldlm.evaluation.sts_sets:read_sick",
        "hub": "mm_ldlm.evaluation.sts_sets:read_hub",
    },
    "sts_formats",
)
"""Formats: functions from (source, seed) to an `StsSet`."""

SEMEVAL_SUBSETS: dict[str, tuple[str, ...]] = {
    "sts12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "sts13": ("FNWN", "headlines", "OnWN"),  # SMT has a licence of its own; SentEval and later work leave it out
    "sts14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "sts15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "sts16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""Subsets that the literature (SentEval, SimCSE) scores in each year"""
SICK_PARTS: dict[str, str] = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
"""Part → its file as published for SemEval 2014; SICK.txt, published later, contains all three"""
HUB_SETS: dict[str, str] = {
    "stsb": "mteb/stsbenchmark-sts",
    "sickr": "mteb/sickr-sts",
    **{f"sts{year}": f"mteb/sts{year}-sts" for year in range(12, 17)},
}
GOLD = ("score", "similarity_score", "relatedness_score", "label")
"""Names of the column of gold scores"""
_SEMEVAL_INPUT = re.compile(r"STS(\d{4})?\.input\..+\.txt")

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
    """

    format: str
    name: Name
    path: str | None = None
    split: str = "test"
    revision: str | None = None
    subsets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            known = ", ".join(FORMATS)
            raise InvalidValue(f"expected {known}, found '{self.format}'.{nearest(self.format, FORMATS)}", "format")

    def file(self, path: str | Path | None = None) -> InputFile:
        """Return the door to a file of the set; by default `path` itself."""
        remedy = f"Correct the file, or evaluation.sts.sets ('{self.name}')."
        return InputFile(path or self.path or "", remedy=remedy, error=EvaluationError)


def load_sts(source: StsSource, *, seed: int = 0) -> StsSet:
    """Read one set from its source; `seed` is that of generated sets.

    Raises:
        EvaluationError: a file is missing or unreadable, a line is malformed, or a subset is missing.
    """
    found: StsSet = FORMATS.load(source.format)(source, seed)
    return found


def from_pairs(name: str, pairs: Iterable[Pair], *, subsets: Sequence[str] | None = None, part: str = "") -> StsSet:
    """Make a set from (sentence, sentence, gold) triples.

    Raises:
        EvaluationError: there are fewer than two pairs, a sentence is empty, or the gold scores do not differ.
    """
    listed = [(first.strip(), second.strip(), gold) for first, second, gold in pairs]
    gold_N = np.array([gold for *_, gold in listed], dtype=np.float64)
    empty = sum(not (first and second) for first, second, _ in listed)
    if len(listed) < 2 or empty or not np.ptp(gold_N) > 0:
        raise EvaluationError(
            f"STS set '{name}': expected at least two pairs of sentences with different finite scores, found "
            f"{len(listed)} pairs, {empty} with an empty sentence, and the scores {show(gold_N.tolist(), 60)}. Correct "
            "the set, or remove it from evaluation.sts."
        )
    first_N, second_N = tuple(pair[0] for pair in listed), tuple(pair[1] for pair in listed)
    return StsSet(name, first_N, second_N, gold_N, tuple(subsets or [""] * len(listed)), part)


def read_rows(file: InputFile, *, widths: Callable[[list[str]], bool] | None = None) -> list[tuple[int, list[str]]]:
    """Read the rows of a table with the numbers of their lines: the door of all formats of files.

    The first line decides between tabs and commas; only tab-separated files leave quotation marks unbalanced. Rows have
    as many cells as the first one, or what `widths` accepts, so that a tab inside a sentence shifts no column.
    """
    text = file.text()
    tabs = "\t" in text.partition("\n")[0]
    lines: Iterable[str] = file.lines() if tabs else io.StringIO(text, newline="")
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    reader = csv.reader(lines, strict=True, **dialect)
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        file.refuse("a table", f"an error in line {reader.line_num} ({error})")
    for number, row in rows:
        if not (widths(row) if widths else len(row) == len(rows[0][1])):
            file.refuse("as many cells in each line as its format has", f"{len(row)} in line {number}")
    return rows


def _score(file: InputFile, number: int, text: str, *, low: float = 0, high: float = 5) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        file.refuse(f"a score between {low} and {high}", f"{show(text, 60)} in line {number}")
    return value


def _columns(file: InputFile, header: Sequence[str], *names: Sequence[str]) -> list[int]:
    """Find the column of each meaning by its possible names."""
    cells = [cell.strip().lower() for cell in header]
    for choices in names:
        if not set(choices) & set(cells):
            file.refuse(f"a column {' or '.join(choices)} in the header", show(list(header), 200))
    return [next(cells.index(name) for name in choices if name in cells) for choices in names]


# -- formats -----------------------------------------------------------------------------------------------------------


def read_stsb(source: StsSource, seed: int) -> StsSet:
    """Read STS-B in any of its published formats; gold 0 to 5.

    Original TSV (no header): genre, file, year, index, score, sentence 1, sentence 2, and for some rows two sources,
    which contain no blanks. GLUE TSV: a header that names sentence1, sentence2, score. CSV: sentence 1, sentence 2,
    score, quoted where needed, header or not.
    """
    file = source.file()
    first_line = file.text().partition("\n")[0]
    header = "sentence1" in first_line.lower()
    original = "\t" in first_line and not header
    rows = read_rows(file, widths=_is_original if original else None)
    columns = [5, 6, 4] if original else [0, 1, 2]
    if header:
        columns = _columns(file, rows.pop(0)[1], ["sentence1"], ["sentence2"], GOLD)
    elif rows and len(rows[0][1]) <= max(columns):
        file.refuse("sentence 1, sentence 2 and a score in each line", f"{len(rows[0][1])} cells in line 1")
    a, b, gold = columns
    return from_pairs(source.name, [(row[a], row[b], _score(file, number, row[gold])) for number, row in rows])


def _is_original(row: Sequence[str]) -> bool:
    sources = row[7:]
    return len(row) in (7, 9) and not any(" " in cell.strip() for cell in sources)


def read_semeval(source: StsSource, seed: int) -> StsSet:
    """Read one year's STS.input.NAME.txt and STS.gs.NAME.txt, searched below the folder; gold 0 to 5.

    The files of 2016 begin with STS2016 instead of STS, and their lines have two more columns, the sources of the
    sentences, which are not used.

    Raises:
        EvaluationError: a subset is missing on either side, occurs twice, or its two files differ in length.
    """
    folder = Path(source.path or "")
    paths = [
        path for path in sorted(folder.rglob("STS*.input.*.txt"))
        if _SEMEVAL_INPUT.fullmatch(path.name) and ".input.ALL." not in path.name  # STS12 has the concatenation too
    ]  # fmt: skip
    inputs = {path.name.split(".input.", 1)[1].removesuffix(".txt"): path for path in paths}
    if len(inputs) < len(paths):
        source.file(folder).refuse("the folder of one year with each subset once", show(list(map(str, paths)), 600))
    expected = source.subsets or SEMEVAL_SUBSETS.get(source.name.lower()) or sorted(inputs)
    if not inputs or any(subset not in inputs for subset in expected):
        wanted = ", ".join(f"STS.input.{subset}.txt" for subset in expected) or "STS.input.*.txt"
        source.file(folder).refuse(f"{wanted} (2016: STS2016.input.*.txt) below it", show(sorted(inputs), 200))
    pairs: list[Pair] = []
    labels: list[str] = []
    for subset in expected:
        file = source.file(inputs[subset])
        scores = source.file(inputs[subset].with_name(inputs[subset].name.replace(".input.", ".gs.", 1)))
        rows, gold = read_rows(file), scores.lines()
        cells = {len(row) for _, row in rows}
        if len(rows) != len(gold) or cells - {2, 4}:
            counts = f"{len(rows)} lines of {cells or 0} cells and {len(gold)} scores"
            file.refuse("two sentences, or two and their sources, in each line, and a score for each line", counts)
        for (number, row), text in zip(rows, gold, strict=True):
            if text.strip():
                pairs.append((row[0], row[1], _score(scores, number, text)))
                labels.append(subset)
    return from_pairs(source.name, pairs, subsets=labels)


def read_sick(source: StsSource, seed: int) -> StsSet:
    """Read one part of SICK ("train", "trial", "test"), or all three together in this order ("all"); gold 1 to 5.

    The path is SICK.txt, whose column SemEval_set names the part of each pair, the file of one part, or a folder with
    either.

    Raises:
        EvaluationError: a file is missing, malformed, or contains another part.
    """
    path, parts = Path(source.path or ""), [part for part in SICK_PARTS if source.split in (part, "all")]
    files = [path]
    if path.is_dir():
        together = path / "SICK.txt"
        files = [together] if together.is_file() else [path / SICK_PARTS[part] for part in parts]
    pairs: list[Pair] = []
    for file in map(source.file, files):
        rows = read_rows(file)
        header = rows.pop(0)[1] if rows else []
        a, b, gold = _columns(file, header, ["sentence_a"], ["sentence_b"], ["relatedness_score"])
        own = next((part for part, name in SICK_PARTS.items() if name == Path(file.path).name), "test")
        which = header.index("SemEval_set") if "SemEval_set" in header else None
        if which is None and own not in parts:
            file.refuse(f"the part '{source.split}' (train, trial, test or all)", f"a file of the part '{own}'")
        for number, row in rows:
            if which is None or row[which].strip().lower() in parts:
                pairs.append((row[a], row[b], _score(file, number, row[gold], low=1)))
    return from_pairs(source.name, pairs, part=source.split)


def read_hub(source: StsSource, seed: int) -> StsSet:
    """Read a data set of the hub, or a folder saved by `datasets`."""
    import datasets

    target = source.path or HUB_SETS.get(source.name, "")
    saved = any((Path(target) / name).exists() for name in ("dataset_dict.json", "state.json"))
    try:
        if saved:
            loaded = datasets.load_from_disk(target)
            rows = loaded[source.split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            rows = datasets.load_dataset(target, split=source.split, revision=source.revision)
    except Exception as error:  # the hub raises many exceptions, which mean the same to the caller
        raise EvaluationError(
            f"STS set '{source.name}': expected '{target}' (split '{source.split}') of the hub or a folder saved by "
            f"`datasets`, found an error ({reason_of(error)}). Without the hub, give a folder or the original files."
        ) from error
    names = [name for name in rows.column_names if name != "subset"]
    a, b, gold = (names[i] for i in _columns(source.file(target), names, ["sentence1"], ["sentence2"], GOLD))
    subsets = list(rows["subset"]) if "subset" in rows.column_names else None
    return from_pairs(source.name, zip(rows[a], rows[b], map(float, rows[gold]), strict=True), subsets=subsets)
