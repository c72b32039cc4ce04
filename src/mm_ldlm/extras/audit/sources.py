"""A random sample of a collection of texts and vectors: from files, from LanceDB, and from PostgreSQL with pgvector.

Rows are read one after another, and only the sampled ones are kept, so that a collection of any size fits the memory. A
database samples its rows itself. Every row that is read is kept, passed over, or refused with a reason.
"""

import heapq
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import ConfigurationError, SourceError, foreign_code, mask, nearest, show
from mm_ldlm.core.progress import shown
from mm_ldlm.data.corpus.quarantine import BadRow, Unusable
from mm_ldlm.data.corpus.sources import SOURCES, Opening, Row
from mm_ldlm.data.corpus.vectors import vector_of
from mm_ldlm.data.latents.recognition import described
from mm_ldlm.extras.audit.config import AuditConfig
from mm_ldlm.extras.audit.items import Item, Opened, columns_of, library

log = logging.getLogger(__name__)

FEWEST = 20
"""Fewest rows of an audit"""
DESCRIBED = 200
"""Most vectors of another dimension whose encoder is looked for"""
MAX_ROW_BYTES = 10_000_000
_SPARE = 1.2
"""Factor of the rows that a database is asked for, some of which may be unusable"""


@dataclass(frozen=True)
class Sample:
    """Sampled rows of a collection, in random order.

    Attributes:
        ids: names of the rows.
        texts: texts of the rows.
        vectors_nd: (n, d) float32.
        name: the collection, for the page.
        rows: number of rows of the collection.
        read: number of rows that were read: those that are kept, passed over and refused.
        refused: reason → number of rows that were refused.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    vectors_nd: npt.NDArray[np.float32]
    name: str
    rows: int
    read: int
    refused: dict[str, int]

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def passed_over(self) -> int:
        """Number of usable rows that the sample left out."""
        return self.read - len(self) - sum(self.refused.values())


def sample(config: AuditConfig, *, dim: int, seed: int) -> Sample:
    """Draw `config.sampled` usable rows: with a text, and a vector of dimension `dim` that is finite and not zero.

    Raises:
        ConfigurationError: no collection is named.
        SourceError: it cannot be read, or has fewer than `FEWEST` usable rows; the message counts the others.
    """
    if config.vectors is None:
        raise ConfigurationError(
            "parameter 'audit.vectors': expected a file, a folder of LanceDB or the address of a PostgreSQL database, "
            "found nothing. Name the collection."
        )
    opened, draw = _opened(config, seed), random.Random(seed)
    kept: list[tuple[float, int, Item]] = []
    refused, first, read, others = Counter[str](), dict[str, str](), 0, list[Any]()
    for read, item in enumerate(shown(opened.items, desc="collection", unit="rows"), start=1):
        key = draw.random()
        try:
            usable: Item | BadRow | Unusable = item if isinstance(item, BadRow) else _usable(item, dim, number=read)
        except Unusable as error:
            usable = error
        if not isinstance(usable, Item):
            refused[usable.reason] += 1
            first.setdefault(usable.reason, f"first: row {read}, {usable.detail.replace('ingestion.', 'audit.')}")
            if usable.reason == "wrong_dimension" and len(others) < DESCRIBED and isinstance(item, Item):
                others.append(item.vector)
            continue
        if len(kept) < config.sampled:
            heapq.heappush(kept, (-key, read, usable))
        elif -key > kept[0][0]:
            heapq.heapreplace(kept, (-key, read, usable))
    name = mask(config.vectors) + (f", table {config.table}" if config.table else "")
    lost = "; ".join(f"{count:,} {reason} ({first[reason]})" for reason, count in refused.most_common())
    if len(kept) < FEWEST:
        raise SourceError(
            f"{name}: expected at least {FEWEST} rows with a text and a vector of dimension {dim}, found {len(kept)} "
            f"of {read:,} rows{f' ({lost})' if lost else ''}{_described(others)}. Correct the collection, or choose "
            "the model of its encoder (audit.model), or one with an adapter for it (mm-ldlm align)."
        )
    if refused:
        log.warning("%s: %d of %d rows are left out: %s", name, refused.total(), read, lost)
    ids, texts, vectors = zip(*(item for _, _, item in sorted(kept, reverse=True)), strict=True)
    return Sample(ids, texts, np.stack(vectors), name, opened.rows or read, read, dict(refused))


def _described(vectors: Sequence[Any]) -> str:
    """Describe vectors of another dimension if a known encoder made them."""
    same = [each for each in vectors if not isinstance(each, str) and len(each) == len(vectors[0])]
    try:
        found = described(np.array(same, np.float64))
    except (TypeError, ValueError):
        return ""
    return found and f", which look like {found}"


def _usable(item: Item, dim: int, *, number: int) -> Item:
    """Check a row; `Unusable` for one without a text or a vector that can be audited."""
    if not isinstance(item.text, str) or not item.text.strip():
        raise Unusable("no_text", f"expected a text, found {show(item.text, 60)}")
    vector_d = vector_of(item.vector, dim=dim)
    if not vector_d.any():
        raise Unusable("zero_vector", "all numbers of the vector are 0")
    return Item(str(number if item.id is None else item.id), item.text, vector_d)


def _opened(config: AuditConfig, seed: int) -> Opened:
    if config.is_postgres:
        from mm_ldlm.extras.audit.postgres import opened

        return opened(config, seed=seed, most=int(config.sampled * _SPARE))
    return (_lance if config.is_database else _file)(config, seed)


def _file(config: AuditConfig, seed: int) -> Opened:
    """Open a file by the source of its kind."""
    if config.texts is not None:
        source = SOURCES.load("text")(path=config.texts, vectors=config.vectors)
    else:
        more = () if config.id_column is None else (config.id_column,)
        source = SOURCES.load("table")(
            path=config.vectors, columns=(config.text_column,), vector_column=config.vector_column, meta_columns=more
        )
    rows = source.rows(Opening(seed=seed, max_row_bytes=MAX_ROW_BYTES))
    return Opened(_item(row, config.id_column) for row in rows)


def _item(row: Row | BadRow, id_column: str | None) -> Item | BadRow:
    if isinstance(row, BadRow):
        return row
    return Item(row.meta.get(id_column or "", row.line), row.text, row.vector)


def _lance(config: AuditConfig, seed: int) -> Opened:
    """Open a table of LanceDB, whose rows are taken at random offsets of its current version."""
    lancedb = library("lancedb", config)
    folder, name = Path(config.vectors or ""), config.table or ""
    if not (folder / f"{name}.lance").is_dir():
        names = sorted(path.stem for path in folder.glob("*.lance"))
        raise SourceError(
            f"{folder}: expected a table '{name}' of LanceDB, found {', '.join(names) or 'no tables'}."
            f"{nearest(name, names)} Correct 'audit.table'."
        )
    with foreign_code(lambda reason: SourceError(
        f"{folder}: expected a readable table of LanceDB, found an error ({reason}). Repair it, or write it to a "
        "Parquet file."
    )):  # fmt: skip
        table = lancedb.connect(str(folder)).open_table(name)
        columns, rows = table.schema.names, table.count_rows()
        chosen = columns_of(config, columns, key=config.id_column)
        drawn = np.random.default_rng(seed).permutation(rows)[: int(config.sampled * _SPARE)]
        found = table.take_offsets(drawn.tolist()).select(chosen).to_arrow()
    ids = found.column(config.id_column).to_pylist() if config.id_column else [None] * found.num_rows
    texts, vectors = (found.column(name).to_pylist() for name in chosen[:2])
    return Opened(map(Item, ids, texts, vectors), rows)
