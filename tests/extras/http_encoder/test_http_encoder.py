"""Encoders behind a service, against a real server on the loopback interface."""

import contextlib
import functools
import ssl
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.extras.http_encoder.embedding_service import DIM, Service, running, unit

from mm_ldlm.core import ConfigurationError, EncoderError
from mm_ldlm.data.encoders import load_encoder, parse_encoder
from mm_ldlm.extras.http_encoder import client, probes
from mm_ldlm.extras.http_encoder.encoder import vectors_of

TEXTS = [f"sentence number {number} {'of söme lęngth ' * (number % 5)}" for number in range(90)]
KEY = "sk-a-secret-key"
TRUSTED = functools.cache(ssl.create_default_context)
"""Reads all certificates of the machine once"""


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A running service, to which failed requests are repeated almost at once."""
    monkeypatch.setattr(client, "FIRST_WAIT", 0.002)
    monkeypatch.setattr(ssl, "create_default_context", TRUSTED)
    with running() as found:
        yield found


def config(service: Service, **values: Any) -> Any:
    return parse_encoder({"kind": "http", "url": service.url, "name": "toy", "batch_rows": 8, "timeout": 30} | values)


def encode(service: Service, texts: list[str] = TEXTS, **values: Any) -> Any:
    return load_encoder(config(service, **values)).encode(texts)


# -- requests and answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [{}, {"batch_rows": 1, "connections": 8}, {"batch_bytes": 300, "connections": 1}, {"encoding": "base64"},
     {"prompt": "query: "}, {"shorten": True, "dim": 5, "normalised": False}, {"dim": DIM}],
)  # fmt: skip
def test_every_sentence_is_asked_for_once_within_the_limits_and_gets_its_vector(values: Any, service: Service) -> None:
    prompt, dim = values.get("prompt", ""), values.get("dim", DIM)
    found = encode(service, [*TEXTS, ""], **values)
    asked = [prompt + text or " " for text in [*TEXTS, ""]]
    np.testing.assert_array_equal(found, np.stack([unit(text)[:dim] for text in asked]))
    known = [prompt + sentence for sentence in probes.SENTENCES]
    sent = [text for request in service.requests for text in request["input"] if text not in known]
    assert sorted(sent) == sorted(asked)
    for request in service.requests:
        assert request.get("encoding_format", "float") == values.get("encoding", "float")
        assert len(request["input"]) <= values.get("batch_rows", 8)
        size = len("".join(request["input"]).encode())
        assert len(request["input"]) == 1 or size <= values.get("batch_bytes", 1e9)
        assert request.get("dimensions") == (dim if values.get("shorten") else None)
    assert len(service.requests) <= 8 + 91 / values.get("batch_rows", 8) + 2 * 6000 / values.get("batch_bytes", 1e9)
    assert service.most_open <= values.get("connections", 4)
    assert encode(service, [], **values).shape == (0, dim)


@pytest.mark.parametrize(
    "fault",
    ["duplicate", "missing", "surplus", "beyond", "no_index", "index_text", "dimension", "no_numbers", "text", "empty",
     "list", "error_in_200", "huge", "400", "401", "404", "413", "redirect http://elsewhere/",
     "redirect http://[::1"],
)  # fmt: skip
def test_a_wrong_answer_is_refused_and_not_asked_for_again(fault: str, service: Service) -> None:
    service.fault = lambda number, texts: fault if number == 1 else None
    with pytest.raises(EncoderError, match=r"http://127\.0\.0\.1"):
        encode(service, TEXTS[:8], retries=1)
    assert len(service.requests) == 2


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["data", "index", "embedding"]), inner), max_leaves=12))  # fmt: skip
def test_any_json_is_either_vectors_or_refused(answer: Any) -> None:
    with contextlib.suppress(EncoderError):
        assert vectors_of(answer, rows=2, dim=3, service="s").shape == (2, 3)


def test_numbers_that_are_not_finite_are_returned_as_they_are(service: Service) -> None:
    service.fault = lambda number, texts: "overflow" if number == 1 else None
    assert np.isinf(encode(service, TEXTS[:3])[2]).all()


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", ["429", "503", "408", "reset", "truncated", "not_json", "html", "429 0.01", "reordered"]
)
def test_a_transient_failure_loses_nothing_and_changes_nothing(fault: str, service: Service) -> None:
    service.fault = lambda number, texts: fault if number % 3 == 1 else None
    np.testing.assert_array_equal(encode(service, retries=20), np.stack([unit(text) for text in TEXTS]))
    assert set(service.texts) == set(TEXTS)


@pytest.mark.parametrize("fault", ["silent", "drip_headers", "drip_content"])
def test_pitfall_44_one_deadline_bounds_the_whole_exchange(fault: str, service: Service) -> None:
    service.fault = lambda number, texts: fault if number else None
    with pytest.raises(EncoderError, match=r"no complete answer within 0\.3 s"):
        encode(service, timeout=0.3, retries=1)


def test_the_attempts_are_counted_and_one_error_ends_all_requests(service: Service, refuses: Any) -> None:
    service.fault = lambda number, texts: "500" if number else None
    with refuses(EncoderError, "after attempt 4", "status 500"):
        encode(service, TEXTS[:1], retries=3)
    assert len(service.requests) == 5
    service.fault = lambda number, texts: "400" if TEXTS[3] in texts else None
    with pytest.raises(EncoderError, match="status 400"):
        encode(service, batch_rows=1, connections=2)
    assert len(service.requests) < len(TEXTS)
    with pytest.raises(EncoderError, match="connection failed"):
        encode(Service(), url="http://127.0.0.1:9/v1", retries=1)


def test_certificates_are_checked_and_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, plain = dict[str, Any](), client.httpx2.AsyncHTTPTransport
    monkeypatch.setattr(client.httpx2, "AsyncHTTPTransport", lambda **given: seen.update(given) or plain(**given))
    client.Client("https://host", headers={}, connections=1, requests_per_minute=None, timeout=1, retries=0, max_wait=1)
    assert (seen["verify"], seen["trust_env"]) == (TRUSTED(), False)


def test_waits_grow_up_to_their_limit() -> None:
    waiting = client.Client(
        "http://host", headers={}, connections=1, requests_per_minute=None, timeout=1, retries=99, max_wait=1
    )
    for attempt, most in ((1, 0.002), (5, 0.032), (60, 1.0)):
        assert most / 2 <= waiting._pause(client._Transient("no"), attempt) <= most


def test_the_rate_limit_and_a_demanded_wait_hold_all_requests(service: Service, refuses: Any) -> None:
    service.fault = lambda number, texts: "429 0.2" if number == 3 else None
    encode(service, TEXTS[:12], batch_rows=1, connections=4, requests_per_minute=1200)
    began = np.array(service.moments)
    assert (began[-1] - began[1] > 12 * 0.05 + 0.2 - 0.1, began[4] - began[3] > 0.19) == (True, True)
    service.fault = lambda number, texts: "429 3600"
    with refuses(EncoderError, "to wait 3600 s", "max_wait"):
        encode(service, max_wait=5)


# -- identity ----------------------------------------------------------------------------------------------------------


def noisy(size: float) -> Any:
    random = np.random.default_rng(0)

    def vectors(text: str) -> Any:
        found = unit(text) + size * random.normal(size=DIM).astype(np.float32)
        return found / np.linalg.norm(found)

    return vectors


def test_a_service_keeps_its_fingerprint_while_its_vectors_vary_and_loses_it_when_they_change(service: Service) -> None:
    first = config(service).locate()
    service.vectors = noisy(1e-3)
    assert config(service).locate(expected=first.fingerprint).fingerprint == first.fingerprint
    changed = [{"name": "x"}, {"prompt": "p"}, {"normalised": False}, {"shorten": True, "dim": 4, "normalised": False}]
    others = [config(service, **values).locate(expected=first.fingerprint).fingerprint for values in changed]
    assert len({first.fingerprint, *others}) == 1 + len(changed)
    service.vectors = lambda text: unit(text, salt="another model")
    with pytest.raises(EncoderError, match="returns different vectors"):
        config(service).locate(expected=first.fingerprint)
    assert config(service).locate(expected="of another kind").fingerprint != first.fingerprint
    assert "127.0.0.1" not in str(first.describe())
    assert config(service, prompt="p").portable().items() >= {"name": "toy", "prompt": "p", "normalised": True}.items()


def test_drift_while_the_encoder_is_in_use_is_found(service: Service, refuses: Any) -> None:
    encoder = load_encoder(config(service))
    service.vectors = noisy(1e-3)
    encoder.verify()
    service.vectors = noisy(0.2)
    with refuses(EncoderError, "min_cosine"):
        encoder.verify()


@pytest.mark.parametrize("fault", ["nan", "overflow"])
def test_a_service_without_usable_probes_is_refused(fault: str, service: Service, refuses: Any) -> None:
    service.fault = lambda number, texts: fault
    with refuses(EncoderError, "probe"):
        config(service).locate()
    service.fault, service.vectors = (lambda number, texts: None), lambda text: (1 + (text == "No")) * unit(text)
    with refuses(EncoderError, "normalised"):
        config(service).locate()
    service.vectors = lambda text: (text != "No") * unit(text)
    with pytest.raises(EncoderError, match="zeros"):
        config(service, normalised=False).locate()


@settings(max_examples=30)
@given(st.integers(32, 1024), st.floats(1e-3, 0.5), st.integers(0, 1000))
def test_the_sketch_keeps_distances_up_to_a_factor(dim: int, size: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    before = random.normal(size=(len(probes.SENTENCES), dim)).astype(np.float32)
    after = (before + size * random.normal(size=before.shape)).astype(np.float32)
    found = probes.distance_to(probes.fingerprint("0" * 32, before), after)
    assert probes.relative_distance(np.diag([1, 3]), np.diag([1, 2])) == 0.5
    assert 0.1 * size < found < 10 * size  # the largest ratio of six; of 3,000 drawn ones all were between .7 and 5.9


# -- parameters --------------------------------------------------------------------------------------------------------


def test_the_key_is_sent_and_shown_nowhere(
    service: Service, monkeypatch: pytest.MonkeyPatch, refuses: Any, caplog: pytest.LogCaptureFixture
) -> None:
    named = config(service, key_variable="TOY_KEY")
    with refuses(ConfigurationError, "TOY_KEY"):
        load_encoder(named)
    assert "TOY_KEY" in str(named.missing())
    monkeypatch.setenv("TOY_KEY", f" {KEY}\n")
    assert named.missing() is None
    encoder = load_encoder(named)
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in service.headers)
    service.fault = lambda number, texts: "401"  # the service repeats the key in its message
    with pytest.raises(EncoderError) as refused:
        encoder.encode(TEXTS)
    assert KEY not in f"{refused.value} {named} {named.portable()} {encoder.located} {caplog.text}"
    monkeypatch.setenv("TOY_KEY", "with a space")
    with pytest.raises(ConfigurationError) as refused:
        load_encoder(named)
    assert "with a space" not in str(refused.value)
    service.fault = lambda number, texts: None
    encode(service, TEXTS[:1], url=f"{service.url}/embeddings/")
    assert "Authorization" not in service.headers[-1]


@pytest.mark.parametrize(
    "values",
    [{"url": "ftp://host/v1"}, {"url": "https://"}, {"url": "http://[::1"}, {"url": "https://host:0"},
     {"url": "https://u:p@host"}, {"url": "https://host/v1?key=x"}, {"url": "https://höst"}, {"url": "http://999.1.1.1/v1"}, {"url": "http://[v1.x]/v1"}, {"name": " "},
     {"shorten": True}, {"retries": -1}, {"min_cosine": 1.0}, {"timeout": 0}, {"connections": 65},
     {"key_variable": "sk-123"}, {"url": "http://example.org/v1", "key_variable": "KEY"}, {"batch_rows": 0}],
)  # fmt: skip
def test_parameters_that_cannot_be_right_are_refused(values: dict[str, Any], refuses: Any) -> None:
    with refuses(ConfigurationError, f"encoder.{next(iter(values))}"):
        config(Service(), url="https://host/v1", **values) if "url" not in values else config(Service(), **values)
