"""Ingestion: read the sources, prepare and split the texts, remove duplicates and write the records.

Rows are processed in chunks, which an engine prepares and which are merged here (`cleaning`), in the order
of the sources. The chunks do not depend on the engine, and neither does any byte of the result. Memory holds the chunks
that are being prepared, the shard that is being filled and the digests of the accepted texts. The progress file is
written after each shard, so that an interrupted run continues where it stopped and ends with the same bytes.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from mm_ldlm.core import ConfigurationError, SourceError, check, foreign_code, show, to_dict
from mm_ldlm.core.files import recorded, write_json
from mm_ldlm.core.progress import shown
from mm_ldlm.data.corpus import tokenizer_training
from mm_ldlm.data.corpus.cleaning import Chunk, Preparation, SideStore
from mm_ldlm.data.corpus.config import SHORT_FORMS, IngestionConfig
from mm_ldlm.data.corpus.filters import LANGUAGE_FILTER, code_of, describe_function
from mm_ldlm.data.corpus.merging import Counts, Merger
from mm_ldlm.data.corpus.quarantine import DAMAGE, QUARANTINE_SCHEMA, BadRow, printable
from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.corpus.sources import Opening, Row, SourceConfig
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer
from mm_ldlm.data.store import Manifest
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.writer import Progress

T = TypeVar("T")
CHUNK_ROWS, CHUNK_CHARACTERS = 4096, 1 << 26
EARLY_STOP_ROWS = 10_000
"""The fraction of damaged rows is checked once this many rows have been read, and again at the end."""
FORMAT_VERSION = 2
SOURCES_FILE = "sources.json"
"""File next to the manifest of the records, and not in it, because the digest of the manifest is part of the
fingerprints of everything that was made from the records."""


def ingest(
    config: IngestionConfig,
    *,
    seed: int,
    workspace: Path,
    quarantine: Path,
    tokens: TokenizerConfig | None = None,
    side: SideStore | None = None,
) -> tuple[Manifest, Manifest, dict[str, Any]]:
    """Fill the record store in `workspace` and the quarantine store. The caller writes the returned manifests.

    Given the parameters of the tokenizer, this function also applies the bounds in tokens, so that records, tokens and
    latents have the same rows in the same order, unless texts are wrapped (`wrapping`). A vocabulary of the corpus is
    trained before.

    Given a side store, every row needs a value for it, and this function also commits it; its rows are those of the
    records.

    Returns:
        The manifest of the records, the manifest of the quarantine and the report (plain JSON).

    Raises:
        ConfigurationError: the workspace holds the finished records of other sources, or a function of the parameters
            is not usable.
        SourceError: a source is missing, empty or unreadable, too many rows are damaged, or no row was accepted.
        WorkerFailed: the engine lost a task too often; what was written is kept, and the next run continues.
    """
    started = time.monotonic()
    opening = Opening(seed, config.max_row_bytes, config.normalise)
    made_by = _fingerprints(config, opening)
    folders = {"records": workspace, "quarantine": quarantine}
    if side is not None:
        made_by["side"] = side.fingerprint
        folders["side"] = side.workspace
    refuse_other_sources(config, workspace)
    labels = [source.label for source in config.sources]
    fresh = {
        "consumed": dict.fromkeys(labels, 0),
        "ended": dict.fromkeys(labels, False),
        "counts": vars(Counts({label: Counter() for label in labels})),
        "done": False,
    }
    tokenizer, limits = None, None
    if tokens is not None:
        tokenizer = _tokenizer(config, opening, tokens, workspace, made_by, fresh)
        limits = [tokenizer.base_fingerprint, tokens.max_length, tokens.min_length, tokens.too_long]
        if tokens.wrap is not None:
            tokens = tokenizer = limits = None
    made_by["token_limits"] = fingerprint(limits)
    progress = Progress(folders, made_by=made_by, fresh=fresh)
    write_json(workspace / SOURCES_FILE, described(config))
    counts = pydantic.TypeAdapter(Counts).validate_python(progress.state["counts"])
    resumed_rows = counts.rows_in
    if not progress.state["done"]:
        merger = Merger(config, counts, side)
        if progress.shards["records"]:
            merger.restore(progress.store("records"))
        _run(config, opening, Preparation(config, tokenizer, tokens, side), merger, progress)
    _check(config, counts, progress.state["ended"])
    records = progress.manifest("records", kind="records", schema=RECORD_SCHEMA, splits=dict(counts.splits))
    refused = progress.manifest(
        "quarantine", kind="quarantine", schema=QUARANTINE_SCHEMA,
        reasons=dict(sorted(counts.quarantined_by_reason.items())),
    )  # fmt: skip
    if side is not None:
        side.commit(progress.shards["side"], records=records)
    seconds = time.monotonic() - started
    report = {
        **_report(counts, progress.state["ended"]),
        "fingerprint": records.fingerprint,
        "resumed_after_rows": resumed_rows,
        "seconds": round(seconds, 3),
        "rows_per_second": round((counts.rows_in - resumed_rows) / max(seconds, 1e-9), 1),
    }
    return records, refused, report


def _tokenizer(
    config: IngestionConfig, opening: Opening, tokens: TokenizerConfig, workspace: Path, made_by: dict[str, str],
    place: dict[str, Any],
) -> TextTokenizer:  # fmt: skip
    """Load the tokenizer; a vocabulary of the corpus is trained on the training texts, or kept if it was made so."""
    if tokens.of_corpus:
        prepare = Preparation(dataclasses.replace(config, near_duplicates=None))
        texts = (
            text
            for chunk in shown(_chunks(config, opening, place, size=CHUNK_ROWS), desc="vocabulary", unit="chunks")
            for each in prepare(chunk).candidates
            if each.split(config.splits) == "train"
            for text in (each.row.text, each.row.pair)
            if text is not None
        )
        inputs = fingerprint([made_by, tokens.vocab_size])
        tokenizer_training.keep(workspace, texts, vocab_size=tokens.vocab_size, made_by=inputs)
    return load_tokenizer(tokens, workspace)


def _run(
    config: IngestionConfig, opening: Opening, preparation: Preparation, merger: Merger, progress: Progress
) -> None:
    counts, side = merger.counts, merger.side
    shard_rows = config.shard_rows if side is None else min(config.shard_rows, side.most_rows)
    chunks = _chunks(config, opening, progress.state, size=min(CHUNK_ROWS, shard_rows))
    with (
        config.engine.started() as engine,
        shown(desc="ingestion", unit="rows", unit_scale=True, initial=counts.total("read")) as bar,
        contextlib.closing(engine.run(preparation, chunks, ordered=True)) as results,
    ):
        for _, prepared in results:
            merger.merge(prepared)
            bar.update(counts.total("read") - bar.n)
            if counts.total("read") > EARLY_STOP_ROWS:
                _check_damage(config, counts)
            if merger.fills_shard(shard_rows):
                progress.commit(merger.take_tables(), {**prepared.place, "counts": vars(counts), "done": False})
    _check(config, counts, prepared.place["ended"])
    progress.commit(merger.take_tables(), {**prepared.place, "counts": vars(counts), "done": True})


def _chunks(config: IngestionConfig, opening: Opening, place: dict[str, Any], *, size: int) -> Iterator[Chunk]:
    """Yield chunks of (name of the source, row), in an order that depends on the parameters only; the last is empty."""
    consumed, ended = {**place["consumed"]}, {**place["ended"]}
    rows = _rows(config, opening, consumed, ended)
    while chunk := list(_some(rows, size)):
        yield Chunk({"consumed": {**consumed}, "ended": {**ended}}, chunk)
    yield Chunk({"consumed": consumed, "ended": ended}, [])


def _some(rows: Iterator[tuple[str, Row | BadRow]], most: int) -> Iterator[tuple[str, Row | BadRow]]:
    """Yield the next rows: at most so many, and fewer long texts."""
    characters = 0
    for source, row in itertools.islice(rows, most):
        yield source, row
        characters += len(row.text) if isinstance(row, Row) else 0
        if characters >= CHUNK_CHARACTERS:
            return


def _rows(
    config: IngestionConfig, opening: Opening, consumed: dict[str, int], ended: dict[str, bool]
) -> Iterator[tuple[str, Row | BadRow]]:
    """Yield the rows after the place, and move the place with them."""
    weights = {source.label: source.weight or 1.0 for source in config.sources}
    weighted = config.sources[0].weight is not None
    rows = {
        source.label: itertools.islice(_rows_in(source, opening), consumed[source.label], source.max_samples)
        for source in config.sources if not ended[source.label]
    }  # fmt: skip
    while rows and not (weighted and any(ended.values())):
        label = min(rows, key=lambda each: (consumed[each] + 1) / weights[each]) if weighted else next(iter(rows))
        drawn = next(rows[label], None)
        if drawn is None:
            ended[label] = True
            rows.pop(label)
        else:
            consumed[label] += 1
            yield label, drawn


def _rows_in(source: SourceConfig, opening: Opening) -> Iterator[Row | BadRow]:
    rows = _call(source, lambda: iter(source.rows(opening)))
    if not _is_ours(source):
        rows = (_checked(row, f"a row of source '{source.label}'") for row in rows)
    yield from iter(lambda: _call(source, lambda: next(rows, None)), None)


def _checked(row: Any, name: str) -> Row | BadRow:
    hint: type[Row | BadRow] = BadRow if isinstance(row, BadRow) else Row
    made: Row | BadRow = check(row._asdict() if isinstance(row, hint) else row, hint, name=name, error=SourceError)
    return made


def _is_ours(source: SourceConfig) -> bool:
    return type(source).__module__.startswith("mm_ldlm.")


def _call(source: SourceConfig, method: Callable[[], T]) -> T:
    """Call a method of a source; one of another package that fails is refused by its name.

    An unknown error of a source of this package is a bug, and passes.
    """
    if _is_ours(source):
        return method()
    with foreign_code(lambda reason: SourceError(
        f"source '{source.label}': expected rows from {source.kind}, which failed ({reason}). Correct its class."
    )):  # fmt: skip
        return method()


# -- checks and report -------------------------------------------------------------------------------------------------


def _check(config: IngestionConfig, counts: Counts, ended: dict[str, bool]) -> None:
    if counts.rows_in != counts.total("accepted", "duplicates", "quarantined"):
        raise SourceError(
            f"rows were lost: {conservation(_report(counts, ended))}. This is a bug in mm_ldlm: please report it "
            "with the parameters."
        )
    for source in config.sources:
        if ended[source.label] and not counts.sources[source.label]["read"]:
            raise SourceError(
                f"source '{source.label}' is empty: expected rows in {show(', '.join(source.paths))}, found none. "
                "Correct the source's 'path'."
            )
    _check_damage(config, counts)
    if not counts.total("accepted"):
        raise SourceError(
            f"none of the {counts.rows_in} rows was accepted: {_reasons(counts, counts.quarantined_by_reason)}. Relax "
            "the limit that the reason names (ingestion.length, tokenizer.max_length), or correct the sources."
        )


def _check_damage(config: IngestionConfig, counts: Counts) -> None:
    """Refuse too large a fraction of damaged rows, with the option that leaves them out where they are a minority."""
    read = counts.total("read")
    if (fraction := counts.damaged / read) > config.max_bad_fraction:
        raise SourceError(
            f"{counts.damaged} of {read} rows read are damaged ({100 * fraction:.1f} %), but "
            f"ingestion.max_bad_fraction is {100 * config.max_bad_fraction:.1f} %: {_reasons(counts, DAMAGE)}. "
            "Correct the sources"
            + (
                ", or leave such rows out: "
                f"`--params ingestion.max_bad_fraction={-(-100 * counts.damaged // read) / 100}`."  # rounded up
                if fraction <= 0.5
                else "."
            )
        )


def _reasons(counts: Counts, named: Collection[str]) -> str:
    return "; ".join(
        f"{number} {reason} (first: {counts.first_example_by_reason[reason]})"
        for reason, number in counts.quarantined_by_reason.most_common()
        if reason in named
    )


def _report(counts: Counts, ended: dict[str, bool]) -> dict[str, Any]:
    outcomes = ("read", "from_splitting", "accepted", "duplicates", "quarantined")
    return {
        "rows_in": counts.rows_in,
        "rows_read": counts.total("read"),
        "rows_from_splitting": counts.total("from_splitting"),
        **{outcome: counts.total(outcome) for outcome in outcomes[2:]},
        "damaged": counts.damaged,
        **{name: dict(item) if isinstance(item, dict) else item for name, item in vars(counts).items()},
        "sources": {
            label: {**{outcome: each[outcome] for outcome in outcomes}, "read_to_its_end": ended[label]}
            for label, each in counts.sources.items()
        },
    }


def conservation(report: dict[str, Any]) -> str:
    """Describe where all rows are: "read + from splitting = accepted + duplicates + quarantined", with reasons."""
    pieces = report["rows_from_splitting"]
    before = f"{report['rows_read']} rows read" + (f" + {pieces} from splitting" if pieces else "")
    after = list[str]()
    for outcome, counts in (
        ("accepted", report["splits"].items()), ("duplicates", sorted(report["duplicates_by_kind"].items())),
        ("quarantined", sorted(report["quarantined_by_reason"].items())),
    ):  # fmt: skip
        named = ", ".join(f"{count} {kind}" for kind, count in counts)
        after.append(f"{report[outcome]} {outcome}" + (f" ({named})" if named else ""))
    return f"{before} = {' + '.join(after)}"


# -- identity of the inputs --------------------------------------------------------------------------------------------


def described(config: IngestionConfig) -> list[str]:
    """Describe each source by its name, its kind and what is read of it; numbers of rows do not make another source."""
    read = [(*each.paths, getattr(each, "dataset", ""), *getattr(each, "read_columns", ())) for each in config.sources]
    places = [", ".join(filter(None, each)) for each in read]
    named = zip(config.sources, places, strict=True)
    return [printable(f"{source.label} ({source.kind}{f': {place}' if place else ''})") for source, place in named]


def refuse_other_sources(config: IngestionConfig, workspace: Path) -> None:
    """Refuse to replace a finished store of other sources, unless `config.replace` is set."""
    if config.replace or not Manifest.exists(workspace):
        return
    found = recorded(workspace / SOURCES_FILE, list)
    if found != described(config):
        raise ConfigurationError(
            f"parameter 'ingestion.sources': {workspace} holds {Manifest.read(workspace).rows:,} finished records of "
            f"{show(found) if found else 'other sources'}, and this run reads {show(described(config))}. Choose "
            "another folder (`--params data=FOLDER`, or 'data' in the environment's globals.yml), or replace the "
            "records by `--params ingestion.replace=true`."
        )


def _fingerprints(config: IngestionConfig, opening: Opening) -> dict[str, str]:
    parameters = {**to_dict(config), "format": FORMAT_VERSION}
    for name in (*SHORT_FORMS, "max_bad_fraction", "replace", "engine"):
        parameters.pop(name)
    if config.detokeniser is None:  # as before there was this key
        parameters.pop("detokeniser")
    for plain, source in zip(parameters["sources"], config.sources, strict=True):
        for key, _ in source.files:  # the digests of the files are in the descriptions of the sources
            plain.pop(key, None)
        for key in ("group_column", "path"):
            if plain.get(key, "") is None:  # as before there was this key
                plain.pop(key)
    if config.language_filter is not None:
        parameters["language_filter"] = describe_function(config.language_filter, at=LANGUAGE_FILTER)
    described = [_call(source, functools.partial(_description, source, opening)) for source in config.sources]
    return {"parameters": fingerprint(parameters), "sources": fingerprint(described)}


def _description(source: SourceConfig, opening: Opening) -> Any:
    """Return the description of a source, which has a fingerprint; of another package, with its code."""
    found = source.describe(opening)
    fingerprint(found)
    return found if _is_ours(source) else [found, code_of(type(source).__module__)]
