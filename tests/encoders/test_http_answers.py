"""Answers of services that are rare: long or plain refusals, connections that end, certificates, other dimensions."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.client import HTTPMessage
from typing import Any

import numpy as np
import pytest
from embedding_service import DIM, Service, unit

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.encoders import load_encoder, locate_encoder, parse_encoder
from mm_ldlm.extras.http_encoder import client as http_client
from mm_ldlm.extras.http_encoder.client import Client, Stopped
from mm_ldlm.extras.http_encoder.encoder import vectors_of

TEXTS = [f"text {number}" for number in range(9)]


def config(service: Service, **values: Any) -> Any:
    return parse_encoder({"kind": "http", "url": service.url, "name": "toy", "connections": 1, "timeout": 30, **values})


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"message": "too long"}', "too long"),
        (b'{"detail": "too long"}', "too long"),
        (b"<html>\n too\x07 long</html>", "<html> too  long</html>"),
        (b"[" * 5000, "[" * 300),
        (b'{"error": {"code": 7}}', '{"error": {"code": 7}}'),
        (b"x" * 100_000, "x" * 300),
        (b"", None),
    ],
)
def test_a_refusal_shows_the_beginning_of_what_the_service_says(
    content: bytes, shown: str | None, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(config(service))
    answer = service.answer

    def refuse(handler: Any) -> None:
        if service.fault(0, []) == "400":
            handler.rfile.read(int(handler.headers["Content-Length"]))
            service.send(handler, 400, content, {})
        else:
            answer(handler)

    monkeypatch.setattr(service, "answer", refuse)
    service.fault = lambda number, texts: "400"
    with pytest.raises(EncoderError) as caught:
        encoder.encode(TEXTS)
    words = f" ({shown})" if shown else ""
    assert f"refused the request with status 400{words}. Check encoder.name" in str(caught.value)
    service.fault = lambda number, texts: None
    np.testing.assert_array_equal(encoder.encode(TEXTS), [unit(text) for text in TEXTS], "the connection is usable")


def test_a_service_that_ends_every_connection_answers_all_requests(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = service.send
    monkeypatch.setattr(
        service, "send", lambda handler, status, content, headers, **more: send(
            handler, status, content, {**headers, "Connection": "close"}, **more)
    )  # fmt: skip
    encoder: Any = load_encoder(config(service, batch_rows=2))
    np.testing.assert_array_equal(encoder.encode(TEXTS), [unit(text) for text in TEXTS])
    assert encoder._service.client.take_failures() == {}
    assert len(encoder._service.client._opened) <= 1


def test_failures_are_reported_once(service: Service) -> None:
    encoder: Any = load_encoder(config(service))
    client, first = encoder._service.client, len(service.requests)
    service.fault = lambda number, texts: "503" if number < first + 2 else None
    client.post({"model": "toy", "input": ["a"]}, max_bytes=10_000, stop=threading.Event())
    assert client.take_failures() == {"status 503": 2}
    assert client.take_failures() == {}


def test_a_request_that_is_stopped_is_not_sent(service: Service) -> None:
    encoder: Any = load_encoder(config(service))
    before, stop = len(service.requests), threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        encoder._service.client.post({"model": "toy", "input": ["a"]}, max_bytes=10_000, stop=stop)
    with pytest.raises(Stopped):
        encoder._service._request(["a"], stop)
    assert len(service.requests) == before


def client(url: str) -> Client:
    return Client(url, api_key=None, requests_per_minute=None, timeout=7.0, retries=3, max_wait=1.0)


def test_a_certificate_that_is_not_trusted_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Any] = []

    def exchange(self: Any, *given: Any) -> Any:
        attempts.append(given)
        error = ssl.SSLCertVerificationError(1, "failed")
        error.verify_message = "self-signed certificate"
        raise error

    monkeypatch.setattr(Client, "_exchange", exchange)
    with pytest.raises(EncoderError, match=r"https://host: the certificate is not trusted \(self-signed certificate\)"):
        client("https://host/v1/embeddings").post({}, max_bytes=10, stop=threading.Event())
    assert len(attempts) == 1


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [("https://host/v1/embeddings", "host", 443, "/v1/embeddings"), ("https://host:8443/e", "host", 8443, "/e"),
     ("http://host/v1", "host", 80, "/v1"), ("http://[::1]:9", "::1", 9, "/")],
)  # fmt: skip
def test_a_connection_goes_to_the_address_and_checks_the_certificate_of_its_host(
    url: str, host: str, port: int, path: str
) -> None:
    made = client(url)
    connection: Any = made._connection()
    assert (connection.host, connection.port, connection.timeout, made._path) == (host, port, 7.0, path)
    assert connection is made._connection(), "one for each thread"
    assert isinstance(connection, http_client.http.client.HTTPSConnection) == url.startswith("https")
    if url.startswith("https"):
        assert made._tls is not None
        assert (made._tls.verify_mode, made._tls.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("dim", [None, DIM])
def test_answers_of_different_dimensions_are_refused(dim: int | None, service: Service) -> None:
    """Two models may answer in turn, before any answer has set the dimension."""
    service.vectors = lambda text: unit(text, dim=DIM if len(service.requests) % 2 else DIM - 1)
    expected = rf"one dimension, found \[{DIM - 1}, {DIM}\]" if dim is None else f"dimension {DIM}, found {DIM - 1}"
    with pytest.raises(EncoderError, match=expected):
        locate_encoder(config(service, batch_rows=1, dim=dim))


@pytest.mark.parametrize(
    ("embedding", "vector"),
    [([10**400], None), ([True, False], None), ([1, 2.5], [1.0, 2.5]), ([1e39], [np.inf]), ([], None), ("", None),
     (base64.b64encode(np.array([1.5, 2], "<f4").tobytes()).decode(), [1.5, 2.0]), ("AAAA", None), ("AAAAAA==", [0.0])],
)  # fmt: skip
@pytest.mark.parametrize("index", [0, -1, 1, True, 0.0, None])
def test_a_vector_has_numbers_and_an_index(embedding: Any, vector: Any, index: Any) -> None:
    answer = json.loads(json.dumps({"data": [{"index": index, "embedding": embedding}]}))
    if vector is not None and type(index) is int and index == 0:
        assert vectors_of(answer, rows=1, dim=None, service="s").tolist() == [vector]
        return
    with pytest.raises(EncoderError, match=r"expected an index from 0 to 0|expected an embedding that is a list"):
        vectors_of(answer, rows=1, dim=None, service="s")


# -- what is asked and what is accepted at the limits ------------------------------------------------------------------


@pytest.mark.parametrize(("shorten", "asked"), [(False, False), (True, True)])
def test_dimensions_are_asked_for_on_request_only(shorten: bool, asked: bool, service: Service) -> None:
    """Many services refuse the field for models that were not trained for it."""
    locate_encoder(config(service, dim=DIM, shorten=shorten))
    assert all(("dimensions" in request) == asked for request in service.requests)


def test_the_first_answer_may_have_any_dimension(service: Service) -> None:
    service.vectors = lambda text: unit(text, dim=6000)
    assert locate_encoder(config(service)).dim == 6000


@pytest.mark.parametrize("length", [0.5, 0.98, 1.02, 2.0])
def test_vectors_that_are_too_short_or_too_long_are_not_normalised(length: float, service: Service) -> None:
    service.vectors = lambda text: unit(text) * np.float32(length if text.startswith("def") else 1.0)
    with pytest.raises(EncoderError, match="expected vectors of length 1"):
        locate_encoder(config(service))
    assert not locate_encoder(config(service, normalised=False)).normalised


def test_the_declared_normalisation_is_part_of_the_identity(service: Service) -> None:
    one, two = (locate_encoder(config(service, normalised=normalised)) for normalised in (True, False))
    assert one.fingerprint != two.fingerprint
    again = locate_encoder(config(service), expected=two.fingerprint)
    assert again.fingerprint == one.fingerprint, "another declaration is another encoder and not a drift"


@pytest.mark.parametrize(
    ("texts", "batches"),
    [(["aaaa", "bbbb", "cc"], [["aaaa", "bbbb", "cc"]]), (["aaaa", "bbbbb", "cc"], [["aaaa", "bbbbb"], ["cc"]]),
     (["ééé", "éé", "a"], [["ééé", "éé"], ["a"]]), (["a" * 30, "b"], [["a" * 30], ["b"]]),
     (["b", "a" * 30], [["b"], ["a" * 30]]), (["a"] * 5, [["a"] * 4, ["a"]]), ([], [])],
)  # fmt: skip
def test_requests_have_at_most_ten_bytes_and_four_texts(
    texts: list[str], batches: list[list[str]], service: Service
) -> None:
    encoder: Any = load_encoder(config(service))
    parameters = config(service, batch_rows=4, batch_bytes=10)
    prepared = type(encoder)(encoder.located, parameters).prepare(texts)
    assert (prepared.rows, prepared.batches) == (len(texts), batches)


class Blocks:
    """An answer in blocks of 64 KiB that breaks off after the last one; it stands for its connection too."""

    def __init__(self, status: int, count: int, headers: dict[str, str]) -> None:
        self.status, self.left, self.headers, self.closed = status, count, HTTPMessage(), 0
        for name, value in headers.items():
            self.headers[name] = value

    def request(self, *_: Any) -> None:
        return None

    def getresponse(self) -> Blocks:
        return self

    def read1(self, size: int) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise TimeoutError
        return b"x" * size

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("status", "headers", "error", "words"),
    [
        (400, {}, EncoderError, r"status 400 \(x{300}\)\. Check encoder\.name"),
        (401, {}, EncoderError, r"status 401 \(x{300}\)\. Check the key"),
        (404, {}, EncoderError, r"status 404 \(x{300}\)\. Check encoder\.url"),
        (413, {}, EncoderError, r"status 413 \(x{300}\)\. Set encoder\.batch_rows"),
        (302, {"Location": "https://other/v1"}, EncoderError, r"redirect to https://other \(status 302\)"),
        (302, {}, EncoderError, r"redirect \(status 302\)"), (302, {"Location": "/v2"}, EncoderError, r"redirect \("),
        (503, {}, http_client._Transient, "status 503"), (429, {}, http_client._Transient, "status 429"),
        (200, {}, http_client._Transient, r"no complete answer within 7 s"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("max_bytes", [10, 1 << 24])
def test_two_blocks_of_a_refusal_suffice_whatever_an_answer_may_have(
    status: int, headers: dict[str, str], error: type[Exception], words: str, max_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A refusal that never ends is reported at once, and is not repeated as an answer that came too late."""
    answer, made = Blocks(status, 2, headers), client("https://host/v1")
    monkeypatch.setattr(Client, "_connection", lambda self: answer)
    made._local.connection = answer
    if status == 200 and max_bytes == 10:
        error, words = EncoderError, "expected an answer of at most 10 bytes, found a larger one"
    with pytest.raises(error, match=words):
        made._attempt(b"{}", max_bytes)
    assert answer.closed == 1, "what is left on the connection is not read as the next answer"
    assert answer.left == (-1 if status == 200 and max_bytes > 10 else 1 if status == 200 else 0)


@pytest.mark.parametrize(
    "embedding",
    ["~AAAAAA==", "AAAA~AA==", "AAAA AA==", "AAAAAA==\n", "--AAAAAA==", "AAAA_AA==", "AAAAAA", "AAAAAA=",
     "AAAAAA==AAAA", "AAAAéAA==", "=", "AAA"],
)  # fmt: skip
def test_base64_with_other_characters_or_a_wrong_end_is_no_vector(embedding: str) -> None:
    """Without the other characters most of them are the four bytes of one number."""
    answer = {"data": [{"index": 0, "embedding": embedding}]}
    with pytest.raises(EncoderError, match=r"list of numbers or base64 of float32, found '"):
        vectors_of(answer, rows=1, dim=None, service="s")
