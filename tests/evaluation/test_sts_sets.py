"""Every published STS format is read completely; every defect is reported with file and line."""

import pytest

import datasets
from mm_ldlm.core.errors import ConfigurationError, EvaluationError
from mm_ldlm.evaluation.sts_sets import (
    HUB_SETS,
    SEMEVAL_SUBSETS,
    StsSource,
    load_sts,
    read_semeval,
    read_sick,
    read_stsb,
)


def test_stsb_original_tsv_with_loose_quotes(tmp_path):
    path = tmp_path / "sts-dev.csv"
    path.write_text(
        'main-captions\tMSRvid\t2012test\t0000\t5.000\tA man said "hi.\tA man greeted.\n'
        "main-news\thead\t2013\t0001\t1.25\tOne, two.\tThree, four.\tlicence\tsource\n"
    )
    pairs = read_stsb(path)
    assert pairs.first == ('A man said "hi.', "One, two.")
    assert pairs.gold_N.tolist() == [5.0, 1.25]


def test_stsb_glue_tsv(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text(
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\ty\t1\ts\ts\ta b\tc d\t3.5\n1\tg\tf\ty\t1\ts\ts\te\tf\t0\n"
    )
    pairs = read_stsb(path)
    assert (pairs.first[0], pairs.second[0], pairs.gold_N[0]) == ("a b", "c d", 3.5)


@pytest.mark.parametrize("header", ["", "sentence1,sentence2,similarity_score\n"])
def test_stsb_csv_with_and_without_header(tmp_path, header):
    path = tmp_path / "dev.csv"
    path.write_text(header + 'A man.,"One, two.",5.0\nX.,Y.,1.0\n')
    pairs = read_stsb(path)
    assert pairs.second == ("One, two.", "Y.")


def semeval(folder, subset, pairs, golds, *, prefix="STS"):
    folder.mkdir(exist_ok=True)
    (folder / f"{prefix}.input.{subset}.txt").write_text("".join("\t".join(columns) + "\n" for columns in pairs))
    (folder / f"{prefix}.gs.{subset}.txt").write_text("".join(f"{g}\n" for g in golds))


def test_semeval_skips_unannotated_pairs_and_the_concatenation(tmp_path):
    semeval(tmp_path / "y", "one", [("a", "b"), ("c", "d"), ("e", "f")], [1, "", 4.5])
    semeval(tmp_path / "y", "two", [("g", "h")], [2])
    semeval(tmp_path / "y", "ALL", [("g", "h")], [2])
    pairs = read_semeval(tmp_path, name="sts99")
    assert len(pairs) == 3
    assert pairs.subset_N == ("one", "one", "two")
    assert pairs.first == ("a", "e", "g")


def test_semeval_2016_in_its_own_naming(tmp_path):
    """Four columns; most pairs of the answers and questions were never scored."""
    sources = ("http://a", "http://b")
    for subset in SEMEVAL_SUBSETS["sts16"]:
        pairs = [(f"{subset} a{row}", f"{subset} b{row}", *sources) for row in range(4)]
        semeval(tmp_path / "y", subset, pairs, ["", 5, "", "0"], prefix="STS2016")
    found = load_sts(StsSource(format="semeval", name="sts16", path=str(tmp_path)))
    assert found.subsets == SEMEVAL_SUBSETS["sts16"]
    assert found.first[:2] == ("answer-answer a1", "answer-answer a3")
    assert found.second[-1] == "question-question b3"
    assert found.gold_N.tolist() == [5.0, 0.0] * 5
    (tmp_path / "y" / "STS2016.gs.headlines.txt").unlink()
    with pytest.raises(EvaluationError, match=r"its scores STS2016\.gs\.headlines\.txt are missing"):
        read_semeval(tmp_path, name="sts16")


@pytest.mark.parametrize("end", ["", "\n"])
def test_semeval_reads_a_last_pair_without_a_score(tmp_path, end):
    """The last line of the gs file is empty, with or without a line break of its own."""
    semeval(tmp_path / "y", "one", [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")], [])
    (tmp_path / "y" / "STS.gs.one.txt").write_text(f"1\n\n2\n{end}")
    assert read_semeval(tmp_path, name="sts99").first == ("a", "e")
    for cut in ("1\n\n2", "1\n2\n3\n"):
        (tmp_path / "y" / "STS.gs.one.txt").write_text(cut)
        with pytest.raises(EvaluationError, match="4 pairs, but 3 scores"):
            read_semeval(tmp_path, name="sts99")


def test_semeval_refuses_a_subset_that_occurs_twice(tmp_path):
    for year, prefix in (("2015", "STS"), ("2016", "STS2016")):
        semeval(tmp_path / year, "headlines", [("a", "b"), ("c", "d")], [1, 2], prefix=prefix)
    with pytest.raises(EvaluationError, match=r"each subset once, found 'headlines' in .*2015.* and .*2016"):
        read_semeval(tmp_path, name="sts99")


def test_semeval_names_both_namings_if_there_are_no_files(tmp_path):
    (tmp_path / "STS2016.input.txt").write_text("a\tb\n")
    with pytest.raises(EvaluationError, match=r"found no STS\.input\.\*\.txt \(2016: STS2016"):
        read_semeval(tmp_path, name="sts16")


@pytest.mark.parametrize("name", ["sts13", "STS13"])
def test_semeval_refuses_a_year_with_a_missing_subset(name, tmp_path):
    semeval(tmp_path / "y", "FNWN", [("a", "b"), ("c", "d")], [1, 2])
    with pytest.raises(EvaluationError, match=r"headlines.*missing"):
        read_semeval(tmp_path, name=name)
    assert len(read_semeval(tmp_path, name=name, subsets=["FNWN"])) == 2


def test_semeval_refuses_unequal_files(tmp_path):
    semeval(tmp_path / "y", "one", [("a", "b"), ("c", "d")], [1])
    with pytest.raises(EvaluationError, match="2 pairs, but 1 scores"):
        read_semeval(tmp_path, name="sts99")


def test_sick_both_shapes(tmp_path):
    old = tmp_path / "SICK_test_annotated.txt"
    old.write_text(
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\ta\tb\t4.5\tNEUTRAL\n2\tc\td\t1\tX\n"
    )
    assert read_sick(old).gold_N.tolist() == [4.5, 1.0]
    new = tmp_path / "SICK.txt"
    new.write_text(
        "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set\n"
        "1\ta\tb\tN\t4.5\tTRAIN\n2\tc\td\tN\t2\tTEST\n3\te\tf\tN\t3\tTEST\n"
    )
    assert read_sick(new).first == ("c", "e")
    assert len(read_sick(new, split="all")) == 3
    with pytest.raises(EvaluationError, match="train"):
        read_sick(new, split="nonsense")


def sick_part(folder, name, rows):
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    (folder / name).write_text(header + "".join(f"{i}\t{a}\t{b}\t{gold}\tX\n" for i, (a, b, gold) in enumerate(rows)))


def test_sick_in_three_files_is_read_by_part_or_together(tmp_path):
    for part, letters in (("train", "ab"), ("trial", "cd"), ("test_annotated", "ef")):
        sick_part(tmp_path, f"SICK_{part}.txt", [(x, f"{x}!", 1 + i) for i, x in enumerate(letters)])
    assert {split: read_sick(tmp_path, split=split).first for split in ("train", "trial", "test", "all")} == {
        "train": ("a", "b"), "trial": ("c", "d"), "test": ("e", "f"), "all": tuple("abcdef")
    }  # fmt: skip
    assert load_sts(StsSource(format="sick", name="sickr", path=str(tmp_path))).first == ("e", "f")
    (tmp_path / "SICK_trial.txt").unlink()
    assert len(read_sick(tmp_path, split="test")) == 2
    with pytest.raises(EvaluationError, match=r"expected SICK_trial\.txt \(or SICK\.txt\) for the part 'all'"):
        read_sick(tmp_path, split="all")


def test_sick_reads_the_file_of_all_parts_in_a_folder(tmp_path):
    (tmp_path / "SICK.txt").write_text(
        "sentence_A\tsentence_B\trelatedness_score\tSemEval_set\n"
        "a\tb\t1\tTRAIN\nc\td\t2\tTRIAL\ne\tf\t3\tTEST\ng\th\t4\tTEST\n"
    )
    assert read_sick(tmp_path).first == ("e", "g")
    assert read_sick(tmp_path, split="all").first == ("a", "c", "e", "g")


@pytest.mark.parametrize(
    ("name", "split"), [("SICK_train.txt", "test"), ("SICK_test_annotated.txt", "all"), ("own.txt", "all")]
)
def test_sick_takes_no_part_for_another(tmp_path, name, split):
    sick_part(tmp_path, name, [("a", "b", 1), ("c", "d", 2)])
    with pytest.raises(EvaluationError, match=f"expected the part '{split}' of SICK, found a file of one part"):
        read_sick(tmp_path / name, split=split)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"A.,B.,5.0\nC.,D.,x\n", ":2: expected a score"),
        (b"A.,B.,5.0\nC.,D.,7\n", "outside 0 to 5"),
        (b"A.,B.,5.0\nC.,D.\n", ":2: expected at least 3 columns"),
        (b"A.,B.,5.0\nC.,\xff,1\n", "not UTF-8"),
        (b"", "empty"),
        (b"A.,B.,5.0\nC.,D.,5.0\n", "every gold score"),
        (b"A.,B.,5.0\n,D.,4.0\n", "empty sentence"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "dev.csv"
    path.write_bytes(content)
    with pytest.raises(EvaluationError, match=message):
        read_stsb(path)


def test_a_missing_file_and_a_missing_path_are_refused(tmp_path):
    with pytest.raises(EvaluationError, match="does not exist"):
        load_sts(StsSource(format="stsb", name="x", path=str(tmp_path / "nowhere.csv")))
    with pytest.raises(ConfigurationError, match="needs a path"):
        StsSource(format="semeval", name="sts12")


COLUMNS = {"sentence1": ["a", "b", "c"], "sentence2": ["d", "e", "f"]}


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ({"name": "mine", "path": "org/set", "split": "dev", "revision": "r"}, ("org/set", "dev", "r")),
        ({"name": "stsb"}, (HUB_SETS["stsb"], "test", None)),
    ],
)
def test_the_hub_is_asked_for_the_set_the_split_and_the_revision(source, asked, monkeypatch):
    calls = []

    def load(target, *, split, revision):
        calls.append((target, split, revision))
        return datasets.Dataset.from_dict({**COLUMNS, "label": [9, 9, 9], "score": [0, 2.5, 5]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    pairs = load_sts(StsSource(format="hub", **source))
    assert calls == [asked]
    assert (pairs.name, pairs.first, pairs.second) == (source["name"], ("a", "b", "c"), ("d", "e", "f"))
    assert pairs.gold_N.tolist() == [0, 2.5, 5], "the score and not another column"
    assert pairs.subsets == ("",)


@pytest.mark.parametrize("several", [True, False])
def test_a_folder_saved_by_datasets_needs_no_hub(several, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", None)
    dev, test = (
        datasets.Dataset.from_dict({**COLUMNS, "relatedness_score": gold, "subset": ["x", "y", "x"]})
        for gold in ([1, 2, 3], [3, 2, 1])
    )
    (datasets.DatasetDict({"dev": dev, "test": test}) if several else dev).save_to_disk(tmp_path / "set")
    pairs = load_sts(StsSource(format="hub", name="mine", path=str(tmp_path / "set"), split="dev"))
    assert pairs.gold_N.tolist() == [1, 2, 3]
    assert (pairs.subset_N, pairs.subsets) == (("x", "y", "x"), ("x", "y"))
    if several:
        with pytest.raises(EvaluationError, match=r"'mine': '.*set' \(split 'train'\) cannot be loaded: KeyError"):
            load_sts(StsSource(format="hub", name="mine", path=str(tmp_path / "set"), split="train"))
    dev.remove_columns("relatedness_score").save_to_disk(tmp_path / "none")
    with pytest.raises(EvaluationError, match=r"expected sentence1, sentence2, score; .* has"):
        load_sts(StsSource(format="hub", name="mine", path=str(tmp_path / "none")))


def test_the_starter_set_is_that_of_the_seed():
    one, again, other = (load_sts(StsSource(format="starter", name="mine"), seed=seed) for seed in (4, 4, 5))
    assert (one.name, one.first, one.gold_N.tolist()) == ("mine", again.first, again.gold_N.tolist())
    assert one.first != other.first


@pytest.mark.parametrize(
    ("score", "fits"),
    [("0", "stsb"), ("5", "stsb sick"), ("1", "stsb sick"), ("0.99", "stsb"), ("5.01", ""), ("-0.01", ""), ("nan", "")],
)
def test_scores_lie_between_the_bounds_of_their_format(score, fits, tmp_path):
    (tmp_path / "stsb.csv").write_text(f"a,b,{score}\nc,d,2\n")
    (tmp_path / "SICK.txt").write_text(
        f"sentence_A\tsentence_B\trelatedness_score\tSemEval_set\na\tb\t{score}\tTEST\nc\td\t2\tTEST\n"
    )
    for name, read in (
        ("stsb", lambda: read_stsb(tmp_path / "stsb.csv")),
        ("sick", lambda: read_sick(tmp_path / "SICK.txt")),
    ):
        if name in fits.split():
            assert read().gold_N.tolist() == [float(score), 2]
        else:
            with pytest.raises(EvaluationError, match="outside"):
                read()
