"""Results of runs: kept, loaded, refused when damaged, and compared on the sentences that they share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.compare import Result, compare, keep, load_result, paired_differences, shared, side_by_side

FEW = Bootstrap(100)
METRICS = {
    "latent.bits_per_sentence": 9.0,
    "nll.per_token": 2.0,
    "nll.per_token.low": 1.9,
    "nll.per_token.high": 2.1,
    "nll.exact": 1.0,
}


def likelihood(count: int, *, cost: float = 2.0, first: int = 0, tokens: Any = 5, seed: int = 0) -> pd.DataFrame:
    nll = tokens * cost + np.random.default_rng(seed).normal(0, 0.1, count)
    return pd.DataFrame({"id": [f"s{first + i}" for i in range(count)], "tokens": tokens, "nll": nll})


def result(name: str = "a", *, metrics: dict[str, Any] | None = None, **how: Any) -> Result:
    return Result(
        name, METRICS if metrics is None else metrics, {"likelihood": likelihood(how.pop("count", 40), **how)}
    )


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_kept_result_is_found_by_every_path_to_it(tmp_path: Path) -> None:
    run = tmp_path / "run-1"
    keep(result(), run)
    kept = run / "evaluation"
    for place in (run, kept, kept / "metrics.json"):
        found = load_result(str(place))
        assert (found.name, found.metrics) == ("run-1", METRICS)
        pd.testing.assert_frame_equal(found.rows["likelihood"], result().rows["likelihood"])
    (kept / "likelihood_rows.parquet").unlink()
    assert load_result(str(run)).rows == {}


def test_an_mlflow_run_has_metrics_only(refuses: Callable[..., Any], tmp_path: Path) -> None:
    known = {"0123456789abcdef": METRICS}
    found = load_result("0123456789abcdef", from_tracking=known.get)
    assert (found.name, found.metrics, found.rows) == ("01234567", METRICS, {})
    for reference in ("feedfeed", str(tmp_path)):
        with refuses(EvaluationError, reference):
            load_result(reference, from_tracking=known.get)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.json", "{"),
        ("metrics.json", "[1]"),
        ("metrics.json", '{"nll.per_token": "low"}'),
        ("likelihood_rows.parquet", "no Parquet"),
    ],
)
def test_a_damaged_result_is_refused(file: str, content: str, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    keep(result(), tmp_path)
    (tmp_path / "evaluation" / file).write_text(content)
    with refuses(EvaluationError, file):
        load_result(str(tmp_path))


@pytest.mark.parametrize("change", ["an id twice", "no id", "no tokens", "words"])
def test_a_table_that_cannot_be_paired_is_refused(change: str, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    rows = likelihood(3)
    changes: dict[str, Callable[[], pd.DataFrame]] = {
        "an id twice": lambda: rows.assign(id=["s0", "s0", "s1"]), "no id": lambda: rows.drop(columns="id"),
        "no tokens": lambda: rows.drop(columns="tokens"), "words": lambda: rows.assign(tokens=["a", "b", "c"]),
    }  # fmt: skip
    keep(Result("a", METRICS, {"likelihood": changes[change]()}), tmp_path)
    with refuses(EvaluationError, "likelihood_rows.parquet"):
        load_result(str(tmp_path))


# -- differences -------------------------------------------------------------------------------------------------------


def test_runs_are_compared_on_the_sentences_that_they_share() -> None:
    ours, theirs = result(cost=2.0, count=60), result(cost=2.5, count=60, first=20, seed=1)
    found = paired_differences([theirs], [ours], FEW)["likelihood"]
    assert found["sentences"] == 40
    difference = found["differences"]["nats_per_token"]
    assert difference["difference"]["value"] == pytest.approx(-0.5, abs=0.02)
    assert difference["verdict"] == "significant"
    common = set(ours.rows["likelihood"]["id"]) & set(theirs.rows["likelihood"]["id"])
    mean = ours.rows["likelihood"].set_index("id").loc[sorted(common), "nll"].mean() / 5
    assert difference["b"] == pytest.approx(mean)
    several = [result(first=first) for first in (0, 2, 5, 7)]
    assert paired_differences(several[:2], several[2:], FEW)["likelihood"]["sentences"] == 40 - 7


def test_order_of_the_rows_changes_nothing() -> None:
    ours, theirs = result(), result(seed=1)
    mixed = Result("b", METRICS, {"likelihood": theirs.rows["likelihood"].sample(frac=1, random_state=0)})
    assert paired_differences([theirs], [ours], FEW) == paired_differences([mixed], [ours], FEW)


def test_runs_that_tokenise_differently_are_compared_by_sentence() -> None:
    found = paired_differences([result(tokens=5)], [result(tokens=10, cost=1.0)], FEW)["likelihood"]["differences"]
    assert list(found) == ["nats_per_sentence"]
    assert found["nats_per_sentence"]["difference"]["value"] == pytest.approx(0, abs=0.1)
    some = result(tokens=np.array([10, *[5] * 39]))
    several = paired_differences([result()] * 2, [result(), some], FEW)["likelihood"]["differences"]
    assert list(several) == ["nats_per_sentence"]


def test_pitfall_46_an_exact_cost_and_an_upper_bound_are_marked() -> None:
    bound = result("b", metrics={**METRICS, "nll.exact": 0.0}, cost=2.5)
    found = compare(result(), [bound], FEW)
    notes = {line["metric"]: [value["note"] for value in line["values"]] for line in found["table"]}
    assert notes["nll.per_token"] == ["exact", "NELBO"]
    difference = json.loads(json.dumps(found, allow_nan=False))["paired"]["b"]["likelihood"]["differences"][
        "nats_per_token"
    ]
    assert difference["difference"]["value"] == pytest.approx(-0.5), "ours minus theirs"
    assert found["paired"]["b"]["likelihood"]["note"].startswith("The cost of the other run is an upper bound (NELBO)")
    assert paired_differences([result()], [result()], FEW)["likelihood"]["note"] == ""


def test_pitfall_46_a_cost_that_leaves_the_length_out_is_compared_with_its_kind_only() -> None:
    given = result("b", metrics={**METRICS, "nll.exact": 0.0, "nll.given_length": 1.0})
    found = compare(result(), [given], FEW)
    assert "length" in found["table"][0]["values"][1]["note"]
    assert not found["paired"]["b"]["likelihood"]["differences"]
    assert found["paired"]["b"]["likelihood"]["note"]
    assert paired_differences([given], [given], FEW)["likelihood"]["differences"]


def test_a_run_without_rows_is_shown_without_differences() -> None:
    found = compare(result(), [Result("tracked", {"l2t.bleu": 10.0, "nll.exact": 0.0})], FEW)
    assert found["paired"] == {}
    values = {line["metric"]: [value["value"] for value in line["values"]] for line in found["table"]}
    assert values == {"l2t.bleu": [None, 10.0], "nll.per_token": [2.0, None]}
    assert [value["note"] for line in found["table"] for value in line["values"] if value["value"] is None] == ["", ""]
    assert compare(result(), [], FEW)["table"] == []


def test_runs_of_one_name_are_told_apart() -> None:
    assert side_by_side([result("a"), result("a"), result("b"), result("a")])["runs"] == ["a", "a (2)", "b", "a (3)"]


def test_runs_without_shared_sentences_are_refused(refuses: Callable[..., Any]) -> None:
    with refuses(EvaluationError, "40"):
        paired_differences([result()], [result(first=39)], FEW)
    assert [list(table["id"]) for table in shared([likelihood(3), likelihood(3, first=1)])] == [["s1", "s2"]] * 2
