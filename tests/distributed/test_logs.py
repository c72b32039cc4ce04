from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mm_ldlm.distributed import failure, logs


def launched(directory: Path, number: int) -> Path:
    folder = directory / f"job_{number}" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(f"launch {number}\n")
    os.utime(directory / f"job_{number}", (number, number))
    return folder


def test_the_logs_of_the_newest_launches_are_kept(tmp_path: Path) -> None:
    for number in (1, 3, 2, 4):
        launched(tmp_path, number)
    (tmp_path / "training_spec.json").write_text("{}")
    logs.remove_old(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job_3", "job_4", "training_spec.json"]
    logs.remove_old(tmp_path, keep=0)
    assert [path.name for path in tmp_path.iterdir()] == ["training_spec.json"]


def test_a_long_log_keeps_its_last_part(tmp_path: Path) -> None:
    folder = launched(tmp_path, 1)
    (folder / "stdout.log").write_text("".join(f"line {i:06d}\n" for i in range(1000)))
    logs.shorten(tmp_path, largest=1200)
    assert (folder / "stdout.log").stat().st_size == 0
    assert (folder / "stdout.log.1").read_text().splitlines()[-1] == "line 000999"
    assert (folder / "stdout.log.1").stat().st_size == 600
    assert (folder / "stderr.log").read_text() == "launch 1\n"


WRITER = """
import sys, time
from mm_ldlm.distributed.logs import append_output
append_output()
for number in range(3000):
    print(f"line {number:06d}", file=sys.stderr, flush=True)
    time.sleep(0.0002)
print("the end", file=sys.stderr, flush=True)
"""


def test_a_rank_that_writes_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    folder = launched(tmp_path, 1)
    largest = 0
    with logs.bounded(tmp_path, largest=4000, interval=0.02), (folder / "stderr.log").open("w") as output:
        process = subprocess.Popen([sys.executable, "-c", WRITER], stderr=output)
        while process.poll() is None:
            largest = max(largest, (folder / "stderr.log").stat().st_size)
            time.sleep(0.01)
    assert process.returncode == 0
    assert largest < 36_000, "less than what was written"
    assert (folder / "stderr.log.1").stat().st_size <= 4000
    text = (folder / "stderr.log").read_text() or (folder / "stderr.log.1").read_text()
    assert text.endswith("the end\n")
    assert "\0" not in text, "the rank appends, so that the file has no hole"


def test_what_a_rank_writes_while_its_log_is_copied_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = launched(tmp_path, 1) / "stderr.log"
    log.write_text("x" * 5000)
    plain = Path.write_bytes

    def slow(path: Path, data: bytes) -> int:
        with log.open("a") as rank:
            rank.write("the last words")
        return plain(path, data)

    monkeypatch.setattr(Path, "write_bytes", slow)
    logs.shorten(tmp_path, largest=4000)
    assert log.stat().st_size == 0
    assert log.with_name("stderr.log.1").read_text() == "x" * 2000 + "the last words"


def test_errors_name_the_log_of_the_rank_and_those_of_all_ranks() -> None:
    text = failure.describe_signals([(3, -9, "logs/job/attempt_0/1/stderr.log")])
    assert text is not None
    assert "The log of that rank is logs/job/attempt_0/1/stderr.log; those of all ranks of this host" in text
    assert text.endswith("are in logs/job/attempt_0")


def test_logs_are_bounded_when_a_short_launch_ends(tmp_path: Path) -> None:
    """Also those of the output stream."""
    folder = launched(tmp_path, 1)
    with logs.bounded(tmp_path, largest=1000, interval=1e3):
        for name in ("stdout.log", "stderr.log"):
            (folder / name).write_text("x" * 1001)
    assert [(folder / f"{name}.log").stat().st_size for name in ("stdout", "stderr")] == [0, 0]
    (folder / "stdout.log").write_text("x" * 1000)
    logs.shorten(tmp_path, largest=1000)
    assert (folder / "stdout.log").stat().st_size == 1000, "no longer than its limit"
