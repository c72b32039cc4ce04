"""Make the rows of a card: means over the runs of a row, intervals, paired differences, and reasons for missing cells.

A record is the result of `card.score` for a run, with `base`, the fingerprint of the baseline's tokenizer, and
`unlike`, the number of texts that the two tokenizers read differently. Cells are numbers and intervals by column.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mm_ldlm.evaluation.bootstrap import Bootstrap, Statistic, holm, ratio_of_counts
from mm_ldlm.evaluation.suites.likelihood import perplexity

Records = Sequence[Mapping[str, Any]]
AT_ONE = ("entropy", "distinct_2", "self_bleu", "mauve", "empty", "seconds_per_1000", "peak_gb")
"""Columns that need samples at temperature 1"""


def row_of(
    records: Records, counts: Mapping[str, Any], real: Mapping[str, Any], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Make the cells of a row, means over its runs with an interval of the cost, and the reasons for missing cells."""
    costs, no_costs = _of_costs(records, counts, bootstrap)
    samples, no_samples = _of_samples(records)
    matched, reason = at_entropy(records, real["entropy"])
    if matched is None:
        no_judge = "no judge: name one as evaluation.generation.causal_model"
        no_samples = {"generative_perplexity": reason if "perplexity" in real else no_judge} | no_samples
    cells = {"parameters": records[0]["parameters"], "generative_perplexity": matched, **costs, **samples}
    return {"cells": cells, "reasons": no_costs | no_samples}


def _of_costs(
    records: Records, counts: Mapping[str, Sequence[int]], bootstrap: Bootstrap
) -> tuple[dict[str, Any], dict[str, str]]:
    of_tokens, of_texts = ("nats_per_token", "perplexity"), ("word_perplexity", "bits_per_character")
    if missing := [record["cost_reason"] for record in records if "nll" not in record]:
        return {}, dict.fromkeys(("kind", *of_tokens, *of_texts), missing[0])
    token, word, bits = (
        bootstrap.of_runs([_cost(record, counts, unit) for record in records], len(counts["word"]))[0]
        for unit in ("token", "word", "character")
    )
    cells = {
        "kind": ", ".join(dict.fromkeys(record["kind"] for record in records)),
        "unknown": float(np.mean([record["unknown"] for record in records])),
        "nats_per_token": token,
        "perplexity": perplexity(token),
        "word_perplexity": perplexity(word),
        "bits_per_character": bits,
    }
    reasons: dict[str, str] = {}
    if any(record["tokenizer"] != record["base"] for record in records):
        reasons = dict.fromkeys(of_tokens, "its tokens differ from the baseline's: compare words and characters")
    if unlike := max(record["unlike"] for record in records):
        read = f"{unlike} of {len(counts['word'])} texts as other characters than the baseline's"
        reasons |= dict.fromkeys(of_texts, f"its tokenizer reads {read}")
    return cells | dict.fromkeys(reasons), reasons


def _cost(record: Mapping[str, Any], counts: Mapping[str, Sequence[int]], unit: str) -> Statistic:
    """Make the statistic "nats per token", "nats per word" or "bits per character" of a run."""
    nats = math.log(2) if unit == "character" else 1.0
    return ratio_of_counts(np.array(record["nll"]) / nats, counts.get(unit, record["tokens"]))


def _of_samples(records: Records) -> tuple[dict[str, Any], dict[str, str]]:
    """Make the cells at temperature 1."""
    points = [point for record in records for point in record["points"] if point["temperature"] == 1]
    if len(points) < len(records) or any("entropy" not in point for point in points):
        reasons = [record["samples_reason"] for record in records if "samples_reason" in record]
        return {}, dict.fromkeys(
            (*AT_ONE, "generative_perplexity"),
            (*reasons, "its samples are empty, or score_card.temperatures has no 1")[0],
        )
    return {name: float(np.mean([point[name] for point in points])) for name in AT_ONE if name in points[0]}, {}


def at_entropy(records: Records, entropy: float) -> tuple[float | None, str]:
    """Compute the mean over the runs of the generative perplexity at an entropy; or None, and the reason.

    The log perplexity is interpolated linearly between temperatures, but not extrapolated.
    """
    values = []
    for record in records:
        points = sorted((each["entropy"], each["perplexity"]) for each in record["points"] if each.get("perplexity"))
        low, high = (points[0][0], points[-1][0]) if points else (math.inf, -math.inf)
        if not low <= entropy <= high:
            return None, (
                f"the entropies of its samples (from {low:.2f} to {high:.2f}) do not contain the {entropy:.2f} of "
                "held-out text; change score_card.temperatures"
            )
        x, y = np.array(points).T
        values.append(math.exp(np.interp(entropy, x, np.log(y))))
    return float(np.mean(values)), ""


def compare(
    rows: Mapping[str, dict[str, Any]],
    records: Mapping[str, Records],
    unit: str,
    counts: Mapping[str, Sequence[int]],
    bootstrap: Bootstrap,
) -> None:
    """Add the paired differences in cost to the first row: nats per token, or bits per character if tokenizers differ.

    Runs of two rows are paired in order.
    """
    (baseline, theirs), *others = records.items()
    column, tested = {"token": "nats_per_token", "character": "bits_per_character"}[unit], {}
    for name, ours in others:
        if blocked := [rows[each]["reasons"][column] for each in (name, baseline) if column in rows[each]["reasons"]]:
            rows[name]["reasons"]["difference"] = blocked[0]
            continue
        pairs = min(len(theirs), len(ours))
        one, two = ([_cost(record, counts, unit) for record in some[:pairs]] for some in (theirs, ours))
        found = bootstrap.difference(one, two, len(counts["word"]))
        rows[name]["cells"] |= {"difference": found["difference"], "paired_runs": pairs}
        if found["p"] is not None:
            tested[name] = found["p"]
    for name, p in zip(tested, holm([*tested.values()]), strict=True):
        rows[name]["cells"]["p"] = p
