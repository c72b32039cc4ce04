"""Ingestion: read the sources, clean and split the texts, remove duplicates and write the records.

Rows are processed in chunks, which an engine tests (`row_tests`), and whose duplicates are removed here (`cleaning`),
in the order of the sources. The chunks do not depend on the engine, and neither does any byte of the result. Memory
holds the chunks that are being tested, the shard that is being filled and the digests of the accepted texts. The
progress file is written after each shard, so that an interrupted run continues where it stopped and ends with the same
bytes.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from mm_ldlm.core.config import to_dict
from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.files import remove_temporaries, write_bytes
from mm_ldlm.core.messages import show
from mm_ldlm.data.corpus.cleaning import Cleaner
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.filters import describe_language_filter
from mm_ldlm.data.corpus.progress import Progress
from mm_ldlm.data.corpus.quarantine import QUARANTINE_SCHEMA
from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.corpus.replacing import refuse_other_sources
from mm_ldlm.data.corpus.replacing import write as write_sources
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources import BadRow, Row, Source
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig
from mm_ldlm.data.store import Manifest, Shard, ShardStore, write_shard
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.manifest import NAME as MANIFEST
from mm_ldlm.data.store.writer import shard_name
from mm_ldlm.extras.own_vectors.store import VectorStore
from mm_ldlm.families.images.decoding import ImageLimits

CHUNK_ROWS = 4096
EARLY_STOP_ROWS = 10_000
"""The fraction of damaged rows is checked once this many rows have been read, and again at the end."""
FORMAT_VERSION = 1


def ingest(
    config: IngestionConfig,
    *,
    seed: int,
    workspace: Path,
    quarantine: Path,
    tokenizer: TextTokenizer | None = None,
    tokens: TokenizerConfig | None = None,
    vectors: VectorStore | None = None,
) -> tuple[Manifest, Manifest, dict[str, Any]]:
    """Fill the record store in `workspace` and the quarantine store. The caller writes the returned manifests.

    Given a tokenizer and its parameters, this function also applies the bounds in tokens, so that records, tokens and
    latents have the same rows in the same order.

    Given a store for vectors, every text needs one, and this function also commits their store, whose rows are those of
    the records.

    Returns:
        The manifest of the records, the manifest of the quarantine and the report (plain JSON).

    Raises:
        ConfigurationError: The workspace holds the finished records of other sources.
        SourceError: A source is missing, empty or unreadable, too many rows are damaged, or no row was accepted.
        WorkerFailed: The engine lost a task too often; what was written is kept, and the next run continues.
    """
    config = config.with_path_in_source()
    started = time.monotonic()
    sources = [
        open_source(source, seed=seed, max_row_bytes=config.max_row_bytes, images=config.images, tokenizer=tokenizer)
        for source in config.sources
    ]
    made_by = _fingerprints(config, sources, tokenizer, tokens)
    vector_dim, vector_folder = (None, None) if vectors is None else (vectors.dim, vectors.workspace)
    if vector_dim is not None:
        made_by["vectors"] = fingerprint(vector_dim)
    refuse_other_sources(config, workspace, fingerprint=made_by["sources"])
    progress = Progress.resume(
        workspace, quarantine, vector_folder, fingerprint=fingerprint(made_by), sources=len(sources)
    )
    _clear(workspace, progress.records, made_by=made_by)
    _clear(quarantine, progress.quarantine, made_by=made_by)
    if vectors is not None:
        _clear(vectors.workspace, progress.vectors, made_by={})
    write_sources(config, workspace)
    resumed_rows = progress.counts.rows_in
    if not progress.done:
        tests = RowTests(config, tokenizer, tokens, vector_dim, with_signatures=not config.engine.here)
        cleaner = Cleaner(config, progress.counts, vector_dim=vector_dim)
        if progress.records:
            cleaner.restore(
                ShardStore(workspace, Manifest(kind="records", rows=_rows(progress), shards=tuple(progress.records)))
            )
        _run(config, sources, tests, cleaner, progress, workspace, quarantine, vectors)
    _check(config, progress)
    records, refused = _manifest("records", progress, made_by), _manifest("quarantine", progress, made_by)
    if not refused.shards:
        write_bytes(quarantine / "schema.arrow", memoryview(QUARANTINE_SCHEMA.serialize()))
    if vectors is not None:
        vectors.commit(progress.vectors, records=records)
    seconds = time.monotonic() - started
    report = {
        **_counts(config, progress),
        "fingerprint": records.fingerprint,
        "resumed_after_rows": resumed_rows,
        "seconds": round(seconds, 3),
        "rows_per_second": round((progress.counts.rows_in - resumed_rows) / max(seconds, 1e-9), 1),
    }
    return records, refused, report


def _run(
    config: IngestionConfig,
    sources: list[Source],
    tests: RowTests,
    cleaner: Cleaner,
    progress: Progress,
    workspace: Path,
    quarantine: Path,
    vectors: VectorStore | None,
) -> None:
    shard_rows = config.shard_rows if vectors is None else min(config.shard_rows, vectors.most_rows)
    chunks = _Chunks(config, sources, progress, size=min(CHUNK_ROWS, shard_rows))
    with (
        config.engine.started() as engine,
        tqdm(
            desc="ingestion", unit=" rows", unit_scale=True, initial=progress.counts.rows_in, mininterval=1.0,
            disable=None if config.progress else True,
        ) as bar,
    ):  # fmt: skip
        for _, tested in engine.run(tests, chunks, ordered=True):
            chunks.advance()
            cleaner.clean(tested)
            bar.update(sum(tested.read.values()))
            counts = progress.counts
            if counts.damaged > config.max_bad_fraction * max(counts.rows_in, EARLY_STOP_ROWS):
                _check_damage(config, progress)
            if max(cleaner.num_accepted_waiting, cleaner.num_quarantined_waiting) >= shard_rows:
                _commit(cleaner, progress, workspace, quarantine, vectors)
        chunks.finish()
        _check(config, progress)
        progress.done = True
        _commit(cleaner, progress, workspace, quarantine, vectors)


class _Chunks:
    """Reads the sources in chunks of (source number, row), in an order that depends on the parameters only.

    An engine takes chunks before the earlier ones are cleaned. `progress`, which may be written at any time, counts the
    rows of a chunk when `advance` is called for it.
    """

    def __init__(self, config: IngestionConfig, sources: list[Source], progress: Progress, *, size: int) -> None:
        self._config, self._sources, self._progress, self._size = config, sources, progress, size
        self._consumed, self._exhausted = [*progress.consumed], [*progress.exhausted]
        self._ends: deque[tuple[list[int], list[bool]]] = deque()

    def __iter__(self) -> Iterator[list[tuple[int, Row | BadRow]]]:
        rows = self._rows()
        while chunk := list(itertools.islice(rows, self._size)):
            self._ends.append(([*self._consumed], [*self._exhausted]))
            yield chunk

    def advance(self) -> None:
        """Count the rows of the next chunk in `progress`."""
        self._progress.consumed, self._progress.exhausted = self._ends.popleft()

    def finish(self) -> None:
        """Note in `progress` which sources were read to their end; all chunks were counted."""
        self._progress.exhausted = [*self._exhausted]

    def _rows(self) -> Iterator[tuple[int, Row | BadRow]]:
        config, consumed, exhausted = self._config, self._consumed, self._exhausted
        weights = [source.weight for source in config.sources]
        rows = [
            iter(()) if exhausted[i]
            else itertools.islice(source.rows(), consumed[i], config.sources[i].max_samples)
            for i, source in enumerate(self._sources)
        ]  # fmt: skip
        if weights[0] is None:
            for number, items in enumerate(rows):
                for item in items:
                    consumed[number] += 1
                    yield number, item
                exhausted[number] = True
            return
        fractions = [weight or 0.0 for weight in weights]
        while not any(exhausted):
            number = min(range(len(rows)), key=lambda i: ((consumed[i] + 1) / fractions[i], i))
            drawn = next(rows[number], None)
            if drawn is None:
                exhausted[number] = True
                return
            consumed[number] += 1
            yield number, drawn


def _commit(
    cleaner: Cleaner, progress: Progress, workspace: Path, quarantine: Path, vectors: VectorStore | None
) -> None:
    accepted, refused, given = cleaner.take_tables()
    stores = [(workspace, accepted, progress.records), (quarantine, refused, progress.quarantine)]
    if vectors is not None:
        stores.append((vectors.workspace, given, progress.vectors))
    for folder, table, shards in stores:
        if table.num_rows:
            folder.mkdir(parents=True, exist_ok=True)
            shards.append(write_shard(folder, shard_name(len(shards)), table))
    progress.write(workspace)


def _clear(folder: Path, keep: list[Shard], *, made_by: dict[str, str]) -> None:
    """Remove shards of other runs and shards written after the last commit. A manifest of this run is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_temporaries(folder)
    names = {shard.name for shard in keep}
    stale = [path for path in folder.glob("part-*.arrow") if path.name not in names]
    if Manifest.exists(folder) and (stale or not keep or Manifest.read(folder).fingerprints != made_by):
        (folder / MANIFEST).unlink()
    for path in [*stale, folder / "schema.arrow"]:
        path.unlink(missing_ok=True)


def _check(config: IngestionConfig, progress: Progress) -> None:
    counts = progress.counts
    if not counts.balanced:
        raise SourceError(
            f"rows were lost: {counts.rows_in} rows were read, but {sum(counts.accepted)} were accepted, "
            f"{sum(counts.duplicates)} are duplicates and {sum(counts.quarantined)} are in quarantine. This is a bug "
            "in mm_ldlm: please report it with the parameters."
        )
    for source, read, ended in zip(config.sources, counts.read, progress.exhausted, strict=True):
        if ended and not read:
            where = f" in {show(', '.join(map(str, source.paths)))}" if source.paths else ""
            raise SourceError(
                f"source '{source.label}' is empty: expected rows{where}, found none. Check the source's 'path'."
            )
    _check_damage(config, progress)
    if not sum(counts.accepted):
        raise SourceError(
            f"none of the {counts.rows_in} rows was accepted: {_reasons(progress)} Relax the limit that the reason "
            "names (ingestion.length, tokenizer.max_length), or correct the sources."
        )


def _check_damage(config: IngestionConfig, progress: Progress) -> None:
    counts = progress.counts
    if counts.damaged > config.max_bad_fraction * counts.rows_in:
        raise SourceError(
            f"{counts.damaged} of {counts.rows_in} rows are damaged ({100 * counts.damaged / counts.rows_in:.1f} %), "
            f"but ingestion.max_bad_fraction is {100 * config.max_bad_fraction:.1f} %: {_reasons(progress)} "
            f"{_remedy(config, progress)}"
        )


def _remedy(config: IngestionConfig, progress: Progress) -> str:
    if 2 * progress.counts.quarantined_by["missing_column"] > progress.counts.damaged:
        columns = (
            "Name columns that the source has: that of the text by `--params ingestion.text_column=NAME`, others by "
            "the keys of the source."
        )
        similar = "Did you mean" in progress.counts.examples["missing_column"]  # so the file is divided correctly
        if similar or not any(source.kind == "csv" for source in config.sources):
            return columns
        return (
            f"{columns} Give a file with another delimiter, without a header or of another kind as a whole source, for "
            "example `--params 'ingestion.sources=[{kind: csv, path: FILE, columns: [NAME], delimiter: \";\"}]'`, with "
            '`header: false` and `columns: ["0"]`, or with `kind: jsonl`.'
        )
    return "Correct the sources, or raise ingestion.max_bad_fraction to leave such rows out."


def _reasons(progress: Progress) -> str:
    counts = progress.counts
    named = [
        f"{number} {reason} (first: {counts.examples[reason]})"
        for reason, number in counts.quarantined_by.most_common()
    ]
    return "; ".join(named) + "."


_LATER_KEYS = {
    "label_column": None, "labels": None, "pair_column": None, "image_column": "image", "vector_column": None,
    "tokens": False, "latents": False,
}  # fmt: skip
"""Keys of a source that were added after stores existed, with their defaults, which leave the fingerprint as it was."""


def _fingerprints(
    config: IngestionConfig, sources: list[Source], tokenizer: TextTokenizer | None, tokens: TokenizerConfig | None
) -> dict[str, str]:
    parameters = to_dict(config)
    for name in ("progress", "max_bad_fraction", "replace", "engine", "text_column"):  # text_column is in its source
        parameters.pop(name)
    for source in parameters["sources"]:
        source.pop("path")
        source.pop("vectors")  # a path like the other; the digests of the files are in the descriptions of the sources
        for name, default in _LATER_KEYS.items():
            if source[name] == default:
                source.pop(name)
    if config.images == ImageLimits():
        parameters.pop("images")
    parameters["language_filter"] = describe_language_filter(config.language_filter)
    parameters["format"] = FORMAT_VERSION
    limits = None
    if tokenizer is not None and tokens is not None:
        limits = [tokenizer.base_fingerprint, tokens.max_length, tokens.min_length, tokens.too_long]
    return {
        "parameters": fingerprint(parameters),
        "sources": fingerprint([source.describe() for source in sources]),
        "token_limits": fingerprint(limits),
    }


def _rows(progress: Progress) -> int:
    return sum(shard.rows for shard in progress.records)


def _manifest(kind: str, progress: Progress, made_by: dict[str, str]) -> Manifest:
    counts = progress.counts
    shards = progress.records if kind == "records" else progress.quarantine
    schema: pa.Schema = RECORD_SCHEMA if kind == "records" else QUARANTINE_SCHEMA
    meta = (
        {"splits": dict(counts.splits)}
        if kind == "records"
        else {"reasons": dict(sorted(counts.quarantined_by.items()))}
    )
    return Manifest(
        kind=kind,
        rows=sum(shard.rows for shard in shards),
        shards=tuple(shards),
        fingerprints=made_by,
        meta={"columns": schema.names, **meta},
    )


def _counts(config: IngestionConfig, progress: Progress) -> dict[str, Any]:
    counts = progress.counts
    return {
        "rows_in": counts.rows_in,
        "rows_read": sum(counts.read),
        "rows_from_splitting": sum(counts.from_splitting),
        "accepted": sum(counts.accepted),
        "duplicates": sum(counts.duplicates),
        "quarantined": sum(counts.quarantined),
        "damaged": counts.damaged,
        "truncated": counts.truncated,
        "duplicates_by_kind": dict(sorted(counts.duplicates_by.items())),
        "quarantined_by_reason": dict(sorted(counts.quarantined_by.items())),
        "first_example_by_reason": dict(sorted(counts.examples.items())),
        "splits": dict(counts.splits),
        "sources": {
            source.label: {
                "read": counts.read[i],
                "from_splitting": counts.from_splitting[i],
                "accepted": counts.accepted[i],
                "duplicates": counts.duplicates[i],
                "quarantined": counts.quarantined[i],
                "read_to_its_end": progress.exhausted[i],
            }
            for i, source in enumerate(config.sources)
        },
    }
