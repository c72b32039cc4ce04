"""What a client of a service logs and keeps open: long waits, repeated requests, connections that broke."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from embedding_service import Service

from mm_ldlm.data.encoders import load_encoder, parse_encoder
from mm_ldlm.extras.http_encoder import client as http_client
from mm_ldlm.extras.http_encoder import encoder as http_encoder
from mm_ldlm.extras.http_encoder.client import Client


def client_of(service: Service, **options: Any) -> Client:
    given = {"api_key": None, "requests_per_minute": None, "timeout": 30, "retries": 4, "max_wait": 60} | options
    return Client(f"{service.url}/embeddings", **given)


@pytest.mark.parametrize(("after", "logged"), [(4.9, False), (5.0, True), (7.4, True)])
def test_a_long_wait_is_logged_with_the_attempt_that_follows(
    after: float, logged: bool, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(service)
    client._pause(http_client._Transient("status 429", after=after), 2)
    words = f"{client.service}: status 429; waiting {after:.0f} s before attempt 3 of 5"
    assert caplog.messages == ([words] if logged else [])


def test_repeated_requests_are_counted_by_their_reasons(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    encoder: Any = load_encoder(parse_encoder({"kind": "http", "url": service.url, "name": "toy", "connections": 1}))
    failures = {"status 500": 3, "no complete answer within 60 s": 2}
    encoder._service.client = SimpleNamespace(
        service="s", take_failures=lambda: failures,
        post=lambda body, **_: {"data": [{"index": 0, "embedding": [1.0] * encoder.dim}]},
    )  # fmt: skip
    with caplog.at_level("INFO", logger=http_encoder.__name__):
        encoder.encode(["a"])
    assert caplog.messages == ["s: repeated requests: 5 (no complete answer within 60 s: 2, status 500: 3)"]
    encoder._service.client.take_failures = dict
    encoder.encode(["a"])
    assert len(caplog.messages) == 1


def test_a_connection_that_broke_is_replaced_and_all_are_closed_at_the_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.001)
    client, stop = client_of(service), threading.Event()
    body = {"model": "toy", "input": ["a"]}
    client.post(body, max_bytes=10**6, stop=stop)
    (first,) = client._opened
    service.fault = lambda number, texts: "reset" if number == 1 else None
    client.post(body, max_bytes=10**6, stop=stop)
    (second,) = client._opened
    assert first is not second
    assert second.sock is not None
    client.close()
    assert (second.sock, client._opened) == (None, set())
