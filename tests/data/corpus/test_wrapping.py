"""Wrapped corpora: every token of the documents, in order, in texts of equal length."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.data.corpus.examples import jsonl, text

from mm_ldlm.core import ConfigurationError, parse
from mm_ldlm.data.corpus import wrapping as module
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, WrapConfig
from mm_ldlm.data.corpus.tokens import build_tokenizer, tokenize_records
from mm_ldlm.data.corpus.wrapping import ingest_wrapped, wrap_of, wrapped
from mm_ldlm.data.store import Manifest, ShardStore

DOCUMENTS = [f"document {number}: " + "unaffable cats " * (number % 7) for number in range(40)]
BERT = {"separator": "[SEP]", "start": "[CLS]", "end": "[SEP]"}


@pytest.fixture(params=[{}, {"separator": "."}, BERT], ids=["bare", "separated", "framed"])
def wrap(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def limits(wrap: dict[str, Any] | None, **keys: Any) -> TokenizerConfig:
    return parse(TokenizerConfig, {"max_length": 11, "wrap": wrap, **keys}, at="tokenizer")


def made(folder: Path, tokens: TokenizerConfig) -> tuple[ShardStore, dict[str, Any]]:
    sources = [
        {"kind": "jsonl", "name": "json", **jsonl(folder, [{"text": document} for document in DOCUMENTS[::2]])},
        {"kind": "text", "name": "lines", **text(folder, [{"text": document} for document in DOCUMENTS[1::2]])},
    ]
    splits = {"validation": 0.3, "test": 0.2}
    config = parse(IngestionConfig, {"sources": sources, "shard_rows": 8, "splits": splits}, at="ingestion")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BATCH", 7)
        records, _, report = ingest_wrapped(
            config, tokens, seed=0, workspace=folder / "records", quarantine=folder / "quarantine"
        )
    records.write(folder / "records")
    return ShardStore.open(folder / "records"), report


def test_the_texts_have_every_token_of_the_documents_in_order(tmp_path: Path, wrap: dict[str, Any]) -> None:
    tokens = limits(wrap)
    records, report = made(tmp_path, tokens)
    tokenizer = build_tokenizer(records, tokens)
    tokenize_records(records, tokenizer, tokens, tmp_path / "tokens").write(tmp_path / "tokens")
    rows = ShardStore.open(tmp_path / "tokens").table(slice(None)).to_pylist()
    id_of = {word: tokenizer.base.token_to_id(word) for word in wrap.values()}
    first, last = ([id_of[wrap[name]]] if name in wrap else [] for name in ("start", "end"))
    for place in [(split, source) for split in ("train", "validation", "test") for source in ("json", "lines")]:
        joined = [row["input_ids"] for row, record in zip(rows, records.table(slice(None)).to_pylist(), strict=True)
                  if (record["split"], record["source"]) == place]  # fmt: skip
        assert all(len(ids) == 11 for ids in joined)
        assert all(ids[: len(first)] == first and ids[11 - len(last) :] == last for ids in joined)
        found = [index for ids in joined for index in ids[len(first) : 11 - len(last)]]
        documents = ShardStore.open(tmp_path / "records" / "documents").table(slice(None)).to_pylist()
        texts = [row["text"] for row in documents if (row["split"], row["source"]) == place]
        own = tokenizer.encode(texts)
        expected = [index for ids in own for index in [*ids, *([id_of[wrap["separator"]]] if wrap else [])]]
        assert found == expected[: len(found)]
        assert len(expected) - len(found) < 11
        assert wrapped(texts, tokenizer, parse(WrapConfig, wrap, at="wrap"), length=11)[1] == joined
    assert wrap_of(ShardStore.open(tmp_path / "tokens")) == WrapConfig(**wrap)
    splits = records.gather("split", slice(None)).to_pylist()
    assert report["wrapped"]["rows"] == {split: splits.count(split) for split in ("train", "validation", "test")}
    assert report["wrapped"]["rest"] == sum(
        len(ids) + bool(wrap) for ids in tokenizer.encode([row["text"] for row in documents])
    ) - sum(11 - len(first) - len(last) for _ in rows)


def test_a_killed_run_continues_and_ends_with_the_same_bytes(
    tmp_path: Path, sweep: Callable[..., Iterator[int]]
) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "document", ":", "cats", "un", "##aff", "##able", *map(str, range(40))]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    tokens = limits(BERT, path=str(tmp_path / "vocab.txt"))
    expected, _ = made(tmp_path, tokens)
    whole = {path.name: path.read_bytes() for path in expected.directory.rglob("part-*.arrow")}
    shutil.rmtree(tmp_path / "records")
    shutil.rmtree(tmp_path / "quarantine")
    for number in sweep(lambda: made(tmp_path, tokens)):
        again, _ = made(tmp_path, tokens)
        assert again.manifest == expected.manifest, number
        assert {path.name: path.read_bytes() for path in again.directory.rglob("part-*.arrow")} == whole
        shutil.rmtree(tmp_path / "records")
        shutil.rmtree(tmp_path / "quarantine")
    assert number > 30


def test_finished_records_of_other_sources_are_not_replaced(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    tokens = limits({})
    (tmp_path / "records").mkdir()
    Manifest(kind="records", rows=0).write(tmp_path / "records")  # of texts that are not wrapped
    with refuses(ConfigurationError, "ingestion.replace"):
        made(tmp_path, tokens)
    (tmp_path / "records" / "manifest.json").unlink()
    assert (first := made(tmp_path, tokens)[0].manifest) == made(tmp_path, tokens)[0].manifest
    assert made(tmp_path, limits({}, max_length=7))[0].manifest.rows > first.rows


def test_characters_are_the_bytes_of_a_corpus_that_occur_in_it(tmp_path: Path) -> None:
    tokens = limits({"separator": " "}, name="corpus", vocab_size=256, reduce_vocabulary=True)
    records, _ = made(tmp_path, tokens)
    tokenizer = build_tokenizer(records, tokens)
    texts = [row["text"] for row in records.table(slice(None)).to_pylist()]
    assert tokenizer.vocab_size == len(set("".join(texts))) + 3  # [PAD], [MASK], [UNK]
    assert {len(text) for text in texts} == {11}


@pytest.mark.parametrize(
    ("wrap", "max_length", "key"),
    [
        ({"separator": "two words"}, 11, r"wrap\.separator"), ({"separator": "[MASK]"}, 11, r"wrap\.separator"),
        ({}, 10_000, "max_length"),
    ],
)  # fmt: skip
def test_a_separator_that_is_no_token_and_documents_that_fill_no_text_are_refused(
    wrap: dict[str, Any], max_length: int, key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=rf"tokenizer\.{key}"):
        made(tmp_path, limits(wrap, max_length=max_length))
