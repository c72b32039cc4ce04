"""Target: other programs that misbehave: services of embeddings that drip or lie, and commands that are killed early."""

import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import material
from .oracle import Wrong

TIMEOUT = 1.0
"""Seconds that the client allows for one exchange"""
SLACK = 4.0
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ANSWERS: dict[str, tuple[bytes, float]] = {
    "drip_headers": (b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 500, 0.05),
    "drip_body": (_OK + b"content-length: 1000\r\n\r\n" + b" " * 999, 0.05),
    "silence": (b"", 0),
    "redirect": (b"HTTP/1.1 301 Moved\r\nlocation: http://[::1\r\ncontent-length: 0\r\n\r\n", 0),
    "no_http": (b"SSH-2.0-x\r\n", 0),
    "endless_header": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, 0),
    "half": (_OK + b"content-length: 900\r\n\r\n{", 0),
    "no_json": (_OK + b"content-length: 5\r\n\r\n{oops", 0),
    "wrong_length": (_OK + b"content-length: -5\r\n\r\n{}", 0),
    "deep": (_OK + b"content-length: 100000\r\n\r\n" + b"[" * 100_000, 0),
    **{
        f"data_{i}": (_OK + b"content-length: %d\r\n\r\n%s" % (len(raw), raw), 0)
        for i, raw in enumerate(json.dumps({"data": data}).encode() for data in (
            None, [], [{}], [{"embedding": [1]}], [{"embedding": None, "index": 0}], [{"embedding": [1e999] * 4, "index": 0}],
            [{"embedding": [0.1] * 4, "index": 7}], [{"embedding": ["a"] * 4, "index": 0}], {"embedding": [1]},
        ))
    },
}  # fmt: skip
"""What a service sends, and the seconds between two bytes"""


def prepare() -> None:
    """Load the client, and make the run, for which the limits of a case are too narrow."""
    from mm_ldlm.extras.http_encoder import encoder  # noqa: F401

    material.data()


def generate(draw: random.Random) -> dict[str, Any]:
    if draw.random() < 0.9:
        return {"answer": draw.choice(list(ANSWERS)), "keep_open": draw.random() < 0.5}
    return {"kill_after": round(draw.uniform(0.1, 3.0), 2)}


def run(parameters: dict[str, Any], folder: Path, nothing: None) -> str:
    if "answer" not in parameters:
        return killed(folder, parameters["kill_after"])
    with service(*ANSWERS[parameters["answer"]], keep_open=parameters["keep_open"]) as url:
        return asked(url)


def asked(url: str) -> str:
    """Embed the probe sentences; whatever the service does, it is refused within the deadline."""
    from mm_ldlm.extras.http_encoder.encoder import HttpEncoderConfig

    started = time.monotonic()
    try:
        HttpEncoderConfig(url=url, name="m", dim=4, timeout=TIMEOUT, retries=0, max_wait=1.0).locate()
    finally:
        if (seconds := time.monotonic() - started) > TIMEOUT + SLACK:
            raise Wrong("no deadline", f"one request took {seconds:.1f} s, its limit is {TIMEOUT} s")
    raise Wrong("accepted nonsense", "an answer without the vectors of the sentences was accepted")


@contextlib.contextmanager
def service(answer: bytes, pause: float, *, keep_open: bool) -> Iterator[str]:
    """Serve one answer to every request, byte by byte if there is a pause."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=reply, args=[connection], daemon=True).start()

        def reply(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                connection.recv(65536)
                for start in range(0, len(answer), 1 if pause else max(1, len(answer))):
                    connection.sendall(answer[start : start + 1] if pause else answer)
                    time.sleep(pause)
                time.sleep(30 if keep_open else 0)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        server.shutdown(socket.SHUT_RDWR)


def killed(folder: Path, seconds: float) -> str:
    """Kill the launching process some seconds after its ranks appear; ten seconds later none of them is alive."""
    runs = material.copy(material.runs(), folder / "runs")
    document = json.loads((runs / "training_spec.json").read_text())
    document["dataset"] = str(material.dataset())
    document["training"] |= {"max_steps": 10**6, "run_name": "second"}
    document["training"]["launch"]["processes"] = 2
    (runs / "training_spec.json").write_text(json.dumps(document))
    code = (
        "import json, pathlib; from mm_ldlm.training.session import run_session; root = pathlib.Path.cwd() / 'runs'; "
    )
    code += "run_session(json.loads((root / 'training_spec.json').read_text()), root)"
    with open(folder / "launcher.txt", "wb") as output:
        launcher = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=output, stderr=output)
    while len(ranks(runs)) < 2:
        if launcher.poll() is not None:
            raise AssertionError((folder / "launcher.txt").read_text()[-2000:])
        time.sleep(0.02)
    time.sleep(seconds)
    launcher.kill()
    launcher.wait()
    end = time.monotonic() + 10
    while (left := ranks(runs)) and time.monotonic() < end:
        time.sleep(0.1)
    if left:
        raise Wrong("orphan", f"{len(left)} ranks were alive ten seconds after their launcher was killed")
    return "success"


def ranks(runs: Path) -> list[int]:
    """Processes of the workers that train in this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(runs).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
