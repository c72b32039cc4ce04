"""Overlap with the training texts, against direct definitions."""

from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.evaluation.overlap import attested_bigrams, memorised

texts = st.lists(st.text("abBÄ .,", min_size=1, max_size=8), max_size=6)


@given(texts, texts)
def test_memorised_texts_are_training_texts_up_to_case_and_spaces(outputs: list[str], training: list[str]) -> None:
    plain = {" ".join(text.casefold().split()) for text in training}
    assert memorised(outputs, iter(training)).tolist() == [" ".join(o.casefold().split()) in plain for o in outputs]


@given(texts, texts)
def test_all_word_pairs_of_training_texts_are_attested(outputs: list[str], training: list[str]) -> None:
    mine, theirs = attested_bigrams([training, outputs], iter(training))
    assert (mine == 1).all()
    assert ((theirs >= 0) & (theirs <= 1)).all()


def test_pairs_are_counted_with_the_edges_of_the_text() -> None:
    ((found,),) = attested_bigrams([["the dog sat"]], ["the dog ran", "a cat sat"])
    assert found == 3 / 4  # edge-the, the-dog, sat-edge; not dog-sat
