"""Numbers of single precision are computed in double precision; one value that is not finite is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.data.sentences import Sentences
from mm_ldlm.evaluation import baselines, bootstrap, likelihood, retrieval, sts
from mm_ldlm.evaluation import inversion as inv
from mm_ldlm.evaluation.config import BootstrapConfig, LatentsConfig
from mm_ldlm.evaluation.suites import inversion, latents

DRAW = np.random.default_rng(11)
A, B = (DRAW.normal(size=(9, 5)).astype(np.float32) for _ in range(2))
SAMPLES = DRAW.normal(size=(3, 9, 5)).astype(np.float32)
TOKENS = [[i % 4, 4 + i % 3] for i in range(9)]
FEW = BootstrapConfig(replicates=20)


def suite_of_latents(real: Any, generated: Any) -> dict[str, Any]:
    held = Sentences(tuple("abcdefghi"), tuple("abcdefghi"), ((1,),) * 9, real)
    model = SimpleNamespace(embed=lambda texts, **_: SimpleNamespace(latents=generated))
    return latents.evaluate(
        model, held, generated, distractors_md=real[:4], unconditional_nd=generated[:5], sampler=None,
        config=LatentsConfig(calibration_sentences=0), bootstrap=FEW, seed=0,
    )  # fmt: skip


def cosines_again(real: Any, encoded: Any) -> Any:
    model = SimpleNamespace(encode=lambda texts: encoded)
    return inversion.reembedding_cosine(model, list("abcdefghi"), real)


MEASURES: dict[str, Callable[[Any, Any], Any]] = {
    "cosine": retrieval.cosine,
    "squared error": retrieval.squared_error,
    "ranks": lambda a, b: retrieval.retrieval(a, b, distractors_Md=a[::-1] * 3).rank_N,
    "neighborhoods": lambda a, b: retrieval.neighbourhoods(a, b).rank_correlation_N,
    "distance": retrieval.frechet_distance,
    "spectrum": lambda a, _: retrieval.spectrum(a),
    "calibration": lambda a, _: dataclasses.astuple(retrieval.calibration(SAMPLES.astype(a.dtype), a)),
    "similarities": lambda a, b: list(sts.similarities(a, b).values()),
    "bag of words": lambda a, _: baselines.BagOfWords.fit(a, TOKENS).weight_dV,
    "suite of latents": suite_of_latents,
    "cosine of texts that are encoded again": cosines_again,
}


@pytest.mark.parametrize("name", MEASURES)
def test_single_precision_is_a_matter_of_the_inputs_alone(name: str) -> None:
    """The same numbers in either precision have the same results, to the last bit."""
    single, double = (MEASURES[name](A.astype(kind), B.astype(kind)) for kind in (np.float32, np.float64))
    np.testing.assert_equal(single, double)


def test_suites_of_one_direction_have_ties_in_single_precision_too() -> None:
    """All candidates lie in the direction of the first target: its rank is in the middle of them."""
    one = np.array([[0.1, 0.7, 0.3]], np.float32)
    pool = one * np.float32([[2.0], [3.5], [0.3], [11.0]])
    assert retrieval.retrieval(one, one, distractors_Md=pool).rank_N.tolist() == [3.0]


# -- values that are not finite ----------------------------------------------------------------------------------------


def with_value(value: float, *, rows: int = 5) -> Any:
    made = np.arange(1.0, rows + 1)
    made[3] = value
    return made


def pair(value: float) -> tuple[Any, Any]:
    made = np.random.default_rng(0).normal(size=(5, 3))
    other = made.copy()
    other[3, 1] = value
    return made, other


REFUSED: dict[str, Callable[[float], Any]] = {
    "mean": lambda value: bootstrap.mean_interval(with_value(value), replicates=20),
    "proportion": lambda value: bootstrap.proportion_interval(with_value(value) / 9, replicates=20),
    "numerator": lambda value: bootstrap.ratio_interval(with_value(value), np.ones(5), replicates=20),
    "denominator": lambda value: bootstrap.ratio_interval(np.ones(5), with_value(value), replicates=20),
    "replicates": lambda value: bootstrap.interval(1.0, with_value(value)),
    "value": lambda value: bootstrap.interval(value, np.ones(5)),
    "costs": lambda value: likelihood.per_token(with_value(value), np.ones(5)),
    "cosines": lambda value: inv.score_rows(
        list("abcde"), list("abcde"), reference_ids=[[1]] * 5, hypothesis_ids=[[1]] * 5, cosine=with_value(value)
    ),
    "generated latents": lambda value: retrieval.cosine(*pair(value)[::-1]),
    "real latents": lambda value: retrieval.cosine(*pair(value)),
    "candidates": lambda value: retrieval.retrieval(*pair(value)),
    "first side": lambda value: sts.similarities(*pair(value)[::-1]),
    "second side": lambda value: sts.similarities(*pair(value)),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", REFUSED)
def test_one_value_that_is_not_finite_is_refused(name: str, value: float) -> None:
    with pytest.raises(EvaluationError, match=r"(not|expected|Expected) finite"):
        REFUSED[name](value)
    if name != "value":
        REFUSED[name](0.25)
