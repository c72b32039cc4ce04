"""This run beside others: every shared headline number, and paired differences where the sentences are at hand.

A result is a `metrics.json`, with `inversion_rows.parquet` beside it where there is one. It is found in a folder
given, in `evaluation/` inside a run folder (where the reporting pipeline keeps a copy), or, for an MLflow run id, in
that run's last metrics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mm_ldlm.errors import EvaluationError
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.evaluation.suites.inversion import difference

METRICS, ROWS, FOLDER = "metrics.json", "inversion_rows.parquet", "evaluation"

FromTracking = Callable[[str], Mapping[str, float] | None]
"""A run id → its metrics, or None where tracking does not know it."""


@dataclass(frozen=True)
class Result:
    """What a run scored. rows: the table of `inversion.score_rows`, None where only metrics are known."""

    name: str
    metrics: Mapping[str, float]
    rows: pd.DataFrame | None = None


def keep(folder: Path, metrics: Mapping[str, float], rows: pd.DataFrame) -> Path:
    """Write a result into `folder`/evaluation, atomically, so that the run can be compared from its folder alone."""
    import io

    from mm_ldlm.store.atomic import write_bytes, write_json

    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    rows.to_parquet(buffer, index=False)
    write_bytes(target / ROWS, buffer.getvalue())
    write_json(target / METRICS, dict(metrics))
    return target


def load_result(reference: str, *, from_tracking: FromTracking | None = None) -> Result:
    """A result by run folder, folder, metrics file, or MLflow run id.

    Raises:
        EvaluationError: nothing of the kind is there; says where it looked.
    """
    path = Path(reference)
    looked = [path] if path.is_file() else [path / METRICS, path / FOLDER / METRICS]
    for place in looked:
        if place.is_file():
            try:
                metrics = json.loads(place.read_text(encoding="utf-8"))
            except ValueError as error:
                raise EvaluationError(f"{place}: not readable as JSON ({error}).") from None
            table = place.with_name(ROWS)
            return Result(_name(path), metrics, pd.read_parquet(table) if table.is_file() else None)
    if from_tracking is not None and not path.exists():
        metrics = from_tracking(reference)
        if metrics:
            return Result(reference[:8], metrics)
    raise EvaluationError(
        f"reporting.compare: '{reference}' is no result: no {METRICS} at {', '.join(map(str, looked))}"
        + ("" if path.exists() else ", and no MLflow run of that id with metrics")
        + ". Evaluate that run first (`kedro run --pipelines=evaluation,reporting`)."
    )


def compare(
    ours: Result, others: Sequence[Result], *, bootstrap: BootstrapConfig, seed: int, keys: Sequence[str] | None = None
) -> dict[str, Any]:
    """Table of shared numbers, and for each other run the paired differences (ours − theirs) on shared sentences."""
    if not others:
        return {"runs": [ours.name], "table": [], "paired": {}}
    names = _distinct([ours.name, *(other.name for other in others)])
    wanted = [key for key in (keys or HEADLINES) if key in ours.metrics or any(key in o.metrics for o in others)]
    sts = sorted({k for r in (ours, *others) for k in r.metrics if k.startswith("sts.") and k.endswith(".spearman")})
    table = [
        {
            "metric": key,
            "values": [
                {part: result.metrics.get(f"{key}{suffix}") for part, suffix in PARTS.items()}
                for result in (ours, *others)
            ],
        }
        for key in dict.fromkeys([*wanted, *sts])
    ]
    paired = {
        name: difference(other.rows, ours.rows, bootstrap=bootstrap, seed=seed)
        for name, other in zip(names[1:], others, strict=True)
        if other.rows is not None and ours.rows is not None and len(other.rows) and len(ours.rows)
    }
    return {"runs": names, "table": table, "paired": paired}


PARTS = {"value": "", "low": ".low", "high": ".high"}
HEADLINES = (
    "l2t.exact_match",
    "l2t.token_accuracy",
    "l2t.token_set_f1",
    "l2t.bleu",
    "l2t.cosine",
    "t2l.cosine",
    "t2l.retrieval.at_1",
    "nll.per_token",
    "nll.given_latent.per_token",
    "latent.bits_per_token",
    "seconds.training",
)


def _name(path: Path) -> str:
    parts = [part for part in path.parts if part not in (FOLDER, METRICS)]
    return parts[-1] if parts else str(path)


def _distinct(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
