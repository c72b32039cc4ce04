"""Published formats of STS sets, and files that are not of them."""

import contextlib
import csv
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.environments import parameters

from mm_ldlm.app.config_loader import merge
from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.core import ConfigurationError, EvaluationError, parse
from mm_ldlm.extras.sts.config import StsConfig
from mm_ldlm.extras.sts.sets import StsSet, StsSource, from_pairs, load_sts

PAIRS = [("A plane, taking off.", 'An "air" plane', 5.0), ("Zwei Männer", "two men", 0.5), ("x y", "z", 3.25)]
HEADER = "index\tlabel\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
ORIGINAL = "".join(f"main\tf\t2012\t{i}\t{gold}\t{a}\t{b}\n" for i, (a, b, gold) in enumerate(PAIRS))
FILES = {
    "original": ORIGINAL,
    "with_sources": ORIGINAL.replace("two men\n", "two men\thttp://a\thttp://b\n"),
    "glue": "\n".join([HEADER, *(f"{i}\tg\tf\t1\t2\tn\tn\t{a}\t{b}\t{s}" for i, (a, b, s) in enumerate(PAIRS))]),
    "csv": "".join('"{}","{}",{}\n'.format(a, b.replace('"', '""'), gold) for a, b, gold in PAIRS),
    "bom": "\ufeffSentence1,Sentence2,similarity_score\r\n" + '"A plane, taking off.","An ""air"" plane",5\r\nZwei Männer,two men,.5\r\nx y,z,3.25\r\n',
}  # fmt: skip


def source(path: Path) -> StsSource:
    return StsSource(format="stsb", name="set", path=str(path))


def as_pairs(found: StsSet) -> list[tuple[str, str, float]]:
    return list(zip(found.first, found.second, found.gold_N.tolist(), strict=True))


@pytest.mark.parametrize("kind", sorted(FILES))
@pytest.mark.parametrize("end", ["", " at sea" * 30_000])
def test_every_published_form_of_sts_b_gives_the_pairs(kind: str, end: str, tmp_path: Path) -> None:
    csv.field_size_limit(131_072)  # that of a new process
    (tmp_path / "f").write_text(FILES[kind].replace("two men", f"two men{end}"), encoding="utf-8", newline="")
    assert as_pairs(load_sts(source(tmp_path / "f"))) == [(a, b + end * (b == "two men"), gold) for a, b, gold in PAIRS]


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("original", "two men", "two\tmen"),  # a tab inside a sentence shifted the columns without a word
        ("original", "two men", "two\tmen at\tsea"),
        ("glue", "two men", "two\tmen"),
        ("csv", '"two men"', '"two men",1'),
        ("csv", "0.5", "0.5\r1"),  # a line end that the csv module refuses
        ("csv", "0.5", "nan"),
        ("csv", "0.5", "5.5"),
        ("csv", "0.5", "half"),
        ("csv", "Zwei Männer", " "),
        ("glue", "score", "points"),
        ("original", ORIGINAL, "one\ttwo\n"),
        ("csv", FILES["csv"], ""),
        ("csv", FILES["csv"], "a,b,1\nc,d,1\n"),
        ("csv", '"two men"', '"two" men'),
        ("csv", "Zwei Männer", "Zwei\0Männer"),
        ("csv", "two men", "two\0men"),
    ],
)
def test_a_file_that_cannot_be_read_completely_is_refused(
    kind: str, old: str, new: str, tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    assert old in FILES[kind]
    (tmp_path / "f").write_text(FILES[kind].replace(old, new), encoding="utf-8", newline="")
    with refuses(EvaluationError, "set"):
        load_sts(source(tmp_path / "f"))


def test_a_tab_in_a_sentence_divides_no_table_of_commas(tmp_path: Path) -> None:
    (tmp_path / "f").write_text('a,b,1\nc,"d\te",2\n')
    assert as_pairs(load_sts(source(tmp_path / "f"))) == [("a", "b", 1), ("c", "d\te", 2)]


def test_latin_1_folders_and_missing_files_are_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    (tmp_path / "f").write_bytes(FILES["csv"].encode("latin-1"))
    for place in (tmp_path / "f", tmp_path, tmp_path / "none"):
        with refuses(EvaluationError, place):
            load_sts(source(place))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1), st.floats(0, 5)), min_size=2, max_size=6))
def test_a_set_has_every_sentence_once(pairs: list[tuple[str, str, float]]) -> None:
    stripped = [(a.strip(), b.strip(), gold) for a, b, gold in pairs]
    usable = all(a and b and "\0" not in a + b for a, b, _ in stripped) and len({gold for *_, gold in pairs}) > 1
    with contextlib.nullcontext() if usable else pytest.raises(EvaluationError):
        found = from_pairs("set", pairs)
        assert as_pairs(found) == stripped
        assert found.sentences == list(dict.fromkeys(pair[side] for side in (0, 1) for pair in stripped))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=40))
def test_a_set_is_refused_before_a_run_if_a_resample_of_it_may_have_one_score_only(golds: list[int]) -> None:
    chance = sum((golds.count(gold) / len(golds)) ** len(golds) for gold in set(golds))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "f")
        file.write_text("".join(f"a{i},b{i},{gold}\n" for i, gold in enumerate(golds)))
        assert (StsConfig(files={"set": str(file)}).missing() is None) is (chance < 1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sets", [{"format": "stbs", "name": "a", "path": "f"}]),
        ("sets", [{"format": "stsb", "name": "a b", "path": "f"}]),
        ("files", {"a.b": "f"}),
        ("stes", []),
    ],
)
def test_sets_that_no_evaluation_can_use_are_refused(key: str, value: Any, refuses: Callable[..., Any]) -> None:
    changes = {key: value} if key == "stes" else {"sts": {key: value}}
    with refuses(ConfigurationError, "evaluation.sts." if "sts" in changes else "Did you mean 'sts'", key):
        check_parameters(merge(parameters("base"), {"evaluation": changes}))


def test_sets_and_files_of_sts_have_different_names(refuses: Callable[..., Any]) -> None:
    both = {"sets": [{"format": "stsb", "name": "a", "path": "f"}], "files": {"a": "g"}}
    with refuses(ConfigurationError, "evaluation.sts"):
        parse(StsConfig, both, at="evaluation.sts")
    both["files"] = {"b": "g"}
    sources = parse(StsConfig, both, at="evaluation.sts").sources
    assert [(source.name, source.format, source.path) for source in sources] == [("a", "stsb", "f"), ("b", "stsb", "g")]
    of_hub = StsConfig(sets=(StsSource(format="hub", name="c", path="org/set"), *sources[:1]), files=both["files"])
    assert [*of_hub.input_files()] == [("files.b", "g"), ("sets[1].path", "f")]
