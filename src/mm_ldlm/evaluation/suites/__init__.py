"""Suites: each module evaluates one use of a run and presents its results.

A suite names the tables of samples that it reads, evaluates a loaded model through `inference.MMLDLM`, and gives its
headline numbers, figures and section of the report (`base.Suite`). The pipelines and the report iterate over the
registry; families register their suites in `COMPONENTS`, and other packages under the entry points `mm_ldlm.suites`.
Suites do not import Kedro. A suite that a run cannot support returns {"skipped": reason}, never a number.

`metrics.json` contains their headline numbers and is flat. Keys never change their meaning: fractions, accuracies and
cosines lie between 0 and 1; BLEU, chrF and correlations are × 100; costs are nats per token, the length included unless
`nll.given_length` is 1; times are seconds. An interval adds KEY.low and KEY.high, a standard error KEY.standard_error.
`nll.exact` is 1 if costs are exact negative log-likelihoods and 0 if they are upper bounds (NELBO). Metrics that do not
apply to a run have no key.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from mm_ldlm.core import Registry
from mm_ldlm.evaluation.suites.base import Headline, Suite

SUITES = Registry(
    "evaluation suite",
    {
        "inversion": "mm_ldlm.evaluation.suites.inversion:Inversion",
        "likelihood": "mm_ldlm.evaluation.suites.likelihood:Likelihood",
        "generation": "mm_ldlm.evaluation.suites.generation:Generation",
    },
    "suites",
)
PARTS = {"value": "", "low": ".low", "high": ".high", "standard_error": ".standard_error"}
"""Part of a number → what it adds to the key"""


@cache
def suites() -> dict[str, Suite]:
    """Make every registered suite, by name, in the order of the report."""
    return {name: SUITES.load(name)() for name in SUITES}


def sections_of_suites() -> set[str]:
    """Return the sections that suites read besides `evaluation`."""
    return {name for suite in suites().values() for name in suite.sections}


# -- headline numbers --------------------------------------------------------------------------------------------------


def flat_metrics(results: Mapping[str, Mapping[str, Any]], timings: Mapping[str, float]) -> dict[str, float]:
    """Collect the numbers of all suites, by name, and the seconds of the pipelines as finite floats."""
    found: dict[str, Any] = {}
    for name, suite in suites().items():
        if name in results and "skipped" not in results[name]:
            found |= suite.numbers(dict(results[name]))
    found |= {f"seconds.{name}": seconds for name, seconds in timings.items() if name != "reporting"}  # still running
    flat: dict[str, float | None] = {}
    for key, value in found.items():
        parts = value if isinstance(value, Mapping) else {"value": value}
        flat |= {f"{key}{suffix}": parts[part] for part, suffix in PARTS.items() if part in parts}
    return {key: float(value) for key, value in flat.items() if value is not None and math.isfinite(value)}


def headlines(numbers: Mapping[str, Any]) -> list[Headline]:
    """List the headlines of all suites that a metrics.json has a number for, in the order of the report."""
    return [each for suite in suites().values() for each in suite.headlines(numbers) if each.key in numbers]


GIVEN_LENGTH = "NELBO given the length"


def likelihood_kind(numbers: Mapping[str, float]) -> str:
    """Return the kind of a run's costs as a label: "exact", "NELBO" or `GIVEN_LENGTH`; "" if its metrics have none."""
    exact = numbers.get("nll.exact")
    return "" if exact is None else "exact" if exact else GIVEN_LENGTH if numbers.get("nll.given_length") else "NELBO"
