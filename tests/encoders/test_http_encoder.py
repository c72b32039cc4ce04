"""Encoders behind a service, against a real server on the loopback interface: vectors, batches, faults, drift, key."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from embedding_service import DIM, Service, running, unit
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core.config import to_dict
from mm_ldlm.core.errors import ConfigurationError, EncoderError
from mm_ldlm.data.encoders import load_encoder, locate_encoder, parse_encoder
from mm_ldlm.extras.http_encoder import client as http_client
from mm_ldlm.extras.http_encoder import probes
from mm_ldlm.extras.http_encoder.client import RateLimit, _retry_after
from mm_ldlm.extras.http_encoder.encoder import HttpEncoderConfig, vectors_of

TEXTS = [f"sentence number {number} of some length" for number in range(300)]
EXPECTED = np.stack([unit(text) for text in TEXTS])


def config(service: Service, **values: Any) -> HttpEncoderConfig:
    found = parse_encoder(
        {"kind": "http", "url": service.url, "name": "toy", "batch_rows": 16, "timeout": 30, **values}
    )
    assert isinstance(found, HttpEncoderConfig)
    return found


def encode(service: Service, texts: list[str] = TEXTS, **values: Any) -> np.ndarray:
    found: np.ndarray = load_encoder(config(service, **values)).encode(texts)
    return found


# -- requests and answers ----------------------------------------------------------------------------------------------


def test_vectors_come_in_the_order_of_the_sentences(service: Service) -> None:
    encoder = load_encoder(config(service))
    found = encoder.encode(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, EXPECTED)
    assert sorted(service.texts) == sorted(TEXTS)  # each once
    assert encoder.dim == DIM
    assert encoder.encode([]).shape == (0, DIM)
    assert service.requests[0] == {"model": "toy", "input": list(probes.SENTENCES)}


def test_requests_keep_both_limits_and_connections_work_together(service: Service) -> None:
    service.fault = lambda number, texts: time.sleep(0.01)
    encode(service, batch_rows=7, batch_bytes=200, connections=3)
    batches = [request["input"] for request in service.requests[1:] if request["input"][0] in TEXTS]
    assert max(map(len, batches)) <= 7
    assert all(sum(map(len, batch)) <= 200 for batch in batches)
    assert 2 <= service.most_open <= 3


def test_a_sentence_beyond_the_bytes_of_a_request_is_sent_alone(service: Service) -> None:
    texts = ["a", "é" * 60, "b", "c"]
    np.testing.assert_array_equal(encode(service, texts, batch_bytes=100), [unit(text) for text in texts])
    assert [request["input"] for request in service.requests if "a" in request["input"]] == [["a"]]
    assert ["b", "c"] in [request["input"] for request in service.requests]


def test_options_of_the_request(service: Service) -> None:
    texts = TEXTS[:3]
    with_prompt = [unit("query: " + text) for text in texts]
    np.testing.assert_array_equal(encode(service, texts, prompt="query: "), with_prompt)
    np.testing.assert_array_equal(encode(service, texts, encoding="base64"), EXPECTED[:3])
    assert service.requests[-1]["encoding_format"] == "base64"
    shortened = encode(service, texts, dim=5, shorten=True, normalised=False)
    np.testing.assert_array_equal(shortened, EXPECTED[:3, :5])
    assert service.requests[-1]["dimensions"] == 5
    encode(service, ["", "a"])
    assert service.requests[-1]["input"] == [" ", "a"]


def test_rows_in_another_order_are_placed_by_their_index(service: Service) -> None:
    service.fault = lambda number, texts: "reordered"
    np.testing.assert_array_equal(encode(service), EXPECTED)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("duplicate", "expected each index once, found 0 twice"),
        ("missing", "expected 16 vectors for 16 sentences, found 15"),
        ("surplus", "expected 16 vectors for 16 sentences, found 17"),
        ("beyond", "index from 0 to 15 for each vector, found 16"),
        ("no_index", "index from 0 to 15 for each vector, found None"),
        ("index_text", "index from 0 to 15 for each vector, found '0'"),
        ("dimension", f"expected vectors of dimension {DIM}, found {DIM - 1}"),
        ("no_numbers", "a list of numbers or base64"),
        ("text", "a list of numbers or base64"),
        ("empty", "a list of numbers or base64"),
        ("list", r"with the list 'data', found \[1, 2\]"),
        ("error_in_200", "with the list 'data'.*overloaded"),
        ("huge", "at most [0-9]+ bytes, found a larger one"),
        ("400", "refused the request with status 400 .no: second line.*encoder.name"),
        ("401", "status 401.*encoder.key_variable"),
        ("404", "status 404.*encoder.url"),
        ("409", r"status 409 .*Check encoder.name, encoder.dim and encoder.encoding"),
        ("403", "status 403.*encoder.key_variable.*what it may use"),
        ("413", "status 413.*Set encoder.batch_rows or encoder.batch_bytes"),
    ],
)
def test_a_wrong_answer_is_refused_and_not_asked_for_again(service: Service, fault: str, message: str) -> None:
    encoder = load_encoder(config(service, connections=1))
    service.fault = lambda number, texts: fault
    before = len(service.requests)
    with pytest.raises(EncoderError, match=message) as caught:
        encoder.encode(TEXTS[:16])
    assert len(service.requests) == before + 1
    assert "\n" not in str(caught.value)


def test_an_expected_dimension_is_held_against_the_first_answer(service: Service) -> None:
    with pytest.raises(EncoderError, match=f"vectors of dimension 384, found {DIM}"):
        locate_encoder(config(service, dim=384))


@pytest.mark.parametrize("fault", ["nan", "overflow"])
def test_numbers_that_are_not_finite_are_not_hidden(service: Service, fault: str) -> None:
    encoder = load_encoder(config(service))
    service.fault = lambda number, texts: fault
    assert not np.isfinite(encoder.encode(TEXTS[:16])[-1]).any()
    with pytest.raises(EncoderError, match="expected finite vectors other than zero for the probe sentences"):
        locate_encoder(config(service))


@pytest.mark.parametrize("number", range(len(probes.SENTENCES)))
@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_every_probe_sentence_needs_a_finite_vector_other_than_zero(service: Service, bad: float, number: int) -> None:
    """One vector of zeros has no direction, so that no later vector of that sentence could differ from it."""
    service.vectors = lambda text: unit(text) if text != probes.SENTENCES[number] else np.full(DIM, bad, np.float32)
    with pytest.raises(EncoderError, match="expected finite vectors other than zero for the probe sentences"):
        locate_encoder(config(service, normalised=False))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "index", "embedding", "error"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(JSON, st.lists(st.fixed_dictionaries({"index": JSON, "embedding": JSON | st.lists(st.floats())}), max_size=3))
def test_any_json_is_either_vectors_or_a_refusal(anything: Any, items: list[Any]) -> None:
    for answer in (anything, {"data": anything}, {"data": items}):
        try:
            found = vectors_of(answer, rows=2, dim=None, service="http://here")
        except EncoderError:
            continue
        assert found.dtype == np.float32
        assert found.shape[0] == 2


# -- transient failures ------------------------------------------------------------------------------------------------

TRANSIENT = ["408", "425", "429", "500", "503", "599", "slow", "truncated", "not_json", "html", "reset", "drip"]


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_transient_failure_loses_nothing_and_doubles_nothing(
    service: Service, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[tuple[str, ...]] = []

    def once(number: int, texts: list[str]) -> str | None:
        if number % 4 == 1 and tuple(texts) not in failed:
            failed.append(tuple(texts))
            return fault
        return None

    encoder = load_encoder(config(service, timeout=0.4))
    service.fault = once
    with caplog.at_level(logging.INFO):
        np.testing.assert_array_equal(encoder.encode(TEXTS[:100]), EXPECTED[:100])
    assert failed
    assert "repeated requests: " in caplog.text


def test_five_percent_of_failures_change_no_byte(service: Service) -> None:
    random = np.random.default_rng(3)
    service.fault = lambda number, texts: random.choice(TRANSIENT[:-1]) if random.random() < 0.05 else None
    np.testing.assert_array_equal(encode(service, batch_rows=4, timeout=0.4), EXPECTED)


def test_the_attempts_are_counted_and_the_last_failure_is_named(service: Service) -> None:
    encoder = load_encoder(config(service, retries=3, connections=1))
    service.fault = lambda number, texts: "503"
    before = len(service.requests)
    with pytest.raises(EncoderError, match=r"failed 4 times in \d+ s, the last .* status 503\..*finished shards"):
        encoder.encode(["a"])
    assert len(service.requests) == before + 4


def test_no_service_is_one_sentence() -> None:
    with pytest.raises(EncoderError, match=r"http://127\.0\.0\.1:9 failed 1 times.*connection failed"):
        locate_encoder(HttpEncoderConfig(url="http://127.0.0.1:9/v1", name="toy", retries=0))


def test_one_failure_for_good_ends_all_requests(service: Service) -> None:
    encoder = load_encoder(config(service, batch_rows=1, connections=2))
    service.fault = lambda number, texts: "400" if texts[0] == TEXTS[5] else None
    with pytest.raises(EncoderError, match="status 400"):
        encoder.encode(TEXTS)
    assert len(service.texts) < 30


class Clock:
    """Stands for `time` and for the event that requests wait on: waits are noted and take no time."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return 100.0

    def wait(self, seconds: float) -> None:
        self.waits.append(round(seconds, 6))

    def is_set(self) -> bool:
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(http_client, "time", found)
    return found


def test_the_rate_limit_spaces_the_requests_of_all_threads_evenly(clock: Clock) -> None:
    limit: Any = RateLimit(1200)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: limit.wait(clock), range(6)))
    assert sorted(clock.waits) == [0.05, 0.1, 0.15, 0.2, 0.25]
    limit.hold(7.0)
    limit.wait(clock)
    assert clock.waits[-1] == 7.0
    limit.hold(2.0)  # of another thread, whose service asked for less
    limit.wait(clock)
    assert clock.waits[-1] == 7.05
    RateLimit(None).wait(clock)  # type: ignore[arg-type]
    assert len(clock.waits) == 7


def test_every_attempt_passes_the_rate_limit_and_a_demanded_wait_holds_all(service: Service, clock: Clock) -> None:
    client = load_encoder(config(service, requests_per_minute=600))._service.client  # type: ignore[attr-defined]
    first = len(service.requests)
    service.fault = lambda number, texts: {first: "500", first + 1: "429 9"}.get(number)
    client.post({"model": "toy", "input": ["a"]}, max_bytes=10_000, stop=clock)
    start, repeated, demanded, held = clock.waits[-1], *clock.waits[-4:-1]
    assert len(service.requests) == first + 3
    assert [repeated <= 0.002, demanded, held, start] == [True, 0.1, 9.0, 9.0]


def test_a_longer_wait_than_allowed_ends_the_run(service: Service) -> None:
    encoder = load_encoder(config(service, max_wait=5))
    service.fault = lambda number, texts: "429 3600"
    with pytest.raises(EncoderError, match=r"asks to wait 3600 s.*encoder.max_wait is 5"):
        encoder.encode(["a"])


def test_retry_after_is_seconds_or_a_date() -> None:
    assert _retry_after("2.5") == 2.5
    assert _retry_after("0") == 0
    in_a_minute = _retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
    assert in_a_minute is not None
    assert 50 < in_a_minute <= 60
    assert _retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert [_retry_after(value) for value in (None, "", "soon", "-3", "nan")] == [None] * 5


def test_a_date_without_a_zone_is_universal_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        plain = (datetime.now(UTC) + timedelta(seconds=60)).strftime("%a, %d %b %Y %H:%M:%S")
        assert 50 < (_retry_after(plain) or 0) <= 60
    finally:
        monkeypatch.undo()
        time.tzset()


def test_what_describes_the_vectors_is_kept_and_nothing_of_the_connection() -> None:
    given: dict[str, Any] = {
        "url": "https://host/v1", "name": "toy", "dim": 5, "shorten": True, "prompt": "say: ", "normalised": False,
        "encoding": "base64", "key_variable": "KEY", "batch_rows": 3, "batch_bytes": 7, "connections": 2,
        "requests_per_minute": 9.0, "timeout": 8.0, "retries": 6, "max_wait": 4.0, "min_cosine": 0.9,
    }  # fmt: skip
    found: Any = parse_encoder({"kind": "http", **given})
    assert to_dict(found) == {"kind": "http", **given}
    connection = ("url", "key_variable", "connections", "requests_per_minute", "timeout", "retries", "max_wait",
                  "min_cosine")  # fmt: skip
    kept = {name: value for name, value in given.items() if name not in connection}
    assert found.portable() == {"kind": "http", **kept}
    assert found.batching == {"batch_rows": 3, "batch_bytes": 7}
    local: Any = parse_encoder({"path": "/x", "device": "cuda:1", "batch_rows": 3, "batch_tokens": 7, "prompt": "p"})
    assert local.portable().keys() == to_dict(local).keys() - {"path", "device"}
    assert local.batching == {"batch_tokens": 7, "batch_rows": 3}


def test_every_option_reaches_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    from mm_ldlm.extras.http_encoder import encoder as http_encoder

    made: list[Any] = []
    monkeypatch.setattr(
        http_encoder, "Client", lambda url, **options: made.append((url, options)) or SimpleNamespace(close=print)
    )
    monkeypatch.setenv("TOY_KEY", KEY)
    options = {"requests_per_minute": 9.0, "timeout": 8.0, "retries": 6, "max_wait": 4.0}
    found: Any = parse_encoder(
        {
            "kind": "http",
            "url": "https://host/v1",
            "name": "toy",
            "key_variable": "TOY_KEY",
            "connections": 3,
            **options,
        }
    )
    service = http_encoder._Service(found, dim=None)
    ((url, given),) = made
    assert (url, given.pop("api_key").reveal(), given) == ("https://host/v1/embeddings", KEY, options)
    assert service._pool._max_workers == 3
    posted: list[Any] = []

    def post(body: Any, *, max_bytes: int, stop: Any) -> Any:
        posted.append((body, max_bytes))
        return {"data": [{"index": i, "embedding": [1.0, 2.0]} for i in range(len(body["input"]))]}

    service.client = SimpleNamespace(post=post, service="x", take_failures=dict)  # type: ignore[assignment]
    for dim, room in ((None, 65_536 * 32 + 1024), (2, 2 * 32 + 1024)):  # of a vector, before the first and after it
        service._dim = dim
        service._request(["a", "b", "c"], threading.Event())
        assert posted[-1] == ({"model": "toy", "input": ["a", "b", "c"]}, 3 * room + 65_536)


def test_waits_grow_are_random_and_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.5)
    client = load_encoder(config(service, max_wait=20))._service.client  # type: ignore[attr-defined]
    failure = http_client._Transient("status 500")
    waits = np.array([[client._pause(failure, attempt) for attempt in range(1, 9)] for _ in range(200)])
    bounds = np.minimum(20, 0.5 * 2.0 ** np.arange(8))
    assert (waits <= bounds).all()
    assert (waits >= bounds / 2).all()
    assert (waits.std(0) > bounds / 20).all()
    assert client._pause(http_client._Transient("status 429", after=7.0), 1) == 7.0


# -- identity and drift ------------------------------------------------------------------------------------------------


def noisy(text: str) -> np.ndarray:
    """The vectors of `unit` with the noise of a service that forms batches by itself: cosine 1 − 5e-9."""
    return (unit(text) + np.random.default_rng().normal(0, 1e-4 / np.sqrt(DIM), DIM)).astype(np.float32)


def test_a_noisy_service_keeps_its_fingerprint(service: Service) -> None:
    first = locate_encoder(config(service)).fingerprint
    assert first == locate_encoder(config(service)).fingerprint  # equal vectors, equal fingerprints
    service.vectors = noisy
    assert locate_encoder(config(service)).fingerprint != first
    assert locate_encoder(config(service), expected=first).fingerprint == first
    load_encoder(config(service), expected=first).verify()


def test_another_model_behind_the_name_is_refused_at_the_start(service: Service) -> None:
    first = locate_encoder(config(service)).fingerprint
    service.vectors = lambda text: unit(text, salt="new")
    with pytest.raises(EncoderError, match=r"returns other vectors than before: the cosine.*min_cosine is 0\.999"):
        locate_encoder(config(service), expected=first)


def test_the_description_of_a_service_has_neither_its_address_nor_its_probes(service: Service) -> None:
    located: Any = locate_encoder(config(service, prompt="p ", normalised=False))
    assert located.describe() == {
        "kind": "http", "name": "toy", "dim": DIM, "normalised": False, "prompt": "p ", "dtype": "unknown",
        "fingerprint": located.fingerprint,
    }  # fmt: skip
    declared: Any = locate_encoder(parse_encoder({"kind": "precomputed", "name": "mine", "dim": 3, "normalised": True}))
    assert declared.describe() == {
        "kind": "precomputed", "name": "mine", "dim": 3, "normalised": True, "dtype": "unknown",
        "fingerprint": declared.fingerprint,
    }  # fmt: skip


def test_drift_while_the_encoder_is_in_use_is_found(service: Service) -> None:
    encoder = load_encoder(config(service))
    encoder.verify()
    service.vectors = lambda text: unit(text, salt="new") if text == probes.SENTENCES[3] else unit(text)
    with pytest.raises(EncoderError, match="returns other vectors than before"):
        encoder.verify()


@pytest.mark.parametrize(("cosine", "passes"), [(0.9995, True), (0.998, False)])
def test_min_cosine_is_the_limit(service: Service, cosine: float, passes: bool) -> None:
    encoder = load_encoder(config(service, min_cosine=0.999))

    def turned(text: str) -> np.ndarray:
        vector = unit(text).astype(np.float64)
        other = unit(text, salt="direction").astype(np.float64)
        other -= vector * (vector @ other)
        other /= np.linalg.norm(other)
        return (cosine * vector + np.sqrt(1 - cosine**2) * other).astype(np.float32)

    service.vectors = turned
    if passes:
        encoder.verify()
    else:
        with pytest.raises(EncoderError, match=rf"cosine of a probe sentence is {cosine}"):
            encoder.verify()


def test_the_fingerprint_is_of_what_decides_the_vectors(service: Service) -> None:
    def fingerprint(**values: Any) -> str:
        return locate_encoder(config(service, **values)).fingerprint

    before = fingerprint()
    same = {"batch_rows": 3, "connections": 1, "timeout": 9, "encoding": "base64", "min_cosine": 0.99, "dim": DIM}
    assert fingerprint(**same) == before
    service.vectors = lambda text: unit(text.removeprefix("p "))  # equal vectors for all parameters
    others = [fingerprint(name="other"), fingerprint(prompt="p "), fingerprint(normalised=False)]
    assert len({probes.identity_of(found) for found in [before, *others]}) == 4
    assert locate_encoder(config(service, prompt="p "), expected=before).fingerprint != before


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.floats(0, 0.5), st.integers(0, 10**6))
def test_the_sketch_keeps_distances_up_to_a_factor(dim: int, size: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(len(probes.SENTENCES), dim)).astype(np.float32)
    mark = probes.fingerprint("ab12", vectors)
    assert probes.identity_of(mark) == "ab12"
    assert probes.distance_to(mark, vectors) < 1e-3
    assert abs(probes.distance_to(mark, vectors * np.float32(1 + size)) - size) < 1e-3  # a change of all lengths
    assert probes.distance_to(mark, random.normal(size=vectors.shape).astype(np.float32)) > 0.2


@pytest.mark.parametrize("found", ["", "http", "http-", "http-ab-", "http-ab-%%", "http-ab-AAAA", "0123456789abcdef"])
def test_a_fingerprint_of_another_kind_is_not_compared(found: str) -> None:
    assert probes.identity_of(found) is None


def test_a_service_that_does_not_normalise_says_so(service: Service) -> None:
    service.vectors = lambda text: unit(text) * 3
    with pytest.raises(EncoderError, match=r"length 1.*differ from 1 by up to 2.*encoder.normalised to false"):
        locate_encoder(config(service))
    assert not locate_encoder(config(service, normalised=False)).normalised
    service.vectors = lambda text: unit(text) * np.float32(1.03 if text == probes.SENTENCES[4] else 1)
    with pytest.raises(EncoderError, match=r"length 1.*differ from 1 by up to 0\.03"):
        locate_encoder(config(service))


# -- the key -----------------------------------------------------------------------------------------------------------

KEY = "sk-very-secret-0123456789"


def test_the_key_is_sent_and_shown_nowhere(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOY_KEY", f" {KEY}\n")
    parameters = config(service, key_variable="TOY_KEY", connections=1)
    encoder: Any = load_encoder(parameters)
    assert service.headers[-1]["Authorization"] == f"Bearer {KEY}"
    service.fault = lambda number, texts: "401"
    with caplog.at_level(logging.DEBUG), pytest.raises(EncoderError, match=r"status 401 \(no: Bearer \*\*\*") as caught:
        encoder.encode(["a"])
    parts = (encoder, encoder._service.client, encoder._service.client.__dict__, encoder.located, to_dict(parameters))
    shown = [str(caught.value), caplog.text, *map(repr, parts), str(parameters.portable()), encoder.fingerprint]
    assert not any(KEY in text for text in shown)


def test_no_key_is_sent_without_a_variable(service: Service) -> None:
    encode(service, ["a"])
    assert all("Authorization" not in headers for headers in service.headers)


def test_a_redirect_is_not_followed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_KEY", KEY)
    with running() as other:
        service.fault = lambda number, texts: f"redirect {other.url}/embeddings?token=abc"
        with pytest.raises(EncoderError, match=r"redirect to http://127\.0\.0\.1 .status 307.*not followed") as caught:
            locate_encoder(config(service, key_variable="TOY_KEY"))
        assert not other.requests
    assert "token" not in str(caught.value)


def test_a_missing_key_is_named_by_its_variable(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOY_KEY", raising=False)
    parameters = config(service, key_variable="TOY_KEY")
    message = "'encoder.key_variable': expected a key in the environment variable TOY_KEY, found none"
    assert message in str(parameters.missing())
    with pytest.raises(ConfigurationError, match=message):
        locate_encoder(parameters)
    monkeypatch.setenv("TOY_KEY", f"{KEY} and\nmore")
    assert parameters.missing() is None
    with pytest.raises(ConfigurationError, match="printable ASCII characters without spaces") as caught:
        locate_encoder(parameters)
    assert KEY not in str(caught.value)
    assert not service.requests


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"url": "ftp://host/v1"}, "found the scheme 'ftp'"),
        ({"url": "file:///etc/passwd"}, "found the scheme 'file'"),
        ({"url": "host:80/v1"}, "found the scheme 'host'"),
        ({"url": "https:///v1"}, "expected an address such as"),
        ({"url": "https://host:99999/v1"}, "cannot be read"),
        ({"url": "https://host:0/v1"}, "port from 1 to 65535"),
        ({"url": "https://höst/v1"}, "ASCII"),
        ({"url": f"https://me:{KEY}@host/v1"}, "without user, password, query|a password or a token"),
        ({"url": f"https://host/v1?key={KEY}"}, "without user, password, query|a password or a token"),
        ({"url": f"https://host/v1#{KEY}"}, "without user, password, query"),
        ({"key_variable": KEY}, r"'encoder\.key_variable': expected the name of an environment variable"),
        ({"url": "http://host/v1", "key_variable": "KEY"}, "a key is sent to host without encryption; use https"),
        ({"name": " "}, r"'encoder\.name': expected the service's name of the model"),
        ({"shorten": True}, "expected dim, the number of dimensions"),
        ({"connections": 65}, r"'encoder\.connections': expected a number from 1 to 64, found 65"),
        ({"timeout": 7200}, r"'encoder\.timeout': expected a number from 0.001 to 3600"),
        ({"retries": -1}, r"'encoder\.retries': expected a number from 0 to 100"),
        ({"min_cosine": 1.0}, r"'encoder\.min_cosine': expected a number from 0.5 to 1"),
        ({"api_key": KEY}, r"'encoder\.api_key' is not known"),
        ({"device": "cuda"}, r"'encoder\.device' is not known"),
    ],
)
def test_parameters_that_cannot_be_right_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse_encoder({"kind": "http", "url": "https://host/v1", "name": "toy", **values})
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/v1", "http://localhost/v1", "http://[::1]:8/v1", "https://host/v1"]
)
def test_a_key_may_go_to_this_machine_or_over_tls(url: str) -> None:
    config: Any = parse_encoder({"kind": "http", "url": url, "name": "toy", "key_variable": "KEY"})
    assert (config.url, config.key_variable) == (url, "KEY")


def test_the_address_ends_with_embeddings(service: Service) -> None:
    service.url += "/embeddings/"
    assert encode(service, ["a"]).shape == (1, DIM)
