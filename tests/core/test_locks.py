"""Locks between runs: one writer or many readers, a record of the holder, and nothing left by a killed process."""

import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from mm_ldlm.core import locks as lock

_HOLDER = """
import sys, time
from pathlib import Path
from mm_ldlm.core import locks as lock
held = lock.take(Path(sys.argv[1]), sys.argv[2])
print("held" if held else "refused", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path):
    """Start another process that takes the lock; return it."""
    started: list[subprocess.Popen[str]] = []

    def start(use: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _HOLDER, str(tmp_path / ".data.lock"), use, "https://me:secret@host/x"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("first", "second"), list(product(("write", "read"), repeat=2)))
def test_a_writer_excludes_everyone_and_readers_only_writers(first: lock.Use, second: lock.Use, tmp_path: Path) -> None:
    path = tmp_path / "folder" / ".data.lock"
    one = lock.take(path, first)
    two = lock.take(path, second)
    assert (two is not None) == (first == second == "read")
    for held in filter(None, (one, two)):
        held.close()
    with lock.wait(path):
        assert lock.take(path, second) is None
    assert lock.take(path, second) is not None


def test_the_holder_is_named_without_its_passwords_and_a_killed_one_holds_nothing(tmp_path: Path, other) -> None:
    path = tmp_path / ".data.lock"
    process = other("write")
    assert lock.take(path, "read") is None
    text = lock.holder(path)
    assert f"process {process.pid}, since 20" in text
    assert "https://***@host/x" in text
    assert "secret" not in text + path.read_text()
    process.send_signal(signal.SIGKILL)
    process.wait()
    with lock.take(path, "write"):
        assert f"process {os.getpid()}" in lock.holder(path)
        assert str(process.pid) not in path.read_text()


@pytest.mark.parametrize("text", ["", "[", "{}", '{"pid": "1"}', "[" * 100_000])
def test_a_damaged_record_names_another_process(text: str, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(text)
    assert lock.holder(tmp_path / "lock") == "another process"
    assert lock.holder(tmp_path / "none") == "another process"


def test_a_folder_that_cannot_be_written_to_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    real = open

    def read_only(file, mode="r", **named):
        if mode != "r":
            raise PermissionError(13, "Permission denied")
        return real(file, mode, **named)

    monkeypatch.setattr("builtins.open", read_only)
    assert lock.take(path, "read") is not None
    with pytest.raises(PermissionError):
        lock.take(path, "write")
    path.touch()
    with lock.take(path, "read"):
        monkeypatch.undo()
        assert lock.take(path, "write") is None


def test_the_holder_that_lives_is_named_before_those_that_ended(tmp_path: Path) -> None:
    path = tmp_path / ".data.lock"
    with lock.take(path, "read"), lock.take(path, "read"):
        living, _ = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path.write_text(f"{json.dumps(living)}\n{json.dumps({**living, 'pid': ended.pid})}\n", encoding="utf-8")
    assert f"process {os.getpid()}, since" in lock.holder(path)
    path.write_text(f"{json.dumps(living)}\n{json.dumps({**living, 'host': 'elsewhere'})}\n", encoding="utf-8")
    assert "on elsewhere, since" in lock.holder(path), "the last one of those that may live"
    path.write_text(f"{json.dumps({**living, 'pid': ended.pid})}\n", encoding="utf-8")
    assert lock.holder(path) == "another process"
