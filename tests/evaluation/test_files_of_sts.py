"""Files of STS sets in unusual but valid forms: headers, spaces, folders, names; and where an error points to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import datasets
from mm_ldlm.core.errors import ConfigurationError, EvaluationError
from mm_ldlm.evaluation.config import StsConfig
from mm_ldlm.evaluation.sts_sets import (
    HUB_SETS,
    SICK_PARTS,
    StsSource,
    from_pairs,
    load_sts,
    read_semeval,
    read_sick,
    read_stsb,
)
from mm_ldlm.extras.starter.corpus import generate_starter_sts


def semeval(folder: Path, subset: str, lines: str, golds: str, *, prefix: str = "STS") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}.input.{subset}.txt").write_text(lines)
    (folder / f"{prefix}.gs.{subset}.txt").write_text(golds)


# -- the set itself ----------------------------------------------------------------------------------------------------


def test_sentences_and_subsets_are_in_the_order_of_their_appearance() -> None:
    pairs = from_pairs("s", [("d", "b", 1), ("a", "d", 2), ("c", "a", 3)], subsets=["z", "a", "z"])
    assert pairs.sentences == ["d", "a", "c", "b"], "those of the first side, then the others"
    assert (pairs.subsets, pairs.subset_N, len(pairs)) == (("z", "a"), ("z", "a", "z"), 3)
    assert (pairs.name, pairs.first, pairs.second, pairs.gold_N.tolist()) == (
        "s", ("d", "a", "c"), ("b", "d", "a"), [1, 2, 3]
    )  # fmt: skip
    assert pairs.gold_N.dtype == float
    with pytest.raises(EvaluationError, match="0 pairs"):
        from_pairs("s", [])


@pytest.mark.parametrize(("form", "name", "path", "fits"), [
    ("starter", "x", None, True), ("stsb", "x", None, False), ("stsb", "x", "p", True), ("sick", "stsb", None, False),
    ("semeval", "sts12", None, False), ("hub", "stsb", None, True), ("hub", "mine", None, False),
    ("hub", "mine", "org/set", True), ("stsb", "a-b_1", "p", True), ("stsb", "a b", "p", False),
    ("stsb", "a.b", "p", False), ("stsb", "_-", "p", False), ("starter", "a/b", None, False),
])  # fmt: skip
def test_a_source_needs_a_path_unless_its_format_or_its_name_gives_one(
    form: str, name: str, path: str | None, fits: bool
) -> None:
    if fits:
        assert StsSource(format=form, name=name, path=path).split == "test"  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigurationError):
        StsSource(format=form, name=name, path=path)  # type: ignore[arg-type]


def test_the_sets_of_the_hub_have_their_names() -> None:
    years = {f"sts{year}": f"mteb/sts{year}-sts" for year in (12, 13, 14, 15, 16)}
    assert {"stsb": "mteb/stsbenchmark-sts", "sickr": "mteb/sickr-sts", **years} == HUB_SETS


# -- STS-B -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "rows", "gold"),
    [
        ("Sentence1,SENTENCE2, Score ", ["a,b,1", "c,d,2"], [1, 2]),
        ("label,similarity_score,score,sentence2,sentence1", ["9,4,1,b,a", "9,5,2,d,c"], [1, 2]),
        ("label,similarity_score,sentence2,sentence1", ["9,1,b,a", "9,2,d,c"], [1, 2]),
        ("label,sentence2,sentence1", ["1,b,a", "2,d,c"], [1, 2]),
        ("genre\tsentence1\tsentence2\tscore", ["x\ta\tb\t1", "x\tc\td\t2"], [1, 2]),
    ],
)
def test_a_header_names_the_columns_in_any_order_and_case(
    header: str, rows: list[str], gold: list[float], tmp_path: Path
) -> None:
    (tmp_path / "f.csv").write_text("\n".join([header, *rows]) + "\n")
    found = read_stsb(tmp_path / "f.csv", name="mine")
    assert (found.name, found.first, found.second, found.gold_N.tolist()) == ("mine", ("a", "c"), ("b", "d"), gold)


def test_spaces_around_sentences_and_scores_and_empty_lines_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(" a b , c ,  1.5 \n\n d,e ,2\n")
    (tmp_path / "f.tsv").write_text("g\tf\ty\ti\t 1.5\t a b \t c\n\ng\tf\ty\ti\t2\td\te \n")
    for name in ("f.csv", "f.tsv"):
        found = read_stsb(tmp_path / name)
        assert (found.first, found.second, found.gold_N.tolist()) == (("a b", "d"), ("c", "e"), [1.5, 2]), name
    semeval(tmp_path / "s", "one", " a b \t c \nd\te\n", "1.5\n 2 \n")
    found = read_semeval(tmp_path / "s", name="x")
    assert (found.name, found.first, found.second, found.gold_N.tolist()) == ("x", ("a b", "d"), ("c", "e"), [1.5, 2])
    (tmp_path / "SICK.txt").write_text(
        "sentence_A\tsentence_B\trelatedness_score\tSemEval_set\n\n"
        " a b \tc \t1.5\t test \nd\te\t2\tTest\nf\tg\t3\tTRAIN\n"
    )
    found = read_sick(tmp_path / "SICK.txt")
    assert (found.name, found.first, found.second, found.gold_N.tolist()) == (
        "sickr", ("a b", "d"), ("c", "e"), [1.5, 2]
    )  # fmt: skip


def test_quotation_marks_join_commas_and_lines_in_a_csv_and_are_letters_in_a_tsv(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text('"a, b","c ""d""",1\n"e\nf",g,2\nh,i,x\n')
    with pytest.raises(EvaluationError, match=r"f\.csv:4: expected a score, found 'x'"):
        read_stsb(tmp_path / "f.csv")
    (tmp_path / "f.csv").write_text('"a, b","c ""d""",1\n"e\nf",g,2\n')
    assert read_stsb(tmp_path / "f.csv").first == ("a, b", "e\nf")
    (tmp_path / "SICK.txt").write_text(
        'sentence_A\tsentence_B\trelatedness_score\n"a\tb"\t1\n"c "d\te\t2\n', encoding="utf-8"
    )
    assert read_sick(tmp_path / "SICK.txt").first == ('"a', '"c "d')


# -- SemEval -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", ["", "a", "a/b/c"])
def test_the_files_of_a_year_lie_at_any_depth(depth: str, tmp_path: Path) -> None:
    semeval(tmp_path / depth, "one", "a\tb\nc\td\n", "1\n2\n")
    assert read_semeval(tmp_path, name="x").first == ("a", "c")


@pytest.mark.parametrize("order", [["two", "one"], ["one", "two"], ["two"]])
def test_named_subsets_are_read_in_their_order_and_no_others(order: list[str], tmp_path: Path) -> None:
    semeval(tmp_path, "one", "a1\tb\na2\td\n", "1\n2\n")
    semeval(tmp_path, "two", "c1\tb\nc2\td\n", "1\n2\n")
    letters = {"one": ("a1", "a2"), "two": ("c1", "c2")}
    found = load_sts(StsSource(format="semeval", name="mine", path=str(tmp_path), subsets=tuple(order)))
    assert found.first == tuple(text for name in order for text in letters[name])
    assert found.subset_N == tuple(name for name in order for _ in range(2))
    assert read_semeval(tmp_path, name="mine").subsets == ("one", "two"), "all that are found"


def test_a_wrong_score_of_semeval_is_named_with_the_file_of_the_scores(tmp_path: Path) -> None:
    for gold, words in (("5.5", "score 5.5 outside 0 to 5"), ("-1", "score -1.0 outside"), ("x", "found 'x'")):
        semeval(tmp_path, "one", "a\tb\nc\td\n\ne\tf\n", f"1\n\n\n{gold}\n")
        with pytest.raises(EvaluationError, match=rf"STS\.gs\.one\.txt:4: .*{re.escape(words)}"):
            read_semeval(tmp_path, name="x")


def test_a_name_with_input_in_it_has_its_own_scores(tmp_path: Path) -> None:
    semeval(tmp_path, "my.input.set", "a\tb\nc\td\n", "1\n2\n")
    (tmp_path / "STS.gs.my.input.set.txt").unlink()
    (tmp_path / "STS.gs.my.gs.set.txt").write_text("9\n9\n")
    with pytest.raises(EvaluationError, match=r"its scores STS\.gs\.my\.input\.set\.txt are missing"):
        read_semeval(tmp_path, name="x")


def test_files_of_other_names_are_no_part_of_a_year(tmp_path: Path) -> None:
    semeval(tmp_path, "one", "a\tb\nc\td\n", "1\n2\n")
    semeval(tmp_path, "two", "e\tf\ng\th\n", "1\n2\n", prefix="STSx")
    semeval(tmp_path, "three", "e\tf\ng\th\n", "1\n2\n", prefix="STS123")
    assert read_semeval(tmp_path, name="x").subsets == ("one",)


def test_missing_subsets_are_listed_beside_those_that_were_found(tmp_path: Path) -> None:
    for subset in ("headlines", "other"):
        semeval(tmp_path, subset, "a\tb\nc\td\n", "1\n2\n")
    with pytest.raises(EvaluationError) as refused:
        read_semeval(tmp_path, name="sts13")
    assert str(refused.value) == (
        f"{tmp_path}: subsets ['FNWN', 'OnWN'] of 'sts13' are missing (found ['headlines', 'other']). A part of a year "
        "is not comparable with published scores; to score it on purpose, name the `subsets`."
    )


# -- SICK --------------------------------------------------------------------------------------------------------------

LINES = "sentence_A\tsentence_B\trelatedness_score\na\tb\t1\nc\td\t5\n"


@pytest.mark.parametrize("part", SICK_PARTS)
@pytest.mark.parametrize("ending", [".txt", ".tsv", " (copy).txt"])
def test_a_file_of_one_part_is_known_by_the_beginning_of_its_name(part: str, ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"{SICK_PARTS[part].removesuffix('.txt')}{ending}"
    file.write_text(LINES)
    for split in (*SICK_PARTS, "all"):
        if split == part:
            assert read_sick(file, split=split).first == ("a", "c")
            continue
        with pytest.raises(
            EvaluationError, match=rf"expected the part '{split}' .* a file of one part \({part}\)\. Give"
        ):
            read_sick(file, split=split)


def test_a_file_of_unknown_part_is_taken_for_the_test_part_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(LINES)
    assert len(read_sick(tmp_path / "mine.txt")) == 2
    with pytest.raises(EvaluationError, match=r"expected the part 'trial' of SICK, found a file of one part\. Give"):
        read_sick(tmp_path / "mine.txt", split="trial")
    with pytest.raises(EvaluationError, match="expected the part train, trial, test or all of SICK, found 'dev'"):
        read_sick(tmp_path / "mine.txt", split="dev")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(EvaluationError, match=r"columns \['sentence_A', 'sentence_B', .* are missing"):
        read_sick(tmp_path / "empty.txt")


def test_every_missing_file_of_a_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "SICK_trial.txt").write_text(LINES)
    for split, names in (("all", "SICK_train.txt, SICK_test_annotated.txt"), ("train", "SICK_train.txt")):
        with pytest.raises(
            EvaluationError, match=rf"expected {names} \(or SICK\.txt\) for the part '{split}', found no"
        ):
            read_sick(tmp_path, split=split)


def test_the_part_of_a_pair_is_read_in_any_case_and_with_spaces_and_every_line_has_all_columns(tmp_path: Path) -> None:
    header, *rows = LINES.splitlines()
    file = tmp_path / "SICK.txt"
    lines = [f"{header}\tSemEval_set", f"{rows[0]}\t Test ", f"{rows[1]}\ttEST", "e\tf\t3\tTRIAL", "g\th\t4\ttrial "]
    file.write_text("\n".join(lines))
    assert {part: read_sick(file, split=part).first for part in ("test", "trial", "all")} == {
        "test": ("a", "c"), "trial": ("e", "g"), "all": ("a", "c", "e", "g")
    }  # fmt: skip
    with pytest.raises(EvaluationError, match=r"no pairs of split 'train' \(splits found: \['test', 'trial'\]\)\."):
        read_sick(file, split="train")
    for line, found in (("a\tb\t2", 3), ("a\tb\t2\tTEST\tmore", 5)):
        file.write_text("\n".join([*lines[:2], line, *lines[2:]]))
        for split in ("test", "trial", "all"):
            with pytest.raises(EvaluationError, match=rf"SICK\.txt:3: {found} columns, the header has 4\."):
                read_sick(file, split=split)


def test_the_file_of_all_parts_goes_before_those_of_single_parts(tmp_path: Path) -> None:
    (tmp_path / "SICK_test_annotated.txt").write_text(LINES)
    assert load_sts(StsSource(format="sick", name="mine", path=str(tmp_path))).first == ("a", "c")
    header, *rows = LINES.replace("a\t", "x\t").splitlines()
    (tmp_path / "SICK.txt").write_text("\n".join([f"{header}\tSemEval_set", *(f"{row}\tTRIAL" for row in rows)]))
    found = load_sts(StsSource(format="sick", name="mine", path=str(tmp_path), split="trial"))
    assert (found.name, found.first) == ("mine", ("x", "c"))


# -- what is loaded ----------------------------------------------------------------------------------------------------


def test_each_format_is_read_by_its_own_reader_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a,b,1\nc,d,2\n")
    assert load_sts(StsSource(format="stsb", name="mine", path=str(tmp_path / "f.csv"))).name == "mine"
    with pytest.raises(EvaluationError, match=r"STS set 'mine': .*nowhere does not exist\. Give the file \(or"):
        load_sts(StsSource(format="semeval", name="mine", path=str(tmp_path / "nowhere")))


def test_text_of_another_encoding_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"ab,c,1\n\xe9,d,2\n")
    with pytest.raises(EvaluationError, match=r"f\.csv: not UTF-8 \(byte 7\)"):
        read_stsb(tmp_path / "f.csv")


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError) as raised:
        load_sts(StsSource(format="stsb", name="mine", path=str(tmp_path)))
    assert (
        str(raised.value)
        == f"{tmp_path}: expected a file that can be read, found that it is a folder. Correct the path."
    )


def test_files_of_the_parameters_follow_the_sets_in_the_format_of_sts_b() -> None:
    own = StsSource(format="sick", name="b", path="p", split="all")
    config = StsConfig(sets=(own,), files={"z": "f1.csv", "a": "f2.csv"})
    assert config.sources == (
        own, StsSource(format="stsb", name="z", path="f1.csv"), StsSource(format="stsb", name="a", path="f2.csv")
    )  # fmt: skip
    assert StsConfig().sources == ()
    with pytest.raises(ConfigurationError, match="a name must contain letters"):
        StsConfig(files={"a b": "f.csv"})


# -- hub and starter ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["score", "similarity_score", "relatedness_score", "label"])
def test_a_set_of_the_hub_has_its_scores_in_one_of_four_columns(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("label", "relatedness_score", "similarity_score", "score")
    others = names[: names.index(column)]
    table = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], column: [1, 4]} | {name: [9, 9] for name in others}
    monkeypatch.setattr(datasets, "load_dataset", lambda target, **how: datasets.Dataset.from_dict(table))
    found = load_sts(StsSource(format="hub", name="mine", path="org/set"))
    assert (found.first, found.second, found.gold_N.tolist()) == (("a", "b"), ("c", "d"), [1, 4])


@pytest.mark.parametrize("columns", [["sentence1", "score"], ["sentence2", "score"], ["sentence2", "sentence1", "x"]])
def test_a_set_of_the_hub_without_a_column_is_refused_with_those_that_it_has(
    columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = datasets.Dataset.from_dict({name: [1, 2] for name in columns})
    monkeypatch.setattr(datasets, "load_dataset", lambda target, **how: table)
    with pytest.raises(EvaluationError) as refused:
        load_sts(StsSource(format="hub", name="mine", path="org/set"))
    assert str(refused.value) == (
        f"STS set 'mine': expected sentence1, sentence2, score; 'org/set' has {sorted(columns)}."
    )


def test_the_starter_set_has_the_sentences_of_its_generator_in_their_order() -> None:
    made = generate_starter_sts(seed=6)
    found = load_sts(StsSource(format="starter", name="mine"), seed=6)
    assert found.first == tuple(pair.sentence1 for pair in made)
    assert found.second == tuple(pair.sentence2 for pair in made)
    assert found.gold_N.tolist() == [pair.score for pair in made]
