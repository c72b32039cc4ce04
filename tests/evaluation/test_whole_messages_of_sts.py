"""Whole messages about files of STS sets: the file, the line, what was expected, what was found and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datasets
from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import run_result
from mm_ldlm.evaluation.sts_sets import StsSet, StsSource, load_sts, read_semeval, read_sick, read_stsb

SICK = "sentence_A\tsentence_B\trelatedness_score"


@pytest.mark.parametrize(
    ("read", "name", "text", "message"),
    [
        (read_stsb, "a.csv", "", "{file}: empty; expected STS-B pairs."),
        (read_stsb, "a.csv", "\n\n", "{file}: empty; expected STS-B pairs."),
        (read_stsb, "a.csv", "Sentence2, sentence1 ,gold\na,b,1\n",
         "{file}: the header ['sentence2', 'sentence1', 'gold'] names no score column (score, similarity_score, "
         "label)."),
        (read_stsb, "a.csv", "a,b,1\n\nc,d\n", "{file}:3: expected at least 3 columns, found 2."),
        (read_stsb, "a.tsv", "g\tf\ty\ti\t1\ta\tb\ng\tf\ty\ti\t1\ta\n",
         "{file}:2: expected at least 7 columns, found 6."),
        (read_stsb, "a.csv", "a,b,1\nc,d,5.25\n", "{file}:2: score 5.25 outside 0 to 5."),
        (read_stsb, "a.csv", "a,b,1\nc,d,nan\n", "{file}:2: score nan outside 0 to 5."),
        (read_stsb, "a.csv", "a,b,1\nc,d,-inf\n", "{file}:2: score -inf outside 0 to 5."),
        (read_stsb, "a.csv", "a,b,1\nc,d,e\n", "{file}:2: expected a score, found 'e'."),
        (read_stsb, "a.csv", f"a,b,1\nc,d,{'e' * 99}\n", "{file}:2: expected a score, found '" + "e" * 59 + "."),
        (read_stsb, "a.csv", "a,b,1\n", "STS set 'stsb': 1 pairs; a correlation needs at least two."),
        (read_stsb, "a.csv", "a,b,1\nc,,2\n", "STS set 'stsb': pair 1 has an empty sentence."),
        (read_sick, "SICK.txt", "sentence_A\tscore\nb\t1\n",
         "{file}: columns ['sentence_B', 'relatedness_score'] are missing from the header ['sentence_A', 'score']; "
         "expected SICK's tab file."),
        (read_sick, "SICK.txt", f"{SICK}\na\tb\t0.75\n", "{file}:2: score 0.75 outside 1 to 5."),
        (read_sick, "SICK_trial.txt", f"{SICK}\na\tb\t2\n",
         "{file}: expected the part 'test' of SICK, found a file of one part (trial). Give SICK.txt, or the folder of "
         "all parts."),
        (read_sick, "mine.txt", f"{SICK}\n", "{file}: no pairs of split 'test' (splits found: [])."),
    ],
)  # fmt: skip
def test_a_file_is_refused_with_its_place_and_what_was_found(
    read: Any, name: str, text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(EvaluationError) as refused:
        read(file)
    assert str(refused.value) == message.replace("{file}", str(file))


def test_text_of_another_encoding_is_named_with_its_first_byte(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("abcd\xe9\xe9,b,1\n".encode("latin-1"))
    with pytest.raises(EvaluationError) as refused:
        read_stsb(tmp_path / "a.csv")
    assert str(refused.value) == f"{tmp_path / 'a.csv'}: not UTF-8 (byte 4); STS files are UTF-8."


def test_parts_of_a_year_that_do_not_fit_are_named(tmp_path: Path) -> None:
    source, gold = tmp_path / "STS.input.one.txt", tmp_path / "STS.gs.one.txt"
    source.write_text("a\tb\nno tab\ne\tf\n")

    def refusal() -> str:
        with pytest.raises(EvaluationError) as refused:
            read_semeval(tmp_path, name="mine")
        return str(refused.value)

    assert refusal() == f"{source}: its scores STS.gs.one.txt are missing beside it."
    gold.write_text("1\n2\n")
    assert refusal() == f"{source}: 3 pairs, but 2 scores in STS.gs.one.txt."
    gold.write_text("1\n2\n3\n")
    assert refusal() == f"{source}:2: expected two sentences separated by a tab, found 'no tab'."
    source.write_text("a\tb\nc\td\ne\tf\n")
    gold.write_text("1\n2\n5.5\n")
    assert refusal() == f"{gold}:3: score 5.5 outside 0 to 5."
    again = tmp_path / "x" / "STS2016.input.one.txt"
    again.parent.mkdir()
    again.write_text("a\tb\n")
    assert refusal() == (
        f"{tmp_path}: expected each subset once, found 'one' in {source} and {again}. Give the folder of one year, and "
        "only its training or its test data."
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(EvaluationError) as refused:
        read_semeval(empty, name="mine")
    assert str(refused.value) == (
        f"{empty}: expected SemEval's own folder of one year, found no STS.input.*.txt (2016: STS2016.input.*.txt) "
        "below it. Give the folder that contains these files."
    )


def test_a_set_that_cannot_be_found_or_loaded_is_named_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("why")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(EvaluationError) as refused:
        load_sts(StsSource(format="hub", name="stsb", split="dev"))
    assert str(refused.value) == (
        "STS set 'stsb': 'mteb/stsbenchmark-sts' (split 'dev') cannot be loaded: KeyError: 'why'. Without the hub, "
        "give a folder saved by `datasets`, or the original files, as `path`."
    )
    gone = tmp_path / "gone.csv"
    for form in ("stsb", "sick", "semeval"):
        with pytest.raises(EvaluationError) as refused:
            load_sts(StsSource(format=form, name="mine", path=str(gone)))  # type: ignore[arg-type]
        text = str(refused.value)
        assert text.startswith(f"STS set 'mine': {gone} ")
        assert text.endswith(". Give the file (or folder) in `path`.")


def test_sides_of_different_lengths_and_equal_scores_are_refused() -> None:
    for first, second, gold, subsets, message in (
        (("a", "b"), ("c",), [1.0, 2.0], ("", "", ""), "its sides have unequal lengths [1, 2, 3]."),
        (("a", "b"), ("c", "d"), [1.0, 2.0], ("",), "its sides have unequal lengths [1, 2]."),
        (("a", "b"), ("c", "d"), [1.0], ("", ""), "its sides have unequal lengths [1, 2]."),
        (("a", "b"), ("c", "d"), [1.5, 1.5], ("", ""), "every gold score is 1.5; nothing to correlate."),
        (("a", "b"), ("c", "d"), [1.5, np.inf], ("", ""), "some gold scores are not finite."),
    ):
        with pytest.raises(EvaluationError) as refused:
            StsSet("mine", first, second, np.array(gold), subsets)
        assert str(refused.value) == f"STS set 'mine': {message}"


def test_a_result_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    place = tmp_path / "metrics.json"
    for text, message in (
        ("{", f"Expected JSON in {place}, found a file that cannot be read as JSON ("),
        (f'["{"x" * 99}"]', f"Expected a mapping of numbers in {place}, found ['{'x' * 58}. Evaluate that"),
    ):
        place.write_text(text)
        with pytest.raises(EvaluationError) as refused:
            run_result.load_result(str(tmp_path))
        assert str(refused.value).startswith(message)
        assert str(refused.value).endswith("Evaluate that run again.")
    assert "line 1 column 2" in _reason(tmp_path)


def _reason(folder: Path) -> str:
    (folder / "metrics.json").write_text("{")
    with pytest.raises(EvaluationError) as refused:
        run_result.load_result(str(folder))
    return str(refused.value)
