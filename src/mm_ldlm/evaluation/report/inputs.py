"""Inputs of a report: the record of training, the inputs of the page, and examples of the suites' rows."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core.files import recorded
from mm_ldlm.training.jsonl import number, read_events, read_metrics


@dataclass(frozen=True)
class RunRecord:
    """Record of training in a run folder; parts without a file are empty."""

    config: Mapping[str, Any]
    """config.json"""
    log: Sequence[Mapping[str, Any]]
    """Metric lines of the training log by step, each step once"""
    events: Sequence[Mapping[str, Any]]
    """Event lines of the training log, in order"""

    def timings(self, timings: Mapping[str, float]) -> dict[str, float]:
        """Replace the seconds of training by the log's, over all sessions of the run.

        The pipeline `training` takes no time if it finds the run finished.
        """
        others = {name: seconds for name, seconds in timings.items() if name != "training"}
        found = [number(line["seconds"]) for line in self.log if "seconds" in line]
        return others if not found or found[-1] is None else {"training": found[-1], **others}


def record_of(run: Path) -> RunRecord:
    """Read the record of a run folder."""
    log, config = run / "training_log.jsonl", recorded(run / "config.json") or {}
    return RunRecord(config, read_metrics(log), read_events(log)) if log.is_file() else RunRecord(config, [], [])


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """Inputs of a report; those that a run does not have are empty."""

    run: Mapping[str, Any]
    """Reference of the run: name, path, step, fingerprint"""
    record: RunRecord
    metrics: Mapping[str, float]
    """metrics.json"""
    suites: Mapping[str, Mapping[str, Any]]
    """metrics_SUITE.json, by suite"""
    rows: Mapping[str, pd.DataFrame]
    """SUITE_rows, by suite"""
    ingestion_report: Mapping[str, Any]
    validation_report: Mapping[str, Any]
    timings: Mapping[str, float]
    """Seconds by pipeline"""
    comparison: Mapping[str, Any]
    """Result of `compare.compare`"""
    parameters: Mapping[str, Any]
    reporting: Any
    """`ReportingConfig`"""


def trained(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of parameters of the run, and of its objective outside the model; 0 where unknown."""
    last: Mapping[str, Any] = next((event for event in reversed(events) if event.get("event") == "trains"), {})
    return {name: int(last.get(name) or 0) for name in ("parameters", "objective_parameters")}


def described_sampler(parameters: Mapping[str, Any]) -> str:
    """Describe a sampler by its kind and its options that are set."""
    options = [f"{name} {value}" for name, value in parameters.items() if name != "kind" and value is not None]
    return f"{parameters['kind']} ({', '.join(options)})" if options else str(parameters["kind"])


def examples(rows: pd.DataFrame, *, count: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Choose examples of inversion, with the differences of their words.

    'any': drawn at random. 'worst': lowest token accuracy, then lowest cosine. 'near': wrong, but nearest by cosine.
    """
    rows = rows.assign(accuracy=rows["matches"] / rows["positions"].clip(lower=1))
    drawn = np.sort(np.random.default_rng([seed, 0xE4]).permutation(len(rows))[:count])
    wrong = rows[~rows["exact"].astype(bool)]
    by = [name for name in ("accuracy", "cosine") if name in rows]
    chosen = {"any": rows.iloc[drawn], "worst": wrong.sort_values(by).head(count)}
    if "cosine" in rows:
        chosen["near"] = wrong.sort_values("cosine", ascending=False).head(count)
    return {
        kind: [
            {
                "reference": row["reference"],
                "pieces": list(word_difference(row["reference"], row["hypothesis"])),
                "exact": bool(row["exact"]),
                "accuracy": row["accuracy"],
                "cosine": row.get("cosine"),
            }
            for row in part.to_dict(orient="records")
        ]
        for kind, part in chosen.items()
        if len(part)
    }


def word_difference(reference: str, hypothesis: str) -> Iterator[tuple[str, str]]:
    """Compare two texts word by word: yield the words kept ('same'), lost and made, in reading order."""
    a, b = reference.split(), hypothesis.split()
    for operation, i, j, k, m in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes():
        pieces = {"same": b[k:m]} if operation == "equal" else {"lost": a[i:j], "made": b[k:m]}
        yield from ((kind, " ".join(words)) for kind, words in pieces.items() if words)
