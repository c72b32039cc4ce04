"""Places of pretrained tokenizers: the package, a file, a folder and the hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data.corpus.examples import word_tokenizer

from mm_ldlm.core import ConfigurationError
from mm_ldlm.data.corpus import tokenizer
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer


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
        import os

        os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigurationError, match=name):
        loaded(tmp_path / name)


def test_a_vocabulary_of_another_digest_is_refused(
    monkeypatch: pytest.MonkeyPatch, refuses: Callable[..., Any]
) -> None:
    monkeypatch.setattr(tokenizer, "EMBEDDED_SHA256", "0" * 64)
    tokenizer.base_from_name.cache_clear()
    with refuses(ConfigurationError, "bert-base-uncased", "0" * 64):
        load_tokenizer(TokenizerConfig(max_length=8))


def test_a_name_that_the_hub_and_its_cache_do_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no-one/nothing.*tokenizer\.path"):
        load_tokenizer(TokenizerConfig(name="no-one/nothing", max_length=8))
