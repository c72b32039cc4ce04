"""Readers of STS-B, of the STS sets of SemEval 2012 to 2016, of SICK, and of the hub.

A set is read completely or not at all: a line that cannot be read and a gold score outside its scale are errors with
file and line.

In 2015 and 2016 of SemEval many pairs of an input file were never annotated (an empty line in the gs file) and do not
belong to the set.

Published scores of SICK-R use different parts: SimCSE and SentEval the test part (4,927 pairs), MTEB all three parts
together (9,927 pairs). `StsSource.split` names the part.
"""

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mm_ldlm.core import EvaluationError, foreign_code, show
from mm_ldlm.core.files import InputFile
from mm_ldlm.extras.sts.sets import Pair, StsSet, StsSource, from_pairs

GOLD = ("score", "similarity_score", "relatedness_score", "label")
"""Names of the column of gold scores"""

SEMEVAL_SUBSETS: dict[str, tuple[str, ...]] = {
    year: tuple(subsets.split())
    for year, subsets in {
        "sts12": "MSRpar MSRvid SMTeuroparl surprise.OnWN surprise.SMTnews",
        "sts13": "FNWN headlines OnWN",  # SMT has a separate licence; SentEval and later work leave it out
        "sts14": "deft-forum deft-news headlines images OnWN tweet-news",
        "sts15": "answers-forums answers-students belief headlines images",
        "sts16": "answer-answer headlines plagiarism postediting question-question",
    }.items()
}
"""Subsets that the literature (SentEval, SimCSE) scores in each year"""
SICK_PARTS: dict[str, str] = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
"""Part → its file as published for SemEval 2014; SICK.txt, published later, contains all three"""
HUB_SETS: dict[str, str] = {
    "stsb": "mteb/stsbenchmark-sts",
    "sickr": "mteb/sickr-sts",
    **{f"sts{year}": f"mteb/sts{year}-sts" for year in range(12, 17)},
}
_SEMEVAL_INPUT = re.compile(r"STS(\d{4})?\.input\..+\.txt")


# -- tables of pairs ---------------------------------------------------------------------------------------------------


def read_rows(file: InputFile, *, widths: Callable[[list[str]], bool] | None = None) -> list[tuple[int, list[str]]]:
    """Read the rows of a table with the numbers of their lines: the door of all formats of files.

    The first line decides between tabs and commas; only tab-separated files leave quotation marks unbalanced. Rows have
    as many cells as the first one, or what `widths` accepts, so that a tab inside a sentence shifts no column.
    """
    text = file.text()
    tabs = "\t" in text.partition("\n")[0]
    lines: Iterable[str] = file.lines() if tabs else io.StringIO(text, newline="")
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    csv.field_size_limit(2**31 - 1)  # the file was read as a whole
    reader = csv.reader(lines, strict=True, **dialect)
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        file.refuse("a table", f"an error in line {reader.line_num} ({error})")
    for number, row in rows:
        if not (widths(row) if widths else len(row) == len(rows[0][1])):
            file.refuse("as many cells in each line as its format has", f"{len(row)} in line {number}")
    return rows


def score_of(file: InputFile, number: int, text: str, *, low: float = 0) -> float:
    """Read a gold score, at most 5, in a line of a file."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= 5:
        file.refuse(f"a score between {low} and 5", f"{show(text, 60)} in line {number}")
    return value


def columns_of(file: InputFile, header: Sequence[str], *names: Sequence[str]) -> list[int]:
    """Find the column of each meaning by its possible names."""
    cells = [cell.strip().lower() for cell in header]
    for choices in names:
        if not set(choices) & set(cells):
            file.refuse(f"a column {' or '.join(choices)} in the header", show(list(header), 200))
    return [next(cells.index(name) for name in choices if name in cells) for choices in names]


# -- the formats -------------------------------------------------------------------------------------------------------


def read_stsb(source: StsSource, seed: int) -> StsSet:
    """Read STS-B in any of its published formats; gold 0 to 5.

    Original TSV (no header): genre, file, year, index, score, sentence 1, sentence 2, and for some rows two sources,
    which contain no blanks. GLUE TSV: a header that names sentence1, sentence2, score. CSV: sentence 1, sentence 2,
    score, quoted where needed, header or not. In a folder, it is the file sts-test.csv, searched below it.

    Raises:
        EvaluationError: the file is missing or malformed.
    """
    folder = source.path or ""
    file = source.below(folder, "sts-test.csv") if os.path.isdir(folder) else source.file()
    first_line = file.text().partition("\n")[0]
    header = "sentence1" in first_line.lower()
    original = "\t" in first_line and not header
    rows = read_rows(file, widths=_is_original if original else None)
    columns = [5, 6, 4] if original else [0, 1, 2]
    if header:
        columns = columns_of(file, rows.pop(0)[1], ["sentence1"], ["sentence2"], GOLD)
    elif rows and len(rows[0][1]) <= max(columns):
        file.refuse("sentence 1, sentence 2 and a score in each line", f"{len(rows[0][1])} cells in line 1")
    a, b, gold = columns
    return from_pairs(source.name, [(row[a], row[b], score_of(file, number, row[gold])) for number, row in rows])


def _is_original(row: Sequence[str]) -> bool:
    return len(row) in (7, 9) and not any(" " in source.strip() for source in row[7:])


def read_semeval(source: StsSource, seed: int) -> StsSet:
    """Read one year's STS.input.NAME.txt and STS.gs.NAME.txt, searched below the folder; gold 0 to 5.

    If the folder contains several years, the one with all expected subsets is read.

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
    years: dict[Path, dict[str, Path]] = {}
    for path in paths:
        years.setdefault(path.parent, {})[path.name.split(".input.", 1)[1].removesuffix(".txt")] = path
    expected = source.subsets or SEMEVAL_SUBSETS.get(source.name.lower(), ())
    fitting = [year for year in years.values() if year.keys() >= set(expected)]
    if len(fitting) > 1:
        source.file(folder).refuse("the folder of one year with each subset once", show(list(map(str, paths)), 600))
    if not fitting:
        wanted = ", ".join(f"STS.input.{subset}.txt" for subset in expected or "*")
        source.file(folder).refuse(
            f"{wanted} (2016: STS2016.input.*.txt) below it",
            show(sorted(name for year in years.values() for name in year), 200),
        )
    (inputs,) = fitting
    pairs: list[Pair] = []
    labels: list[str] = []
    for subset in expected or sorted(inputs):
        file = source.file(inputs[subset])
        scores = source.file(inputs[subset].with_name(inputs[subset].name.replace(".input.", ".gs.", 1)))
        rows, gold = read_rows(file), scores.lines()
        cells = {len(row) for _, row in rows}
        if len(rows) != len(gold) or cells - {2, 4}:
            counts = f"{len(rows)} lines of {cells or 0} cells and {len(gold)} scores"
            file.refuse("two sentences, or two and their sources, in each line, and a score for each line", counts)
        for (number, row), text in zip(rows, gold, strict=True):
            if text.strip():
                pairs.append((row[0], row[1], score_of(scores, number, text)))
                labels.append(subset)
    return from_pairs(source.name, pairs, subsets=labels)


def read_sick(source: StsSource, seed: int) -> StsSet:
    """Read one part of SICK ("train", "trial", "test"), or all three together in this order ("all"); gold 1 to 5.

    The path is SICK.txt, whose column SemEval_set names the part of each pair, the file of one part, or a folder with
    either at any depth.

    Raises:
        EvaluationError: a file is missing, malformed, or contains another part.
    """
    path, parts = Path(source.path or ""), [part for part in SICK_PARTS if source.split in (part, "all")]
    files = [source.file(path)]
    if path.is_dir():
        together = next(path.rglob("SICK.txt"), None) is not None
        names = ["SICK.txt"] if together else [SICK_PARTS[part] for part in parts]
        files = [source.below(path, name) for name in names]
    pairs: list[Pair] = []
    for file in files:
        rows = read_rows(file)
        header = rows.pop(0)[1] if rows else []
        a, b, gold = columns_of(file, header, ["sentence_a"], ["sentence_b"], ["relatedness_score"])
        own = next((part for part, name in SICK_PARTS.items() if name == Path(file.path).name), "test")
        which = header.index("SemEval_set") if "SemEval_set" in header else None
        if which is None and own not in parts:
            file.refuse(f"the part '{source.split}' (train, trial, test or all)", f"a file of the part '{own}'")
        for number, row in rows:
            if which is None or row[which].strip().lower() in parts:
                pairs.append((row[a], row[b], score_of(file, number, row[gold], low=1)))
    return from_pairs(source.name, pairs, part=source.split)


def read_hub(source: StsSource, seed: int) -> StsSet:
    """Read a data set of the hub, or a folder saved by `datasets`."""
    import datasets

    target = source.path or HUB_SETS.get(source.name, "")
    saved = any((Path(target) / name).exists() for name in ("dataset_dict.json", "state.json"))
    with foreign_code(lambda reason: EvaluationError(
        f"STS set '{source.name}': expected '{target}' (split '{source.split}') of the hub or a folder saved by "
        f"`datasets`, found an error ({reason}). Without the hub, give a folder or the original files."
    )):  # fmt: skip
        if saved:
            loaded = datasets.load_from_disk(target)
            rows = loaded[source.split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            rows = datasets.load_dataset(target, split=source.split, revision=source.revision)
    names = [name for name in rows.column_names if name != "subset"]
    a, b, gold = (names[i] for i in columns_of(source.file(target), names, ["sentence1"], ["sentence2"], GOLD))
    subsets = list(rows["subset"]) if "subset" in rows.column_names else None
    return from_pairs(source.name, zip(rows[a], rows[b], map(float, rows[gold]), strict=True), subsets=subsets)
