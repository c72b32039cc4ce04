"""The starter corpus: deterministic, diverse, and with new combinations in the held-out splits."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import yaml

from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.starter.corpus import StarterSentence, generate_starter_corpus, generate_starter_sts
from mm_ldlm.extras.starter.corpus.generate import SPLITS
from mm_ldlm.extras.starter.corpus.scenes import add_adjective
from mm_ldlm.extras.starter.corpus.shapes import SHAPES


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z']+", text.lower()))


@pytest.fixture(scope="module")
def corpus() -> list[StarterSentence]:
    return list(generate_starter_corpus(seed=0))


@pytest.fixture(scope="module")
def by_split(corpus: list[StarterSentence]) -> dict[str, list[StarterSentence]]:
    return {split: [s for s in corpus if s.split == split] for split in SPLITS}


# ---------------------------------------------------------------------------------------- the corpus


def test_the_same_seed_gives_the_same_sentences_whatever_is_asked_afterwards(corpus: list[StarterSentence]) -> None:
    assert list(islice(generate_starter_corpus(seed=0, num_test=7), 500)) == corpus[:500]


def test_it_is_the_corpus_of_the_documented_figures(corpus: list[StarterSentence]) -> None:
    """Every figure of the README was measured on these sentences: whoever changes one measures the figures again."""
    pairs = generate_starter_sts(seed=0)
    assert fingerprint([(s.text, s.split, s.shape) for s in corpus])[:16] == "e1f45ba5041c3b6c"
    told = [(pair.sentence1, pair.sentence2, pair.score, pair.kind) for pair in pairs]
    assert fingerprint(told)[:16] == "ffb9ff72ae2429a3"


def test_another_seed_gives_other_sentences_and_another_split() -> None:
    first, second = (
        {s.text: s.split for s in generate_starter_corpus(seed=seed, num_train=3000, num_validation=50, num_test=50)}
        for seed in (1, 2)
    )
    assert len(first.keys() & second.keys()) < 1000


def test_it_has_the_documented_size(corpus: list[StarterSentence], by_split: dict[str, list[StarterSentence]]) -> None:
    assert {split: len(rows) for split, rows in by_split.items()} == {"train": 24_000, "validation": 500, "test": 600}
    assert len({s.text for s in corpus}) == len(corpus)
    assert len(set().union(*(words(s.text) for s in corpus))) >= 300
    shapes = Counter(s.shape for s in by_split["train"])
    assert shapes.keys() == SHAPES.keys()
    assert len(shapes) >= 12
    assert min(shapes.values()) > 0.3 * max(shapes.values()), shapes


def test_no_held_out_combination_occurs_in_another_split(by_split: dict[str, list[StarterSentence]]) -> None:
    told = {split: {c for s in rows for c in s.combinations} for split, rows in by_split.items()}
    assert all(told.values())
    assert not told["train"] & (told["validation"] | told["test"])
    assert not told["validation"] & told["test"]


def test_a_combination_names_the_content_of_the_sentence(corpus: list[StarterSentence]) -> None:
    """A key is no empty label: who acts and what it happens to stand in the text."""
    for s in corpus:
        assert len(s.combinations) == (2 if s.shape in ("coordinated", "meanwhile") else 1)
        for combination in s.combinations:
            parts = combination.split("|")
            fixed = [piece for part in parts for piece in re.split(r"\{\w+\}", part) if piece.strip()]
            if len(parts) == 3 and s.shape not in ("because",):  # events: the verb may be inflected
                fixed = [parts[0], parts[-1]]
            for piece in fixed:
                assert piece.strip().lower() in s.text.lower(), (combination, s.text)


def test_every_held_out_word_is_a_training_word(by_split: dict[str, list[StarterSentence]]) -> None:
    known = set().union(*(words(s.text) for s in by_split["train"]))
    for split in ("validation", "test"):
        assert not set().union(*(words(s.text) for s in by_split[split])) - known


def test_a_small_training_split_holds_out_only_its_own_words() -> None:
    small = list(generate_starter_corpus(seed=3, num_train=400, num_validation=100, num_test=100))
    known = set().union(*(words(s.text) for s in small if s.split == "train"))
    assert all(words(s.text) <= known for s in small)


def test_articles_capitals_and_stops(corpus: list[StarterSentence]) -> None:
    for s in corpus:
        for article, following in re.findall(r"\b([Aa]n?) ([a-z]+)", s.text):
            assert (article.lower() == "an") == (following[0] in "aeiou"), s.text
        assert not words(s.text) & {"hour", "honest", "university", "uniform", "one-eyed"}, s.text
        assert re.fullmatch(r"[A-Z][A-Za-z', ]*[a-z][.?]", s.text), s.text
        assert "  " not in s.text
        assert s.text.endswith("?") == s.shape.startswith("question"), s.text
        assert 4 <= len(s.text.split()) <= 16, s.text


def test_adjectives_choose_the_article() -> None:
    assert add_adjective("an apple", "ripe") == "a ripe apple"
    assert add_adjective("a coat", "expensive") == "an expensive coat"
    assert add_adjective("a hat", "ugly") == "an ugly hat"
    assert add_adjective("some bread", "fresh") == "some fresh bread"


def test_more_sentences_than_the_grammar_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.extras.starter.corpus.generate._ATTEMPTS_PER_SENTENCE", 5)
    with pytest.raises(SourceError, match=r"no more validation sentences: 40 were asked for, 0 are new"):
        list(generate_starter_corpus(seed=0, num_train=0, num_validation=40))


def test_the_documentation_matches_the_base_configuration(project: Path) -> None:
    """docs/starter-corpus.md, row by row, against the corpus that conf/base asks for."""
    counts = yaml.safe_load((project / "conf/base/globals.yml").read_text())["starter"]
    made = list(generate_starter_corpus(seed=0, **counts))
    assert len({s.text for s in made}) == len(made)
    shapes = Counter(s.shape for s in made)
    lengths = [len(s.text.split()) for s in made]
    letters = set(re.findall("[a-z]+", " ".join(s.text.lower() for s in made)))
    page = (project / "docs/starter-corpus.md").read_text()
    train, validation, test = counts.values()
    for row in (
        f"| sentences | {train:,} train, {validation:,} validation, {test:,} test; all {len(made):,} distinct |",
        f"| words | {len(letters):,} (",
        f"| shapes | {len(shapes)}, {min(shapes.values()):,} to {max(shapes.values()):,} sentences each",
        f"| length | {min(lengths)} to {max(lengths)} words, mean {sum(lengths) / len(lengths):.1f};",
    ):
        assert row in page


# ----------------------------------------------------------------------------------------- the pairs


def test_pairs_are_graded_evenly_and_repeat_with_the_seed() -> None:
    pairs = generate_starter_sts(seed=0)
    assert Counter(p.score for p in pairs) == dict.fromkeys((0.0, 1.0, 2.0, 3.0, 4.0, 5.0), 80)
    assert len({frozenset((p.sentence1, p.sentence2)) for p in pairs}) == len(pairs)
    assert all(p.sentence1 != p.sentence2 for p in pairs)
    assert pairs[:30] == generate_starter_sts(seed=0, num_pairs=30)
    assert pairs[:30] != generate_starter_sts(seed=1, num_pairs=30)


def test_the_grade_follows_from_what_was_changed() -> None:
    """Shared content words fall with the grade; a reworded pair keeps them all."""
    function_words = {"was", "were", "by", "the", "a", "an", "some", "and", "while"}
    shared: dict[float, list[float]] = {}
    for p in generate_starter_sts(seed=0):
        first, second = (words(text) - function_words for text in (p.sentence1, p.sentence2))
        shared.setdefault(p.score, []).append(len(first & second) / len(first | second))
    means = [sum(values) / len(values) for _, values in sorted(shared.items())]
    unrelated, topic, *graded = means  # "same topic" shares meaning, not words
    assert max(unrelated, topic) < 0.1 < graded[0]
    assert graded == sorted(graded)
    assert all(set(values) != {1.0} for score, values in shared.items() if score < 5)


def test_pairs_describe_held_out_scenes_in_training_words(by_split: dict[str, list[StarterSentence]]) -> None:
    known = set().union(*(words(s.text) for s in by_split["train"]))
    trained = {s.text for s in by_split["train"]}
    for p in generate_starter_sts(seed=0):
        assert words(p.sentence1) | words(p.sentence2) <= known
        assert not {p.sentence1, p.sentence2} & trained
