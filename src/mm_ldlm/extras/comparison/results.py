"""Collect the results of finished sessions in one table with intervals and paired differences.

`collect` returns the content of the table, the figures and the page. The table has one row for each session
and, for a member with several seeds, one row over all of them.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from mm_ldlm.core import EvaluationError
from mm_ldlm.core.files import InputFile
from mm_ldlm.evaluation import compare
from mm_ldlm.evaluation.bootstrap import Bootstrap, holm, ratio_of_counts
from mm_ldlm.evaluation.report.inputs import record_of, trained
from mm_ldlm.evaluation.suites import likelihood_kind
from mm_ldlm.extras.comparison.config import ComparisonConfig
from mm_ldlm.extras.comparison.plan import Session
from mm_ldlm.extras.comparison.sessions import Outcome
from mm_ldlm.training.checkpoints.reference import run_folder
from mm_ldlm.training.jsonl import number

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
    "completion.exact": "completed",
    "l2t.exact_match": "exact_match",
    "l2t.token_accuracy": "token_accuracy",
    "l2t.bleu": "bleu",
    "l2t.cosine": "cosine",
}
"""Key of metrics.json → column of the table"""
ENDS = {"value": "", "low": "_low", "high": "_high"}
"""Part of an interval → suffix of its column"""


@dataclass(frozen=True)
class Finished:
    """A finished session and its results; facts are parameters, steps, tokens, training_seconds, tokens_per_second."""

    session: Session
    result: compare.Result
    facts: dict[str, float | None]
    curves: dict[str, list[tuple[float, float]]]
    """Key of the training log → (tokens seen, value)"""


def collect(
    sessions: Sequence[Session], outcomes: Sequence[Outcome], *, config: ComparisonConfig, bootstrap: Bootstrap,
    reports: Path,
) -> dict[str, Any]:  # fmt: skip
    """Read the results of all finished sessions and compare each member with the baseline.

    Args:
        reports: folder of the table and the page; paths in them are relative to it.

    Returns:
        budget, baseline, level of the intervals, seeds; runs and table of `compare.side_by_side`; rows: one for each
        session and one over the seeds of each member, the last of which has the differences; paired: for each member
        but the baseline, the differences member − baseline on the seeds that both finished, or {"left_out": reason};
        failed: member, seed, reason, log; curves.
    """
    ended = list(zip(sessions, outcomes, strict=True))
    finished = {session.label: open_finished(session) for session, outcome in ended if outcome.status == "finished"}
    members = {name: [one for one in finished.values() if one.session.member == name]
               for name in dict.fromkeys(session.member for session in sessions)}  # fmt: skip
    paired, rows, last = {}, [], {}
    for name, runs in members.items():
        mine = [(session, outcome) for session, outcome in ended if session.member == name]
        rows += [_row(session, outcome, finished.get(session.label), reports) for session, outcome in mine]
        if len(mine) > 1 and runs:
            same = {key: rows[-1][key] for key in ("member", "environment", "model", "objective")}
            kind = likelihood_kind(runs[0].result.metrics)
            rows.append(
                {**same, "seed": "all", "status": "finished", "likelihood": kind, **_over_seeds(runs, bootstrap)}
            )
        if name != config.reference:
            paired[name] = _against(members[config.reference], runs, config.reference, bootstrap)
            last[name] = rows[-1]
    _judge(paired, level=bootstrap.level)
    for name, row in last.items():
        row |= _difference_columns(paired[name])
    return {
        "budget": str(config.budget or "each member's own max_steps"),
        "baseline": config.reference,
        "level": bootstrap.level,
        "seeds": sorted({session.seed for session in sessions}),
        **compare.side_by_side([one.result for one in finished.values()]),
        "rows": rows,
        "paired": paired,
        "failed": [
            asdict(outcome) | {"log": _relative(outcome.log, reports)}
            for _, outcome in ended
            if outcome.status == "failed"
        ],
        "curves": [
            {"run": label, "member": one.session.member, "curves": one.curves} for label, one in finished.items()
        ],
    }


def open_finished(session: Session) -> Finished:
    """Read the scores, the run and the training log of a finished session."""
    reference = InputFile(session.paths["run"], remedy="Run the session again.").json(dict)
    folder = run_folder(Path(session.paths["runs"]), reference)
    record = record_of(folder)
    last: Mapping[str, Any] = next((line for line in reversed(record.log) if "tokens" in line), {})
    tokens, seconds = last.get("tokens"), last.get("seconds")
    facts: dict[str, float | None] = {
        "parameters": trained(record.events)["parameters"] or None,
        "steps": reference.get("step"),
        "tokens": tokens,
        "training_seconds": seconds,
        "tokens_per_second": tokens / seconds if tokens and seconds else None,
    }
    curves: dict[str, list[tuple[float, float]]] = {}
    for line in record.log:
        for key in CURVES:
            value = number(line.get(key))
            if "tokens" in line and value is not None and math.isfinite(value):
                curves.setdefault(key, []).append((line["tokens"], value))
    result = replace(compare.load_result(str(folder)), name=session.label)
    return Finished(session, result, facts, curves)


# -- members -----------------------------------------------------------------------------------------------------------


def _against(theirs: Sequence[Finished], ours: Sequence[Finished], name: str, bootstrap: Bootstrap) -> dict[str, Any]:
    """Compute the paired differences member − baseline over the seeds that both finished."""
    baseline = {one.session.seed: one.result for one in theirs}
    pairs = [(baseline[one.session.seed], one.result) for one in ours if one.session.seed in baseline]
    if not pairs:
        return {"left_out": f"no seed is finished by both this member and the baseline '{name}'"}
    try:
        found = compare.paired_differences([one for one, _ in pairs], [two for _, two in pairs], bootstrap)
    except EvaluationError as error:  # other data, without shared sentences: the scores still stand side by side
        return {"left_out": str(error)}
    if not found:
        return {"left_out": f"this member and the baseline '{name}' have no scores of the same kind"}
    return {"seeds": [one.session.seed for one in ours if one.session.seed in baseline], "differences": found}


def _judge(paired: Mapping[str, Any], *, level: float) -> None:
    """Correct the p-values of each score for the number of members (Holm 1979), and set the verdicts by them.

    A difference of one seed has no p-value, because it contains no information about other seeds.
    """
    tested: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for member in paired.values():
        for suite, scores in member.get("differences", {}).items():
            for metric, each in scores["differences"].items():
                if each["p"] is None:
                    continue
                if len(member["seeds"]) == 1:
                    each |= {"p": None, "verdict": "one seed"}
                else:
                    tested.setdefault((suite, metric), []).append(each)
    for found in tested.values():
        for each, p in zip(found, holm([each["p"] for each in found]), strict=True):
            each |= {"p": p, "verdict": "significant" if p <= 1 - level else "not significant"}


def _over_seeds(runs: Sequence[Finished], bootstrap: Bootstrap) -> dict[str, Any]:
    """Compute the mean over the seeds of every number that all runs have, and an interval of the cost.

    The interval covers seeds and sentences.
    """
    numbers = pd.DataFrame([_numbers(one) for one in runs]).dropna(axis="columns")
    means = {str(key): value for key, value in numbers.mean().items() if not str(key).endswith(("_low", "_high"))}
    tables = [one.result.rows["likelihood"] for one in runs if "nll" in one.result.rows.get("likelihood", ())]
    if len(tables) == len(runs):
        tables = compare.shared(tables)
        statistics = [ratio_of_counts(rows["nll"], rows["tokens"]) for rows in tables]
        cost, _ = bootstrap.of_runs(statistics, len(tables[0]))
        means |= {f"nats_per_token{suffix}": cost[part] for part, suffix in ENDS.items()}
    return means


# -- the table ---------------------------------------------------------------------------------------------------------


def _row(session: Session, outcome: Outcome, one: Finished | None, reports: Path) -> dict[str, Any]:
    row: dict[str, Any] = {
        "member": session.member,
        "seed": str(session.seed),
        "status": outcome.status,
        "environment": session.environment,
        "model": session.parameters["model"].get("kind"),
        "objective": session.parameters["objective"].get("kind"),
        "learning_rate": session.parameters["training"]["optimizer"]["lr"],
        "session_seconds": outcome.seconds,
        "reason": outcome.reason,
        "log": _relative(outcome.log, reports),
    }
    if one is None:
        return row
    report = _relative(session.paths["report"], reports)
    return {**row, "report": report, "likelihood": likelihood_kind(one.result.metrics), **_numbers(one)}


def _numbers(one: Finished) -> dict[str, float | None]:
    metrics = one.result.metrics
    scores = {
        f"{column}{suffix}": metrics[f"{key}{suffix.replace('_', '.')}"]
        for key, column in COLUMNS.items()
        for suffix in ENDS.values()
        if f"{key}{suffix.replace('_', '.')}" in metrics
    }
    return {**one.facts, **scores}


def _relative(path: str, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _difference_columns(paired: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the difference in cost to the baseline: value, interval, p-value, verdict and unit."""
    found = paired.get("differences", {}).get("likelihood", {}).get("differences", {})
    unit = next((unit for unit in ("nats_per_token", "nats_per_sentence") if unit in found), None)
    if unit is None:
        return {}
    columns = {f"difference{suffix}": found[unit]["difference"][part] for part, suffix in ENDS.items()}
    more = {"p": found[unit]["p"], "verdict": found[unit]["verdict"], "unit": unit.replace("_", " ")}
    return columns | {f"difference_{name}": value for name, value in more.items()}
