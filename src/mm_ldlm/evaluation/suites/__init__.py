"""Suites: each module evaluates one use of a run and presents what it found.

A suite says which tables of samples it reads, evaluates a loaded model through the `inference.MMLDLM` facade, and gives
its headline numbers, figures and section of the report (`base.Suite`). The pipelines and the report iterate over the
registry; families register their suites in `COMPONENTS`, and other packages under the entry points `mm_ldlm.suites`.
Suites do not import Kedro. A suite that a run cannot support returns {"skipped": reason}, never a number.
"""

from functools import cache

from mm_ldlm.core import Registry
from mm_ldlm.evaluation.suites.base import Suite

SUITES = Registry(
    "evaluation suite",
    {
        "inversion": "mm_ldlm.evaluation.suites.inversion:Inversion",
        "latents": "mm_ldlm.evaluation.suites.latents:Latents",
        "sts": "mm_ldlm.evaluation.suites.sts:Sts",
        "likelihood": "mm_ldlm.evaluation.suites.likelihood:Likelihood",
        "generation": "mm_ldlm.evaluation.suites.generation:Generation",
    },
    "suites",
)


@cache
def suites() -> dict[str, Suite]:
    """Make every registered suite, by name, in the order of the report."""
    return {name: SUITES.load(name)() for name in SUITES}
