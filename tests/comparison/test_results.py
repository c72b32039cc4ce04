"""The table of a comparison: numbers of the runs, paired differences against a computation by hand, failures."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.evaluation import run_result
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.evaluation.report import comparison_page
from mm_ldlm.extras.comparison.config import ComparisonConfig
from mm_ldlm.extras.comparison.members import Session
from mm_ldlm.extras.comparison.results import collect, table
from mm_ldlm.extras.comparison.sessions import Outcome

FEW = BootstrapConfig(replicates=400)
COUNT = 60
BESIDE = Path("/reports")
TOKENS = np.random.default_rng(0).integers(3, 12, size=COUNT)


def costs(nats: float, *, noise: int) -> pd.DataFrame:
    """Sentences that cost `nats` per token, with noise of its own seed."""
    nll = TOKENS * nats + np.random.default_rng(noise).normal(scale=0.2, size=COUNT)
    return pd.DataFrame({"id": [f"i{i}" for i in range(COUNT)], "tokens": TOKENS, "nll": nll})


def a_session(root: Path, member: str, seed: int, rows: pd.DataFrame | None, *, exact: bool = True) -> Session:
    """A session below `root`; with `rows` it wrote a run that scored these sentences."""
    folder = root / member / f"seed-{seed}"
    names = {
        "run": "run.json",
        "runs": "runs",
        "dataset": "dataset",
        "metrics": "metrics.json",
        "report": "report.html",
    }
    paths = {name: str(folder / file) for name, file in names.items()}
    if rows is not None:
        run = folder / "runs" / "run-a"
        run.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"name": "run-a", "step": 20}))
        cost = float(rows["nll"].sum() / rows["tokens"].sum())
        metrics = {
            "nll.exact": float(exact), "nll.per_token": cost, "nll.per_token.low": cost - 0.1,
            "nll.per_token.high": cost + 0.1, "unconditional.entropy_sample": 2.0 + seed,
        }  # fmt: skip
        run_result.keep(run_result.Result("run-a", metrics, None, rows), run)
        lines: list[dict[str, Any]] = [{"event": "trains", "step": 0, "parameters": 1234}]
        lines += [
            {"step": s, "tokens": 100 * s, "seconds": 2.0 * s, "text_nll": 3.0 / s, "loss": "nan"} for s in (10, 20)
        ]
        (run / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    parameters = {"model": {"kind": "causal"}, "objective": {"kind": "autoregressive"}}
    return Session(member, seed, f"{member}+test", {}, "f", parameters, str(folder), paths)


def outcome(session: Session, status: str = "finished") -> Outcome:
    reason = "" if status == "finished" else "Error: <why>\n(exit code 1)"
    return Outcome(session.member, session.seed, status, reason, 12.5, "log.txt")


def results_of(sessions: list[Session], *, failed: tuple[str, ...] = (), **given: Any) -> dict[str, Any]:
    seeds: dict[str, list[int]] = {}
    for session in sessions:
        seeds.setdefault(session.member, []).append(session.seed)
    members = [{"name": name, "seeds": found} for name, found in seeds.items()]
    config = parse(ComparisonConfig, {"members": members, **given}, at="comparison")
    outcomes = [outcome(each, "failed" if {each.member, each.label} & {*failed} else "finished") for each in sessions]
    return collect(sessions, outcomes, config=config, bootstrap=FEW, seed=0, beside=BESIDE)


def test_one_row_for_each_session_with_what_it_used_and_scored(tmp_path: Path) -> None:
    sessions = [a_session(tmp_path, "ar", 0, costs(2.0, noise=1)), a_session(tmp_path, "mdlm", 0, costs(2.3, noise=2))]
    results = results_of(sessions, budget={"tokens": 2000})
    found = table(results)
    assert list(found["member"]) == ["ar", "mdlm"]
    row = found.iloc[0]
    assert (row["parameters"], row["steps"], row["tokens"], row["training_seconds"]) == (1234, 20, 2000, 40)
    assert row["tokens_per_second"] == 50
    assert (row["environment"], row["likelihood"], row["entropy"]) == ("ar+test", "exact", 2.0)
    assert row["nats_per_token_low"] < row["nats_per_token"] < row["nats_per_token_high"]
    assert results["budget"] == "2,000 tokens seen"
    assert (BESIDE / row["report"]).resolve() == Path(sessions[0].paths["report"])
    assert results["curves"][0]["curves"] == {"text_nll": [(1000.0, 0.3), (2000.0, 0.15)]}, "a loss of nan is no point"


def test_the_difference_to_the_baseline_is_paired_by_sentence(tmp_path: Path) -> None:
    one, two = costs(2.0, noise=1), costs(2.3, noise=2)
    sessions = [a_session(tmp_path, "ar", 0, one), a_session(tmp_path, "mdlm", 0, two.sample(frac=1), exact=False)]
    results = results_of(sessions)
    by_hand = two["nll"].sum() / TOKENS.sum() - one["nll"].sum() / TOKENS.sum()
    drawn = np.random.default_rng(9).integers(0, COUNT, size=(4000, COUNT))
    difference = (two["nll"] - one["nll"]).to_numpy()
    low, high = np.quantile(difference[drawn].sum(1) / TOKENS[drawn].sum(1), [0.025, 0.975])
    row = table(results).iloc[1]
    assert row["difference"] == pytest.approx(by_hand)
    assert row["difference_low"] == pytest.approx(low, abs=0.004)
    assert row["difference_high"] == pytest.approx(high, abs=0.004)
    assert row["difference_unit"] == "nats per token"
    assert pd.isna(table(results).iloc[0]["difference"]), "the baseline differs from nobody"
    note = results["paired"]["mdlm"]["differences"]["likelihood"]["note"]
    assert "upper bound" in note


def test_the_baseline_is_the_first_member_or_the_one_that_is_named(tmp_path: Path) -> None:
    sessions = [a_session(tmp_path, "ar", 0, costs(2.0, noise=1)), a_session(tmp_path, "mdlm", 0, costs(2.3, noise=2))]
    first, named = results_of(sessions), results_of(sessions, baseline="mdlm")
    assert set(first["paired"]) == {"mdlm"}
    assert set(named["paired"]) == {"ar"}
    assert table(named).iloc[0]["difference"] == pytest.approx(-table(first).iloc[1]["difference"])


def test_several_seeds_have_a_row_of_means_and_wider_intervals(tmp_path: Path) -> None:
    """The cost of a seed moves by 0.3 nats; over sentences alone the interval would be a tenth of that."""
    nats = {"ar": (2.0, 2.3, 2.6), "mdlm": (2.1, 2.5, 2.6)}
    rows = {
        name: [costs(value, noise=10 * i + len(name)) for i, value in enumerate(some)] for name, some in nats.items()
    }
    sessions = [a_session(tmp_path, name, seed, rows[name][seed]) for name in rows for seed in range(3)]
    results = results_of(sessions)
    found = table(results)
    assert list(found["seed"]) == ["0", "1", "2", "all"] * 2
    means = found[found["seed"] == "all"].set_index("member")
    per_seed = {name: [one["nll"].sum() / TOKENS.sum() for one in some] for name, some in rows.items()}
    assert means.loc["ar", "nats_per_token"] == pytest.approx(np.mean(per_seed["ar"]))
    assert means.loc["ar", "entropy"] == 3.0
    assert means.loc["ar", "nats_per_token_high"] - means.loc["ar", "nats_per_token_low"] > 0.3
    by_hand = np.mean(per_seed["mdlm"]) - np.mean(per_seed["ar"])
    assert means.loc["mdlm", "difference"] == pytest.approx(by_hand)
    assert results["paired"]["mdlm"]["seeds"] == [0, 1, 2]
    assert found[found["seed"] != "all"]["difference"].isna().all()


def test_two_seeds_have_means_of_everything_but_the_ends_of_intervals(tmp_path: Path) -> None:
    sessions = [a_session(tmp_path, "ar", seed, costs(2.0, noise=seed)) for seed in (3, 5)]
    for session, steps in zip(sessions, (20, 40), strict=True):
        Path(session.paths["run"]).write_text(json.dumps({"name": "run-a", "step": steps}))
        folder = Path(session.paths["runs"]) / "run-a" / "evaluation"
        (folder / "likelihood_rows.parquet").unlink()
        found = json.loads((folder / "metrics.json").read_text()) | {
            "perplexity": 10.0 + steps,
            "perplexity.high": 99.0,
        }
        if steps == 20:
            found["unconditional.distinct_2"] = 0.5
        (folder / "metrics.json").write_text(json.dumps(found))
    one, two, mean = results_of(sessions)["rows"]
    assert (one["seed"], two["seed"], mean["seed"]) == ("3", "5", "all")
    assert (one["perplexity_high"], one["distinct_2"]) == (99.0, 0.5)
    numbers = {name: value for name, value in mean.items() if isinstance(value, float)}
    assert numbers == {
        "parameters": 1234, "steps": 30, "tokens": 2000, "training_seconds": 40, "tokens_per_second": 50,
        "nats_per_token": pytest.approx((one["nats_per_token"] + two["nats_per_token"]) / 2), "perplexity": 40,
        "entropy": 6,
    }, "of the numbers that both seeds have"  # fmt: skip


def test_members_with_different_numbers_of_seeds_are_paired_on_those_they_share(tmp_path: Path) -> None:
    sessions = [a_session(tmp_path, "ar", 1, costs(2.0, noise=1))]
    sessions += [a_session(tmp_path, "mdlm", seed, costs(2.3 + seed, noise=2 + seed)) for seed in range(3)]
    results = results_of(sessions)
    assert list(table(results)["seed"]) == ["1", "0", "1", "2", "all"]
    assert results["paired"]["mdlm"]["seeds"] == [1]
    assert results["seeds"] == [0, 1, 2]
    assert table(results).iloc[4]["difference"] == pytest.approx(1.3, abs=0.05)


def test_a_failed_member_is_reported_and_the_rest_is_compared(tmp_path: Path) -> None:
    good = [a_session(tmp_path, "ar", 0, costs(2.0, noise=1)), a_session(tmp_path, "mdlm", 0, costs(2.3, noise=2))]
    results = results_of([*good, a_session(tmp_path, "broken", 0, None)], failed=("broken",))
    assert [each["member"] for each in results["failed"]] == ["broken"]
    row = table(results).iloc[2]
    assert (row["status"], row["reason"]) == ("failed", "Error: <why>\n(exit code 1)")
    assert pd.isna(row["nats_per_token"])
    assert "no seed is finished" in results["paired"]["broken"]["left_out"]
    assert "differences" in results["paired"]["mdlm"]


def test_a_seed_that_failed_is_left_out_of_the_differences(tmp_path: Path) -> None:
    sessions = [
        a_session(tmp_path, name, seed, costs(2.0 + seed, noise=3)) for name in ("ar", "mdlm") for seed in (0, 1)
    ]
    results = results_of(sessions, failed=("mdlm, seed 1",))
    assert results["paired"]["mdlm"]["seeds"] == [0]
    found = table(results)
    assert list(found["seed"]) == ["0", "1", "all", "0", "1", "all"]
    assert list(found["status"]) == ["finished"] * 4 + ["failed", "finished"]
    assert found["difference"].notna().tolist() == [False] * 5 + [True]
    assert found.iloc[5]["difference"] == pytest.approx(0.0)


def test_members_without_shared_sentences_are_side_by_side_without_a_difference(tmp_path: Path) -> None:
    other = costs(2.3, noise=2).assign(id=[f"x{i}" for i in range(COUNT)])
    results = results_of([a_session(tmp_path, "ar", 0, costs(2.0, noise=1)), a_session(tmp_path, "else", 0, other)])
    assert results["runs"] == ["ar, seed 0", "else, seed 0"]
    assert "share held-out sentences" in results["paired"]["else"]["left_out"]


def test_a_failed_baseline_leaves_the_differences_out(tmp_path: Path) -> None:
    sessions = [a_session(tmp_path, "broken", 0, None), a_session(tmp_path, "ar", 0, costs(2.0, noise=1))]
    results = results_of(sessions, failed=("broken",))
    assert "left_out" in results["paired"]["ar"]
    assert "difference" not in table(results)


# -- every column ------------------------------------------------------------------------------------------------------


def two_members(root: Path, **second: Any) -> list[Session]:
    """Two seeds each of an exact and of a bounded member, which differ in everything that the table shows of them."""
    sessions = [a_session(root, "ar", seed, costs(2.0 + seed, noise=seed)) for seed in (0, 1)]
    bounded = [a_session(root, "mdlm", seed, costs(2.5 + seed, noise=5 + seed), exact=False) for seed in (0, 1)]
    parameters = {"model": {"kind": "dit"}, "objective": {"kind": "text_diffusion"}}
    return sessions + [dataclasses.replace(each, parameters=parameters, **second) for each in bounded]


def test_every_row_shows_its_own_session_and_its_own_member(tmp_path: Path) -> None:
    broken = dataclasses.replace(a_session(tmp_path, "broken", 0, None), environment="e5")
    rows = results_of([*two_members(tmp_path), broken], failed=("broken",))["rows"]
    assert [(row["member"], row["seed"]) for row in rows] == [
        ("ar", "0"), ("ar", "1"), ("ar", "all"), ("mdlm", "0"), ("mdlm", "1"), ("mdlm", "all"), ("broken", "0")
    ]  # fmt: skip
    kinds = {"ar": ("causal", "autoregressive", "exact"), "mdlm": ("dit", "text_diffusion", "NELBO")}
    for row in rows[:-1]:
        assert (row["model"], row["objective"], row["likelihood"]) == kinds[row["member"]]
        assert (row["environment"], row["status"]) == (f"{row['member']}+test", "finished")
    for row in (*rows[:2], *rows[3:5]):
        folder = tmp_path / row["member"] / f"seed-{row['seed']}"
        metrics = json.loads((folder / "runs/run-a/evaluation/metrics.json").read_text())
        for part in ("", "_low", "_high"):
            assert row[f"nats_per_token{part}"] == metrics[f"nll.per_token{part.replace('_', '.')}"]
        assert (row["session_seconds"], row["reason"], row["entropy"]) == (12.5, "", 2.0 + int(row["seed"]))
        assert (BESIDE / row["report"]).resolve() == folder / "report.html"
        assert row["log"] == os.path.relpath("log.txt", BESIDE)
    assert not {"session_seconds", "reason", "log", "report"} & rows[2].keys()
    assert rows[-1] == {
        "member": "broken", "seed": "0", "status": "failed", "environment": "e5", "model": "causal",
        "objective": "autoregressive", "session_seconds": 12.5, "reason": "Error: <why>\n(exit code 1)",
        "log": os.path.relpath("log.txt", BESIDE),
    }  # fmt: skip


def test_the_difference_of_a_member_is_in_its_last_row_with_its_p_and_its_unit(tmp_path: Path) -> None:
    sessions = two_members(tmp_path)
    for session, more in ((sessions[2], 0), (sessions[3], 1)):  # another tokeniser: the unit is the sentence
        place = Path(session.paths["runs"]) / "run-a/evaluation/likelihood_rows.parquet"
        table_ = pd.read_parquet(place)
        table_.assign(tokens=table_["tokens"] + more).to_parquet(place)
    results = results_of(sessions)
    entry = results["paired"]["mdlm"]["differences"]["likelihood"]["differences"]["nats_per_sentence"]
    found = {name: value for name, value in results["rows"][-1].items() if name.startswith("difference")}
    assert found == {
        "difference": entry["difference"]["value"], "difference_low": entry["difference"]["low"],
        "difference_high": entry["difference"]["high"], "difference_p": entry["p"],
        "difference_verdict": entry["verdict"], "difference_unit": "nats per sentence",
    }  # fmt: skip
    assert all("difference" not in row for row in results["rows"][:-1])


@pytest.mark.parametrize(
    ("change", "same"), [({}, True), ({"level": 0.5}, False), ({"replicates": 40}, False), ({"seed": 1}, False)]
)
def test_the_bootstrap_of_the_parameters_makes_every_interval(change: Any, same: bool, tmp_path: Path) -> None:
    sessions = two_members(tmp_path)
    config = parse(ComparisonConfig, {"members": [{"name": "ar"}, {"name": "mdlm"}], "seeds": [0, 1]}, at="comparison")

    def ends(*, seed: int = 0, **bootstrap: Any) -> dict[str, list[float]]:
        made = BootstrapConfig(**({"replicates": 400, "level": 0.95} | bootstrap))
        found = collect(
            sessions, [outcome(each) for each in sessions], config=config, bootstrap=made, seed=seed, beside=BESIDE
        )
        over_seeds, difference = found["rows"][2], found["rows"][-1]
        return {"mean": [over_seeds["nats_per_token_low"], over_seeds["nats_per_token_high"]],
                "difference": [difference["difference_low"], difference["difference_high"]]}  # fmt: skip

    before, after = ends(), ends(**change)
    for name in before:
        assert (before[name] == after[name]) is same, name
        if "level" in change:
            assert np.ptp(after[name]) < np.ptp(before[name]), name


def test_without_the_sentences_of_a_seed_the_mean_cost_has_no_interval(tmp_path: Path) -> None:
    sessions = two_members(tmp_path)
    (Path(sessions[1].paths["runs"]) / "run-a/evaluation/likelihood_rows.parquet").unlink()
    row = results_of(sessions)["rows"][2]
    assert row["nats_per_token"] == pytest.approx(2.5, abs=0.1)
    assert not {"nats_per_token_low", "nats_per_token_high"} & row.keys()


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_shows_runs_failures_differences_and_curves(tmp_path: Path) -> None:
    good = [a_session(tmp_path, name, seed, costs(2.0, noise=seed)) for name in ("ar", "mdlm") for seed in (0, 1)]
    results = json.loads(json.dumps(results_of([*good, a_session(tmp_path, "broken", 0, None)], failed=("broken",))))
    figures = comparison_page.figures(results, smoothing=0.5)
    named = {f"plot_members_{name}": figure for name, figure in figures.items()}
    page = comparison_page.render(results, named, title="T", made_at="now")
    assert "4 of 5 runs are finished, with 1 to 2 seeds for each model" in page
    for text in ("Error: &lt;why&gt;", "mdlm − ar", "Paired over the seeds 0, 1", "1,234", "2,000"):
        assert text in page, text
    assert all(f'data-plot="plot_members_{name}"' in page for name in ("scores", "curves", "differences"))
    assert len(figures["curves"].data) == 4
    assert list(figures["curves"].data[0].x) == [1000.0, 2000.0]
    colours = [trace.line.color for trace in figures["curves"].data]
    assert colours[0] == colours[1] != colours[2]
    (points,) = figures["differences"].data
    assert list(points.y) == ["mdlm"]


def test_a_page_where_all_failed_has_the_reasons(tmp_path: Path) -> None:
    results = results_of([a_session(tmp_path, "broken", 0, None)], failed=("broken",))
    figures = comparison_page.figures(results, smoothing=0.5)
    page = comparison_page.render(results, {f"plot_members_{k}": v for k, v in figures.items()}, title="T")
    assert "0 of 1 runs are finished" in page
    assert "Error: &lt;why&gt;" in page
    assert "data-plot" not in page.split("<script>")[0]
