"""The service answers as the requests do, alone and together with others, and refuses what it cannot answer."""

import asyncio
import base64
import inspect
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import numpy as np
import pytest
import uvicorn
from click.testing import CliRunner
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.inference.runs import LATENTS, BagEncoder, make, write_run

from mm_ldlm.app.commands import COMMANDS
from mm_ldlm.app.console import COMMON, TRACE, commands, frame_of
from mm_ldlm.core import EncoderError
from mm_ldlm.extras.service.app import build
from mm_ldlm.extras.service.batches import Batches
from mm_ldlm.extras.service.requests import Limits, endpoints
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.objectives.capabilities import USES

SMALL = Limits(max_rows=8, max_characters=100, max_bytes=4000, max_work=500, window=1.0)
ENDPOINTS = endpoints(SMALL, make())
VECTORS = LATENTS[:2].tolist()
REQUESTS: dict[str, dict[str, Any]] = {
    "encode": {"texts": ["w1 w2", "w3"]},
    "embed": {"texts": ["w1 w2", "w3"], "sampler": {"kind": "ddim", "eta": 1.0}, "steps": 3, "draws": 2},
    "invert": {"targets": VECTORS, "temperature": 1.0, "length": "sample"},
    "invert texts": {"targets": ["w5", "w6 w7"], "temperature": 1.0, "reembed": True},
    "invert search": {"targets": VECTORS, "search": {"candidates": 3, "rounds": 2}},
    "generate": {"n": 3, "order": "latent_first", "steps": 3, "seed": 5},
    "score": {"texts": ["w1 w2", "w3"], "draws": 4, "latents": VECTORS, "seed": 9999},
    "infill": {"texts": ["w1 [MASK]", "[MASK] w2 [MASK]"], "temperature": 1.0, "seed": 0},
    "edit": {"sources": ["w1 w2 w3", "w4 w5"], "targets": VECTORS, "strength": 1.0, "temperature": 1.0},
}
"""Requests that are computed together with others, with random draws where they have any"""
ALONE: dict[str, dict[str, Any]] = {
    "invert": {"targets": VECTORS, "samples": 2, "temperature": 1.0, "keep": "all"},
    "edit": {"sources": ["w1 w2 w3", "w4 w5"], "targets": VECTORS[:1]},
    "neighbours": {"latents": VECTORS, "store": LATENTS.tolist(), "k": 2},
    "interpolate": {"a": VECTORS, "b": VECTORS[::-1], "steps": 3},
}


@pytest.fixture(scope="module")
def model() -> MMLDLM:
    return make()


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(build(make(), SMALL), raise_server_exceptions=False) as found:
        yield found


def frames_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compare texts exactly, and numbers up to the rounding of float32."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            if isinstance(value, str) or value is None:
                assert value == other[name], name
            else:
                np.testing.assert_allclose(np.float64(value), np.float64(other[name]), rtol=1e-4, atol=1e-5)


def refused(answer: Any, status: int, *named: str) -> None:
    """Check a refusal: a client's error whose message is a sentence with each of `named`, without words of libraries."""
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    assert len(message) >= 20
    assert not re.search(r"valid (integer|string|number)|dictionary|instance|after validation|give the import", message)
    assert not [word for word in named if word not in message], message


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "body"), [*REQUESTS.items(), *ALONE.items()])
def test_an_answer_is_the_table_of_the_request(
    name: str, body: dict[str, Any], client: TestClient, model: MMLDLM
) -> None:
    name = name.split()[0]
    answer = client.post(f"/{name}", json=body)
    assert answer.status_code == 200, answer.text
    expected = frame_of(COMMANDS.load(name)(model, **body))
    frames_equal(answer.json()["rows"], json.loads(expected.to_json(orient="records", double_precision=15)))


@pytest.mark.parametrize(("name", "body"), REQUESTS.items())
def test_an_answer_does_not_depend_on_the_requests_that_it_is_computed_with(name: str, body: dict[str, Any]) -> None:
    """A row has the random numbers of its own request, wherever the rows of others are."""
    sizes: list[int] = []
    batches = Batches(make(), window=0.0, observe=sizes.append)
    endpoint = ENDPOINTS[name.split()[0]]
    columns = endpoint.columns
    reverse = {key: value[::-1] if key in columns and isinstance(value, list) else value for key, value in body.items()}
    first = {key: value[:1] if key in columns and isinstance(value, list) else value for key, value in body.items()}
    jobs = [endpoint.job(each) for each in (first, body, reverse, body)]
    assert len({job.key for job in jobs}) == 1
    alone = [batches.compute([job])[0] for job in jobs]
    together = batches.compute(jobs)
    assert sizes == [1, 1, 1, 1, 4]
    for found, expected in zip(together, alone, strict=True):
        frames_equal(found, expected)  # type: ignore[arg-type]
    again = batches.compute([jobs[1]])[0]
    frames_equal(again, alone[1])  # type: ignore[arg-type]  # nothing of the others is left


def test_only_requests_with_equal_options_whose_rows_are_independent_are_computed_together() -> None:
    for name, body in ALONE.items():
        assert ENDPOINTS[name].job(body).key != ENDPOINTS[name].job(body).key
    score = ENDPOINTS["score"]
    bodies = [
        {"texts": "w1"},
        {"texts": "w1", "seed": 1},
        {"texts": "w1", "draws": 2},
        {"texts": "w1", "latents": VECTORS[:1]},
    ]
    assert len({score.job(body).key for body in bodies}) == len(bodies)


def test_a_refused_request_leaves_the_others_of_its_computation_as_they_are() -> None:
    batches = Batches(make(), window=0.0, observe=lambda size: None)
    score = ENDPOINTS["score"]
    good, bad = score.job({"texts": "w1 w2"}), score.job({"texts": "w1 " * 30})
    found = batches.compute([good, bad, good, good])
    assert isinstance(found[1], Exception)
    assert "texts[0]" in str(found[1])
    frames_equal(found[3], batches.compute([good])[0])  # type: ignore[arg-type]


def test_concurrent_requests_are_computed_together(model: MMLDLM, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("mm_ldlm.extras.service.batches.MOST_JOBS", 4)

    async def ask() -> list[Any]:
        batches = Batches(make(), window=0.01, observe=sizes.append)
        computing = asyncio.create_task(batches.run())
        jobs = [ENDPOINTS["encode"].job({"texts": f"w{number}"}) for number in range(6)]
        gone = asyncio.create_task(batches.answer(jobs[0]))
        await asyncio.sleep(0)
        gone.cancel()
        found = await asyncio.wait_for(asyncio.gather(*map(batches.answer, jobs)), 60)
        computing.cancel()
        return found

    for number, rows in enumerate(asyncio.run(ask())):
        np.testing.assert_array_equal(rows[0]["latent"], model.encode(f"w{number}")[0])
    assert sizes == [4, 3], "at most so many, of which the client of one has gone"


@pytest.mark.parametrize(("name", "request_name"), [("encoder", "encode"), ("model", "embed")])
def test_embeddings_are_those_of_the_request_as_numbers_and_as_bytes(
    name: str, request_name: str, client: TestClient, model: MMLDLM
) -> None:
    texts = ["w1 w2", "w3"]
    made = getattr(model, request_name)(texts)
    expected = getattr(made, "latents", made)
    answers = [
        client.post("/v1/embeddings", json={"model": name, "input": texts, "encoding_format": form}).json()
        for form in ("float", "base64")
    ]
    assert [[each["index"] for each in answer["data"]] for answer in answers] == [[0, 1], [0, 1]]
    assert answers[0]["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    numbers, coded = ([each["embedding"] for each in answer["data"]] for answer in answers)
    decoded = [np.frombuffer(base64.b64decode(each), "<f4") for each in coded]
    np.testing.assert_allclose(numbers, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.float32(numbers), decoded)


# --- refusals ---------------------------------------------------------------------------------------------------------

LONG = {"texts": "w" * 101}
MALFORMED = {
    "not JSON": ("/score", b"{texts", 400, "JSON"),
    "not UTF-8": ("/score", b'{"texts": "\xff"}', 400, "JSON"),
    "too deep": ("/score", b"[" * 3000, 400, "JSON"),
    "no object": ("/score", b"[]", 400, "object"),
    "nothing": ("/score", b"", 400, "JSON"),
    "missing": ("/score", b"{}", 400, "texts"),
    "unknown": ("/score", b'{"texts": "w1", "drawz": 2}', 400, "draws"),
    "type": ("/score", b'{"texts": "w1", "draws": "many"}', 400, "integer"),
    "no rows": ("/score", b'{"texts": []}', 400, "at least 1"),
    "blank": ("/score", b'{"texts": ["w1", " "]}', 400, "texts[1]"),
    "item": ("/score", b'{"texts": ["w1", 5]}', 400, "texts[1]"),
    "mixed": ("/invert", b'{"targets": ["w1", [1, 1, 1, 1, 1, 1]]}', 400, "targets"),
    "lengths": ("/invert", b'{"targets": [[1, 2], [1]]}', 400, "one length"),
    "search": ("/invert", b'{"targets": "w1", "search": 5}', 400, "expected a mapping"),
    "other sampler": ("/generate", b'{"n": 1, "latent_sampler": "margin"}', 400, "latent_sampler"),
    "ends": ("/interpolate", b'{"a": "w1", "b": ["w1", "w2"]}', 400, "b:"),
    "no gap": ("/infill", b'{"texts": ["[MASK]", "w1"]}', 400, "texts[1]"),
    "surrogate": ("/score", b'{"texts": "\\ud800"}', 400, "JSON"),
    "NaN": ("/invert", b'{"targets": [[NaN, 1, 1, 1, 1, 1]]}', 400, "JSON"),
    "dimension": ("/invert", b'{"targets": [[1, 2]]}', 400, "dim 6"),
    "tokens of text": ("/score", json.dumps({"texts": "w1 " * 13}).encode(), 400, "12 tokens"),
    "too many tokens": ("/generate", b'{"n": 1, "length": 13}', 400, "12"),
    "sampler": ("/invert", b'{"targets": "w1", "sampler": "confidense"}', 400, "confidence"),
    "rows": ("/score", json.dumps({"texts": ["w1"] * 9}).encode(), 400, "at most 8"),
    "n": ("/generate", b'{"n": 9}', 400, "8"),
    "characters": ("/score", json.dumps(LONG).encode(), 400, "at most 100"),
    "default steps": ("/invert", json.dumps({"targets": ["w1"] * 8, "samples": 20}).encode(), 400, "640"),
    "work": ("/invert", b'{"targets": ["w1"], "search": {"candidates": 30, "rounds": 30}}', 400, "3,600"),
    **{
        f"work in {steps[:5]}": (
            "/infill",
            b'{"texts": "[MASK]", "sampler": {"kind": "ancestral", "steps": %s}}' % steps.encode(),
            400,
            "product",
        )
        for steps in ("9000", "9e3", '"9000"', '"9000.0"', "9" * 2000)
    },
    "bytes": ("/score", json.dumps({"texts": ["w1 " * 33] * 50}).encode(), 413, "4,000 bytes"),
    "token ids": ("/v1/embeddings", b'{"input": [[1, 2]]}', 400, "input[0]"),
    "dimensions": ("/v1/embeddings", b'{"input": "w1", "dimensions": 3}', 400, "dimensions"),
    "model": ("/v1/embeddings", b'{"input": "w1", "model": "gpt"}', 400, "encoder"),
    "path": ("/nowhere", b"{}", 404, "/docs"),
    "slash": ("/score/", b'{"texts": "w1"}', 404, "/docs"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_refused_with_a_sentence(case: str, client: TestClient) -> None:
    path, body, status, named = MALFORMED[case]
    refused(client.post(path, content=body, headers={"Content-Type": "application/json"}), status, named)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["w1", "ddim"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "steps"]), inner, max_size=2),
    max_leaves=5,
)


@given(data=st.data())
@settings(max_examples=60)
def test_no_json_makes_the_service_fail(data: st.DataObject, client: TestClient) -> None:
    name = data.draw(st.sampled_from(sorted(ENDPOINTS)))
    fields = st.sampled_from(list(inspect.signature(ENDPOINTS[name].body).parameters))
    needed = {**REQUESTS, **ALONE}.get(name, {})
    body = {**needed, **data.draw(st.dictionaries(fields, JSON, max_size=3))}
    answer = client.post(f"/{name}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400), (body, answer.text)


def test_a_request_reads_no_file_and_imports_no_code(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "harmful.py").write_text("raise SystemExit(1)")
    np.save("w1.npy", LATENTS)
    answer = client.post("/invert", json={"targets": "w1.npy"})
    assert [row["source"] for row in answer.json()["rows"]] == ["w1.npy"]
    for store in ("w1.npy", str(tmp_path)):
        refused(client.post("/neighbours", json={"latents": "w1", "store": store}), 400, "store")
    for sampler in ("harmful:X", {"kind": "harmful:X"}, {"kind": "blocks", "inner": {"kind": "harmful:X"}}):
        refused(client.post("/invert", json={"targets": "w1", "sampler": sampler}), 400, "registered")
    assert "harmful" not in sys.modules


def test_a_page_of_another_site_cannot_send_a_request(client: TestClient) -> None:
    """Browsers send text/plain to any address without asking it; JSON only with its permission."""
    refused(client.post("/score", content=b'{"texts": "w1"}', headers={"Content-Type": "text/plain"}), 415, "json")


def test_a_body_without_a_length_is_bounded_as_well(client: TestClient) -> None:
    chunks = iter([b" " * 3000, b" " * 3000])
    refused(client.post("/score", content=chunks, headers={"Content-Type": "application/json"}), 413, "bytes")
    largest = b'{"texts": "w1"}'.ljust(SMALL.max_bytes)
    assert client.post("/score", content=largest, headers={"Content-Type": "application/json"}).status_code == 200


def test_a_key_is_needed_for_everything_but_the_probes_and_the_page() -> None:
    with TestClient(build(make(), SMALL, key="a-key")) as client:
        for headers in (
            {},
            {"Authorization": "Bearer a-kez"},
            {"Authorization": "Bearer a-ke"},
            {"Authorization": "Bearer ä".encode()},
            {"Authorization": "a-key"},
        ):
            refused(client.post("/score", json={"texts": "w1"}, headers=headers), 401, "Bearer")
            refused(answer := client.get("/metrics", headers=headers), 401)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        right = {"Authorization": "Bearer a-key"}
        assert client.post("/score", json={"texts": "w1"}, headers=right).status_code == 200
        assert {client.get(path).status_code for path in ("/", "/healthz", "/openapi.json")} == {200}


def test_an_encoder_that_fails_is_no_error_of_the_client_and_secrets_are_masked() -> None:
    class Failing(BagEncoder):
        def encode(self, sentences: Any) -> Any:
            raise EncoderError("expected an answer of https://user:S3cret@host, found none. Wait.")

    with TestClient(build(make(encoder=Failing()), SMALL)) as client:
        refused(answer := client.post("/encode", json={"texts": "w1"}), 503, "found none")
    assert "S3cret" not in answer.text


def test_the_command_serves_the_checkpoint_within_its_limits_and_needs_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(MMLDLM, "from_run", lambda run, **how: seen.append(how) or make())
    monkeypatch.setattr("mm_ldlm.extras.service.app.build", lambda model, bounds, key: seen.append((bounds, key)))
    monkeypatch.setattr("uvicorn.Config", lambda *_, **__: None)  # it would configure the logging of this process
    monkeypatch.setattr("uvicorn.Server", lambda config: SimpleNamespace(run=lambda sockets: None))
    monkeypatch.setattr(logging.getLogger("mm_ldlm.inference"), "setLevel", print)  # other tests read its warnings
    monkeypatch.setenv("OWN_KEY", "")
    words = ["serve", "--port=0", "--checkpoint=best", "--device=cpu", "--max-rows=3", "--key-variable=OWN_KEY"]
    assert (CliRunner().invoke(commands, words).exit_code, seen) == (1, [])
    monkeypatch.setenv("OWN_KEY", "key")
    assert CliRunner().invoke(commands, words).exit_code == 0
    assert seen == [{"checkpoint": "best", "device": "cpu", "precision": "fp32"}, (Limits(max_rows=3), "key")]


# --- pages, metrics, and the process ------------------------------------------------------------------------------------


def test_the_page_explains_every_option_of_every_command_that_is_a_request(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for name in ENDPOINTS:
        content = document["paths"][f"/{name}"]["post"]["requestBody"]["content"]
        properties = content["application/json"]["schema"]["properties"]
        options = [each for each in commands.get_command(None, name).params if each not in (*COMMON, TRACE)]  # type: ignore
        assert {*properties} == {each.name for each in options}
        for option in options:
            assert (getattr(option, "help", None) or "").partition(" One of ")[0] in properties[option.name].get(
                "description", ""
            )
        assert all(each.get("description") for each in properties.values())
    page = client.get("/docs").text
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)


def test_the_examples_of_the_page_can_be_sent_as_they_are(write_dataset: Any, model: MMLDLM, tmp_path: Path) -> None:
    texts = [f"w{i} w{i + 1}" for i in range(8)]
    data = write_dataset(tmp_path, texts, ["train"] * 8, latents=model.encode(texts))
    run = MMLDLM(replace(model.parts, dataset=data.directory), model.encoder)
    with TestClient(build(run, Limits())) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, operations in paths.items():
            for method, about in operations.items():
                content = about.get("requestBody", {}).get("content", {"application/json": {}})["application/json"]
                answer = client.request(method, path, json=content.get("example"))
                reason = run.capabilities.refusal(path[1:]) if path[1:] in USES else None
                assert answer.status_code == (200 if reason is None else 400), (path, answer.text)
                assert about["tags"]


class Slow(BagEncoder):
    """An encoder that answers when it is loaded."""

    def __init__(self, loaded: threading.Event) -> None:
        super().__init__()
        self.loaded = loaded

    def encode(self, sentences: Any) -> Any:
        self.loaded.wait(60)
        return super().encode(sentences)


def test_the_service_is_ready_when_its_encoder_is_loaded_and_counts_its_requests() -> None:
    with TestClient(build(make(encoder=Slow(loaded := threading.Event())), SMALL)) as client:
        assert client.get("/healthz").status_code == 200
        refused(client.get("/readyz"), 503)
        loaded.set()
        assert client.post("/encode", json={"texts": "w1"}).status_code == 200
        assert client.get("/readyz").status_code == 200
        client.post("/encode", json={})
        client.get("/no/such/path")
        lines = client.get("/metrics").text.splitlines()
    for handler, status, method in (("/encode", 200, "POST"), ("/encode", 400, "POST"), ("none", 404, "GET")):
        assert f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}} 1.0' in lines


def test_a_signal_stops_the_service_after_the_request_that_it_is_answering(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mm_ldlm", "serve", "--run", str(write_run(tmp_path / "run-1")), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        address = next(found[0] for line in process.stderr if (found := re.findall(r"http://127\.0\.0\.1:\d+", line)))
        answers: list[Any] = []
        body = {"n": 60, "steps": 60, "sampler": "ancestral", "order": "text_first"}
        asking = threading.Thread(
            target=lambda: answers.append(httpx2.post(f"{address}/generate", json=body, timeout=120))
        )
        asking.start()
        while "requests_per_computation_count 2.0" not in httpx2.get(f"{address}/metrics", timeout=60).text:
            pass
        process.send_signal(signal.SIGTERM)
        asking.join()
        assert len(answers[0].json()["rows"]) == 60
        assert process.wait(60) == -signal.SIGTERM
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{address}/healthz")


def test_a_request_that_outlasts_the_time_to_stop_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    app = build(make(encoder=Slow(loaded := threading.Event())), SMALL)
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=1, log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        serving = pool.submit(server.run, [listener])
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        asked = pool.submit(httpx2.post, f"{address}/encode", json={"texts": "w1"}, timeout=60)
        while not server.server_state.tasks:
            time.sleep(0.01)
        with socket.create_connection(listener.getsockname()) as gone:  # within its request
            gone.sendall(
                b"POST /encode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
        assert httpx2.get(f"{address}/healthz").status_code == 200
        server.should_exit = True
        refused(asked.result(), 503)
        loaded.set()
        serving.result()
    assert not [record for record in caplog.records if record.exc_info]
