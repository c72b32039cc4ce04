"""What sessions leave and how they are started: facts of the log, tables, relative paths, processes, records."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from mm_ldlm.app.config_loader import merge
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.evaluation import run_result
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.evaluation.inversion import score_rows
from mm_ldlm.extras.comparison import members, results, sessions
from mm_ldlm.extras.comparison.config import ComparisonConfig, MemberConfig
from mm_ldlm.extras.comparison.members import Session
from mm_ldlm.extras.comparison.sessions import Outcome

FEW = BootstrapConfig(replicates=20)


def a_session(root: Path, member: str = "m", *, seed: int = 0, **changes: Any) -> Session:
    folder = root / member / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: str(folder / name) for name in ("run", "runs", "dataset", "metrics", "report")}
    made = Session(member, seed, "env", {"a": 1}, "f", {"model": {"kind": "x"}, "objective": {"kind": "y"}},
                   str(folder), paths)  # fmt: skip
    return dataclasses.replace(made, **changes)


def finished(session: Session, lines: list[dict[str, Any]], *, step: Any = 20, exact: float = 1.0) -> Session:
    """Write a run with this log, two tables and metrics for a session."""
    run = Path(session.paths["runs"]) / "run-a"
    run.mkdir(parents=True)
    Path(session.paths["run"]).write_text(json.dumps({"name": "run-a"} | ({} if step is None else {"step": step})))
    texts = [f"a b c{i}" for i in range(31)]
    outputs = [text if i < 31 * exact else "a b d" for i, text in enumerate(texts)]
    ids = [[i, 3] for i in range(31)]
    rows = score_rows(texts, outputs, reference_ids=ids, hypothesis_ids=[
        own if text == output else [0] for own, text, output in zip(ids, texts, outputs, strict=True)
    ])  # fmt: skip
    costs = pd.DataFrame({"id": rows["id"], "tokens": 3, "nll": [float(i) for i in range(31)]})
    run_result.keep(run_result.Result("other", {"perplexity": 2.0 + exact}, rows, costs), run)
    (run / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return session


LOG: list[dict[str, Any]] = [
    {"event": "trains", "step": 0, "parameters": 77},
    {"step": 1, "tokens": 100, "seconds": 4.0, "loss": 3.0, "text_nll": "nan"},
    {"step": 2, "loss": 9.0},
    {"step": 3, "tokens": 300, "seconds": 8.0, "loss": "inf", "text_nll": 1.5, "lr": 0.1},
    {"step": 4, "validation/loss": 1.0, "seconds": 99.0},
]


def test_a_finished_session_has_the_facts_of_its_log_and_both_tables_of_its_run(tmp_path: Path) -> None:
    found = results.open_finished(finished(a_session(tmp_path, seed=4), LOG))
    assert found.facts == {
        "parameters": 77, "steps": 20, "tokens": 300.0, "training_seconds": 8.0, "tokens_per_second": 37.5
    }  # fmt: skip
    assert found.curves == {"text_nll": [(300.0, 1.5)], "loss": [(100.0, 3.0)]}
    assert (found.result.name, found.result.metrics) == ("m, seed 4", {"perplexity": 3.0})
    assert found.result.inversion_rows is not None
    assert found.result.likelihood_rows is not None
    assert (len(found.result.inversion_rows), found.result.likelihood_rows["nll"].sum()) == (31, 31 * 15)


@pytest.mark.parametrize(
    ("last", "facts"),
    [
        ({}, (None, None, None)),
        ({"tokens": 0, "seconds": 0.0}, (0.0, 0.0, None)),
        ({"tokens": 5, "seconds": 0.0}, (5.0, 0.0, None)),
        ({"tokens": 0, "seconds": 2.0}, (0.0, 2.0, None)),
        ({"tokens": 5}, (5.0, None, None)),
        ({"tokens": 5, "seconds": 2.0}, (5.0, 2.0, 2.5)),
    ],
)
def test_a_speed_needs_tokens_and_time(last: dict[str, float], facts: Any, tmp_path: Path) -> None:
    found = results.open_finished(finished(a_session(tmp_path), [{"step": 1, **last}], step=None)).facts
    assert (found["tokens"], found["training_seconds"], found["tokens_per_second"]) == facts
    assert (found["parameters"], found["steps"]) == (None, None)


def test_runs_are_compared_on_both_tables_and_paths_are_relative_to_the_page(tmp_path: Path) -> None:
    plan = [finished(a_session(tmp_path, "a"), LOG), finished(a_session(tmp_path, "b"), LOG, exact=0.5),
            a_session(tmp_path, "c", seed=3)]  # fmt: skip
    outcomes = [Outcome(each.member, each.seed, "finished", "", 1.0, f"{each.folder}/log.txt") for each in plan[:2]]
    outcomes.append(Outcome("c", 3, "failed", "why", 2.5, f"{plan[2].folder}/log.txt"))
    given = [{"name": "a"}, {"name": "b"}, {"name": "c", "seeds": [3]}]
    config = parse(ComparisonConfig, {"members": given, "seeds": [0]}, at="comparison")
    found = results.collect(plan, outcomes, config=config, bootstrap=FEW, seed=0, beside=tmp_path / "reports" / "x")
    assert found["failed"] == [{
        "member": "c", "seed": 3, "status": "failed", "reason": "why", "seconds": 2.5, "repeated": False,
        "log": "../../c/seed-3/log.txt",
    }]  # fmt: skip
    differences = found["paired"]["b"]["differences"]
    assert set(differences) == {"inversion", "likelihood"}
    exact = differences["inversion"]["differences"]["exact_match"]
    assert (exact["a"], exact["b"]) == pytest.approx((1.0, 16 / 31))
    assert (found["baseline"], found["seeds"], found["runs"]) == ("a", [0, 3], ["a, seed 0", "b, seed 0"])
    assert [row["log"] for row in found["rows"]] == [f"../../{name}/log.txt" for name in
                                                     ("a/seed-0", "b/seed-0", "c/seed-3")]  # fmt: skip
    assert [row.get("report") for row in found["rows"]] == ["../../a/seed-0/report", "../../b/seed-0/report", None]
    assert [(each["run"], each["member"]) for each in found["curves"]] == [("a, seed 0", "a"), ("b, seed 0", "b")]


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_process_is_started_so_that_it_ends_with_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Started:
        def __init__(self, command: list[str], **how: Any) -> None:
            seen.update(how, command=command)

    monkeypatch.setattr(sessions.subprocess, "Popen", Started)
    monkeypatch.setattr(sessions.time, "monotonic", lambda: 41.0)
    one = a_session(tmp_path, seed=2)
    (Path(one.folder) / "log.txt").write_text("of an earlier session")
    running = sessions._start(one, ("a", "b"), tmp_path / "project")
    assert (running.session, running.started) == (one, 41.0)
    output = seen.pop("stdout")
    assert (Path(output.name), output.mode, output.closed) == (Path(one.folder) / "log.txt", "wb", True)
    assert (Path(one.folder) / "log.txt").read_text() == ""
    assert seen == {
        "command": ["a", "b"], "cwd": tmp_path / "project", "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT,
        "start_new_session": True, "preexec_fn": sessions.die_with_parent,
    }  # fmt: skip
    assert json.loads((Path(one.folder) / "session.json").read_text()) == {
        "status": "running", "member": "m", "seed": 2, "fingerprint": "f"
    }  # fmt: skip


@pytest.mark.parametrize(("code", "level"), [(0, logging.INFO), (2, logging.WARNING), (-9, logging.WARNING)])
def test_the_end_of_a_session_is_logged_and_a_failure_is_a_warning(
    code: int, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sessions.time, "monotonic", lambda: 100.0)
    one = a_session(tmp_path)
    (Path(one.folder) / "log.txt").write_text("Error: the end\n")
    sessions._end(sessions._Running(one, SimpleNamespace(returncode=code), 57.6))  # type: ignore[arg-type]
    ended = {2: "exit code 2", -9: "ended by signal 9"}.get(code)
    words = ("m, seed 0: finished in 42 s" if code == 0 else
             f"m, seed 0: failed after 42 s; the others go on. Error: the end\n({ended})")  # fmt: skip
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, words)]


def test_a_session_that_does_not_end_is_killed_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Deaf:
        def __getattr__(self, name: str) -> Any:
            def call(**how: Any) -> None:
                calls.append((name, how))
                if how:
                    raise subprocess.TimeoutExpired("x", how["timeout"])

            return call

    sessions._stop([sessions._Running(a_session(tmp_path), Deaf(), 0.0)])  # type: ignore[arg-type]
    assert calls == [("terminate", {}), ("wait", {"timeout": 120.0}), ("kill", {}), ("wait", {})]


@pytest.mark.parametrize("record", ["{", "", "text"])
def test_a_record_that_cannot_be_read_is_no_record(record: str, tmp_path: Path) -> None:
    one = a_session(tmp_path)
    (Path(one.folder) / "session.json").write_text(record)
    assert sessions.finished_before(one) is None


def test_the_order_of_the_missing_pipelines_and_the_parent_reach_the_options(tmp_path: Path) -> None:
    one = a_session(tmp_path, params={"a": 1, "tracking": {"run_name": "n", "parent_run": "old"}})
    file = sessions._write_options(one, ("embedding", "training"), parent_run=None, conf_source=None)
    assert (file, json.loads(file.read_text())) == (Path(one.folder) / "run.json", {"run": {
        "env": "env", "pipelines": "embedding,training",
        "params": {"a": 1, "tracking": {"run_name": "n", "parent_run": None}},
    }})  # fmt: skip
    assert one.params["tracking"]["parent_run"] == "old", "the plan stays as it is"


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "fits"), [("a", True), ("A.b_c-1", True), ("1", True), ("-a", False), (".a", False),
                                            ("a b", False), ("", False), ("a\n", False), ("ä", False)])  # fmt: skip
def test_the_name_of_a_member_is_the_name_of_a_folder(name: str, fits: bool) -> None:
    if fits:
        assert MemberConfig(name=name).name == name
        return
    with pytest.raises(ConfigurationError, match="expected letters, digits"):
        MemberConfig(name=name)


def test_the_reference_and_the_seeds_of_a_member() -> None:
    config = parse(ComparisonConfig, {"members": [{"name": "a", "seeds": [4, 2]}, {"name": "b"}], "seeds": [7, 1],
                                      "baseline": "b"}, at="comparison")  # fmt: skip
    assert [config.seeds_of(member) for member in config.members] == [(4, 2), (7, 1)]
    assert (config.reference, dataclasses.replace(config, baseline=None).reference) == ("b", "a")


def test_every_member_with_a_problem_is_named_and_none_hides_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_reads", lambda typed, name: False)

    def load(environment: str, given: Any) -> Any:
        if environment == "bad":
            raise ConfigurationError("why")
        paths = {name: {"filepath": name} for name in (*members.PATHS, "records")} | {"no file": {"type": "x"}}
        return {"parameters": {"model": {}, "objective": {}, **given}, "catalog": paths}

    def planned(*names: str) -> list[Session]:
        every = {
            "twice": MemberConfig(name="twice", params={"model": 5, "model.dim": 6}),
            "taken": MemberConfig(name="taken", params={"results": "x", "training.seed": 3}),
            "refused": MemberConfig(name="refused", env="bad"),
            "good": MemberConfig(name="Good"),
        }
        return members.sessions_of(
            ComparisonConfig(members=tuple(every[name] for name in names), seeds=(1, 2)), current=(), base="base",
            params={}, folder=tmp_path, project=tmp_path / "p", load=load, check=lambda given: given, merge=merge,
        )  # fmt: skip

    for order in itertools.permutations(("twice", "taken", "refused", "good")):
        with pytest.raises(ConfigurationError) as refused:
            planned(*order)
        assert str(refused.value).split("\n") == [{
            "twice": "comparison, member 'twice': expected 'model' once, found 5 and {'dim': 6}. Remove one of them.",
            "taken": "comparison, member 'taken': expected parameters that the comparison does not set itself, found "
                     "results, training.seed. Use comparison.seeds, comparison.budget and the name of the member "
                     "instead.",
            "refused": "comparison, member 'refused' (--env=bad): why",
        }[name] for name in order if name != "good"]  # fmt: skip
    one, two = planned("good")
    assert (one.seed, two.seed, one.label) == (1, 2, "Good, seed 1")
    assert one.folder == str(tmp_path / "own-budget" / "Good" / "seed-1")
    assert one.paths == {name: str(tmp_path / "p" / name) for name in ("run", "runs", "dataset", "metrics", "report")}
    assert one.stores == {"ingestion": [], "embedding": []}


def test_each_seed_is_paired_with_itself(tmp_path: Path) -> None:
    """The cost of a seed is its number, and the member costs a quarter more: the difference of each seed is that."""

    def runs(member: str, more: float, seeds: tuple[int, ...]) -> list[results.Finished]:
        made = []
        for seed in seeds:
            costs = pd.DataFrame({"id": [f"i{i}" for i in range(31)], "tokens": 3, "nll": 3 * (seed + more)})
            result = run_result.Result(member, {}, None, costs)
            made.append(results.Finished(a_session(tmp_path, member, seed=seed), result, {}, {}))
        return made

    found = results._against(runs("base", 0.0, (1, 9, 5)), runs("m", 0.25, (5, 7, 1)), "base", bootstrap=FEW, seed=0)
    entry = found["differences"]["likelihood"]["differences"]["nats_per_token"]
    assert (found["seeds"], entry["a"], entry["b"]) == ([5, 1], 3.0, 3.25)
    assert [entry["difference"][part] for part in ("value", "low", "high")] == pytest.approx([0.25] * 3)
