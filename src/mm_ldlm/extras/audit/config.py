"""Parameters under `audit`."""

import os
from collections.abc import Iterator
from dataclasses import field
from typing import Annotated

from mm_ldlm.core import PositiveFloat, Rows, RowsOrNone, Size, bounded, config, refuse_if
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.sampling.search import SearchConfig

DATABASES = ("postgresql://", "postgres://")
FEWEST_PAIRS = 10
"""Fewest known pairs: some of them choose the map that is fitted on the others"""


@config
class AuditConfig:
    """Parameters of the pipeline `audit`.

    Attributes:
        vectors: the collection: a `.npy` file, a table with texts and vectors (.parquet, .jsonl, .csv, .arrow), a
            folder of LanceDB, or the address of a PostgreSQL database (postgresql://HOST/DATABASE) without a password,
            which is in ~/.pgpass or in PGPASSWORD.
        texts: the texts of a `.npy` file, one per line.
        table: table of a database.
        text_column, vector_column: columns of a table.
        id_column: a column whose values name the rows on the page; by default the primary key if it is an integer or a
            UUID, or the number of the row.
        model: the inverter: a run, an exported run, or the name of a model of the package.
        rows: sampled texts that are read from their vectors.
        collection_rows: further sampled rows, which retrieval searches together with `rows`; the attacker knows their
            texts and vectors.
        compared_rows: rows, among `rows`, that are read from each stored form and behind each defence.
        queries: rows, among `rows`, that are queries of the retrieval.
        search: the search of the attacker, for every text.
        attacker_data: new folder for the data of a trained attacker: a Parquet file for each form, with the texts that
            the attacker knows and their vectors, as its map recovers them from the stored ones.
        attackers: the name of a form, and the run that was trained on its file of `attacker_data`.
        code_dims: dimensions that share one byte in product quantisation.
        noise: lengths of Gaussian noise relative to the length of the vector.
        known_pairs: numbers of rows whose text and defended vector an attacker knows, against a secret rotation.
        show_texts: show the texts on the page; they are masked by default.
        shown: number of the most readable rows that are listed.
    """

    vectors: str | None = None
    texts: str | None = None
    table: str | None = None
    text_column: str = "text"
    vector_column: str = "vector"
    id_column: str | None = None
    model: str = "minilm-english"
    rows: Rows = 2000
    collection_rows: RowsOrNone = 18_000
    compared_rows: Rows = 500
    queries: Rows = 500
    search: SearchConfig = SearchConfig()
    attacker_data: str | None = None
    attackers: dict[str, str] = field(default_factory=dict)
    code_dims: tuple[Size, ...] = (8, 16)
    noise: tuple[PositiveFloat, ...] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
    known_pairs: tuple[Annotated[int, bounded(ge=FEWEST_PAIRS, le=10**6)], ...] = (100, 1000)
    show_texts: bool = False
    shown: RowsOrNone = 50
    bootstrap: BootstrapConfig = BootstrapConfig()

    def __post_init__(self) -> None:
        if self.vectors is None:
            return
        npy = self.vectors.endswith(".npy")
        refuse_if(
            npy != (self.texts is not None),
            "expected 'texts', a file with one text per line, if and only if 'vectors' is a .npy file, found "
            f"vectors={self.vectors} and texts={self.texts}",
            "vectors", "texts",
        )  # fmt: skip
        refuse_if(
            self.is_database != (self.table is not None),
            "expected 'table' if and only if 'vectors' is a PostgreSQL address (postgresql://HOST/DATABASE) or a "
            "folder of LanceDB, found "
            f"vectors={self.vectors} and table={self.table}",
            "vectors", "table",
        )  # fmt: skip

    @property
    def is_postgres(self) -> bool:
        """Whether the collection is in PostgreSQL."""
        return (self.vectors or "").startswith(DATABASES)

    @property
    def is_database(self) -> bool:
        """Whether the collection has several tables."""
        return self.is_postgres or os.path.isdir(self.vectors or "")

    @property
    def sampled(self) -> int:
        """Rows that are kept of the collection."""
        return self.rows + self.collection_rows

    def input_files(self) -> Iterator[tuple[str, str]]:
        if self.vectors is not None and not self.is_database:
            yield "vectors", self.vectors
        if self.texts is not None:
            yield "texts", self.texts
