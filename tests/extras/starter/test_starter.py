"""The starter corpus: deterministic, diverse, and with new combinations of known words in the held-out splits."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import yaml
from tests.data.corpus.examples import read

from mm_ldlm.core import SourceError
from mm_ldlm.data.corpus.sources import Row
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.starter.corpus import StarterSentence, generate_starter_corpus, generate_starter_sts
from mm_ldlm.extras.starter.corpus.shapes import SHAPES


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z']+", text.lower()))


@pytest.fixture(scope="module")
def corpus(project: Path) -> list[StarterSentence]:
    """The sentences that conf/base asks for."""
    counts = yaml.safe_load((project / "conf/base/globals.yml").read_text())["starter"]
    return list(generate_starter_corpus(seed=0, **counts))


def test_it_is_the_corpus_of_the_documented_figures() -> None:
    """Every figure of the README was measured on these sentences: whoever changes one measures the figures again."""
    corpus = list(generate_starter_corpus(seed=0))
    assert fingerprint([(s.text, s.split, s.shape) for s in corpus])[:16] == "e1f45ba5041c3b6c"
    told = [(pair.sentence1, pair.sentence2, pair.score, pair.kind) for pair in generate_starter_sts(seed=0)]
    assert fingerprint(told)[:16] == "ffb9ff72ae2429a3"
    assert list(islice(generate_starter_corpus(seed=0, num_test=7), 500)) == corpus[:500]


def test_texts_are_distinct_and_have_every_shape(corpus: list[StarterSentence]) -> None:
    assert len({s.text for s in corpus}) == len(corpus)
    assert {s.shape for s in corpus} == SHAPES.keys()


def test_pitfall_14_a_held_out_sentence_is_a_new_combination_of_training_words(corpus: list[StarterSentence]) -> None:
    by_split = {split: [s for s in corpus if s.split == split] for split in ("train", "validation", "test")}
    told = {split: {c for s in rows for c in s.combinations} for split, rows in by_split.items()}
    assert all(told.values())
    assert not told["train"] & (told["validation"] | told["test"])
    assert not told["validation"] & told["test"]
    known = set().union(*(words(s.text) for s in by_split["train"]))
    assert all(words(s.text) <= known for s in corpus)
    small = list(generate_starter_corpus(seed=3, num_train=400, num_validation=100, num_test=100))
    known = set().union(*(words(s.text) for s in small if s.split == "train"))
    assert all(words(s.text) <= known for s in small)


def test_more_sentences_than_the_grammar_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.extras.starter.corpus.generate._ATTEMPTS_PER_SENTENCE", 5)
    with pytest.raises(SourceError, match="40 were asked for"):
        list(generate_starter_corpus(seed=0, num_train=0, num_validation=40))


def test_pairs_of_sentences_are_labelled_by_their_numbers_of_words() -> None:
    keys = {"kind": "starter_pairs", "num_train": 200, "num_validation": 20, "num_test": 10}
    rows = [row for row in read(keys) if isinstance(row, Row)]
    assert Counter(row.split for row in rows) == {"train": 200, "validation": 20, "test": 10}
    assert len({text for row in rows for text in (row.text, row.pair)}) == 460
    for row in rows:
        difference = len(row.text.split()) - len(str(row.pair).split())
        assert row.meta["label"] == ("similar" if abs(difference) <= 1 else "first" if difference > 0 else "second")
