"""Status, lock and failure of a run: the whole files, what is no status, and who may write."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training import status
from mm_ldlm.training.status import read_failure, read_status, sole_writer, taken, write_failure, write_status


def test_a_status_has_its_step_its_time_and_what_else_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: 1_800_000_000.123456))
    write_status(tmp_path, "stopped", 7, metrics={"loss": 0.5}, reason="a signal")
    whole = {"status": "stopped", "step": 7, "time": 1_800_000_000.123, "metrics": {"loss": 0.5}, "reason": "a signal"}
    assert json.loads((tmp_path / "status.json").read_text()) == whole
    assert read_status(tmp_path) == whole
    write_status(tmp_path, "running", 8)
    assert read_status(tmp_path) == {"status": "running", "step": 8, "time": 1_800_000_000.123}


@pytest.mark.parametrize(
    "content",
    ['{"status": 1, "step": 3}', '{"status": "finished", "step": "3"}', '{"step": 3}', '{"status": "finished"}',
     '{"status": "finished", "step": 3, "metrics": []}', '{"status": null, "step": null}', "[]", "{}", "3"],
)  # fmt: skip
def test_what_is_no_status_is_refused_with_what_was_found(content: str, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(content)
    with pytest.raises(CheckpointError) as refused:
        read_status(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}/status.json: expected a status, a step and metrics, found {json.loads(content)!r:.80}. "
        "Remove it: the run then continues from its newest checkpoint."
    )


def test_a_run_has_one_writer_at_a_time_and_another_run_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status, "LOCK_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    runs = tmp_path / "data" / "runs"
    with sole_writer(runs, "one") as first, sole_writer(runs, "two") as second:
        assert (first, second) == (True, True)
        assert caplog.messages == [], "nobody waits"
        with sole_writer(runs, "one") as third:
            assert not third
    assert caplog.messages == ["run one: another process writes to it; waiting up to 0 s for it to end"]
    with sole_writer(runs, "one") as again:
        assert again, "the lock ends with the block"
    assert sorted(path.name for path in runs.iterdir()) == [".one.lock", ".two.lock"]
    words = taken(runs, "one")
    assert words.startswith(f"another training is writing to {runs / 'one'} (it holds the lock .one.lock). Wait for it")


def test_the_workers_of_a_killed_launcher_have_twenty_seconds_to_save() -> None:
    assert status.LOCK_SECONDS == 20.0


def test_the_first_failure_of_a_launch_is_kept_and_that_of_another_launch_is_replaced(tmp_path: Path) -> None:
    def fail(launch: str, text: str) -> Any:
        write_failure(tmp_path, launch, ValueError(text))
        return json.loads((tmp_path / "failure.json").read_text())

    assert fail("a", "first") == {"launch": "a", "text": "first"}
    assert fail("a", "second") == {"launch": "a", "text": "first"}
    assert fail("b", "third") == {"launch": "b", "text": "third"}
    assert (read_failure(tmp_path, "a"), read_failure(tmp_path, "b")) == (None, "third")


@pytest.mark.parametrize("content", ["[", "[]", "3", '{"text": "x"}', None])
def test_a_record_of_a_failure_that_is_damaged_is_none(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "failure.json").write_text(content)
    assert read_failure(tmp_path, "a") is None
    write_failure(tmp_path, "a", ValueError("of this launch"))
    assert read_failure(tmp_path, "a") == "of this launch"
