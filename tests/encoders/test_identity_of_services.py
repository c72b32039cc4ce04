"""What identifies a service, and what of it is held: its dimension, its connections, the moment of its requests."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from embedding_service import DIM, Service, unit
from mm_ldlm.data.encoders.spec import EncoderSpec
from torch import nn

from mm_ldlm.core.errors import ConfigurationError, EncoderError
from mm_ldlm.data.encoders import load_encoder, locate_encoder, parse_encoder, pooling
from mm_ldlm.data.encoders.onednn import PackedLinear
from mm_ldlm.data.encoders.sentence_transformers import SentenceTransformersEncoder
from mm_ldlm.data.encoders.weights import LocatedWeights
from mm_ldlm.extras.http_encoder import client as http_client
from mm_ldlm.extras.http_encoder import probes
from mm_ldlm.extras.http_encoder.client import Client, RateLimit, Stopped, _retry_after
from mm_ldlm.extras.http_encoder.encoder import _short, vectors_of


def config(service: Service, **values: Any) -> Any:
    return parse_encoder({"kind": "http", "url": service.url, "name": "toy", "connections": 1, "timeout": 30, **values})


def test_each_part_of_the_declaration_is_part_of_the_identity(service: Service) -> None:
    """The vectors are the same for all of them, or cut to the dimension that is asked for."""
    service.vectors = lambda text: np.concatenate([unit(text.removeprefix("p "), dim=5), np.zeros(DIM - 5, np.float32)])
    given: list[dict[str, Any]] = [
        {}, {"name": "other"}, {"prompt": "p "}, {"normalised": False}, {"dim": DIM, "shorten": True},
        {"dim": 5, "shorten": True}, {"dim": 6, "shorten": True},
    ]  # fmt: skip
    marks = [locate_encoder(config(service, **values)).fingerprint for values in given]
    assert len({probes.identity_of(mark) for mark in marks}) == len(given)
    service.vectors = lambda text: unit(text, dim=5)
    shorter = locate_encoder(config(service), expected=marks[0]).fingerprint
    assert probes.identity_of(shorter) not in {None, probes.identity_of(marks[0])}, "another dimension, another model"


def test_later_answers_have_the_dimension_of_the_first(service: Service) -> None:
    encoder = load_encoder(config(service))
    service.vectors = lambda text: unit(text, dim=DIM - 1)
    with pytest.raises(EncoderError, match=f"expected vectors of dimension {DIM}, found {DIM - 1}"):
        encoder.encode(["a"])
    assert load_encoder(config(service)).dim == DIM - 1
    with pytest.raises(EncoderError, match=f"expected vectors of dimension {DIM}, found {DIM - 1}"):
        locate_encoder(config(service, dim=DIM))


@pytest.mark.parametrize(("factor", "passes"), [(1.0455, False), (1.044, True), (1 / 1.0455, True), (1 / 1.048, False)])
def test_drift_is_relative_to_the_vectors_of_the_beginning(service: Service, factor: float, passes: bool) -> None:
    """A cosine of .999 allows a distance of √.002 = .04472 of the earlier length."""
    encoder = load_encoder(config(service, normalised=False))
    service.vectors = lambda text: unit(text) * np.float32(factor)
    if passes:
        encoder.verify()
        return
    with pytest.raises(EncoderError, match="returns other vectors than before"):
        encoder.verify()


def test_the_connections_of_an_encoder_that_is_gone_are_closed(service: Service) -> None:
    encoder: Any = load_encoder(config(service, connections=2, batch_rows=1))
    encoder.encode(["a", "b", "c"])
    opened = list(encoder._service.client._opened)
    assert any(connection.sock is not None for connection in opened)
    del encoder
    gc.collect()
    assert [connection.sock for connection in opened] == [None] * len(opened)


def test_after_a_pause_requests_are_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 60 a minute, one second apart: after ten idle seconds the next three wait 0, 1 and 2 seconds."""
    now, waits = [100.0], []
    monkeypatch.setattr(http_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limit: Any = RateLimit(60)
    stop: Any = SimpleNamespace(wait=waits.append)
    limit.wait(stop)
    now[0] += 10
    for _ in range(3):
        limit.wait(stop)
    assert waits == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize(("room", "fits"), [(0, True), (-1, False)])
def test_an_answer_may_have_exactly_its_largest_size(room: int, fits: bool, service: Service) -> None:
    client = Client(
        f"{service.url}/embeddings", api_key=None, requests_per_minute=None, timeout=30, retries=0, max_wait=1
    )
    asked = {"model": "toy", "input": ["a"]}
    sizes: list[int] = []
    send = service.send
    service.send = lambda handler, status, content, *rest, **more: (  # type: ignore[method-assign,misc]
        sizes.append(len(content)) or send(handler, status, content, *rest, **more)
    )
    client.post(asked, max_bytes=10**6, stop=threading.Event())
    if fits:
        assert client.post(asked, max_bytes=sizes[0] + room, stop=threading.Event())["model"] == "toy"
        return
    with pytest.raises(EncoderError, match=f"an answer of at most {sizes[0] + room} bytes, found a larger one"):
        client.post(asked, max_bytes=sizes[0] + room, stop=threading.Event())


def test_a_wait_without_end_is_a_large_number() -> None:
    assert _retry_after("9" * 30) == 1e9
    assert _retry_after("1000000000") == 1e9
    assert _retry_after("999999999.5") == 999_999_999.5


def test_vectors_have_at_most_the_largest_dimension_and_what_is_refused_is_cut() -> None:
    def read(vector: Any) -> Any:
        return vectors_of({"data": [{"index": 0, "embedding": vector}]}, rows=1, dim=None, service="s")

    assert read([0.5] * 65_536).shape == (1, 65_536)
    with pytest.raises(EncoderError) as error:
        read([0.5] * 65_537)
    assert len(str(error.value)) < 400
    assert _short("a" * 78) == f"'{'a' * 78}'"
    assert _short("a" * 79) == f"'{'a' * 79} …"


def test_one_error_stops_the_requests_that_wait(service: Service) -> None:
    """The second request sees that the first failed for good; it raises nothing of its own."""
    encoder: Any = load_encoder(config(service, batch_rows=1))
    stops: list[threading.Event] = []

    def request(batch: list[str], stop: threading.Event) -> Any:
        stops.append(stop)
        raise EncoderError(f"refused {batch[0]}")

    encoder._service._request = request
    with pytest.raises(EncoderError, match="refused a"):
        encoder.encode(["a", "b", "c"])
    assert stops[0].is_set()


# -- encoders of this machine ------------------------------------------------------------------------------------------


def test_a_text_without_a_token_has_a_vector_of_zeros() -> None:
    hidden = torch.ones(2, 3, 4, dtype=torch.bfloat16)
    valid = torch.tensor([[False] * 3, [True, False, False]])
    found = pooling.pool(hidden, valid, how="mean")
    assert (found.dtype, found.tolist()) == (torch.float32, [[0.0] * 4, [1.0] * 4])


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_has_the_bias_of_the_plain_one(bias: bool) -> None:
    plain = nn.Linear(5, 3, bias=bias)
    packed = PackedLinear(plain)
    with torch.inference_mode():
        torch.testing.assert_close(packed(torch.zeros(2, 5)), plain(torch.zeros(2, 5)))
    assert packed.weight.dtype == torch.float32


def test_an_encoder_for_new_texts_may_leave_its_dimension_open_until_it_is_loaded() -> None:
    declared = {"kind": "precomputed", "name": "mine", "dim": 3, "normalised": True}
    http = {"kind": "http", "url": "https://host/v1", "name": "toy"}
    for inner in (http, {**http, "dim": 3}):
        assert parse_encoder({**declared, "for_new_texts": inner}).dim == 3
    with pytest.raises(ConfigurationError, match=r"encoder of dimension 3, .* found 'toy' of dimension 4"):
        parse_encoder({**declared, "for_new_texts": {**http, "dim": 4}})


@pytest.mark.parametrize("dim", [12, 13])
def test_an_encoder_for_new_texts_is_loaded_on_the_device_and_has_the_declared_dimension(
    dim: int, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mm_ldlm.extras.own_vectors import encoder as precomputed

    devices: list[Any] = []
    real = precomputed.load_encoder
    monkeypatch.setattr(
        precomputed, "load_encoder", lambda config, *, device: devices.append(device) or real(config, device=device)
    )
    inner = {"kind": "http", "url": service.url, "name": "toy"}
    found = parse_encoder(
        {"kind": "precomputed", "name": "mine", "dim": dim, "normalised": True, "for_new_texts": inner}
    )
    if dim != DIM:
        with pytest.raises(EncoderError, match=rf"of dimension 13 .* like those of 'mine', found dimension {DIM}"):
            load_encoder(found, device="cuda:1")
        return
    loaded = load_encoder(found, device="cuda:1")
    assert (devices, loaded.dim) == (["cuda:1"], DIM)
    np.testing.assert_array_equal(loaded.encode(["a"]), [unit("a")])
    loaded.verify()
    service.vectors = lambda text: unit(text, salt="new")
    with pytest.raises(EncoderError, match="returns other vectors than before"):
        loaded.verify()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_sketch_of_negative_numbers_is_as_exact(sign: float) -> None:
    """The scale is that of the largest number, whatever its sign."""
    vectors = np.zeros((len(probes.SENTENCES), 3), np.float32)
    vectors[:, 0] = sign * np.arange(1, len(probes.SENTENCES) + 1)
    assert probes.distance_to(probes.fingerprint("i", vectors), vectors) < 1e-3


# -- what is not done --------------------------------------------------------------------------------------------------


def test_a_request_that_is_given_up_while_it_waits_is_not_sent(service: Service) -> None:
    class Stop:
        waited: float | None = None

        def is_set(self) -> bool:
            return self.waited is not None

        def wait(self, seconds: float) -> None:
            self.waited = seconds

    client = Client(f"{service.url}/embeddings", api_key=None, requests_per_minute=1, timeout=30, retries=0, max_wait=1)
    stop: Any = Stop()
    client.post({"model": "toy", "input": ["a"]}, max_bytes=10**6, stop=stop)
    assert stop.waited is None
    with pytest.raises(Stopped):
        client.post({"model": "toy", "input": ["b"]}, max_bytes=10**6, stop=stop)
    assert stop.waited == pytest.approx(60, abs=5)
    assert service.texts == ["a"]


def test_the_library_loads_and_computes_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import logging

    asked: list[Any] = []

    class Library:
        max_seq_length = 9

        def __init__(self, folder: str, **_: Any) -> None:
            asked.append((logging.get_verbosity(), logging.is_progress_bar_enabled()))

        def encode(self, texts: list[str], **options: Any) -> Any:
            asked.append((options["show_progress_bar"], options["convert_to_numpy"]))
            return np.ones((len(texts), 5))

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", Library)
    spec = EncoderSpec(name="m", source="m", architecture="sentence_transformers")
    located = LocatedWeights(spec=spec, folder=tmp_path, truncate_dim=None, dtype="float32", fingerprint="f")
    encoder = SentenceTransformersEncoder(located, device="cpu", max_length=None, batch_rows=2)
    assert asked == [(logging.ERROR, False), (False, True)]
    assert encoder.model.max_seq_length == 9, "without a length of its own, that of the model"


def test_an_unknown_word_is_a_token_with_a_state(tiny: Any) -> None:
    """Special tokens are left out around a text, and not inside of it."""
    encoder: Any = load_encoder(parse_encoder({"name": "minilm", "path": str(tiny("minilm")), "device": "cpu"}))
    (found,) = encoder.token_states(["the zebra sat"])
    assert len(found.ids_n) == len(found.states_nd) == 3
    assert found.ids_n[1] == encoder.tokenizer.unk_token_id


def test_a_service_that_asks_for_little_waits_as_long_as_any(service: Service) -> None:
    """After the sixth failure at least 8 s of the bound of 16 s pass, even if the service asks for less."""
    client = Client(service.url, api_key=None, requests_per_minute=None, timeout=9, retries=9, max_wait=60)
    service_asks = http_client._Transient("status 429", after=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_client, "FIRST_WAIT", 0.5)
        waits = [client._pause(service_asks, 6) for _ in range(20)]
    assert all(8 <= wait <= 16 for wait in waits)
    assert len(set(waits)) > 1


def test_an_encoder_that_is_loaded_adopts_the_fingerprint_that_is_expected(service: Service) -> None:
    first = locate_encoder(config(service)).fingerprint
    noise = np.random.default_rng(0)
    service.vectors = lambda text: (unit(text) + noise.normal(0, 3e-5, DIM)).astype(np.float32)
    assert load_encoder(config(service), expected=first).fingerprint == first
    assert load_encoder(config(service)).fingerprint != first
    located = locate_encoder(config(service), expected=first)
    assert load_encoder(config(service), located=located, expected="another").fingerprint == first
