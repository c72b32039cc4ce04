"""`kedro run` under faults: a tracking server that is gone, refuses or hangs, a full disk, and signals."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
SMALL = "training.launch.processes=1"
STAGES = ("ingestion", "embedding", "validation", "training", "sampling", "evaluation", "reporting")
_NOWHERE = f"{tempfile.gettempdir()}/none"
SECONDS = 120
"""A server that cannot be reached may delay a run of a few seconds by less than this."""


class Tracking(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """The part of MLflow's REST interface that a run uses. `mode(n)` is the answer to request n: ok, error or hang."""

    daemon_threads = True

    def __init__(self, mode: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode, self.requests = mode, 0

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Tracking

    def _answer(self) -> None:
        self.server.requests += 1
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match self.server.mode(self.server.requests):
            case "hang":
                time.sleep(3600)
            case "error":
                self.send_error(503)
                return
        info = {
            "run_id": "r",
            "run_uuid": "r",
            "experiment_id": "0",
            "status": "RUNNING",
            "start_time": 0,
            "artifact_uri": _NOWHERE,
        }
        experiment = {"experiment_id": "0", "name": "x", "artifact_location": _NOWHERE, "lifecycle_stage": "active"}
        body = json.dumps({"experiment": experiment, "run": {"info": info, "data": {}}, "run_info": info}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = _answer

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def kedro(workshop: Path, tmp_path: Path) -> Iterator[Any]:
    """Start `kedro run --env=test` with a data folder of its own; nothing of it is left afterwards."""
    started: list[subprocess.Popen[str]] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def run(*params: str, pipelines: str = "ingestion", data: Path | None = None) -> subprocess.Popen[str]:
        values = ",".join([f"data={data or tmp_path / 'data'}", SMALL, *params])
        process = subprocess.Popen(
            [sys.executable, "-m", "kedro", "run", "--env=test", f"--pipelines={pipelines}", f"--params={values}"],
            cwd=workshop, env={**os.environ, "PYTHONPATH": str(PROJECT / "src")}, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    signal.signal(signal.SIGINT, before)
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
            orphans = process.poll() is not None
        except (ProcessLookupError, PermissionError):
            orphans = False
        process.wait()
        assert not orphans, "processes were left behind"


def no_traceback(output: str) -> None:
    assert "Traceback (most recent call last)" not in output, output[-3000:]


def records(data: Path) -> dict[str, bytes]:
    found = {
        path.name: path.read_bytes()
        for path in sorted(data.rglob("records/*"))
        if path.name.startswith(("part", "manifest"))
    }
    assert found
    return found


@pytest.mark.parametrize("mode", ["closed", "error", "hang", "gone", "back"])
def test_a_run_goes_on_without_its_tracking_server(kedro: Any, tmp_path: Path, mode: str) -> None:
    """Closed from the start, answering with errors, hanging, gone after some requests, and back after some more."""
    modes = {
        "closed": lambda n: "ok", "error": lambda n: "error", "hang": lambda n: "hang",
        "gone": lambda n: "ok" if n <= 5 else "error", "back": lambda n: "error" if 4 <= n <= 6 else "ok",
    }  # fmt: skip
    server = Tracking(modes[mode])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    if mode == "closed":
        server.shutdown()
        server.server_close()
    begun = time.monotonic()
    tracked = kedro(f"tracking.uri={server.uri}", "tracking.enabled=true")
    output, _ = tracked.communicate(timeout=900)
    seconds = time.monotonic() - begun
    if mode != "closed":
        server.shutdown()
        server.server_close()
    begun = time.monotonic()
    plain = kedro("tracking.enabled=false", data=tmp_path / "plain")
    assert plain.wait(timeout=900) == 0
    undisturbed = time.monotonic() - begun
    no_traceback(output)
    assert tracked.returncode == 0, output[-3000:]
    assert records(tmp_path / "data") == records(tmp_path / "plain")
    assert seconds < undisturbed + SECONDS, f"{seconds:.0f} s with the server, {undisturbed:.0f} s without tracking"


@pytest.mark.parametrize("pipelines", STAGES)
def test_a_full_disk_is_a_message(kedro: Any, tmp_path: Path, pipelines: str) -> None:
    """The pipeline writes to a file system that its predecessors filled; with room it then finishes."""
    data = tmp_path / "small"
    data.mkdir()
    options = "size=1g"
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(data)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"file systems cannot be mounted here: {error}")
    try:
        if before := STAGES[: STAGES.index(pipelines)]:
            first = kedro("tracking.enabled=false", data=data, pipelines=",".join(before))
            assert first.wait(timeout=900) == 0
        used = shutil.disk_usage(data).used
        room = 300 * 2**20  # what is free again afterwards: preflight asks for the space of several checkpoints
        (data / "filler").write_bytes(bytes(room))
        subprocess.run(
            ["mount", "-o", f"remount,size={used + room + 2**20}", str(data)], check=True, capture_output=True
        )
        with open(data / "filler", "ab") as filler:  # leave a few pages
            free = shutil.disk_usage(data).free
            filler.write(bytes(max(free - 16_384, 0)))
        full = kedro("tracking.enabled=false", data=data, pipelines=pipelines)
        output, _ = full.communicate(timeout=900)
        no_traceback(output)
        assert full.returncode not in (0, -9), output[-2000:]
        assert "disk" in output.lower() or "space" in output.lower(), output[-2000:]
        (data / "filler").unlink()
        again = kedro("tracking.enabled=false", data=data, pipelines=pipelines)
        output, _ = again.communicate(timeout=900)
        assert again.returncode == 0, output[-3000:]
        assert not list(data.rglob(".tmp-*"))
    finally:
        subprocess.run(["umount", "-l", str(data)], check=False, capture_output=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_with_its_code(kedro: Any, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The exit code is that of the signal, nothing is left behind, and the same command then finishes."""
    run = kedro("tracking.enabled=false", "ingestion.shard_rows=8")
    deadline = time.monotonic() + 600
    while run.poll() is None and time.monotonic() < deadline and not list((tmp_path / "data").rglob("part-*")):
        time.sleep(0.005)
    run.send_signal(number)
    output, _ = run.communicate(timeout=300)
    if run.returncode != 0:  # it may have finished before the signal arrived
        assert run.returncode in (code, -number), output[-2000:]
    assert kedro("tracking.enabled=false", "ingestion.shard_rows=8").wait(timeout=900) == 0
    assert not list((tmp_path / "data").rglob(".tmp-*"))
