"""Pieces of texts of tokenizers with spaces in their tokens, what a saved tokenizer states, and the bar of tokens."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.data.corpus import text_splitting, tokenizer, tokens
from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.corpus.text_splitting import split_text
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, complete_specials, load_tokenizer
from mm_ldlm.data.corpus.tokens import TOKEN_SCHEMA, tokenize_records
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter
from stand_ins import Bar


def words() -> Any:
    """A tokenizer of whole words with the base ids a 0, b 1, [UNK] 2, c 3, d 4, [PAD] 5 and [MASK] 6."""
    base = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2, "c": 3, "d": 4}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return complete_specials(base)


class Spaced:
    """A base tokenizer with a token for each letter; a space belongs to the letter after it or to that before it."""

    def __init__(self, side: str) -> None:
        self.side = side

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        places = [
            (i - (self.side == "after" and text[i - 1 : i] == " "),
             i + 1 + (self.side == "before" and text[i + 1 : i + 2] == " "))
            for i, letter in enumerate(text) if letter != " "
        ]  # fmt: skip
        return SimpleNamespace(offsets=places, ids=list(range(len(places))))


# -- pieces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["none", "before", "after"])
@pytest.mark.parametrize(
    ("text", "longest", "pieces"),
    [
        ("abc de fgh", 4, ["abc", "de", "fgh"]), ("abc de fgh", 5, ["abc de", "fgh"]),
        ("abc de fgh", 8, ["abc de fgh"]), ("abc de fgh", 7, ["abc de", "fgh"]), ("  ab \n cd ", 3, ["ab", "cd"]),
        ("abcdef gh", 4, ["abcd", "ef gh"]),
        ("abcdef gh", 3, ["abc", "def", "gh"]), ("a bcdefg", 3, ["a", "bcd", "efg"]), ("ab", 1, ["a", "b"]),
    ],
)  # fmt: skip
def test_pieces_end_at_words_whichever_token_has_the_space(
    side: str, text: str, longest: int, pieces: list[str]
) -> None:
    ours: Any = SimpleNamespace(base=Spaced(side))
    found = split_text(text, ours, max_length=longest)
    assert found == [(piece, len(piece.replace(" ", ""))) for piece in pieces]


def test_a_long_word_is_halved_and_not_peeled() -> None:
    ours: Any = SimpleNamespace(base=Spaced("none"))
    for text, longest, parts in (("abcdefgh", 3, ["ab", "cd", "ef", "gh"]), ("abcde", 3, ["ab", "cde"]),
                                 ("abcde", 5, ["abcde"]), ("ab cde", 4, ["ab", "cde"])):  # fmt: skip
        found = text_splitting._split_in_halves(text, ours, longest)
        assert found == [(part, len(part)) for part in parts]


# -- a saved tokenizer -------------------------------------------------------------------------------------------------


def test_a_saved_tokenizer_states_its_sizes_and_its_ids(tmp_path: Path) -> None:
    for number, (kept, ours, ids) in enumerate((
        ([1, 3], [1, 2, 3, 5, 6], {"pad_id": 3, "mask_id": 4, "unk_id": 1}),
        (None, list(range(7)), {"pad_id": 5, "mask_id": 6, "unk_id": 2}),
    )):  # fmt: skip
        base = words()
        found = TextTokenizer(base, max_length=9, kept=None if kept is None else np.array(kept))
        assert found.kept_V.tolist() == ours
        assert {name: getattr(found, name) for name in ids} == ids
        assert (found.vocab_size, found.base_size, found.reduced) == (len(ours), 7, kept is not None)
        found.save(tmp_path / str(number))
        assert {path.name for path in (tmp_path / str(number)).iterdir()} == {"tokenizer.json", "vocabulary.json"}
        assert json.loads((tmp_path / str(number) / "vocabulary.json").read_text()) == {
            "format_version": 1, "fingerprint": found.fingerprint, "max_length": 9, "vocab_size": len(ours),
            "base_size": 7, **ids, "kept": None if kept is None else ours,
        }  # fmt: skip
        again = TextTokenizer.load(tmp_path / str(number))
        assert (again.max_length, again.kept_V.tolist(), again.vocab_size) == (9, ours, len(ours))
        assert [again.token(i) for i in range(3)] == [found.token(i) for i in range(3)]
        assert again.encode(["a b c d x"]) == [[0, 1, 3, 4, 2]] if kept is None else [[1, 0, 2, 1, 1]]


def test_the_fingerprint_of_a_tokenizer_is_that_of_its_parts() -> None:
    """Stores of earlier versions have such fingerprints; the length of the sequences is no part of it."""

    def digest(value: Any) -> str:
        compact = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(compact.encode()).hexdigest()[:32]

    base = words()
    whole = digest(json.loads(base.to_str()))
    for kept, ours, special in ((None, None, [5, 6, 2]), ([0, 1, 3], [0, 1, 2, 3, 5, 6], [4, 5, 2])):
        for length in (3, 9):
            found = TextTokenizer(base, max_length=length, kept=None if kept is None else np.array(kept))
            assert found.base_fingerprint == whole
            assert found.fingerprint == digest({"base": whole, "kept": ours, "special": special, "format": 1})


def test_special_tokens_that_are_added_are_special_and_never_normalized() -> None:
    added = {token.content: token for token in words().get_added_tokens_decoder().values()}
    assert {name: (token.special, token.normalized) for name, token in added.items()} == {
        "[PAD]": (True, False), "[MASK]": (True, False)
    }  # fmt: skip
    with pytest.raises(StoreError, match=r"keeps base id 7, but the tokenizer has 7 tokens"):
        TextTokenizer(words(), max_length=3, kept=np.array([0, 7]))


@pytest.mark.parametrize(
    ("texts", "cores", "threads"),
    [(1023, 4, None), (1024, 4, 2), (1536, 4, 3), (9000, 4, 4), (9000, 64, 16), (9000, None, None), (0, 4, None)],
)
def test_large_batches_use_as_many_threads_as_they_fill(
    texts: int, cores: int | None, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    real = tokenizer.ThreadPoolExecutor
    monkeypatch.setattr(tokenizer, "ThreadPoolExecutor", lambda count: used.append(count) or real(count))
    monkeypatch.setattr(tokenizer.os, "cpu_count", lambda: cores)
    values, offsets = TextTokenizer(words(), max_length=3).encode_base(["a b"] * texts)
    assert values.tolist() == [0, 1] * texts
    assert offsets.tolist() == [*range(0, 2 * texts + 1, 2)]
    assert used == ([] if threads is None else [threads])


# -- the store of tokens -----------------------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path: Path) -> ShardStore:
    """Texts of 10, 3, 2 and 3 words, in two shards."""
    writer = StoreWriter(tmp_path / "records", kind="records", schema=RECORD_SCHEMA, shard_rows=2)
    texts = ["a b c d a b c d a b", "a b c", "d d", "c b a"]
    writer.append({"id": list("wxyz"), "text": texts, "source": ["s"] * 4, "split": ["train", "test", "train", "test"],
                   "meta": [None] * 4})  # fmt: skip
    writer.finish()
    return ShardStore.open(tmp_path / "records")


@pytest.mark.parametrize("progress", [True, False])
def test_the_bar_of_tokens_counts_rows_also_those_of_an_earlier_run(
    progress: bool, records: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "tqdm", Bar)
    ours, config = TextTokenizer(words(), max_length=10), TokenizerConfig(max_length=10)
    for _ in range(2):
        tokenize_records(records, ours, config, tmp_path / "tokens", progress=progress)
        assert (Bar.shown["total"], Bar.shown["rows"], Bar.shown["unit"]) == (4, [2, 2], " rows")
        assert Bar.shown["disable"] is (None if progress else True)


def test_the_manifest_of_tokens_as_a_whole(records: ShardStore, tmp_path: Path) -> None:
    ours = TextTokenizer(words(), max_length=8, kept=np.array([0, 1, 3]))
    config = TokenizerConfig(max_length=8, min_length=2, too_long="truncate")
    manifest = tokenize_records(records, ours, config, tmp_path / "tokens")
    assert (manifest.kind, manifest.rows, [shard.rows for shard in manifest.shards]) == ("tokens", 4, [2, 2])
    none = {"unknown": 0, "outside_vocabulary": 0, "truncated": 0}
    assert manifest.meta == {
        "columns": ["id", "input_ids", "length"], "vocab_size": 6, "base_vocab_size": 7, "max_length": 8,
        "splits": {"train": {**none, "rows": 2, "tokens": 10, "outside_vocabulary": 4, "truncated": 1},
                   "validation": {**none, "rows": 0, "tokens": 0}, "test": {**none, "rows": 2, "tokens": 6}},
        "lengths": {"2": 1, "3": 2, "8": 1},
    }  # fmt: skip
    assert set(manifest.fingerprints) == {"records", "tokenizer", "parameters"}
    assert manifest.fingerprints["records"] == records.manifest.fingerprint
    manifest.write(tmp_path / "tokens")
    store = ShardStore.open(tmp_path / "tokens", "tokens")
    assert store.schema == TOKEN_SCHEMA
    assert store.table(slice(None)).to_pylist() == [
        {"id": "w", "input_ids": [0, 1, 3, 2, 0, 1, 3, 2], "length": 8},
        {"id": "x", "input_ids": [0, 1, 3], "length": 3}, {"id": "y", "input_ids": [2, 2], "length": 2},
        {"id": "z", "input_ids": [3, 1, 0], "length": 3},
    ]  # fmt: skip
    whole = TextTokenizer(words(), max_length=10)
    lengths = tokenize_records(records, whole, TokenizerConfig(max_length=10), tmp_path / "all").meta["lengths"]
    assert list(lengths.items()) == [("2", 1), ("3", 2), ("10", 1)], "from the shortest to the longest"


@pytest.mark.parametrize(
    ("keys", "found"),
    [({"max_length": 9}, "1 to 9 tokens .* found 10 in record w and 1 such records"),
     ({"max_length": 10, "min_length": 3}, "3 to 10 tokens .* found 2 in record y and 1 such records"),
     ({"max_length": 10, "min_length": 4}, "4 to 10 tokens .* found 3 in record x and 1 such records"),
     ({"max_length": 10, "min_length": 3, "too_long": "truncate"}, "3 to 10 .* found 2 in record y"),
     ({"max_length": 10, "min_length": 2}, None), ({"max_length": 4, "too_long": "truncate"}, None)],
)  # fmt: skip
def test_records_of_other_limits_are_named(
    keys: dict[str, Any], found: str | None, records: ShardStore, tmp_path: Path
) -> None:
    ours, config = TextTokenizer(words(), max_length=keys["max_length"]), TokenizerConfig(**keys)
    if found is None:
        assert tokenize_records(records, ours, config, tmp_path / "tokens").rows == 4
        return
    with pytest.raises(StoreError, match=found):
        tokenize_records(records, ours, config, tmp_path / "tokens")


def test_a_folder_of_tokens_has_no_files_of_killed_writers_or_other_runs(records: ShardStore, tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    for name in (".tmp-1-x", "part-000007.arrow", "schema.arrow", "part-000000.arrow"):
        (folder / name).write_text("left")
    ours, config = TextTokenizer(words(), max_length=10), TokenizerConfig(max_length=10)
    manifest = tokenize_records(records, ours, config, folder)
    assert {path.name for path in folder.iterdir()} == {"progress.json", "part-000000.arrow", "part-000001.arrow"}
    manifest.write(folder)
    ShardStore.open(folder).verify()
    kept = json.loads((folder / "progress.json").read_text())["shards"]
    assert set(kept) == {shard.name for shard in manifest.shards}


# -- tokenizers from elsewhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "reason"), [("\n the first \nthe second", "the first "), (" \n", "ValueError")])
def test_a_tokenizer_that_cannot_be_fetched_is_named_with_the_first_line_of_the_reason(
    error: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def fetch(name: str, **options: Any) -> Any:
        asked.append((name, options))
        raise ValueError(error)

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fetch)
    (tmp_path / "config.json").write_text("{}")
    for keys, where, call in (
        ({"name": "owner/it", "revision": "v1"}, "'owner/it' on the Hugging Face hub or in its local cache",
         ("owner/it", {"revision": "v1", "use_fast": True})),
        ({"path": str(tmp_path)}, f"folder {tmp_path}", (str(tmp_path), {"revision": "main", "use_fast": True})),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError) as caught:
            load_tokenizer(TokenizerConfig(max_length=3, **keys))
        assert str(caught.value).startswith(
            f"parameter 'tokenizer': no tokenizer could be loaded from {where} ({reason}). Offline, copy its "
        )
        assert asked[-1] == call


def test_a_manifest_without_the_shards_of_this_run_is_removed_before_they_are_made(
    records: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would show the store as finished while it is filled."""
    ours, config, folder = TextTokenizer(words(), max_length=10), TokenizerConfig(max_length=10), tmp_path / "tokens"
    Manifest(kind="tokens", rows=0).write(folder)
    seen, real = [], tokens._shard

    def shard(*given: Any) -> Any:
        seen.append(Manifest.exists(folder))
        return real(*given)

    monkeypatch.setattr(tokens, "_shard", shard)
    tokenize_records(records, ours, config, folder).write(folder)
    assert seen == [False, False]
    tokenize_records(records, ours, config, folder)
    assert (seen, Manifest.exists(folder)) == ([False, False], True), "nothing is missing"


def test_a_character_that_cannot_be_split_is_a_piece_with_its_own_number_of_tokens() -> None:
    places = [(0, 1), (1, 2), (3, 4), (3, 4), (3, 4), (3, 4)]  # "é" has four tokens
    base = SimpleNamespace(
        encode=lambda text, add_special_tokens: SimpleNamespace(
            offsets=places if text == "ab é" else places[: len(text)], ids=list(range(len(text)))
        )
    )
    ours: Any = SimpleNamespace(base=base)
    assert split_text("ab é", ours, max_length=2) == [("ab", 2), ("é", 4)]


@pytest.mark.parametrize("missing", ["[PAD]", "[MASK]", "[UNK]"])
def test_a_tokenizer_needs_all_three_special_tokens(missing: str) -> None:
    vocabulary = [name for name in ("[UNK]", "[PAD]", "[MASK]", "a") if name != missing]
    base = Tokenizer(models.WordLevel({name: i for i, name in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    with pytest.raises(StoreError, match="expected a tokenizer with pad, mask and unknown tokens"):
        TextTokenizer(base, max_length=3)
    whole = TextTokenizer(complete_specials(base), max_length=3)
    assert len({whole.pad_id, whole.mask_id, whole.unk_id}) == 3
