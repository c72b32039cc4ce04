"""Checks across records, tokens and latents: alignment of rows, ids, token ids, disjoint splits and leakage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_ldlm.data.corpus.record import PAIR, comparison_digest, described_by, meta_value, record_id
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.findings import MAX_EXAMPLES, Findings, Severity
from mm_ldlm.data.store import ShardStore

_ROWS = 65_536


def check_ids(found: Findings, records: ShardStore, *others: ShardStore) -> None:
    """Check that row i of the other stores (tokens, latents) is row i of the records."""
    for other in others:
        kind = other.manifest.kind
        pipeline = "ingestion" if kind == "tokens" else "embedding"
        if len(other) != len(records):
            lacking = len(records) - len(other)
            found.add(
                "error",
                "alignment",
                f"there are {len(records)} records, but {len(other)} rows of {kind}: "
                f"{f'{lacking} are missing' if lacking > 0 else f'{-lacking} are too many'}.",
                count=abs(lacking),
                remedy=f"Remove {other.directory} and run the {pipeline} pipeline again.",
            )
        wrong: list[npt.NDArray[np.int64]] = []
        examples: list[str] = []
        elsewhere = 0
        shared = min(len(records), len(other))
        for start in range(0, shared, _ROWS):
            stop = min(start + _ROWS, shared)
            ours = records.window(start, stop, columns=["id"])["id"].combine_chunks()
            theirs = other.window(start, stop, columns=["id"])["id"].combine_chunks()
            bad = np.flatnonzero(~pc.fill_null(pc.equal(ours, theirs), False).to_numpy(zero_copy_only=False))
            if len(bad):
                elsewhere += int(pc.sum(pc.is_in(theirs.take(pa.array(bad)), value_set=ours)).as_py() or 0)
                wrong.append(bad + start)
                examples += [
                    f"row {start + i}: record {ours[i]}, {kind} {theirs[i]}" for i in bad[:MAX_EXAMPLES].tolist()
                ]
        if wrong:
            rows = np.concatenate(wrong)
            how = f"{elsewhere} of them belong to other records nearby: rows were swapped or shifted"
            found.add(
                "error",
                "alignment",
                f"{len(rows)} rows of {kind} have another id than the record in the same row"
                f"{f' ({how})' if elsewhere else ' (ids that no record nearby has)'}.",
                count=len(rows),
                examples=examples,
                remedy=(
                    f"The pairs cannot be trusted. Remove {other.directory} and run the {pipeline} pipeline again."
                ),
            )
            found.fail_rows("alignment", rows)


def check_tokens(found: Findings, tokens: ShardStore, *, tokenizer: TextTokenizer) -> None:
    """Check token ids (inside the vocabulary, no pad or mask) and stored lengths (correct, positive, not too long)."""
    max_length = tokenizer.max_length
    pieces_of: dict[str, list[npt.NDArray[np.int64]]] = {}
    longest = 0
    for start in range(0, len(tokens), _ROWS):
        stop = min(start + _ROWS, len(tokens))
        values, offsets = tokens.lists("input_ids").take(slice(start, stop))
        lengths = np.diff(offsets)
        row = np.repeat(np.arange(start, stop), lengths)
        pieces_of.setdefault("outside", []).append(np.unique(row[(values < 0) | (values >= tokenizer.vocab_size)]))
        pieces_of.setdefault("special", []).append(
            np.unique(row[(values == tokenizer.pad_id) | (values == tokenizer.mask_id)])
        )
        pieces_of.setdefault("untrue", []).append(
            start + np.flatnonzero(tokens.ints("length").take(slice(start, stop)) != lengths)
        )
        pieces_of.setdefault("empty", []).append(start + np.flatnonzero(lengths == 0))
        pieces_of.setdefault("long", []).append(start + np.flatnonzero(lengths > max_length))
        longest = max(longest, int(lengths.max(initial=0)))
    again = "Remove the token store and run the ingestion pipeline again."
    for check, key, message, remedy in (
        ("token ids", "outside", f"contain a token id outside 0..{tokenizer.vocab_size - 1}.", again),
        ("special tokens", "special", "contain a pad or mask token, which texts must not contain.", again),
        ("token lengths", "untrue", "have a stored length that differs from their number of tokens.", again),
        ("empty", "empty", "have no tokens.", "They are left out of the index."),
        (
            "length", "long", f"have more tokens than tokenizer.max_length = {max_length} (longest {longest}).",
            "Remove the token store and run the ingestion pipeline again.",
        ),
    ):  # fmt: skip
        rows = np.concatenate([np.empty(0, np.int64), *pieces_of.get(key, [])]).astype(np.int64)
        if len(rows):
            severity: Severity = "warning" if check == "empty" else "error"
            names = tokens.strings("id").take(rows[:MAX_EXAMPLES])
            found.add(severity, check, f"{len(rows)} rows {message}", count=len(rows), examples=names, remedy=remedy)
            found.fail_rows(check, rows)
    unknown = tokens.manifest.meta.get("splits", {})
    for split, counts in unknown.items():
        if counts.get("tokens") and (fraction := counts.get("unknown", 0) / counts["tokens"]) > 0.01:
            found.add(
                "warning",
                "unknown tokens",
                f"{100 * fraction:.2f} % of the tokens of split '{split}' are unknown.",
                count=counts["unknown"],
                remedy="Choose another tokenizer, or set tokenizer.reduce_vocabulary to false.",
            )


def check_texts(
    found: Findings, records: ShardStore, *, evaluation_sets: Mapping[str, Sequence[str]], on_leakage: str
) -> None:
    """Check that ids are digests of texts, that splits are disjoint, and that no evaluation sentence is in training.

    The split of a text that describes something is that of what it describes, which is compared in place of the text.
    """
    n = len(records)
    digest_n, split_n = np.zeros(n, np.dtype("V16")), np.zeros(n, np.int8)
    forged: list[int] = []
    for start in range(0, n, _ROWS):
        table = records.window(start, min(start + _ROWS, n), columns=["id", "text", "split", "meta"])
        ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
        things = [described_by(meta) for meta in table["meta"].to_pylist()]
        rows_in = list(zip(ids, texts, things, strict=True))
        packed = b"".join(comparison_digest(thing or text, key=b"") for _, text, thing in rows_in)
        digest_n[start : start + len(texts)] = np.frombuffer(packed, "V16")
        codes = pc.index_in(table["split"].combine_chunks(), value_set=pa.array(SPLITS))
        split_n[start : start + len(texts)] = pc.fill_null(codes, -1).to_numpy()
        pairs = [meta_value(meta, PAIR) for meta in table["meta"].to_pylist()]
        own = [record_id(text, pair, thing) for (_, text, thing), pair in zip(rows_in, pairs, strict=True)]
        forged += [start + i for i, (name, found_id) in enumerate(zip(own, ids, strict=True)) if name != found_id]
    if forged:
        rows = np.array(forged, np.int64)
        found.add(
            "error",
            "ids",
            f"{len(rows)} records have an id that is not the digest of their text.",
            count=len(rows),
            examples=records.strings("id").take(rows[:MAX_EXAMPLES]),
            remedy="Run the ingestion pipeline again.",
        )
        found.fail_rows("ids", rows)
    if len(strange := np.flatnonzero(split_n < 0)):
        found.add(
            "error",
            "splits",
            f"{len(strange)} records are in no split ({', '.join(SPLITS)}).",
            count=len(strange),
            examples=records.strings("id").take(strange[:MAX_EXAMPLES]),
            remedy="Run the ingestion pipeline again.",
        )
    if n and not (split_n == SPLITS.index("test")).any():
        found.add(
            "warning",
            "held-out rows",
            f"none of {n} records is in the split 'test': sampling and evaluation will have no examples.",
            remedy="Set ingestion.splits.test, or the split of a source.",
        )
    _check_disjoint(found, records, digest_n, split_n)
    for name, sentences in evaluation_sets.items():
        _check_leakage(found, records, digest_n, split_n, name=name, sentences=sentences, on_leakage=on_leakage)


def _check_disjoint(
    found: Findings, records: ShardStore, digest_n: npt.NDArray[np.void], split_n: npt.NDArray[np.int8]
) -> None:
    words = digest_n.view("<u8").reshape(-1, 2)
    order = np.lexsort((split_n, words[:, 1], words[:, 0]))
    same = (words[order][1:] == words[order][:-1]).all(1)
    across = same & (split_n[order][1:] != split_n[order][:-1])
    if across.any():
        rows = order[1:][across]
        texts = records.strings("text").take(rows[:MAX_EXAMPLES])
        found.add(
            "error",
            "split leakage",
            f"{len(rows)} texts, or things that texts describe, are in more than one split (texts are compared without "
            "case and spacing).",
            count=len(rows),
            examples=texts,
            remedy=(
                "Run the ingestion pipeline again; sources with their own splits must not repeat texts between splits."
            ),
        )
    if within := int((same & ~across).sum()):
        found.add(
            "info",
            "duplicate texts",
            f"{within} records repeat a text of the same split, apart from case and spacing, or what it describes.",
            count=within,
            remedy="Near-duplicate removal (ingestion.near_duplicates) removes them.",
        )


def _check_leakage(
    found: Findings, records: ShardStore, digest_n: npt.NDArray[np.void], split_n: npt.NDArray[np.int8], *,
    name: str, sentences: Sequence[str], on_leakage: str,
) -> None:  # fmt: skip
    wanted = np.frombuffer(b"".join(comparison_digest(text, key=b"") for text in sentences), "<u8").reshape(-1, 2)
    if not len(wanted):
        return
    words = digest_n.view("<u8").reshape(-1, 2)
    near = np.flatnonzero((split_n == 0) & np.isin(words[:, 0], wanted[:, 0]))
    rows = np.array([row for row in near.tolist() if (wanted == words[row]).all(1).any()], np.int64)
    if not len(rows):
        return
    texts = records.strings("text").take(rows[:MAX_EXAMPLES])
    done = "They are in quarantine." if on_leakage == "remove" else "They remain in the training split."
    found.add(
        "warning",
        "evaluation leakage",
        f"{len(rows)} training texts occur in the evaluation set '{name}'. {done}",
        count=len(rows),
        examples=texts,
        remedy="validation.on_leakage decides: remove or report.",
    )
    if on_leakage == "remove":
        found.fail_rows("evaluation leakage", rows)
