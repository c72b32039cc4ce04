"""Requests to a service to their ends: what is sent, what is closed, what is accepted, and every word of a refusal."""

from __future__ import annotations

import ssl
import threading
from typing import Any

import numpy as np
import pytest
from embedding_service import DIM, Service, unit

from mm_ldlm.core.errors import ConfigurationError, EncoderError
from mm_ldlm.data.encoders import load_encoder, locate_encoder, parse_encoder
from mm_ldlm.extras.http_encoder import client as http_client
from mm_ldlm.extras.http_encoder import probes
from mm_ldlm.extras.http_encoder.address import endpoint
from mm_ldlm.extras.http_encoder.client import Client


def client_of(url: str, **options: Any) -> Client:
    given = {"api_key": None, "requests_per_minute": None, "timeout": 30, "retries": 0, "max_wait": 5.0} | options
    return Client(url, **given)


def post(client: Client, texts: list[str], **options: Any) -> Any:
    given = {"max_bytes": 10**6, "stop": threading.Event()} | options
    return client.post({"model": "toy", "input": texts}, **given)


def encoder_of(service: Service, **values: Any) -> Any:
    return parse_encoder({"kind": "http", "url": service.url, "name": "toy", "connections": 1, "timeout": 30, **values})


# -- addresses ---------------------------------------------------------------------------------------------------------

FORM = "expected an address such as https://host/v1, found "
UNREADABLE = f"{FORM}one that cannot be read"
SECRETS = (
    "expected an address without user, password, query and fragment, which would be stored with the run; put the key "
    "into the environment variable that key_variable names"
)
LETTERS = "expected ASCII characters without spaces, and a port from 1 to 65535"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://@host/v1", SECRETS), ("https://:secret@host/v1", SECRETS), ("https://me@host/v1", SECRETS),
        ("https://host/v1?", None), ("https://host/v1?k", SECRETS), ("https://host/v1#k", SECRETS),
        ("https://host/vé", LETTERS), ("https://host/a b", LETTERS), ("https://höst/v1", LETTERS),
        ("https://host:0/v1", LETTERS), ("https://host:65535/v1", None), ("https://host:65536/v1", UNREADABLE),
        ("https://host:x/v1", UNREADABLE), ("https://[::1/v1", UNREADABLE),
        ("https://:8/v1", f"{FORM}the scheme 'https'"), ("host/v1", f"{FORM}the scheme ''"),
    ],
)  # fmt: skip
def test_an_address_is_accepted_or_refused_in_full(url: str, words: str | None) -> None:
    if words is None:
        assert endpoint(url).geturl().endswith("/v1/embeddings")
        return
    with pytest.raises(ValueError, match=r"^expected") as error:
        endpoint(url)
    assert str(error.value) == words
    with pytest.raises(ConfigurationError, match=r"'encoder\.url'"):
        parse_encoder({"kind": "http", "url": url, "name": "toy"})


@pytest.mark.parametrize(
    ("values", "keys"),
    [({"name": " "}, ["name"]), ({"shorten": True}, ["shorten", "dim"]), ({"timeout": 0.0001}, ["timeout"]),
     ({"key_variable": "a key"}, ["key_variable"]), ({"url": "http://10.0.0.1:80/v1", "key_variable": "KEY"}, ["url"]),
     ({"language": ""}, None)],
)  # fmt: skip
def test_a_refusal_names_its_parameters(values: dict[str, Any], keys: list[str] | None) -> None:
    given = {"kind": "http", "url": "https://host/v1", "name": "toy"} if keys else {"kind": "local", "name": "e5"}
    with pytest.raises(ConfigurationError) as error:
        parse_encoder({**given, **values})
    for key in keys or ["language"]:
        assert f"encoder.{key}" in str(error.value)


def test_parameters_are_named_by_the_place_where_they_stand() -> None:
    with pytest.raises(ConfigurationError, match=r"'evaluation\.sts\.encoder\.nam' is not known"):
        parse_encoder({"kind": "local", "nam": "minilm"}, at="evaluation.sts.encoder")


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_every_text_arrives_as_it_is_and_with_the_headers_of_the_program(service: Service) -> None:
    """Half of a pair of surrogates too, which a model may have written and UTF-8 does not have."""
    texts = ["é 図書館 😀", "half \ud800", "a\nb\t", "  "]
    post(client_of(f"{service.url}/embeddings"), texts)
    assert service.requests[-1]["input"] == texts
    headers = {name.lower(): value for name, value in service.headers[-1].items()}
    expected = {"content-type": "application/json", "accept": "application/json", "user-agent": "mm-ldlm"}
    assert {name: headers[name] for name in expected} == expected


def test_the_prompt_stands_before_every_text_and_only_an_empty_one_becomes_a_space(service: Service) -> None:
    load_encoder(encoder_of(service, prompt="p ")).encode(["", "a", " "])
    assert service.requests[-1]["input"] == ["p ", "p a", "p  "]
    load_encoder(encoder_of(service)).encode(["", "a", "  ", "\n"])
    assert service.requests[-1]["input"] == [" ", "a", "  ", "\n"]


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("shorten", [True, False])
def test_the_body_of_a_request_is_whole(encoding: str, shorten: bool, service: Service) -> None:
    service.vectors = lambda text: unit(text, dim=5)
    values = {"encoding": encoding, "dim": 5, "shorten": shorten}
    load_encoder(encoder_of(service, **values)).encode(["a"])
    body: dict[str, Any] = {"model": "toy", "input": ["a"]}
    body |= {"dimensions": 5} if shorten else {}
    body |= {"encoding_format": "base64"} if encoding == "base64" else {}
    assert service.requests[-1] == body


# -- what is accepted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "passes"), [(0.985, False), (0.992, True), (1.008, True), (1.015, False)])
def test_vectors_of_a_service_that_normalises_are_neither_shorter_nor_longer(
    length: float, passes: bool, service: Service
) -> None:
    service.vectors = lambda text: unit(text) * np.float32(length if text == probes.SENTENCES[2] else 1)
    if passes:
        assert locate_encoder(encoder_of(service)).normalised
        return
    with pytest.raises(EncoderError, match=r"expected vectors of length 1 .*differ from 1 by up to 0\.015"):
        locate_encoder(encoder_of(service))


@pytest.mark.parametrize(("after", "waits"), [(4.9, True), (5.0, True), (5.1, False)])
def test_a_service_may_ask_for_exactly_the_longest_wait(after: float, waits: bool) -> None:
    client = client_of("http://127.0.0.1:9/v1")
    failure = http_client._Transient("status 429", after=after)
    if waits:
        assert client._pause(failure, 1) == after
        return
    with pytest.raises(EncoderError) as error:
        client._pause(failure, 1)
    assert str(error.value) == (
        "http://127.0.0.1:9 asks to wait 5 s (status 429), but encoder.max_wait is 5. Run again later (finished shards "
        "are kept), or raise encoder.max_wait."
    )


def test_an_answer_that_is_nested_too_deeply_is_no_answer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        service, "answer", lambda handler: (
            handler.rfile.read(int(handler.headers["Content-Length"])), service.send(handler, 200, b"[" * 200_000, {})
        )
    )  # fmt: skip
    with pytest.raises(EncoderError, match=r"failed 1 times in \d+ s, the last time with: an answer that is not compl"):
        post(client_of(f"{service.url}/embeddings"), ["a"])


@pytest.mark.parametrize(
    ("content", "said"), [(b"\xff bad", "\ufffd bad"), (b"bad \xc3", "bad \ufffd"), (b"\n \t", "")]
)
def test_what_is_no_text_of_a_refusal_is_shown_as_such(content: bytes, said: str) -> None:
    assert client_of("https://host/v1")._message(content) == said


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (301, " answered with a redirect (status 301), which is not followed, because the key would go with it. Set "
         "encoder.url to the final address."),
        (401, " refused the request with status 401 (no: ). Check the key in the variable that encoder.key_variable "
         "names."),
        (403, " refused the request with status 403 (no: ). Check the key in the variable that encoder.key_variable "
         "names, and what it may use."),
        (404, " refused the request with status 404 (no: ). Check encoder.url, which ends before /embeddings, and "
         "encoder.name."),
        (413, " refused the request with status 413 (no: ). Set encoder.batch_rows or encoder.batch_bytes to a smaller "
         "number."),
        (422, " refused the request with status 422 (no: ). Check encoder.name, encoder.dim and encoder.encoding, and "
         "the length of the texts."),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(status: int, words: str, service: Service) -> None:
    service.fault = lambda number, texts: str(status)
    with pytest.raises(EncoderError) as error:
        post(client_of(f"{service.url}/embeddings"), ["a"])
    said = str(error.value).removeprefix(service.url.removesuffix("/v1"))
    assert said.replace("no: second line", "no: ") == words


# -- what is closed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), ConnectionResetError(), ssl.SSLCertVerificationError(1, "x"), KeyboardInterrupt(),
     EncoderError("too large"), http_client.http.client.IncompleteRead(b"")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_connection_whose_answer_was_not_read_is_not_used_again(
    error: BaseException, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of the answer would be taken for that of the next request."""
    client = client_of(f"{service.url}/embeddings")
    post(client, ["a"])
    (before,) = client._opened
    if isinstance(error, ssl.SSLCertVerificationError):
        error.verify_message = "x"
    expected = type(error) if isinstance(error, KeyboardInterrupt) else EncoderError

    class Response:
        status = 200

        def read1(self, size: int) -> bytes:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(before, "getresponse", Response)
        with pytest.raises(expected):
            post(client, ["b"])
    assert (client._opened, before.sock) == (set(), None)
    assert post(client, ["c"])["data"][0]["index"] == 0
    (after,) = client._opened
    assert after is not before


def test_the_certificates_of_the_system_are_those_of_a_connection() -> None:
    client = client_of("https://host/v1")
    connection: Any = client._connection()
    assert connection._context is client._tls
    assert client._tls is not None
    assert client._tls.verify_mode == ssl.CERT_REQUIRED


def test_all_connections_are_closed_and_forgotten(service: Service) -> None:
    client = client_of(f"{service.url}/embeddings")
    threads = [threading.Thread(target=post, args=(client, [f"text {n}"])) for n in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    opened = list(client._opened)
    assert len(opened) == 3
    client.close()
    assert ([connection.sock for connection in opened], client._opened) == ([None] * 3, set())


# -- identity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [50, 384, 1024])
def test_a_sketch_has_the_lengths_of_its_vectors_on_average(dim: int) -> None:
    """Johnson–Lindenstrauss: the expected square of the length is kept, also of vectors whose numbers are all equal."""
    drawn = np.random.default_rng(0).normal(size=(400, dim))
    for vectors in (drawn, np.abs(drawn), np.ones((1, dim))):
        sketch = probes._project(vectors.astype(np.float32))
        assert sketch.shape == (len(vectors), probes.SKETCH_DIM)
        ratio = np.linalg.norm(sketch, axis=1) / np.linalg.norm(vectors, axis=1)
        assert 0.4 < float(np.sqrt((ratio**2).mean())) < 1.7
    assert float(np.sqrt(((np.linalg.norm(probes._project(drawn.astype(np.float32)), axis=1) / np.linalg.norm(
        drawn, axis=1
    )) ** 2).mean())) == pytest.approx(1.0, rel=0.1)  # fmt: skip


def test_a_fingerprint_with_a_foreign_character_is_of_no_service() -> None:
    found = probes.fingerprint("abc", np.ones((len(probes.SENTENCES), DIM), np.float32))
    head, packed = found.rsplit("-", 1)[0], found.rsplit("-", 1)[1]
    assert probes.identity_of(found) == "abc"
    for character in ("%", "\n", " ", "+", "/"):
        assert probes.identity_of(f"{head}-{packed[:8]}{character}{packed[8:]}") is None


def test_what_a_declared_encoder_stores_is_its_whole_declaration() -> None:
    inner = {"kind": "http", "url": "https://host/v1", "name": "toy"}
    for normalised in (True, False):
        declared = {"kind": "precomputed", "name": "mine", "dim": 3, "normalised": normalised}
        found = parse_encoder({**declared, "for_new_texts": inner})
        assert found.portable() == declared
        assert parse_encoder(found.portable()) == parse_encoder(declared)
