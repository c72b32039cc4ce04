"""Sources of every kind with known rows, readers of them, and ingestions, for the tests of several rooms.

A family or an extra whose sources read files has a module `examples.py` among its tests, with a function of the name of
each kind: `kind(folder, rows) -> keys`. A kind without one generates its rows.
"""

import dataclasses
import importlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mm_ldlm.core import parse, parse_kind
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import ingest
from mm_ldlm.data.corpus.quarantine import BadRow
from mm_ldlm.data.corpus.sources import SOURCES, Opening, Row
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig
from mm_ldlm.data.store import ShardStore

TESTS = Path(__file__).parents[2]
Rows = list[dict[str, Any]]
"""Rows with a `text` and any further columns"""
SEED = 3  # of the ingestions


def text(folder: Path, rows: Rows) -> dict[str, Any]:
    (folder / "rows.txt").write_bytes("".join(f"{row['text']}\n" for row in rows).encode())
    return {"path": str(folder / "rows.txt")}


def jsonl(folder: Path, rows: Rows) -> dict[str, Any]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(folder / "rows.jsonl")}


def table(folder: Path, rows: Rows) -> dict[str, Any]:
    return jsonl(folder, rows)


def example_of(kind: str) -> Callable[[Path, Rows], dict[str, Any]] | None:
    """The function that writes rows for a kind; None for a kind that generates its rows."""
    if kind in SOURCES.core:
        found: Callable[[Path, Rows], dict[str, Any]] = globals()[kind]
        return found
    for path in sorted(TESTS.glob("*/*/examples.py")):
        module = importlib.import_module(".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts)))
        if path.parent != Path(__file__).parent and hasattr(module, kind):
            return getattr(module, kind)  # type: ignore[no-any-return]
    return None


def written(kind: str, folder: Path, rows: Rows) -> dict[str, Any]:
    """Write rows in a new folder; return the parameters of the source."""
    example = example_of(kind)
    folder.mkdir(parents=True, exist_ok=True)
    return {"kind": kind, **(example(folder, rows) if example is not None else {})}


def read(keys: dict[str, Any], *, max_row_bytes: int = 10_000, seed: int = 0, **more: Any) -> list[Row | BadRow]:
    return list(parse_kind(SOURCES, keys, at="source").rows(Opening(seed, max_row_bytes, **more)))


def read_raw(kind: str, raw: bytes, *, max_row_bytes: int = 300, **keys: Any) -> list[Row | BadRow]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        path.write_bytes(raw)
        return read({"kind": kind, "path": str(path), **keys}, max_row_bytes=max_row_bytes)


def described(keys: dict[str, Any], *, seed: int = 0) -> Any:
    return parse_kind(SOURCES, keys, at="source").describe(Opening(seed, 10_000))


def reasons(rows: list[Row | BadRow]) -> list[str]:
    return [row.reason for row in rows if isinstance(row, BadRow)]


def texts(rows: list[Row | BadRow]) -> list[str]:
    return [row.text for row in rows if isinstance(row, Row)]


@dataclasses.dataclass
class Ingested:
    """A finished ingestion: both stores, opened, and the report."""

    records: ShardStore
    quarantine: ShardStore
    report: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.records.table(slice(None)).to_pylist()

    @property
    def texts(self) -> list[str]:
        return [row["text"] for row in self.rows]

    @property
    def refused(self) -> list[dict[str, Any]]:
        return self.quarantine.table(slice(None)).to_pylist()


def ingested(
    folder: Path, *sources: dict[str, Any], tokens: dict[str, Any] | None = None, side: Any = None, **keys: Any
) -> Ingested:
    """Ingest sources into a folder and commit both stores."""
    keys = {"max_bad_fraction": 1.0, "length": {"min_words": 1}, **keys}
    limits = None if tokens is None else parse(TokenizerConfig, tokens, at="tokenizer")
    records, quarantine, report = ingest(
        parse(IngestionConfig, {"sources": list(sources), **keys}, at="ingestion"), seed=SEED,
        workspace=folder / "records", quarantine=folder / "quarantine",
        tokens=limits, side=side,
    )  # fmt: skip
    records.write(folder / "records")
    quarantine.write(folder / "quarantine")
    return Ingested(ShardStore.open(folder / "records"), ShardStore.open(folder / "quarantine"), report)


def word_tokenizer(*words: str, max_length: int = 8) -> TextTokenizer:
    """A tokenizer of these words, divided by white space."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate([*words, "[UNK]"])}
    base = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer(base, max_length=max_length)
