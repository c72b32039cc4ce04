"""Service under load of 16 clients, of whose requests 5 % are malformed, next to one client and a loop over the model.

The requests are embeddings, inversions of latents, and scores, of held-out sentences. Ratios compare throughput with
one client that sends the same requests one after the other, and times with a loop over the model in one process. The
growth of the memory is measured after the first 1,000 requests. The benchmark needs the run that `kedro run` leaves in
`data/`.
"""

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

DATA = Path(__file__).resolve().parents[1] / "data"
REQUESTS, SINGLE, FIRST, CLIENTS = 10_000, 500, 1000, 16
MALFORMED: list[tuple[str, bytes]] = [
    ("/score", b"{"),
    ("/score", b'{"texts": 5}'),
    ("/invert", b'{"targets": [[1, 2]]}'),
    ("/invert", b'{"targets": ["words"], "stepz": 4}'),
    ("/v1/embeddings", b'{"input": [1, 2]}'),
    ("/v1/embeddings", json.dumps({"input": "word " * 3000}).encode()),
    ("/nowhere", b"{}"),
]
"""Every twentieth request is the next one of these"""


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark, or none without a run."""
    runs = DATA / "06_models" / "runs"  # below DATA are runs of other environments too, which may be newer
    if not runs.is_dir():
        print(f"  nothing to measure: found no run in {DATA.name}/. Start `kedro run` first.")
        return []
    from mm_ldlm import MMLDLM
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.data.held_out import held_out

    model = MMLDLM.from_run(runs, device="cpu")
    sentences = held_out(Dataset.open(DATA / "05_model_input" / "dataset"), count=200, seed=0, split="test")
    texts, latents = sentences.texts, sentences.latents
    valid: list[tuple[str, bytes]] = []
    calls: list[Callable[[], Any]] = []
    for text, latent_d in zip(texts, latents, strict=True):
        for path, body in (
            ("/v1/embeddings", {"input": text, "encoding_format": "base64"}),
            ("/invert", {"targets": [latent_d.tolist()]}),
            ("/score", {"texts": text, "draws": 4}),
        ):
            valid.append((path, json.dumps(body).encode()))
        calls += [
            partial(model.encode, text),
            partial(model.invert, latent_d),
            partial(model.score, text, draws=4),
        ]
    for call in calls[:6]:
        call()
    loop = [_timed(calls[number % len(calls)]) for number in range(SINGLE)]
    with serving(runs) as (port, process):
        ask(port, valid[:6] * 4, clients=4)
        alone = ask(port, [valid[number % len(valid)] for number in range(SINGLE)], clients=1)
        every = [
            MALFORMED[number // 20 % len(MALFORMED)] if number % 20 == 0 else valid[number % len(valid)]
            for number in range(REQUESTS)
        ]
        first = ask(port, every[:FIRST], clients=CLIENTS)
        before = process.memory_info().rss
        rest = ask(port, every[FIRST:], clients=CLIENTS) if every[FIRST:] else first
        growth = (process.memory_info().rss - before) / 1e6
    statuses = [*first.statuses, *rest.statuses][: len(every)]
    wrong = [
        (path, status)
        for number, ((path, _), status) in enumerate(zip(every, statuses, strict=True))
        if not (400 <= status < 500 if number % 20 == 0 else status == 200)
    ]
    rows = [
        {
            "name": f"service, {CLIENTS} clients", "value": rest.per_second, "unit": "requests/s",
            "peer": "one client", "peer_value": alone.per_second, "ratio": rest.per_second / alone.per_second,
        },
        {"name": "service, requests with an unexpected status", "value": len(wrong), "unit": f"of {len(every)}"},
        {"name": "service, growth of the memory", "value": growth, "unit": "MB"},
    ]  # fmt: skip
    for quantile in (50, 99):
        looped = float(np.percentile(loop, quantile)) * 1000
        for name, load in (("one client", alone), (f"{CLIENTS} clients", rest)):
            value = float(np.percentile(load.seconds, quantile)) * 1000
            rows.append(
                {
                    "name": f"service, p{quantile} of {name}", "value": value, "unit": "ms",
                    "peer": "loop over the model", "peer_value": looped, "ratio": looped / value,
                }
            )  # fmt: skip
    return rows


class Load:
    """Times and statuses of requests that were sent by some clients."""

    def __init__(self, count: int) -> None:
        self.seconds, self.statuses, self.per_second = [0.0] * count, [0] * count, 0.0


def ask(port: int, requests: Sequence[tuple[str, bytes]], *, clients: int) -> Load:
    """Send the requests; each client sends the next one when it has an answer."""
    load, numbers = Load(len(requests)), iter(range(len(requests)))
    start = time.perf_counter()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for number in numbers:
            path, body = requests[number]
            begin = time.perf_counter()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            load.seconds[number], load.statuses[number] = time.perf_counter() - begin, answer.status
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.per_second = load.statuses.count(200) / (time.perf_counter() - start)  # a refusal costs little
    return load


@contextmanager
def serving(runs: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Start the service of the newest run in a process of its own, on a free port."""
    words = [sys.executable, "-m", "mm_ldlm", "serve", "--run", str(runs), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = (re.search(r"http://127\.0\.0\.1:(\d+)", line) for line in process.stderr)
        yield int(next(match for match in found if match)[1]), psutil.Process(process.pid)
        process.terminate()


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
