"""How sessions end and are found again: a plan that is read back, records that cannot be read, sessions that hang."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mm_ldlm.evaluation.run_result import Result

from mm_ldlm.core.config import parse
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.extras.comparison import results, sessions
from mm_ldlm.extras.comparison.config import ComparisonConfig
from mm_ldlm.extras.comparison.members import Session


def a_session(root: Path, *, seed: int = 0) -> Session:
    folder = root / f"seed-{seed}"
    folder.mkdir(parents=True)
    paths = {name: str(folder / name) for name in ("run", "runs", "dataset", "metrics", "report")}
    return Session("m", seed, "base", {"a": {"b": 1}}, "f", {"model": {}, "objective": {}}, str(folder), paths,
                   {"ingestion": ["records"]})  # fmt: skip


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = [a_session(tmp_path, seed=seed) for seed in (3, 4)]
    written = json.loads(json.dumps({"sessions": [session.to_dict() for session in made]}))
    assert sessions.from_plan(written) == made


@pytest.mark.parametrize(
    ("record", "finished"),
    [({}, True), ({"status": "running"}, False), ({"status": "failed"}, False), ({"fingerprint": "g"}, False),
     ({"fingerprint": None}, False), ({"status": None}, False), ("{", False), (None, False),
     ("[]", False), ({"seconds": None}, False), ({"seconds": "7"}, False)],
)  # fmt: skip
def test_a_session_is_finished_if_its_record_says_so_for_these_parameters(
    record: Any, finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = a_session(tmp_path)
    for name in ("run", "metrics"):
        Path(one.paths[name]).touch()
    monkeypatch.setattr(sessions.Dataset, "open", lambda path: SimpleNamespace(check=lambda: None))
    place = Path(one.folder) / "session.json"
    if isinstance(record, dict):
        whole = {"status": "finished", "fingerprint": "f", "seconds": 7.5} | record
        place.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    elif record is not None:
        place.write_text(record)
    found = sessions.finished_before(one)
    assert (found is not None) == finished
    if found is not None:
        assert (found.member, found.seed, found.seconds, found.repeated) == ("m", 0, 7.5, True)
        assert found.log == str(Path(one.folder) / "log.txt")
        for name in ("run", "metrics"):
            Path(one.paths[name]).rename(f"{one.paths[name]}.away")
            assert sessions.finished_before(one) is None, name
            Path(f"{one.paths[name]}.away").rename(one.paths[name])


def test_a_session_that_ignores_the_request_to_end_is_killed_and_the_others_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All are asked before any is waited for, so that they write their checkpoints at the same time."""
    monkeypatch.setattr(sessions, "GRACE_SECONDS", 0.2)
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); import time; time.sleep(60)"
    plain = "print(1, flush=True); import time; time.sleep(60)"
    running = []
    for seed, body in enumerate((deaf, plain)):
        process = subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        running.append(sessions._Running(a_session(tmp_path, seed=seed), process, 0.0))
    sessions._stop(running)
    assert [each.process.returncode for each in running] == [-9, -15]
    assert [record.getMessage()[:18] for record in caplog.records] == ["m, seed 0: stopped", "m, seed 1: stopped"]
    for each in running:
        assert each.process.stdout is not None
        each.process.stdout.close()


def test_a_long_session_is_named_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter(range(0, 10_000, 25))  # seconds; each look at the clock takes 25
    polls = iter([None] * 12 + [0] * 9)
    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    process: Any = SimpleNamespace(poll=lambda: next(polls), returncode=0)
    monkeypatch.setattr(sessions, "_start", lambda session, *_: sessions._Running(session, process, 0.0))
    caplog.set_level(logging.INFO)
    one = dataclasses.replace(a_session(tmp_path), stores={})
    given: dict[str, Any] = {"jobs": 1, "parent_run": None, "project": tmp_path, "conf_source": None}
    (outcome,) = sessions.run_sessions([one], **given)
    lines = [record.getMessage() for record in caplog.records if "running for" in record.getMessage()]
    seconds = [int(line.split()[-2]) for line in lines]
    assert len(lines) >= 3
    assert all(line.startswith("m, seed 0: running for ") for line in lines)
    assert all(later - earlier > 60 for earlier, later in itertools.pairwise(seconds))
    assert (outcome.status, outcome.log) == ("finished", str(Path(one.folder) / "log.txt"))


def test_members_with_scores_of_other_kinds_have_no_difference(tmp_path: Path) -> None:
    runs = [results.Finished(a_session(tmp_path), Result("r", {"nll.exact": 1.0}), {}, {})]
    found = results._against(runs, runs, "base", bootstrap=BootstrapConfig(replicates=20), seed=0)
    assert found == {"left_out": "this member and the baseline 'base' have no scores of the same kind"}


@pytest.mark.parametrize(
    ("budget", "words", "label"),
    [({"tokens": 12_000}, "12,000 tokens seen", "tokens-12000"),
     ({"seconds": 100}, "100 seconds of training", "seconds-100"),
     ({"seconds": 0.5}, "0.5 seconds of training", "seconds-0.5"), (None, "each member's own max_steps", None)],
)  # fmt: skip
def test_a_budget_in_words_and_in_the_name_of_a_folder(budget: Any, words: str, label: str | None) -> None:
    config = parse(ComparisonConfig, {"members": [{"name": "a"}], "budget": budget}, at="comparison")
    assert results._budget(config) == words
    assert (config.budget.label if config.budget else None) == label
