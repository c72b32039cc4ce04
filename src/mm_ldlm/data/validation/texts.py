"""Checks of records and tokens: ids, token ids and lengths, disjoint splits, and leakage of evaluation sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_ldlm.data.corpus.record import PAIR, comparison_digest, described_by, meta_value, record_id
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.validation.findings import MAX_EXAMPLES, NO_ROWS, Finding

if TYPE_CHECKING:
    from mm_ldlm.data.validation.vectors import Subject

_ROWS = 65_536
_AGAIN = "Remove the token store and run the ingestion pipeline again."


def compare_ids(records: ShardStore, other: ShardStore) -> tuple[npt.NDArray[np.int64], list[str], int]:
    """Return the rows with another id than the record, some in words, and how many have the id of a record nearby."""
    wrong, examples, elsewhere = [NO_ROWS], list[str](), 0
    shared = min(len(records), len(other))
    for start in range(0, shared, _ROWS):
        ours, theirs = (
            store.window(start, min(start + _ROWS, shared), columns=["id"])["id"].combine_chunks()
            for store in (records, other)
        )
        bad = np.flatnonzero(~pc.fill_null(pc.equal(ours, theirs), False).to_numpy(zero_copy_only=False))
        wrong.append(bad + start)
        elsewhere += int(pc.sum(pc.is_in(theirs.take(pa.array(bad)), value_set=ours)).as_py() or 0)
        examples += [f"row {start + i}: record {ours[i]}, found {theirs[i]}" for i in bad[:MAX_EXAMPLES].tolist()]
    return np.concatenate(wrong), examples, elsewhere


def check_tokens(subject: Subject) -> Iterator[Finding]:
    """Check token ids (inside the vocabulary, no pad or mask) and stored lengths (correct, positive, not too long)."""
    tokens, tokenizer = subject.inputs.tokens, subject.inputs.tokenizer
    outside, special, untrue, empty, long = ([NO_ROWS] for _ in range(5))
    for start in range(0, len(tokens), _ROWS):
        rows = slice(start, min(start + _ROWS, len(tokens)))
        values, offsets = tokens.lists("input_ids").take(rows)
        lengths = np.diff(offsets)
        row = np.repeat(np.arange(rows.start, rows.stop), lengths)
        outside.append(np.unique(row[(values < 0) | (values >= tokenizer.vocab_size)]))
        special.append(np.unique(row[(values == tokenizer.pad_id) | (values == tokenizer.mask_id)]))
        untrue.append(start + np.flatnonzero(tokens.ints("length").take(rows) != lengths))
        empty.append(start + np.flatnonzero(lengths == 0))
        long.append(start + np.flatnonzero(lengths > tokenizer.max_length))
    for check, rows_of, words, remedy in (
        ("token ids", outside, f"contain a token id outside 0..{tokenizer.vocab_size - 1}", _AGAIN),
        ("special tokens", special, "contain a pad or mask token, which texts must not contain", _AGAIN),
        ("token lengths", untrue, "have a stored length that differs from their number of tokens", _AGAIN),
        ("empty", empty, "have no tokens", "They are left out of the index."),
        ("length", long, f"have more tokens than tokenizer.max_length = {tokenizer.max_length}", _AGAIN),
    ):
        bad = np.concatenate(rows_of)
        if len(bad):
            yield Finding(
                "warning" if check == "empty" else "error",
                check,
                f"{len(bad)} rows {words}.",
                remedy,
                count=len(bad),
                examples=tokens.strings("id").take(bad[:MAX_EXAMPLES]),
                failing=bad,
            )


def check_unknown_tokens(subject: Subject) -> Iterator[Finding]:
    """Warn of splits in which many tokens are unknown."""
    for split, counts in subject.inputs.tokens.manifest.meta.get("splits", {}).items():
        if counts.get("tokens") and (fraction := counts.get("unknown", 0) / counts["tokens"]) > 0.01:
            yield Finding(
                "warning",
                "unknown tokens",
                f"{100 * fraction:.2f} % of the tokens of split '{split}' are unknown.",
                "Choose another tokenizer, or set tokenizer.reduce_vocabulary to false.",
                count=counts["unknown"],
            )


def check_texts(subject: Subject) -> Iterator[Finding]:
    """Check that ids are digests of texts, that splits are disjoint, and that no evaluation sentence is in training.

    The split of a text that describes something (an image) is that of what it describes, which is compared in place of
    such texts.
    """
    records = subject.inputs.records
    n = len(records)
    digest_n, split_n = np.zeros(n, np.dtype("V16")), np.zeros(n, np.int8)
    forged: list[int] = []
    for start in range(0, n, _ROWS):
        table = records.window(start, min(start + _ROWS, n), columns=["id", "text", "split", "meta"])
        ids, all_texts, metas = (table[name].to_pylist() for name in ("id", "text", "meta"))
        described = [described_by(meta) for meta in metas]
        pairs = [meta_value(meta, PAIR) for meta in metas]
        compared = [about or text for about, text in zip(described, all_texts, strict=True)]
        packed = b"".join(comparison_digest(text, key=b"") for text in compared)
        digest_n[start : start + len(ids)] = np.frombuffer(packed, "V16")
        codes = pc.index_in(table["split"].combine_chunks(), value_set=pa.array(SPLITS))
        split_n[start : start + len(ids)] = pc.fill_null(codes, -1).to_numpy()
        own = map(record_id, all_texts, pairs, described)
        forged += [start + i for i, (name, found) in enumerate(zip(own, ids, strict=True)) if name != found]
    for check, rows, words in (
        ("ids", np.array(forged, np.int64), "have an id that is not the digest of their text"),
        ("splits", np.flatnonzero(split_n < 0), f"are in no split ({', '.join(SPLITS)})"),
    ):
        if len(rows):
            yield Finding(
                "error",
                check,
                f"{len(rows)} records {words}.",
                "Run the ingestion pipeline again.",
                count=len(rows),
                examples=records.strings("id").take(rows[:MAX_EXAMPLES]),
                failing=rows if check == "ids" else NO_ROWS,
            )
    if n and not (split_n == SPLITS.index("test")).any():
        yield Finding(
            "warning",
            "held-out rows",
            f"none of {n} records is in the split 'test': sampling and evaluation will have no examples.",
            "Set ingestion.splits.test, or the split of a source.",
        )
    words_n2 = digest_n.view("<u8").reshape(-1, 2)
    yield from _repeated(records, words_n2, split_n)
    for name, sentences in subject.evaluation_sets.items():
        yield from _leaked(subject, words_n2, split_n, name=name, sentences=sentences)


def _repeated(
    records: ShardStore, words_n2: npt.NDArray[np.uint64], split_n: npt.NDArray[np.int8]
) -> Iterator[Finding]:
    """Find texts that occur twice, in two splits or in one."""
    order = np.lexsort((split_n, words_n2[:, 1], words_n2[:, 0]))
    same = (words_n2[order][1:] == words_n2[order][:-1]).all(1)
    across = same & (split_n[order][1:] != split_n[order][:-1])
    if across.any():
        rows = order[1:][across]
        yield Finding(
            "error",
            "split leakage",
            f"{len(rows)} texts, or what they describe, are in more than one split (apart from case and spacing).",
            "Run the ingestion pipeline again; sources with their own splits must not repeat texts between splits.",
            count=len(rows),
            examples=records.strings("text").take(rows[:MAX_EXAMPLES]),
        )
    if within := int((same & ~across).sum()):
        yield Finding(
            "info",
            "duplicate texts",
            f"{within} records repeat a text of the same split, apart from case and spacing, or what it describes.",
            "Near-duplicate removal (ingestion.near_duplicates) removes them.",
            count=within,
        )


def _leaked(
    subject: Subject, words_n2: npt.NDArray[np.uint64], split_n: npt.NDArray[np.int8], *, name: str,
    sentences: Sequence[str],
) -> Iterator[Finding]:  # fmt: skip
    """Find the training texts that occur in an evaluation set."""
    wanted = {comparison_digest(text, key=b"") for text in sentences}
    first = np.array([int.from_bytes(digest[:8], "little") for digest in wanted], np.uint64)
    near = np.flatnonzero((split_n == 0) & np.isin(words_n2[:, 0], first))
    rows = np.array([row for row in near.tolist() if words_n2[row].tobytes() in wanted], np.int64)
    if len(rows):
        remove = subject.config.on_leakage == "remove"
        yield Finding(
            "warning",
            "evaluation leakage",
            f"{len(rows)} training texts occur in the evaluation set '{name}'. "
            f"{'They are in quarantine.' if remove else 'They remain in the training split.'}",
            "validation.on_leakage decides: remove or report.",
            count=len(rows),
            examples=subject.inputs.records.strings("text").take(rows[:MAX_EXAMPLES]),
            failing=rows if remove else NO_ROWS,
        )
