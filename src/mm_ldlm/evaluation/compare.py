"""Comparison of runs: headline numbers side by side, and paired differences on the sentences that two runs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.bootstrap import (
    FEWEST_PAIRS,
    Interval,
    interval,
    mean_of_counts,
    paired_difference,
    ratio_of_counts,
    replicates_of_runs,
)
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.evaluation.headline import sts_headlines
from mm_ldlm.evaluation.inversion import bleu_of_counts
from mm_ldlm.evaluation.run_result import HEADLINES, LIKELIHOODS, PARTS, Result

Statistic = Callable[[np.ndarray], np.ndarray]
"""Bootstrap counts (r, N) → values (r,)."""

# -- the table -------------------------------------------------------------------------------------------------------


def compare(ours: Result, others: Sequence[Result], *, bootstrap: BootstrapConfig, seed: int) -> dict[str, Any]:
    """Compare a run with others.

    Returns:
        A mapping with the keys `runs`, `table` and `paired`. `runs` are the names, ours first. `table` has one line per
        headline number that any run has: metric, label, and for each run value, low, high and note (for costs "exact",
        or "NELBO" for an upper bound). `paired` has for each other run `inversion` and `likelihood`, if both runs have
        the rows: the number of shared sentences, the differences ours − theirs, and a note.
    """
    if not others:
        return {"runs": [ours.name], "table": [], "paired": {}}
    found = side_by_side((ours, *others))
    names = found["runs"]
    paired = {
        name: differences
        for name, other in zip(names[1:], others, strict=True)
        if (differences := paired_differences([other], [ours], bootstrap=bootstrap, seed=seed))
    }
    return {**found, "paired": paired}


def side_by_side(results: Sequence[Result]) -> dict[str, Any]:
    """The parts `runs` and `table` of `compare`, for any number of results."""
    names = _distinct([result.name for result in results])
    sts = sorted({key for result in results for key in sts_headlines(result.metrics)})
    labels = {key: label for key, label in HEADLINES.items() if any(key in result.metrics for result in results)}
    labels |= {key: f"STS {key.removeprefix('sts.').removesuffix('.spearman')}, Spearman × 100" for key in sts}
    table = [
        {"metric": key, "label": label, "values": [_cell(result.metrics, key) for result in results]}
        for key, label in labels.items()
    ]
    return {"runs": names, "table": table}


def paired_differences(
    theirs: Sequence[Result], ours: Sequence[Result], *, bootstrap: BootstrapConfig, seed: int
) -> dict[str, Any]:
    """The differences ours − theirs between runs (seeds) of two systems, run i of one with run i of the other.

    Returns `inversion` and `likelihood`, where all runs have the rows: the part `paired` of `compare`.
    """
    found: dict[str, Any] = {}
    options: dict[str, Any] = {"bootstrap": bootstrap, "seed": seed}
    a, b = ([result.inversion_rows for result in results] for results in (theirs, ours))
    if (rows := _all_present(a)) and (others := _all_present(b)):
        found["inversion"] = inversion_difference(rows, others, **options)
    a, b = ([result.likelihood_rows for result in results] for results in (theirs, ours))
    if (rows := _all_present(a)) and (others := _all_present(b)):
        found["likelihood"] = likelihood_difference(rows, others, **options)
        found["likelihood"]["note"] = _likelihood_note(ours[0].metrics, theirs[0].metrics)
    return found


def _all_present(tables: Sequence[pd.DataFrame | None]) -> list[pd.DataFrame]:
    """The tables where every run has one with rows; [] otherwise."""
    present = [table for table in tables if table is not None and len(table)]
    return present if len(present) == len(tables) else []


def likelihood_kind(metrics: Mapping[str, float]) -> str:
    """Return the kind of a run's costs as a label: "exact" or "NELBO", or "" if its metrics do not contain it."""
    exact = metrics.get("nll.exact")
    return "" if exact is None else "exact" if exact else "NELBO"


def _cell(metrics: Mapping[str, float], key: str) -> dict[str, Any]:
    cell: dict[str, Any] = {part: metrics.get(f"{key}{suffix}") for part, suffix in PARTS.items()}
    return cell | {"note": likelihood_kind(metrics) if key in LIKELIHOODS and cell["value"] is not None else ""}


def _likelihood_note(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    kinds = (likelihood_kind(ours), likelihood_kind(theirs))
    if set(kinds) == {"exact", "NELBO"}:
        bounded = "this run" if kinds[0] == "NELBO" else "the other run"
        return (
            f"The cost of {bounded} is an upper bound (NELBO) and the other cost is exact; the difference includes the "
            "gap between the bound and the likelihood."
        )
    return "Both costs are upper bounds (NELBO)." if kinds == ("NELBO", "NELBO") else ""


# -- paired differences ----------------------------------------------------------------------------------------------


def inversion_difference(
    a: Sequence[pd.DataFrame], b: Sequence[pd.DataFrame], *, bootstrap: BootstrapConfig, seed: int
) -> dict[str, Any]:
    """Compute paired differences b − a of exact match, token accuracy, BLEU and cosine on the ids that all tables have.

    Args:
        a, b: the table of each run of the two systems.

    Raises:
        EvaluationError: the tables share fewer than two sentences.
    """
    left, right = _shared(a, b)
    statistics: dict[str, Callable[[pd.DataFrame], Statistic]] = {
        "exact_match": lambda rows: mean_of_counts(rows["exact"]),
        "token_accuracy": lambda rows: ratio_of_counts(rows["matches"], rows["positions"]),
        "bleu": bleu_of_counts,
    }
    if all("cosine" in rows for rows in (*left, *right)):
        statistics["cosine"] = lambda rows: mean_of_counts(rows["cosine"])
    return _differences(statistics, left, right, bootstrap=bootstrap, seed=seed)


def likelihood_difference(
    a: Sequence[pd.DataFrame], b: Sequence[pd.DataFrame], *, bootstrap: BootstrapConfig, seed: int
) -> dict[str, Any]:
    """Compute paired differences b − a of the cost per token, in nats, on the ids that all tables have.

    Args:
        a, b: the table of each run of the two systems.

    If the two runs tokenise these sentences differently, their tokens are different units, and the cost per sentence is
    compared instead.

    Raises:
        EvaluationError: the tables share fewer than two sentences.
    """
    left, right = _shared(a, b)
    everyone = (*left, *right)
    same_tokens = all((rows["tokens"].to_numpy() == left[0]["tokens"].to_numpy()).all() for rows in everyone)
    statistics: dict[str, Callable[[pd.DataFrame], Statistic]] = {}
    for column, name in (("nll", "nats"), ("nll_given_latent", "nats_given_latent")):
        if not all(column in rows for rows in everyone):
            continue
        if same_tokens:
            statistics[f"{name}_per_token"] = partial(_per_token, column=column)
        else:
            statistics[f"{name}_per_sentence"] = partial(_per_sentence, column=column)
    return _differences(statistics, left, right, bootstrap=bootstrap, seed=seed)


def _per_token(rows: pd.DataFrame, *, column: str) -> Statistic:
    return ratio_of_counts(rows[column], rows["tokens"])


def _per_sentence(rows: pd.DataFrame, *, column: str) -> Statistic:
    return mean_of_counts(rows[column])


def mean_cost(tables: Sequence[pd.DataFrame], *, bootstrap: BootstrapConfig, seed: int) -> Interval:
    """Compute the mean cost per token, in nats, over the runs of one system, on the ids that all of them have.

    The interval is bootstrapped over runs and sentences.
    """
    rows, _ = _shared(tables, [])
    statistics = [_per_token(table, column="nll") for table in rows]
    once = np.ones((1, len(rows[0])))
    value = float(np.mean([statistic(once)[0] for statistic in statistics]))
    drawn_R = replicates_of_runs(statistics, len(rows[0]), replicates=bootstrap.replicates, seed=seed)
    return interval(value, drawn_R, level=bootstrap.level)


def _shared(a: Sequence[pd.DataFrame], b: Sequence[pd.DataFrame]) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    """Select the rows of all tables for the ids that all of them have, in the same order."""
    common = set.intersection(*(set(table["id"]) for table in (*a, *b)))
    ids = [i for i in a[0]["id"].tolist() if i in common]
    if len(ids) < 2:
        sizes = " and ".join(str(len(table)) for table in (*a, *b))
        raise EvaluationError(
            f"Expected runs that share held-out sentences, found {len(ids)} shared ids, fewer than two, among {sizes}. "
            "Compare runs of the same data, or remove the other run from reporting.compare."
        )
    left, right = ([table.set_index("id").loc[ids].reset_index() for table in tables] for tables in (a, b))
    return left, right


def _differences(
    statistics: Mapping[str, Callable[[pd.DataFrame], Statistic]],
    left: Sequence[pd.DataFrame],
    right: Sequence[pd.DataFrame],
    *,
    bootstrap: BootstrapConfig,
    seed: int,
) -> dict[str, Any]:
    options: dict[str, Any] = {"replicates": bootstrap.replicates, "level": bootstrap.level, "seed": seed}
    sentences = len(left[0])
    found: dict[str, Any] = {}
    for name, statistic in statistics.items():
        one, two = ([statistic(rows) for rows in tables] for tables in (left, right))
        result = paired_difference(one, two, sentences, **options)
        found[name] = {
            "a": result.a,
            "b": result.b,
            "difference": result.difference.as_dict(),
            "p": result.p_two_sided,
            "clear": result.clear,
            "verdict": result.verdict,
        }
    return {"sentences": sentences, "fewest_sentences": FEWEST_PAIRS, "differences": found}


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        free, number = name, 1
        while free in found:
            number += 1
            free = f"{name} ({number})"
        found.append(free)
    return found
