"""A vocabulary of the corpus writes every text as it is, depends on the training texts only, and is trained once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus.examples import ingested, jsonl

from mm_ldlm.core import StoreError, parse
from mm_ldlm.data.corpus import tokenizer_training
from mm_ldlm.data.corpus.record import meta_value
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer
from mm_ldlm.data.corpus.tokens import build_tokenizer

LETTERS = {"Latin": "aZéÑßøĳ", "Cyrillic": "бЖщЁї", "Arabic": "ابتثةﷺ", "Devanagari": "कखगिी्ँ", "Han": "東京龘语𠀀"}
OTHERS = " \t.,!?'\"-[](){}0123456789🙂👩‍👩‍👧🏳️‍🌈\u0301\u0308\u200d\u200f\ufe0f€"
TEXTS = st.one_of(
    st.text(max_size=60),
    *(st.text(alphabet=letters + OTHERS, max_size=60) for letters in LETTERS.values()),
    st.sampled_from(["[MASK]", "[UNK] a [PAD]", "<unk>", "e\u0301 vs é"]),
)
CORPUS = ["The quick brown Fox", "Быстрая лиса", "الثعلب السريع", "तेज़ लोमड़ी", "敏捷的狐狸 🙂"] * 20
BYTES = TextTokenizer(tokenizer_training.train(CORPUS, vocab_size=400), max_length=16)
KEYS = {"name": "corpus", "max_length": 40, "too_long": "split"}


@settings(max_examples=300)
@given(TEXTS)
def test_every_text_has_no_unknown_word_and_is_decoded_as_it_was_written(text: str) -> None:
    (ids,) = BYTES.encode([text])
    assert not {BYTES.unk_id, BYTES.pad_id, BYTES.mask_id} & {*ids}
    assert BYTES.decode(ids) == text


def test_the_same_texts_give_the_same_vocabulary_and_few_texts_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokenizer_training.train(CORPUS, vocab_size=400).to_str()
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert tokenizer_training.train(CORPUS, vocab_size=400).to_str() == first
    assert tokenizer_training.train(["one text"], vocab_size=400).get_vocab_size() == 256
    monkeypatch.setattr(tokenizer_training, "MOST_CHARACTERS", 1)
    assert tokenizer_training.train(iter(CORPUS), vocab_size=400).get_vocab_size() == 256


def test_ingestion_trains_on_the_training_texts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"{text} {number}", "pair": f"{number} {text}"} for number, text in enumerate(CORPUS)]
    source, seen = {"kind": "jsonl", **jsonl(tmp_path, rows), "pair_column": "pair"}, list[str]()
    real = tokenizer_training.train

    def watched(texts: Iterator[str], **keys: Any) -> Any:
        seen.extend(texts)
        return real(seen, **keys)

    monkeypatch.setattr(tokenizer_training, "train", watched)
    splits, length = {"validation": 0.3, "test": 0.2}, {"max_words": 4}
    for _ in range(2):
        made = ingested(tmp_path, source, tokens=KEYS, splits=splits, length=length)
    train = [row for row in made.rows if row["split"] == "train"]
    assert sorted(seen) == sorted(text for row in train for text in (row["text"], meta_value(row["meta"], "pair")))
    limits = parse(TokenizerConfig, KEYS, at="tokenizer")
    tokenizer = build_tokenizer(made.records, limits)
    held_out = [row["text"] for row in made.rows if row["split"] != "train"]
    assert not any(tokenizer.unk_id in ids for ids in tokenizer.encode(held_out))
    tokenizer.save(tmp_path / "saved")
    assert TextTokenizer.load(tmp_path / "saved").encode(held_out) == tokenizer.encode(held_out)
    ingested(tmp_path, source, tokens={**KEYS, "vocab_size": 260}, splits=splits, length=length)
    assert load_tokenizer(limits, tmp_path / "records").vocab_size == 260 + 3
    (tmp_path / "records" / tokenizer_training.FILE).unlink()
    with pytest.raises(StoreError, match="ingestion"):
        build_tokenizer(made.records, limits)


def test_tokens_as_plain_text_have_no_marks() -> None:
    words = {BYTES.written(i) for i in range(BYTES.vocab_size)}
    assert {"Fox", "The"} <= words
    assert not {word for word in words if len(word) > 1 and word.startswith("Ġ")}
