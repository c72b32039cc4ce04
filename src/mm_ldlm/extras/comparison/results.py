"""Results of a comparison: what the finished sessions wrote, in one table with intervals and paired differences.

`collect` gives everything that the table, the figures and the page are made of. `table` has one row for each session
and, for a member with several seeds, one row over all of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.core.files import InputFile
from mm_ldlm.evaluation import compare
from mm_ldlm.evaluation.bootstrap import Bootstrap, ratio_of_counts
from mm_ldlm.evaluation.headline import likelihood_kind
from mm_ldlm.evaluation.report.inputs import training_events, training_log
from mm_ldlm.evaluation.report.page import trained
from mm_ldlm.extras.comparison.config import ComparisonConfig
from mm_ldlm.extras.comparison.members import Session
from mm_ldlm.extras.comparison.sessions import Outcome
from mm_ldlm.training.checkpoints.reference import run_folder

ALL = "all"
"""In the column `seed`: the row over all finished seeds of a member."""
CURVES = ("text_nll", "loss")
"""Keys of the training log that become curves over the tokens seen."""
COLUMNS = {
    "nll.per_token": "nats_per_token",
    "nll.given_latent.per_token": "nats_per_token_given_latent",
    "perplexity": "perplexity",
    "unconditional.entropy_sample": "entropy",
    "unconditional.distinct_2": "distinct_2",
    "unconditional.self_bleu": "self_bleu",
    "unconditional.attested_bigrams": "attested_bigrams",
    "unconditional.memorised": "memorised",
    "unconditional.perplexity": "generative_perplexity",
    "l2t.exact_match": "exact_match",
    "l2t.token_accuracy": "token_accuracy",
    "l2t.bleu": "bleu",
    "l2t.cosine": "cosine",
}
"""Key of metrics.json → column of the table. An interval adds _low and _high."""


@dataclass(frozen=True)
class Finished:
    """A finished session with what it wrote. facts: parameters, steps, tokens, training_seconds, tokens_per_second."""

    session: Session
    result: compare.Result
    facts: dict[str, float | None]
    curves: dict[str, list[tuple[float, float]]]
    """Key of the training log → (tokens seen, value)"""


def collect(
    sessions: Sequence[Session],
    outcomes: Sequence[Outcome],
    *,
    config: ComparisonConfig,
    bootstrap: Bootstrap,
    beside: Path,
) -> dict[str, Any]:
    """Read the results of all finished sessions and compare each member with the baseline.

    Args:
        beside: folder of the table and the page; paths in them are relative to it.

    Returns:
        budget, baseline, seeds; runs and table, side by side (`compare.side_by_side`); rows, one for each session and
        one over the seeds of a member (`table`); paired: for each member but the baseline the differences member −
        baseline on the seeds that both finished, or {"left_out": reason}; failed: member, seed, reason, log; curves.
    """
    finished = [
        open_finished(session)
        for session, outcome in zip(sessions, outcomes, strict=True)
        if outcome.status == "finished"
    ]
    by_member = {
        member.name: [one for one in finished if one.session.member == member.name] for member in config.members
    }
    paired = {
        name: _against(by_member[config.reference], runs, config.reference, bootstrap=bootstrap)
        for name, runs in by_member.items()
        if name != config.reference
    }
    over_seeds = {
        member.name: _over_seeds(runs, bootstrap=bootstrap)
        for member in config.members
        if len(config.seeds_of(member)) > 1 and (runs := by_member[member.name])
    }
    return {
        "budget": _budget(config),
        "baseline": config.reference,
        "seeds": sorted({session.seed for session in sessions}),
        **compare.side_by_side([one.result for one in finished]),
        "rows": _rows(sessions, outcomes, finished, over_seeds, paired, beside=beside),
        "paired": paired,
        "failed": [
            outcome.to_dict() | {"log": _relative(outcome.log, beside)}
            for outcome in outcomes
            if outcome.status == "failed"
        ],
        "curves": [{"run": one.result.name, "member": one.session.member, "curves": one.curves} for one in finished],
    }


def table(results: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of `collect` as a table; a column for each number that any of them has."""
    return pd.DataFrame(results["rows"])


# -- one session -------------------------------------------------------------------------------------------------------


def open_finished(session: Session) -> Finished:
    """Read the scores, the run and the training log of a finished session."""
    reference = InputFile(session.paths["run"], remedy="Run the session again.").json(dict)
    folder = run_folder(Path(session.paths["runs"]), reference)
    kept = compare.load_result(str(folder))
    log = training_log(folder)
    last: dict[str, Any] = next((line for line in reversed(log) if "tokens" in line), {})
    tokens, seconds = (float(last[key]) if key in last else None for key in ("tokens", "seconds"))
    facts: dict[str, float | None] = {
        "parameters": trained(training_events(folder))["parameters"] or None,
        "steps": reference.get("step"),
        "tokens": tokens,
        "training_seconds": seconds,
        "tokens_per_second": tokens / seconds if tokens and seconds else None,
    }
    curves = {
        key: [
            (float(line["tokens"]), float(line[key])) for line in log if "tokens" in line and _is_finite(line.get(key))
        ]
        for key in CURVES
    }
    result = replace(kept, name=session.label)
    return Finished(session, result, facts, {key: points for key, points in curves.items() if points})


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and bool(np.isfinite(value))  # the log spells others as texts


# -- members -----------------------------------------------------------------------------------------------------------


def _against(
    baseline: Sequence[Finished], member: Sequence[Finished], name: str, *, bootstrap: Bootstrap
) -> dict[str, Any]:
    """The paired differences member − baseline over the seeds that both finished."""
    theirs, ours = ({one.session.seed: one.result for one in runs} for runs in (baseline, member))
    seeds = [number for number in ours if number in theirs]
    if not seeds:
        return {"left_out": f"no seed is finished by both this member and the baseline '{name}'"}
    pairs = [(theirs[number], ours[number]) for number in seeds]
    try:
        found = compare.paired_differences([one for one, _ in pairs], [two for _, two in pairs], bootstrap)
    except EvaluationError as error:  # other data, without shared sentences: the scores still stand side by side
        return {"left_out": str(error)}
    if not found:
        return {"left_out": f"this member and the baseline '{name}' have no scores of the same kind"}
    return {"seeds": seeds, "differences": found}


def _over_seeds(runs: Sequence[Finished], *, bootstrap: Bootstrap) -> dict[str, Any]:
    """Means over the seeds; the cost with an interval over seeds and sentences."""
    means = _means([_numbers(one) for one in runs])
    tables = [one.result.rows["likelihood"] for one in runs if "likelihood" in one.result.rows]
    if len(tables) == len(runs) and all("nll" in rows for rows in tables):
        tables = compare.shared(tables)
        statistics = [ratio_of_counts(rows["nll"], rows["tokens"]) for rows in tables]
        once = np.ones((1, len(tables[0])))
        value = float(np.mean([statistic(once)[0] for statistic in statistics]))
        cost = bootstrap.interval(value, bootstrap.replicates_of_runs(statistics, len(tables[0])))
        means |= {"nats_per_token": value, "nats_per_token_low": cost["low"], "nats_per_token_high": cost["high"]}
    return means


def _means(numbers: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """The mean of every number that all runs have; ends of intervals have none."""
    found = {key: [one.get(key) for one in numbers] for key in numbers[0] if not key.endswith(("_low", "_high"))}
    present = {key: [value for value in values if value is not None] for key, values in found.items()}
    return {key: float(np.mean(values)) for key, values in present.items() if len(values) == len(numbers)}


def _numbers(one: Finished) -> dict[str, float | None]:
    metrics = one.result.metrics
    scores = {
        f"{column}{suffix.replace('.', '_')}": metrics[f"{key}{suffix}"]
        for key, column in COLUMNS.items()
        for suffix in ("", ".low", ".high")
        if f"{key}{suffix}" in metrics
    }
    return {**one.facts, **scores}


# -- the table ---------------------------------------------------------------------------------------------------------


def _rows(
    sessions: Sequence[Session],
    outcomes: Sequence[Outcome],
    finished: Sequence[Finished],
    over_seeds: Mapping[str, Mapping[str, Any]],
    paired: Mapping[str, Mapping[str, Any]],
    *,
    beside: Path,
) -> list[dict[str, Any]]:
    """One row for each session, in order, and one over the seeds of a member, whose last row has the differences."""
    read = {one.session.label: one for one in finished}
    rows: list[dict[str, Any]] = []
    for place, (session, outcome) in enumerate(zip(sessions, outcomes, strict=True)):
        row: dict[str, Any] = {
            "member": session.member,
            "seed": str(session.seed),
            "status": outcome.status,
            "environment": session.environment,
            "model": session.parameters["model"].get("kind"),
            "objective": session.parameters["objective"].get("kind"),
        }
        if (one := read.get(session.label)) is not None:
            row |= {"likelihood": likelihood_kind(one.result.metrics), **_numbers(one)}
        row |= {"session_seconds": outcome.seconds, "reason": outcome.reason, "log": _relative(outcome.log, beside)}
        rows.append(row | ({"report": _relative(session.paths["report"], beside)} if one is not None else {}))
        if place + 1 < len(sessions) and sessions[place + 1].member == session.member:
            continue
        if session.member in over_seeds:
            same = ("member", "environment", "model", "objective")
            rows.append({key: row[key] for key in same} | {"seed": ALL, "status": "finished"})
            rows[-1] |= {"likelihood": _kind_of(session.member, finished)} | dict(over_seeds[session.member])
        rows[-1] |= _difference_columns(paired.get(session.member, {}))
    return rows


def _relative(path: str, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _kind_of(member: str, finished: Sequence[Finished]) -> str:
    return next(likelihood_kind(one.result.metrics) for one in finished if one.session.member == member)


def _difference_columns(paired: Mapping[str, Any]) -> dict[str, Any]:
    """The difference of the cost to the baseline, with its interval and its unit."""
    differences = (paired.get("differences") or {}).get("likelihood", {}).get("differences", {})
    for unit in ("nats_per_token", "nats_per_sentence"):
        if (found := differences.get(unit)) is not None:
            parts = {f"difference{suffix}": found["difference"][part]
                     for part, suffix in (("value", ""), ("low", "_low"), ("high", "_high"))}  # fmt: skip
            parts |= {"difference_p": found["p"], "difference_verdict": found["verdict"]}
            return parts | {"difference_unit": unit.replace("_", " ")}
    return {}


def _budget(config: ComparisonConfig) -> str:
    if config.budget is None:
        return "each member's own max_steps"
    if config.budget.tokens is not None:
        return f"{config.budget.tokens:,} tokens seen"
    return f"{config.budget.seconds:g} seconds of training"
