"""Sessions: a failure stays with its member, finished ones are not repeated, interrupted ones are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.extras.comparison import sessions as under_test
from mm_ldlm.extras.comparison.members import Session
from mm_ldlm.extras.comparison.sessions import Command, run_sessions

Run = Callable[..., Any]
MakeSession = Callable[..., Session]


@pytest.fixture
def session(tmp_path: Path) -> MakeSession:
    """`session(member, seed=0, fingerprint="f", stores={})`: a session below `tmp_path`."""

    def make(
        member: str, *, seed: int = 0, fingerprint: str = "f", stores: dict[str, list[str]] | None = None
    ) -> Session:
        folder = tmp_path / member / f"seed-{seed}"
        names = {"run": "run.json", "runs": "runs", "dataset": "dataset", "metrics": "metrics.json", "report": "r.html"}
        return Session(
            member=member, seed=seed, environment="base", params={"results": str(folder), "say": member},
            fingerprint=fingerprint, parameters={"model": {"kind": "causal"}, "objective": {"kind": "autoregressive"}},
            folder=str(folder), paths={name: str(folder / "results" / file) for name, file in names.items()},
            stores=stores or {},
        )  # fmt: skip

    return make


PRELUDE = """
import json, os, pathlib, sys, time
options = json.loads(pathlib.Path(sys.argv[1]).read_text())["run"]
results = pathlib.Path(options["params"]["results"]) / "results"
results.mkdir(parents=True, exist_ok=True)
member = options["params"]["say"]
"""
FINISH = """
for name in ("run.json", "metrics.json"):
    (results / name).write_text("{}")
"""


def script(body: str) -> Command:
    """A command that runs `body` with `options`, `results` and `member` set, and then writes what a session writes."""

    def command(options: Path) -> Sequence[str]:
        return [sys.executable, "-c", PRELUDE + body + FINISH, str(options)]

    return command


def options_of(session: Session) -> dict[str, object]:
    found: dict[str, object] = json.loads((Path(session.folder) / "run.json").read_text())["run"]
    return found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "POLL_SECONDS", 0.01)


@pytest.fixture
def run(tmp_path: Path, write_dataset: Any) -> Run:
    def call(sessions: Any, *, body: str = "", jobs: int = 1, parent: str | None = None) -> Any:
        return run_sessions(
            sessions, jobs=jobs, parent_run=parent, project=tmp_path, conf_source=None, command=script(body)
        )

    return call


def validated(session: Any, write_dataset: Any) -> None:
    """The dataset that the session's validation would have committed."""
    folder = Path(session.paths["dataset"])
    made = write_dataset(folder.parent / "stores", ["w1 w2", "w3"], ["train", "test"])
    folder.mkdir(parents=True)
    document = json.loads((made.directory / "dataset.json").read_text())
    for about in document["stores"].values():
        about["path"] = os.path.relpath(made.directory / about["path"], folder)
    (folder / "dataset.json").write_text(json.dumps(document))


def test_a_member_that_fails_is_reported_and_the_others_go_on(session: MakeSession, run: Run) -> None:
    body = """
print("training", member, flush=True)
if member == "refused": sys.exit("Error: parameter 'training.max_tokens': too few")
if member == "killed": os.kill(os.getpid(), 9)
"""
    found = run([session("refused"), session("killed"), session("good")], body=body)
    assert [outcome.status for outcome in found] == ["failed", "failed", "finished"]
    assert found[0].reason == "Error: parameter 'training.max_tokens': too few\n(exit code 1)", "from the error on"
    assert found[1].reason.startswith("training killed")
    assert "ended by signal 9" in found[1].reason
    assert found[2].reason == ""
    for outcome in found:
        assert f"training {outcome.member}" in Path(outcome.log).read_text()


def test_a_session_gets_its_environment_parameters_and_the_parent_run(session: MakeSession, run: Run) -> None:
    one = session("a", stores={"ingestion": ["/nowhere/records"], "embedding": []})
    run([one], parent="0123")
    found = options_of(one)
    assert found["env"] == "base"
    assert found["params"] == {**one.params, "tracking": {"parent_run": "0123"}}
    assert found["pipelines"] == "ingestion,validation,training,sampling,evaluation,reporting"
    assert "conf_source" not in found, "the project's own"
    one.params["tracking"] = {"run_name": "a, seed 0"}
    under_test._write_options(one, ["sampling"], parent_run="4567", conf_source="/elsewhere/conf")
    found = options_of(one)
    assert (found["conf_source"], found["pipelines"]) == ("/elsewhere/conf", "sampling")
    assert found["params"]["tracking"] == {"run_name": "a, seed 0", "parent_run": "4567"}  # type: ignore[index]


def test_a_finished_session_is_not_run_again(session: MakeSession, run: Run, write_dataset: Any) -> None:
    count = "open(results / 'count', 'a').write('x')\n"
    fails = count + "if member == 'b': sys.exit(1)\n"
    sessions = [session("a"), session("b")]
    validated(sessions[0], write_dataset)
    run(sessions, body=fails)
    again = run(sessions, body=count)
    assert [(outcome.status, outcome.repeated) for outcome in again] == [("finished", True), ("finished", False)]
    counts = [len((Path(each.folder) / "results" / "count").read_text()) for each in sessions]
    assert counts == [1, 2]


@pytest.mark.parametrize("change", ["parameters", "data", "metrics", "interrupted"])
def test_a_session_runs_again_when_something_changed(
    change: str, session: MakeSession, run: Run, write_dataset: Any
) -> None:
    one = session("a")
    validated(one, write_dataset)
    run([one])
    assert run([one])[0].repeated
    record = Path(one.folder) / "session.json"
    if change == "parameters":
        one = session("a", fingerprint="g")
    elif change == "data":
        manifest = Path(one.paths["dataset"]).parent / "stores" / "tokens" / "manifest.json"
        manifest.unlink()
    elif change == "metrics":
        Path(one.paths["metrics"]).unlink()
    else:
        record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "running"}))
    assert not run([one])[0].repeated


def test_jobs_run_at_the_same_time_and_never_more_than_allowed(session: MakeSession, run: Run, tmp_path: Path) -> None:
    body = f"""
place = pathlib.Path({str(tmp_path)!r}) / "running"
place.mkdir(exist_ok=True)
(place / member).touch()
deadline = time.monotonic() + float({{wait}})
while time.monotonic() < deadline and len(list(place.iterdir())) < 2: time.sleep(0.02)
(results / "most").write_text(str(len(list(place.iterdir()))))
time.sleep(0.3)
(place / member).unlink()
"""
    for jobs, wait, expected in ((1, 0.1, {1}), (2, 60, {2})):
        sessions = [session(f"{name}{jobs}") for name in "ab"]
        run(sessions, body=body.replace("{wait}", str(wait)), jobs=jobs)
        assert {int((Path(each.folder) / "results/most").read_text()) for each in sessions} == expected


def test_sessions_that_write_shared_data_run_alone(session: MakeSession, run: Run, tmp_path: Path) -> None:
    """Two sessions would write the same records; the second finds them."""
    store = tmp_path / "records"
    body = f"""
store = pathlib.Path({str(store)!r})
if "ingestion" in options["pipelines"]:
    time.sleep(0.3)
    store.mkdir()  # fails where another session made it
    (store / "manifest.json").touch()
"""
    sessions = [session(name, stores={"ingestion": [str(store)]}) for name in "abc"]
    assert [outcome.status for outcome in run(sessions, body=body, jobs=3)] == ["finished"] * 3
    assert "ingestion" in str(options_of(sessions[0])["pipelines"])
    assert "ingestion" not in str(options_of(sessions[1])["pipelines"])


def test_sessions_that_read_no_missing_data_wait_for_one_that_writes_shared_data(
    session: MakeSession, run: Run, tmp_path: Path
) -> None:
    """A run locks the folders of data that it reads, and could not start while the other one writes."""
    store, latents = tmp_path / "records", tmp_path / "latents"
    store.mkdir()
    (store / "manifest.json").write_text("{}")
    body = f"""
latents = pathlib.Path({str(latents)!r})
if member == "writer":
    time.sleep(0.3)
    latents.mkdir()
    (latents / "manifest.json").write_text("{{}}")
    other, deadline = pathlib.Path({str(tmp_path)!r}) / "reader" / "started", time.time() + 60
    while not other.exists():
        if time.time() > deadline: sys.exit("the other does not start when the data are there")
        time.sleep(0.01)
elif not (latents / "manifest.json").exists():
    sys.exit("another run writes")
else:
    (pathlib.Path({str(tmp_path)!r}) / "reader" / "started").touch()
"""
    stores = {"ingestion": [str(store)]}
    sessions = [session("writer", stores={**stores, "embedding": [str(latents)]}), session("reader", stores=stores)]
    assert [outcome.status for outcome in run(sessions, body=body, jobs=2)] == ["finished", "finished"]


def test_an_interrupt_asks_the_running_session_to_end(session: MakeSession, run: Run) -> None:
    body = """
import signal
signal.signal(signal.SIGTERM, lambda *_: ((results / "asked").touch(), sys.exit(143)))
(results / "ready").touch()
time.sleep(60)
"""
    one = session("a")
    place = Path(one.folder) / "results"

    def interrupt() -> None:
        while not (place / "ready").exists():
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    assert main is not None
    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process of pytest-xdist ignores SIGINT
    try:
        with pytest.raises(KeyboardInterrupt):
            run([one], body=body)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (place / "asked").exists()
    assert json.loads((Path(one.folder) / "session.json").read_text())["status"] == "running"


def test_the_default_command_is_kedro_run_with_the_options_of_a_file(tmp_path: Path) -> None:
    command = under_test.kedro_run(tmp_path / "run.json")
    assert command == [sys.executable, "-m", "kedro", "run", f"--config={tmp_path / 'run.json'}"]
    help_ = subprocess.run([*command[:4], "--help"], capture_output=True, text=True, check=True).stdout
    assert "--config" in help_


@pytest.mark.parametrize(
    ("code", "status", "ended"),
    [(0, "finished", ""), (3, "failed", "(exit code 3)"), (-9, "failed", "(ended by signal 9)")],
)
def test_an_outcome_has_the_seconds_of_its_session(
    code: int, status: str, ended: str, session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = session("a", seed=4)
    Path(one.folder).mkdir(parents=True)
    (Path(one.folder) / "log.txt").write_text("\n".join(f"line {i}" for i in range(9)) + "\n\n")
    monkeypatch.setattr(under_test.time, "monotonic", lambda: 1000.0)
    process: Any = subprocess.CompletedProcess([], code)
    found = under_test._end(under_test._Running(one, process, 1000.0 - 95.26))
    assert (found.member, found.seed, found.status, found.seconds, found.repeated) == ("a", 4, status, 95.3, False)
    assert found.log == str(Path(one.folder) / "log.txt")
    assert found.reason == ("" if code == 0 else "\n".join([*(f"line {i}" for i in range(3, 9)), ended]))
    record = json.loads((Path(one.folder) / "session.json").read_text())
    assert record == {
        "status": status, "member": "a", "seed": 4, "fingerprint": "f", "reason": found.reason, "seconds": 95.3
    }  # fmt: skip
