"""Members whose names begin alike, whole fingerprints, whole numbers of a log, and the end of several sessions."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.evaluation import run_result
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.extras.comparison import results, sessions
from mm_ldlm.extras.comparison.config import BudgetConfig, ComparisonConfig, MemberConfig
from mm_ldlm.extras.comparison.members import Session, fixed, nested
from mm_ldlm.extras.comparison.sessions import Outcome

FINGERPRINT = "0123456789abcdef" * 4


def a_session(root: Path, member: str, *, seed: int = 0) -> Session:
    folder = root / member / f"seed-{seed}"
    folder.mkdir(parents=True)
    paths = {name: str(folder / name) for name in ("run", "runs", "dataset", "metrics", "report")}
    return Session(member, seed, f"env-{member}", {"a": 1}, FINGERPRINT, {"model": {"kind": f"m-{member}"},
                   "objective": {"kind": f"o-{member}"}}, str(folder), paths)  # fmt: skip


def finished(session: Session, nats: float) -> Session:
    run = Path(session.paths["runs"]) / "run-a"
    run.mkdir(parents=True)
    Path(session.paths["run"]).write_text(json.dumps({"name": "run-a", "step": 7}))
    rows = pd.DataFrame({"id": [f"i{i}" for i in range(31)], "tokens": 2, "nll": 2 * nats + np.arange(31) / 100})
    run_result.keep(run_result.Result("x", {"perplexity": nats}, None, rows), run)
    lines = [{"step": 1, "tokens": 10, "loss": 3, "text_nll": 0}, {"step": 2, "tokens": 20, "loss": 2.5}]
    (run / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return session


def test_members_whose_names_begin_alike_keep_their_own_runs(tmp_path: Path) -> None:
    nats = {"ar": (1.0, 2.0), "ar-small": (5.0, 9.0), "a": (20.0, 40.0)}
    plan = [
        finished(a_session(tmp_path, name, seed=seed), some[seed]) for name, some in nats.items() for seed in (0, 1)
    ]
    config = parse(ComparisonConfig, {"members": [{"name": name} for name in nats], "seeds": [0, 1], "baseline": "a"},
                   at="comparison")  # fmt: skip
    outcomes = [Outcome(each.member, each.seed, "finished", "", 1.0, "l") for each in plan]
    found = results.collect(
        plan, outcomes, config=config, bootstrap=BootstrapConfig(replicates=20), seed=0, beside=tmp_path
    )
    means = {row["member"]: row for row in found["rows"] if row["seed"] == "all"}
    assert {name: row["perplexity"] for name, row in means.items()} == {"ar": 1.5, "ar-small": 7.0, "a": 30.0}
    for name, row in means.items():
        assert row["nats_per_token"] == pytest.approx(np.mean(nats[name]) + 0.075)
        assert (row["environment"], row["model"], row["objective"]) == (f"env-{name}", f"m-{name}", f"o-{name}")
    assert list(found["paired"]) == ["ar", "ar-small"]
    for name, entry in found["paired"].items():
        difference = entry["differences"]["likelihood"]["differences"]["nats_per_token"]
        assert (entry["seeds"], difference["b"] - difference["a"]) == (
            [0, 1], pytest.approx(np.mean(nats[name]) - 30.0)
        )  # fmt: skip
    assert [each["run"] for each in found["curves"]] == [session.label for session in plan]
    assert found["curves"][0]["curves"] == {"text_nll": [(10.0, 0.0)], "loss": [(10.0, 3.0), (20.0, 2.5)]}


def test_means_over_seeds_are_of_the_numbers_and_the_tables_that_all_seeds_have(tmp_path: Path) -> None:
    """A seed that could not score texts keeps an empty table, and one of them has another number."""
    rows = pd.DataFrame({"id": [f"i{i}" for i in range(31)], "tokens": 2, "nll": np.arange(31.0)})
    options: dict[str, Any] = {"bootstrap": BootstrapConfig(replicates=20), "seed": 0}

    def runs(*tables: pd.DataFrame | None) -> list[results.Finished]:
        made = []
        for seed, table in enumerate(tables):
            metrics = {"perplexity": 2.0 + seed, "perplexity.low": 1.0, "l2t.bleu" if seed else "l2t.cosine": 9.0}
            facts: dict[str, float | None] = {"steps": 10.0 * seed, "tokens": None if seed else 5.0, "parameters": 0.0}
            session = Session("m", seed, "e", {}, "f", {}, "folder", {})
            made.append(results.Finished(session, run_result.Result("r", metrics, None, table), facts, {}))
        return made

    means = {"steps": 5.0, "parameters": 0.0, "perplexity": 2.5}
    for tables in ((rows, rows[:0]), (rows[:0], rows), (rows, None), (rows[:0], rows[:0])):
        assert results._over_seeds(runs(*tables), **options) == means
    whole = results._over_seeds(runs(rows, rows + rows.assign(id="")), **options)
    costs = {key: whole.pop(key) for key in ("nats_per_token", "nats_per_token_low", "nats_per_token_high")}
    assert whole == means
    assert costs["nats_per_token"] == pytest.approx(7.5), "15 nats for 2 tokens, and 30 for 4"
    assert costs["nats_per_token_low"] < 7.5 < costs["nats_per_token_high"]


@pytest.mark.parametrize(("value", "finite"), [
    (3, True), (0, True), (-2.5, True), (float("nan"), False), (float("inf"), False), ("nan", False), ("3", False),
    (None, False),
])  # fmt: skip
def test_whole_numbers_of_a_log_are_points_and_texts_are_not(value: Any, finite: bool) -> None:
    assert results._is_finite(value) is finite


def test_the_record_of_a_session_has_its_whole_fingerprint(tmp_path: Path) -> None:
    one = a_session(tmp_path, "m", seed=3)
    sessions._record(one, "failed", reason="why", seconds=1.5)
    record = json.loads((Path(one.folder) / "session.json").read_text())
    assert record == {"status": "failed", "member": "m", "seed": 3, "fingerprint": FINGERPRINT, "reason": "why",
                      "seconds": 1.5}  # fmt: skip


def test_all_sessions_are_asked_to_end_before_any_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    class Process:
        def __init__(self, name: str, *, deaf: bool) -> None:
            self.name, self.deaf = name, deaf

        def terminate(self) -> None:
            calls.append(f"{self.name} terminate")

        def kill(self) -> None:
            calls.append(f"{self.name} kill")

        def wait(self, timeout: float | None = None) -> None:
            calls.append(f"{self.name} wait {timeout}")
            if self.deaf and timeout is not None:
                raise subprocess.TimeoutExpired("x", timeout)

    made: Any = [Process(name, deaf=name == "b") for name in "abc"]
    running = [sessions._Running(a_session(tmp_path, each.name), each, 0.0) for each in made]
    sessions._stop(running)
    assert calls == ["a terminate", "b terminate", "c terminate", "a wait 120.0", "b wait 120.0", "b kill",
                     "b wait None", "c wait 120.0"]  # fmt: skip
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, f"{name}, seed 0: stopped; the same command continues it") for name in "abc"
    ]


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (ComparisonConfig, {"seeds": [3, 1, 3]}, "seeds: expected at least one, each once, found [3, 1, 3]"),
        (MemberConfig, {"name": "a", "seeds": []}, "seeds: expected at least one, each once, found []"),
        (MemberConfig, {"name": "a/b"}, "name: expected letters, digits, '.', '_' and '-' only, found 'a/b'"),
        (MemberConfig, {"name": "a", "params": {"x": {"y.": 1}}}, "params: expected strings as keys, found 'y.'"),
        (BudgetConfig, {}, "give either tokens or seconds, found tokens=None and seconds=None"),
        (BudgetConfig, {"tokens": 5, "seconds": 2.5}, "give either tokens or seconds, found tokens=5 and seconds=2.5"),
        (ComparisonConfig, {"members": [{"name": "x"}, {"name": "b"}, {"name": "B"}]},
         "members: expected different names, found ['x', 'b', 'B']"),
        (ComparisonConfig, {"members": [{"name": "mdlm"}, {"name": "ar"}], "baseline": "mdml"},
         "baseline: expected the name of a member (mdlm, ar), found 'mdml'. Did you mean 'mdlm'?"),
    ],
)  # fmt: skip
def test_a_refused_parameter_is_named_with_what_was_found(kind: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(kind, given, at="comparison")
    assert message in str(refused.value)


def test_what_the_comparison_sets_itself() -> None:
    member = MemberConfig(name="m")
    named = {"run_name": "m, seed 4"}
    assert fixed(member, 4, None) == {"training": {"seed": 4}, "tracking": named}
    assert fixed(member, 4, BudgetConfig(tokens=9)) == {
        "training": {"seed": 4, "max_tokens": 9, "max_steps": None, "epochs": None}, "tracking": named
    }  # fmt: skip
    assert fixed(member, 4, BudgetConfig(seconds=90.0)) == {"training": {"seed": 4, "max_minutes": 1.5},
                                                            "tracking": named}  # fmt: skip
    assert nested({"a.b": {"c.d": 1}, "a.b.c.e": 2}) == {"a": {"b": {"c": {"d": 1, "e": 2}}}}
    with pytest.raises(ConfigurationError, match=r"expected 'a\.b\.c' once, found 1 and 2\. Remove one of them\."):
        nested({"a.b": {"c": 1}, "a": {"b.c": 2}})


# -- log lines and pauses ----------------------------------------------------------------------------------------------


def test_every_start_is_logged_as_a_whole_and_the_loop_pauses_while_something_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = [a_session(tmp_path, name) for name in "ab"]
    missing = {"a": ["ingestion", "embedding"], "b": []}
    pauses: list[float] = []
    turns = {"a": iter([None, None, 0]), "b": iter([0])}

    class Process:
        def __init__(self, name: str) -> None:
            self.name, self.returncode = name, 0

        def poll(self) -> int | None:
            return next(turns[self.name])

    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: 3.0, sleep=pauses.append))
    monkeypatch.setattr(sessions, "finished_before", lambda session: None)
    monkeypatch.setattr(sessions, "_missing", lambda session: missing[session.member])
    monkeypatch.setattr(
        sessions, "_start", lambda session, *_: sessions._Running(session, Process(session.member), 3.0)
    )
    caplog.set_level(logging.INFO)
    sessions.run_sessions(plan, jobs=2, parent_run=None, project=tmp_path, conf_source=None)
    rest = "validation, training, sampling, evaluation, reporting"
    assert caplog.messages == [
        f"a, seed 0 (1 of 2): ingestion, embedding, {rest}; log in {tmp_path / 'a/seed-0/log.txt'}",
        "a, seed 0: finished in 0 s",
        f"b, seed 0 (2 of 2): {rest}; log in {tmp_path / 'b/seed-0/log.txt'}",
        "b, seed 0: finished in 0 s",
    ]
    assert pauses == [0.2, 0.2, 0, 0]
