"""Comparison of runs: headline numbers side by side, and paired differences on the sentences that two runs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.bootstrap import FEWEST_PAIRS, Bootstrap
from mm_ldlm.evaluation.headline import headlines, likelihood_kind
from mm_ldlm.evaluation.suites import suites

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.evaluation.run_result import Result

_PARTS = {"value": "", "low": ".low", "high": ".high"}


def compare(ours: Result, others: Sequence[Result], bootstrap: Bootstrap) -> dict[str, Any]:
    """Compare a run with others.

    Returns:
        A mapping with the keys `runs`, `table` and `paired`. `runs` are the names, ours first. `table` has one line per
        headline number that any run has: metric, label, form, and for each run value, low, high and note (for costs
        "exact", or "NELBO" for an upper bound). `paired` has for each other run the differences ours − theirs by suite.
    """
    if not others:
        return {"runs": [ours.name], "table": [], "paired": {}}
    found = side_by_side((ours, *others))
    names = found["runs"][1:]
    paired = {name: paired_differences([other], [ours], bootstrap) for name, other in zip(names, others, strict=True)}
    return {**found, "paired": {name: differences for name, differences in paired.items() if differences}}


def side_by_side(results: Sequence[Result]) -> dict[str, Any]:
    """Make the parts `runs` and `table` of `compare`, for any number of results."""
    runs: list[str] = []
    for result in results:
        repeated = sum(name == result.name or name.startswith(f"{result.name} (") for name in runs)
        runs.append(f"{result.name} ({repeated + 1})" if repeated else result.name)
    shown = {each.key: each for result in results for each in headlines(result.metrics) if each.compared}
    table = []
    for key, headline in shown.items():
        cost = headline.form in ("cost", "perplexity")
        values = [
            {
                **{part: result.metrics.get(f"{key}{suffix}") for part, suffix in _PARTS.items()},
                "note": likelihood_kind(result.metrics) if cost and key in result.metrics else "",
            }
            for result in results
        ]
        table.append({"metric": key, "label": headline.label, "form": headline.form, "values": values})
    return {"runs": runs, "table": table}


def paired_differences(theirs: Sequence[Result], ours: Sequence[Result], bootstrap: Bootstrap) -> dict[str, Any]:
    """Compute the differences ours − theirs between runs (seeds) of two systems, run i of one with run i of the other.

    Returns:
        For each suite of which all runs have rows its title, the number of shared sentences, and by statistic the
        `PairedDifference`: the part `paired` of `compare`.

    Raises:
        EvaluationError: the tables share fewer than two sentences.
    """
    found: dict[str, Any] = {}
    for name, suite in suites().items():
        tables = [result.rows.get(name) for result in (*theirs, *ours)]
        present = [table for table in tables if table is not None and len(table)]
        if not suite.row_columns or len(present) < len(tables):
            continue
        common = shared(present)
        differences = {}
        for metric, statistic in suite.statistics(common).items():
            values = [statistic(table) for table in common]
            one, two = values[: len(theirs)], values[len(theirs) :]
            differences[metric] = bootstrap.difference(one, two, len(common[0]))
        found[name] = {
            "title": suite.title,
            "sentences": len(common[0]),
            "fewest_sentences": FEWEST_PAIRS,
            "differences": differences,
            "note": _note(ours[0].metrics, theirs[0].metrics) if name == "likelihood" else "",
        }
    return found


def shared(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Select the rows of all tables for the ids that all of them have, in the same order.

    Raises:
        EvaluationError: there are fewer than two.
    """
    common = set.intersection(*(set(table["id"]) for table in tables))
    ids = [i for i in tables[0]["id"] if i in common]
    if len(ids) < 2:
        raise EvaluationError(
            f"Expected runs that share held-out sentences, found {len(ids)} shared ids, fewer than two, among "
            f"{' and '.join(str(len(table)) for table in tables)}. Compare runs of the same data, or remove the other "
            "run from reporting.compare."
        )
    return [table.set_index("id").loc[ids].reset_index() for table in tables]


def _note(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    kinds = (likelihood_kind(ours), likelihood_kind(theirs))
    if set(kinds) == {"exact", "NELBO"}:
        bounded = "this run" if kinds[0] == "NELBO" else "the other run"
        return (
            f"The cost of {bounded} is an upper bound (NELBO) and the other cost is exact; the difference includes the "
            "gap between the bound and the likelihood."
        )
    return "Both costs are upper bounds (NELBO)." if kinds == ("NELBO", "NELBO") else ""
