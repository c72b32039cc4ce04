"""Sessions: a failure stays with its member, finished ones are not repeated, and a whole comparison."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from mm_ldlm.extras.comparison.plan import PATHS, Session
from mm_ldlm.extras.comparison.sessions import Outcome, _start, _stop, run_sessions

SCRIPT = """
import json, os, pathlib, signal, sys, time
options = json.loads(pathlib.Path(sys.argv[1]).read_text())["run"]
member, place = options["params"]["member"], pathlib.Path(options["params"]["results"])
shared = place.parent
with open(place / "count", "a") as file: file.write("x")
{body}
for name in ("run", "metrics"): (place / name).write_text("{{}}")
"""
Make = Callable[..., Session]
Run = Callable[..., list[Outcome]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.extras.comparison.sessions.POLL_SECONDS", 0.01)
    monkeypatch.setattr("mm_ldlm.extras.comparison.sessions.refuse_short_trainings", len)  # there are no stores


@pytest.fixture
def session(tmp_path: Path) -> Make:
    """`session(member, fingerprint="f", ingestion=[...], ...)`: with its folder below `tmp_path`."""

    def make(member: str, fingerprint: str = "f", **stores: Path) -> Session:
        folder = tmp_path / member
        return Session(
            member, 0, "base", {"results": str(folder), "member": member, "tracking": {"run_name": "r"}}, fingerprint,
            {}, str(folder), {name: str(folder / name) for name in PATHS},
            {pipeline: [str(store)] for pipeline, store in stores.items()},
        )  # fmt: skip

    return make


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(*sessions, body="", jobs=1)`: with a script as the command, of which `body` is the work of a session."""

    def call(*sessions: Session, body: str = "", jobs: int = 1) -> list[Outcome]:
        def command(options: Path) -> Sequence[str]:
            return [sys.executable, "-c", SCRIPT.format(body=body), str(options)]

        return run_sessions(
            sessions, jobs=jobs, parent_run="0123", project=tmp_path, conf_source="/conf", command=command
        )

    return call


def options_of(session: Session) -> dict[str, Any]:
    return json.loads((Path(session.folder) / "run.json").read_text())["run"]


def test_a_member_that_fails_is_reported_with_its_error_and_the_others_go_on(session: Make, run: Run) -> None:
    body = """
print("training", member, flush=True)
if member == "refused": sys.exit("Error: old\\nError: parameter 'x': too few\\nof them")
if member == "killed": os.kill(os.getpid(), 9)
if member == "long": print("\\n".join(map(str, range(99)))); sys.exit(3)
"""
    found = run(*(session(name) for name in ("refused", "killed", "long", "good")), body=body)
    assert [outcome.status for outcome in found] == ["failed", "failed", "failed", "finished"]
    assert [outcome.reason for outcome in found] == [
        "Error: parameter 'x': too few\nof them\n(exit code 1)",
        "training killed\n(ended by signal 9)",
        "93\n94\n95\n96\n97\n98\n(exit code 3)",
        "",
    ]
    for outcome in found:
        assert f"training {outcome.member}" in Path(outcome.log).read_text()


@pytest.mark.parametrize("change", [None, "parameters", "data", "metrics", "interrupted", "damaged"])
def test_a_finished_session_runs_again_only_where_something_changed(
    change: str | None, session: Make, run: Run, write_dataset: Callable[..., Any]
) -> None:
    one = session("a")
    place = Path(one.folder)
    made = write_dataset(place / "dataset", ["w1 w2", "w3"], ["train", "test"])
    object.__setattr__(one, "paths", one.paths | {"dataset": str(made.directory)})
    run(one)
    record = place / "session.json"
    if change == "parameters":
        object.__setattr__(one, "fingerprint", "g")
    elif change == "data":
        next((place / "dataset" / "tokens").glob("manifest.json")).unlink()
    elif change == "metrics":
        (place / "metrics").unlink()
    elif change == "interrupted":
        record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "running"}))
    elif change == "damaged":
        record.write_text("{")
    assert [again.member for again in run(session("b"), one) if again.status == "finished"] == ["b", "a"]
    assert options_of(one)["params"]["tracking"] == {"run_name": "r", "parent_run": "0123"}
    assert len((place / "count").read_text()) == (1 if change is None else 2)


def test_no_more_sessions_than_allowed_run_at_once(session: Make, run: Run, tmp_path: Path) -> None:
    body = """
(shared / f"{member}.running").touch()
deadline = time.monotonic() + (60 if member.endswith("2") else 0.1)
while time.monotonic() < deadline and len(list(shared.glob("*.running"))) < 2: time.sleep(0.02)
with open(shared / "most", "a") as file: file.write(str(len(list(shared.glob("*.running")))))
time.sleep(0.2)
(shared / f"{member}.running").unlink()
"""
    for jobs, most in ((1, "11"), (2, "22")):
        run(*(session(f"{name}{jobs}") for name in "ab"), body=body, jobs=jobs)
        assert (tmp_path / "most").read_text() == most
        (tmp_path / "most").unlink()


def test_shared_data_are_written_once_by_a_run_of_their_own_before_any_session(
    session: Make, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
store, lock = shared / "records", shared / "lock"
if options["pipelines"] == "ingestion":
    lock.mkdir()
    time.sleep(0.3)
    store.mkdir()  # fails where another session has made it
    (store / "manifest.json").write_text("{}")
    lock.rmdir()
elif "ingestion" in options["pipelines"] or lock.exists() or not store.exists():
    sys.exit("another session writes")
"""
    found, checked = [session(name, ingestion=tmp_path / "records") for name in "abc"], list[Any]()
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "manifest.json").write_text("{}")
    found.insert(1, session("d", ingestion=tmp_path / "ready"))
    monkeypatch.setattr("mm_ldlm.extras.comparison.sessions.refuse_short_trainings", checked.append)
    assert [outcome.status for outcome in run(*found, body=body, jobs=3)] == ["finished"] * 4
    assert [(tmp_path / name / "count").read_text() for name in "abcd"] == ["xx", "x", "x", "x"]
    assert [len(each) for each in checked] == [4], "all, when the data are there"


def test_an_interrupt_asks_the_running_sessions_to_end(session: Make, run: Run, tmp_path: Path) -> None:
    body = """
signal.signal(signal.SIGTERM, lambda *_: ((place / "asked").touch(), sys.exit(143)))
(place / "ready").touch()
time.sleep(60)
"""
    found, main = [session("a"), session("b")], threading.main_thread().ident

    def interrupt() -> None:
        while len(list(tmp_path.glob("*/ready"))) < 2:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process of pytest-xdist ignores SIGINT
    try:
        with pytest.raises(KeyboardInterrupt):
            run(*found, body=body, jobs=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(list(tmp_path.glob("*/asked"))) == 2
    for each in found:
        assert json.loads((Path(each.folder) / "session.json").read_text())["status"] == "running"


def test_a_session_that_ignores_the_request_is_killed_and_ends_with_its_parent(
    session: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.extras.comparison.sessions.GRACE_SECONDS", 0.2)
    body = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); "
    Path((one := session("a")).folder).mkdir()
    running = _start(one, [sys.executable, "-c", f"{body} time.sleep(60)"], tmp_path)
    assert os.getpgid(running.process.pid) != os.getpgid(0), "Ctrl-C reaches the comparison only"
    while "ready" not in (Path(one.folder) / "log.txt").read_text():
        time.sleep(0.01)
    _stop([running])
    assert running.process.returncode == -signal.SIGKILL


# -- a whole comparison ------------------------------------------------------------------------------------------------


MEMBERS = [
    {"name": "mdlm", "env": "mdlm"},
    {"name": "constant", "env": "mdlm", "params": {"objective.process.loss_weighting": "constant"}},
    {"name": "diverges", "env": "mdlm", "params": {"training.optimizer.lr": 1.0e30, "training.guard.max_rollbacks": 0}},
]


@pytest.mark.slow
def test_a_whole_comparison_from_nothing_with_a_member_that_diverges_and_again(
    workshop: Path, run_kedro: Callable[..., Any]
) -> None:
    import mlflow

    (workshop / "conf" / "compared").mkdir()
    layer = {"comparison": {"members": MEMBERS, "seeds": [0], "jobs": 2, "budget": {"tokens": 3000}}}
    (workshop / "conf" / "compared" / "parameters.yml").write_text(yaml.safe_dump(layer))
    options = ("run", "--pipeline=comparison", "--env=test+compared", "--params=training.launch.processes=1")
    run_kedro(*options)
    reports = workshop / "data/test/08_reporting"
    table = pd.read_csv(reports / "comparison_table.csv").set_index("member")
    assert list(table["status"]) == ["finished", "finished", "failed"]
    assert list(table["likelihood"].dropna()) == ["NELBO", "NELBO"]
    assert (table["tokens"].dropna() >= 3000).all()
    low, value, high = (float(table[f"difference{end}"]["constant"]) for end in ("_low", "", "_high"))
    assert low < value < high
    assert "diverged" in str(table.loc["diverges", "reason"])
    assert "Failed runs" in (reports / "comparison.html").read_text()

    parent = json.loads((workshop / "data/test/06_models/tracking_reference.json").read_text())
    tracking = mlflow.MlflowClient(parent["tracking_uri"])
    experiment = tracking.get_run(parent["run_id"]).info.experiment_id
    nested = tracking.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent['run_id']}'")
    assert {run.info.run_name: run.info.status for run in nested} == {
        "mdlm, seed 0": "FINISHED", "constant, seed 0": "FINISHED", "diverges, seed 0": "FAILED"
    }  # fmt: skip

    before, _ = json.loads((file := reports / "comparison_outcomes.json").read_text()), run_kedro(*options)
    assert [one == two for one, two in zip(before, json.loads(file.read_text()), strict=True)] == [True, True, False]
