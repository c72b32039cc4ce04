"""Outcomes follow the plan, whatever ends first; what a process of a session gets; which data a session lacks."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.app.config_loader import merge
from mm_ldlm.extras.comparison import members
from mm_ldlm.extras.comparison import sessions as under_test
from mm_ldlm.extras.comparison.config import ComparisonConfig, MemberConfig
from mm_ldlm.extras.comparison.members import Session
from mm_ldlm.extras.comparison.results import COLUMNS, CURVES
from mm_ldlm.extras.comparison.sessions import Outcome, run_sessions


def a_session(root: Path, member: str, *, seed: int = 0, **changes: Any) -> Session:
    folder = root / member / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: str(folder / name) for name in ("run", "runs", "dataset", "metrics", "report")}
    made = Session(member, seed, "base", {"a": 1}, "f", {"model": {}, "objective": {}}, str(folder), paths)
    return dataclasses.replace(made, **changes)


class Process:
    """A process that ends at its turn: after so many questions whether it has ended."""

    def __init__(self, turns: int, code: int = 0) -> None:
        self.turns, self.returncode = turns, code

    def poll(self) -> int | None:
        self.turns -= 1
        return None if self.turns > 0 else self.returncode


@pytest.mark.parametrize("jobs", [1, 2, 3, 9])
@pytest.mark.parametrize("turns", [(5, 1, 3, 2), (1, 2, 3, 4), (4, 3, 2, 1)])
@pytest.mark.parametrize("before", [(), (1,), (3,), (0, 2)])
def test_outcomes_are_in_the_order_of_the_plan(
    jobs: int, turns: tuple[int, ...], before: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Two members of two seeds, of which some end earlier than those before them, and some were finished before."""
    plan = [a_session(tmp_path, member, seed=seed) for member in "ba" for seed in (7, 3)]
    done = {plan[place].label: Outcome(plan[place].member, plan[place].seed, "finished", "", 4.0, "l", repeated=True)
            for place in before}  # fmt: skip
    started: list[str] = []

    def start(session: Session, command: Any, project: Path) -> Any:
        started.append(session.label)
        place = plan.index(session)
        return under_test._Running(session, Process(turns[place], code=place % 2), 0.0)  # type: ignore[arg-type]

    monkeypatch.setattr(under_test, "finished_before", lambda session: done.get(session.label))
    monkeypatch.setattr(under_test, "_start", start)
    monkeypatch.setattr(under_test, "_reason", lambda file, code: f"code {code}")
    monkeypatch.setattr(under_test, "POLL_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    found = run_sessions(plan, jobs=jobs, parent_run=None, project=tmp_path, conf_source=None)
    assert [(each.member, each.seed) for each in found] == [("b", 7), ("b", 3), ("a", 7), ("a", 3)]
    assert [each.repeated for each in found] == [place in before for place in range(4)]
    assert [each.status for each in found] == [
        "finished" if place in before or place % 2 == 0 else "failed" for place in range(4)
    ]
    rest = [place for place in range(4) if place not in before]
    assert started == [plan[place].label for place in rest], "in the order of the plan"
    numbers = [line.partition("): ")[0] for line in caplog.messages if " of 4): " in line]
    assert numbers == [f"{plan[place].label} ({place + 1} of 4" for place in rest], "its number in the plan"


def test_a_process_gets_its_folder_no_input_and_a_group_of_its_own(tmp_path: Path) -> None:
    body = "import os, sys; print(os.getcwd()); print(repr(sys.stdin.read()), os.getsid(0) == os.getpid()); "
    body += "print('to the log', file=sys.stderr)"
    project, one = tmp_path / "project", a_session(tmp_path, "a")
    project.mkdir()
    options: list[Path] = []

    def command(file: Path) -> list[str]:
        options.append(file)
        return [sys.executable, "-c", body]

    (found,) = run_sessions(
        [one], jobs=1, parent_run="p", project=project, conf_source="/elsewhere/conf", command=command
    )
    assert (found.status, options) == ("finished", [Path(one.folder) / "run.json"])
    lines = Path(found.log).read_text().splitlines()
    assert sorted(lines) == sorted([os.path.realpath(project), "'' True", "to the log"])
    assert '"conf_source": "/elsewhere/conf"' in options[0].read_text()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["a", "Error: first", "b", "Error: second", "c"], ["Error: second", "c"]),
        (["Error: first", *"abcdef"], [*"abcdef"]),
        (["", "  a  ", "", "b", "\t"], ["  a", "b"]),
        (["an Error: inside"], ["an Error: inside"]),
        ([], []),
    ],
)
def test_the_reason_is_the_end_of_the_log_from_its_last_error(
    lines: list[str], reason: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "log.txt"
    file.write_bytes("\n".join(lines).encode() + b"\n")
    assert under_test._reason(file, 2) == "\n".join([*reason, "(exit code 2)"])
    file.write_bytes(b"\xff\xfe broken\n")
    assert under_test._reason(file, -15).endswith("(ended by signal 15)")


STORES = {"ingestion": ("records", "tokens"), "embedding": ("latents", "images")}


@pytest.mark.parametrize(
    ("absent", "missing"),
    [((), []), (("tokens",), ["ingestion"]), (("records",), ["ingestion"]), (("latents",), ["embedding"]),
     (("images", "records"), ["ingestion", "embedding"]), (("records", "tokens"), ["ingestion"])],
)  # fmt: skip
def test_a_pipeline_is_missing_if_any_of_its_stores_is(
    absent: tuple[str, ...], missing: list[str], tmp_path: Path
) -> None:
    for names in STORES.values():
        for name in names:
            (tmp_path / name).mkdir()
            if name not in absent:
                (tmp_path / name / "manifest.json").touch()
    stores = {pipeline: [str(tmp_path / name) for name in names] for pipeline, names in STORES.items()}
    assert under_test._missing(a_session(tmp_path, "a", stores=stores)) == missing
    assert under_test._missing(a_session(tmp_path, "a", stores={"ingestion": [], "embedding": []})) == []


def test_a_session_that_was_finished_before_is_reported_with_its_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = a_session(tmp_path, "a", seed=3)
    done = SimpleNamespace(seconds=61.7)
    monkeypatch.setattr(under_test, "finished_before", lambda session: done)
    caplog.set_level(logging.INFO)
    found: list[Any] = run_sessions([one], jobs=1, parent_run=None, project=tmp_path, conf_source=None)
    assert found == [done]
    assert caplog.messages == ["a, seed 3: finished before, in 62 s; not run again"]


def test_a_column_of_the_table_has_the_name_of_its_score_unless_that_would_be_ambiguous() -> None:
    renamed = {
        "nll.per_token": "nats_per_token", "nll.given_latent.per_token": "nats_per_token_given_latent",
        "unconditional.entropy_sample": "entropy", "unconditional.perplexity": "generative_perplexity",
    }  # fmt: skip
    assert {key: renamed.get(key, key.rpartition(".")[2]) for key in COLUMNS} == COLUMNS
    assert len(set(COLUMNS.values())) == len(COLUMNS) == 13
    assert set(renamed) < set(COLUMNS)
    assert CURVES == ("text_nll", "loss")


def test_the_folder_of_the_results_is_no_part_of_what_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project that is moved does not train its members again."""
    monkeypatch.setattr(members, "_reads", lambda typed, name: False)
    paths = {name: {"filepath": name} for name in (*members.PATHS, "records")}

    def planned(folder: Path) -> list[Session]:
        return members.sessions_of(
            ComparisonConfig(members=(MemberConfig(name="a"),), seeds=(1, 2)), current=(), base="base", params={},
            folder=folder, project=folder, check=lambda given: given, merge=merge,
            load=lambda env, given: {"parameters": {"model": {}, "objective": {}, **given}, "catalog": paths},
        )  # fmt: skip

    here, there = planned(tmp_path / "here"), planned(tmp_path / "there")
    assert [one.fingerprint for one in here] == [one.fingerprint for one in there]
    assert len({one.fingerprint for one in here}) == 2, "the seed is a part of it"
    assert [one.params["results"] for one in here] == [str(tmp_path / f"here/own-budget/a/seed-{n}") for n in (1, 2)]
