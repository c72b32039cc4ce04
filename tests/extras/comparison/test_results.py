"""Results of a comparison: numbers of the runs, differences against a computation by hand, failures, and the page."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core import WorkerFailed, parse
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.compare import Result, keep
from mm_ldlm.extras.comparison.config import ComparisonConfig
from mm_ldlm.extras.comparison.page import report
from mm_ldlm.extras.comparison.pipeline import collect_results, judge_members, run_members
from mm_ldlm.extras.comparison.plan import PATHS, Session
from mm_ldlm.extras.comparison.results import collect
from mm_ldlm.extras.comparison.sessions import Outcome, with_best_rates

COUNT = 60
TOKENS = np.random.default_rng(0).integers(3, 12, size=COUNT)
REPORTS = Path("/reports")


def costs(nats: float, noise: int = 0) -> pd.DataFrame:
    """Sentences that cost `nats` per token, with noise of its own seed."""
    nll = TOKENS * nats + np.random.default_rng(noise).normal(scale=0.2, size=COUNT)
    return pd.DataFrame({"id": [f"i{i}" for i in range(COUNT)], "tokens": TOKENS, "nll": nll})


def ended(
    root: Path,
    member: str,
    seed: int = 0,
    rows: pd.DataFrame | None = None,
    metrics: Mapping[str, float] | None = None,
    rate: float | None = None,
    validation: Any = None,
) -> tuple[Session, Outcome]:
    """A session below `root` and its outcome: with `rows` its run scored these sentences, without them it failed."""
    folder = root / member / ("" if rate is None else f"lr-{rate}") / f"seed-{seed}"
    kinds = {"model": {"kind": "dit"}, "objective": {"kind": "text_diffusion"}}
    kinds["training"] = {"optimizer": {"lr": rate}}
    paths = {name: str(folder / name) for name in PATHS}
    session = Session(member, seed, f"{member}+test", {}, "f", kinds, str(folder), paths, {}, rate)
    log = str(folder / "log.txt")
    if rows is None:
        return session, Outcome(member, seed, "failed", "Error: <why>\n(exit code 1)", 12.5, log)
    cost = float(rows["nll"].sum() / rows["tokens"].sum())
    numbers = {"nll.exact": 1.0, "nll.per_token": cost, "nll.per_token.low": cost - 0.1,
               "nll.per_token.high": cost + 0.1, "unconditional.entropy_sample": 2.0 + seed} | {**(metrics or {})}  # fmt: skip
    run = folder / "runs" / "run-a"
    keep(Result("run-a", numbers, {"likelihood": rows}), run)
    (folder / "run").write_text(json.dumps({"name": "run-a", "step": 20}))
    lines: list[dict[str, Any]] = [{"event": "trains", "step": 0, "parameters": 1234}]
    lines += [
        {"step": step, "tokens": 100 * step, "seconds": 2.0 * step, "text_nll": 3.0 / step, "loss": "nan"}
        for step in (10, 20)
    ]
    losses = [] if validation is None else [(5, 1.0), (20, validation)]
    name = "loss" if member == "c" else "nll"  # of a run that gives no likelihood
    lines += [{"step": step, "validation/loss": -step, f"validation/{name}": loss} for step, loss in losses]
    (run / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return session, Outcome(member, seed, "finished", "", 12.5, log)


def results_of(*given: tuple[Session, Outcome], replicates: int = 400, **parameters: Any) -> dict[str, Any]:
    sessions, outcomes = zip(*given, strict=True)
    names = list(dict.fromkeys(session.member for session in sessions))
    members = [{"name": name, "seeds": [s.seed for s in sessions if s.member == name]} for name in names]
    config = parse(ComparisonConfig, {"members": members, **parameters}, at="comparison")
    return collect(sessions, outcomes, config=config, bootstrap=Bootstrap(replicates), reports=REPORTS)


def cost_of(rows: Sequence[pd.DataFrame]) -> float:
    return float(np.mean([one["nll"].sum() / one["tokens"].sum() for one in rows]))


def test_a_member_keeps_the_learning_rate_with_the_lowest_validation_nll_of_its_first_seed(tmp_path: Path) -> None:
    losses = {"a": (3.0, 2.0, 2.5), "b": ("nan", "failed", 4.0), "c": ("failed", 1.0, "nan")}
    made = [
        ended(tmp_path, member, seed, None if loss == "failed" else costs(2.0), rate=rate, validation=loss)
        for member, found in losses.items() for rate, loss in zip((1e-3, 2e-3, 4e-3), found, strict=True)
        for seed in (3, 1)
    ]  # fmt: skip
    outcome_of, run = dict((session.label, outcome) for session, outcome in made), list[str]()

    def runs(sessions: Sequence[Session]) -> list[Outcome]:
        run.extend(session.label for session in sessions)
        return [outcome_of[session.label] for session in sessions]

    kept = with_best_rates([session for session, _ in made], runs)
    best = {"a": 2e-3, "b": 4e-3, "c": 2e-3}
    assert [(each.member, each.seed, each.learning_rate) for each in kept] == [
        (member, seed, rate) for member, rate in best.items() for seed in (3, 1)
    ]
    assert sorted(run) == sorted(session.label for session, _ in made if session.seed == 3)


# -- rows of the table -------------------------------------------------------------------------------------------------


def test_a_row_shows_what_its_session_used_and_scored(tmp_path: Path) -> None:
    one, two = costs(2.0), costs(2.3, 1)
    found = results_of(
        ended(tmp_path, "first", rows=one),
        ended(tmp_path, "second", rows=two, metrics={"nll.exact": 0.0}),
        budget={"tokens": 9},
    )
    first, second = found["rows"]
    facts = {"parameters": 1234, "steps": 20, "tokens": 2000, "training_seconds": 40, "tokens_per_second": 50}
    kinds = {"environment": "first+test", "model": "dit", "objective": "text_diffusion", "status": "finished"}
    scores = {"likelihood": "exact", "entropy": 2.0, "session_seconds": 12.5, "seed": "0"}
    assert first.items() >= (facts | kinds | scores).items()
    assert (second["member"], second["likelihood"]) == ("second", "NELBO")
    assert first["nats_per_token"] == pytest.approx(cost_of([one]))
    assert (first["nats_per_token_low"], first["nats_per_token_high"]) == pytest.approx(
        (cost_of([one]) - 0.1, cost_of([one]) + 0.1)
    )
    assert (REPORTS / first["report"]).resolve() == tmp_path / "first/seed-0/report"
    assert (found["budget"], found["baseline"], found["seeds"]) == ("9 tokens seen", "first", [0])
    assert found["curves"][0] == {
        "run": "first, seed 0", "member": "first", "curves": {"text_nll": [(1000, 0.3), (2000, 0.15)]}
    }  # fmt: skip


def test_the_difference_to_the_baseline_is_paired_by_sentence(tmp_path: Path) -> None:
    one, two = costs(2.0), costs(2.3, 1)
    runs = ended(tmp_path, "first", rows=one), ended(tmp_path, "second", rows=two.sample(frac=1, random_state=0))
    found = results_of(*runs, replicates=4000)
    drawn = np.random.default_rng(9).integers(0, COUNT, size=(4000, COUNT))
    ends = np.quantile((two["nll"] - one["nll"]).to_numpy()[drawn].sum(1) / TOKENS[drawn].sum(1), [0.025, 0.975])
    first, second = found["rows"]
    assert second["difference"] == pytest.approx(cost_of([two]) - cost_of([one]))
    assert (second["difference_low"], second["difference_high"]) == pytest.approx(tuple(ends), abs=0.004)
    assert second["difference_unit"] == "nats per token"
    assert "difference" not in first, "the baseline differs from nobody"
    named = results_of(*runs, baseline="second", replicates=4000)
    assert set(named["paired"]) == {"first"}
    assert named["rows"][0]["difference"] == pytest.approx(-second["difference"])


def test_pitfall_40_intervals_cover_seeds_and_sentences(tmp_path: Path) -> None:
    """The cost of a seed moves by 0.3 nats; over sentences alone the interval would be a tenth of that."""
    nats = {"first": (2.0, 2.3, 2.6), "second": (2.1, 2.5, 2.6, 9.0)}
    rows = {name: [costs(value, 10 * i + len(name)) for i, value in enumerate(some)] for name, some in nats.items()}
    found = results_of(*(ended(tmp_path, name, seed, one) for name in rows for seed, one in enumerate(rows[name])))
    assert [row["seed"] for row in found["rows"]] == ["0", "1", "2", "all", "0", "1", "2", "3", "all"]
    first, second = (row for row in found["rows"] if row["seed"] == "all")
    assert first["nats_per_token"] == pytest.approx(cost_of(rows["first"]))
    assert first["nats_per_token_high"] - first["nats_per_token_low"] > 0.3
    assert first.items() >= {"entropy": 3.0, "parameters": 1234.0, "likelihood": "exact"}.items()
    assert found["paired"]["second"]["seeds"] == [0, 1, 2], "those that both have"
    assert second["difference"] == pytest.approx(cost_of(rows["second"][:3]) - cost_of(rows["first"]))
    assert all("difference" not in row for row in found["rows"] if row["seed"] != "all")


def test_more_members_and_fewer_seeds_prove_less(tmp_path: Path) -> None:
    runs = {name: [ended(tmp_path, name, seed, costs(2.0 + 0.05 * number + 0.01 * seed * (-1) ** number, 10 * number + seed))
                   for seed in (0, 1, 2)] for number, name in enumerate(("first", "b", "c", "d"))}  # fmt: skip

    def judged(members: str, seeds: int = 3) -> dict[str, Any]:
        found = results_of(*(run for name in members.split() for run in runs[name][:seeds]))["paired"]
        return {
            name: each["differences"]["likelihood"]["differences"]["nats_per_token"] for name, each in found.items()
        }

    alone = {name: judged(f"first {name}")[name]["p"] for name in "bcd"}
    assert judged("first b", seeds=2)["b"]["p"] is not None
    first, *others = sorted(alone, key=alone.__getitem__)
    together = judged("first b c d")
    assert together[first]["p"] == pytest.approx(min(1, 3 * alone[first]))
    assert all(alone[name] <= together[name]["p"] <= 3 * alone[name] for name in others)
    assert {(each["p"], each["verdict"]) for each in judged("first b c d", seeds=1).values()} == {(None, "one seed")}


def test_means_are_of_the_numbers_that_all_seeds_have_and_of_no_ends_of_intervals(tmp_path: Path) -> None:
    more = {"perplexity": 10.0, "perplexity.low": 9.0, "l2t.bleu": 5.0}
    runs = [ended(tmp_path, "first", seed, costs(2.0, seed), more if seed else {"perplexity": 20.0}) for seed in (0, 1)]
    (tmp_path / "first/seed-0/runs/run-a/evaluation/likelihood_rows.parquet").unlink()
    mean = results_of(*runs)["rows"][-1]
    assert mean["perplexity"] == 15.0
    assert not {"bleu", "perplexity_low", "nats_per_token_low"} & {*mean}, "nor an interval without all sentences"


# -- what is left out --------------------------------------------------------------------------------------------------


def test_failed_sessions_are_reported_and_left_out_of_the_differences(tmp_path: Path) -> None:
    runs = [
        ended(tmp_path, name, seed, costs(nats, seed))
        for name, nats in (("first", 2.0), ("second", 2.3))
        for seed in (0, 1)
    ]
    failed = ended(tmp_path / "f", "first", 0), ended(tmp_path / "f", "second", 1)
    found = results_of(failed[0], runs[1], runs[2], failed[1])
    assert "no seed is finished by both" in found["paired"]["second"]["left_out"]
    assert [(each["member"], each["seed"], each["reason"]) for each in found["failed"]] == [
        ("first", 0, "Error: <why>\n(exit code 1)"), ("second", 1, "Error: <why>\n(exit code 1)")
    ]  # fmt: skip
    assert [row["status"] for row in found["rows"]] == ["failed", *["finished"] * 3, "failed", "finished"]
    assert (REPORTS / found["failed"][0]["log"]).resolve() == tmp_path / "f/first/seed-0/log.txt"
    found = results_of(failed[0], runs[1], runs[2], runs[3])
    assert found["paired"]["second"]["seeds"] == [1]
    assert found["rows"][-1]["difference"] == pytest.approx(0.3), "of seed 1, which has the same noise"


def test_members_without_shared_sentences_or_scores_have_no_difference(tmp_path: Path) -> None:
    other, none = costs(2.3).assign(id=lambda rows: "other " + rows["id"]), ended(tmp_path, "none", rows=costs(2.0))
    (tmp_path / "none/seed-0/runs/run-a/evaluation/likelihood_rows.parquet").unlink()
    found = results_of(ended(tmp_path, "first", rows=costs(2.0)), ended(tmp_path, "other", rows=other), none)
    assert "share" in found["paired"]["other"]["left_out"]
    assert "no scores of the same kind" in found["paired"]["none"]["left_out"]
    assert len(found["runs"]) == 3


def test_the_members_run_as_the_parameters_say_below_the_run_of_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session, outcome), seen = ended(tmp_path, "a", rows=costs(2.0)), dict[str, Any]()
    monkeypatch.setattr(
        "mm_ldlm.extras.comparison.sessions.run_sessions", lambda _, **how: seen.update(how) or [outcome]
    )
    plan = {"project": "/p", "conf_source": "/c", "reports": "/r", "sessions": [asdict(session)]}
    compared = parse(ComparisonConfig, {"members": [{"name": "a"}], "jobs": 3}, at="comparison")
    outcomes = run_members(plan, tmp_path, compared, {"tracking_uri": "u", "run_id": "0123"})
    assert seen == {"jobs": 3, "parent_run": "0123", "project": Path("/p"), "conf_source": "/c"}
    evaluation: Any = SimpleNamespace(bootstrap=SimpleNamespace(seeded={5: Bootstrap(20)}.__getitem__))
    assert [row["member"] for row in collect_results(plan, outcomes, compared, evaluation, 5)[0]["rows"]] == ["a"]


def test_a_comparison_fails_only_where_all_members_failed() -> None:
    failed, finished = ({"member": "a", "seed": 0, "status": s, "reason": "why"} for s in ("failed", "finished"))
    judge_members([failed, finished], "")
    with pytest.raises(WorkerFailed, match=r"found 2 that failed:\na, seed 0: why"):
        judge_members([failed, failed], "")


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_shows_runs_failures_differences_and_curves(tmp_path: Path) -> None:
    runs = [ended(tmp_path, name, rows=costs(nats, 1)) for name, nats in (("first", 2.0), ("second", 2.3))]
    found = results_of(*runs, ended(tmp_path, "broken"), budget={"seconds": 90.0})
    text, figures = report(json.loads(json.dumps(found)), title="T")
    page = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    for text in (
        "Comparison of 3 models", "only a trial", "90 seconds of training", "2 of 3 runs", "The baseline is first", "1,234", "Failed runs",
        "Error: &lt;why&gt;", "second − first", "Likelihood, paired on 60 sentences", "no seed is finished by both",
        "Learning curves", f"{100 * found['level']:g} % t interval",
    ):  # fmt: skip
        assert text in page, text
    difference = next(row for row in found["rows"] if row["member"] == "second")["difference"]
    assert f"{difference:.3f}" in page
    assert figures.keys() == {"plot_members_scores", "plot_members_curves", "plot_members_differences"}
    assert list(figures["plot_members_differences"].data[0]["x"]) == [difference]
    assert list(figures["plot_members_curves"].data[0]["y"]) == [0.3, 0.15]
    few = [ended(tmp_path / "few", name, rows=costs(2.0, 1).head(20)) for name in ("first", "second")]
    assert "plot_members_differences" not in report(results_of(*few), title="T")[1], "too few sentences"
    failed, none = report(results_of(*(ended(tmp_path / "failed", name) for name in ("a", "b"))), title="T")
    assert (failed.count("Error: &lt;why&gt;"), none) == (2, {})
