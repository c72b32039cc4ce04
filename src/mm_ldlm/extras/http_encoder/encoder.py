"""Encoders that a service runs, behind the convention `POST /v1/embeddings` of hosted services and of many servers.

Request: {"model", "input": [text, …], "dimensions"?, "encoding_format"?}.
Answer: {"data": [{"index", "embedding"}, …]}, in any order. A service is identified by its vectors of probe sentences
(`encoders.probes`), because its weights cannot be read.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.config import InvalidValue, PositiveFloat, PositiveInt, config, to_dict
from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.http_encoder import keys as api_keys
from mm_ldlm.extras.http_encoder import probes
from mm_ldlm.extras.http_encoder.address import endpoint, is_loopback
from mm_ldlm.extras.http_encoder.client import Client, Stopped

logger = logging.getLogger(__name__)

_UNIT_TOLERANCE = 1e-2
"""Largest difference of the length of a probe vector from 1, for a service that is declared to normalise."""
_LARGEST_DIM = 65_536
_BYTES_PER_NUMBER = 32
"""Longest form of a number in an answer, with separators and spaces"""


@config
class HttpEncoderConfig:
    """An encoder behind an embedding service.

    Attributes:
        url: address of the service up to and including its version (`https://host/v1`); `/embeddings` is added.
        name: the service's name of the model.
        dim: expected dimension of the vectors; null accepts that of the first answer.
        shorten: ask the service for `dim` dimensions, for models that were trained for it.
        prompt: text prepended to every sentence.
        normalised: the vectors have unit length; checked with the probe sentences.
        encoding: "float" for numbers in JSON, "base64" for float32 bytes, which are a quarter as long.
        key_variable: name of the environment variable that contains the key; null sends none.
        batch_rows: maximum number of sentences in one request.
        batch_bytes: maximum number of bytes of the sentences in one request; a longer sentence is sent alone.
        connections: number of requests at the same time.
        requests_per_minute: limit of one process; null for none.
        timeout: seconds for one request.
        retries: number of repetitions of a request after transient failures.
        max_wait: longest wait between two attempts, in seconds.
        min_cosine: smallest cosine of a probe sentence's vector to its earlier one; below it, the service has changed.
    """

    kind: str = "http"
    url: str
    name: str
    dim: PositiveInt | None = None
    shorten: bool = False
    prompt: str = ""
    normalised: bool = True
    encoding: Literal["float", "base64"] = "float"
    key_variable: str | None = None
    batch_rows: PositiveInt = 64
    batch_bytes: PositiveInt = 100_000
    connections: PositiveInt = 4
    requests_per_minute: PositiveFloat | None = None
    timeout: PositiveFloat = 60.0
    retries: int = 8
    max_wait: PositiveFloat = 120.0
    min_cosine: float = 0.999

    device: ClassVar[None] = None

    def __post_init__(self) -> None:
        try:
            address = endpoint(self.url)
        except ValueError as error:
            raise InvalidValue(str(error), "url") from None
        if not self.name.strip():
            raise InvalidValue("expected the service's name of the model, found an empty one", "name")
        if self.shorten and self.dim is None:
            raise InvalidValue("expected dim, the number of dimensions to ask for, found null", "shorten", "dim")
        limits = {
            "dim": (1, _LARGEST_DIM), "batch_rows": (1, 65_536), "batch_bytes": (1, 1 << 28), "connections": (1, 64),
            "requests_per_minute": (0.1, 1e6), "timeout": (0.001, 3600), "retries": (0, 100), "max_wait": (0.001, 3600),
            "min_cosine": (0.5, 1 - 1e-9),
        }  # fmt: skip
        for key, (low, high) in limits.items():
            value = getattr(self, key)
            if value is not None and not low <= value <= high:
                raise InvalidValue(f"expected a number from {low:g} to {high:g}, found {value:g}", key)
        if self.key_variable is not None:
            if not api_keys.is_variable_name(self.key_variable):
                raise InvalidValue(
                    "expected the name of an environment variable (letters, digits and '_'), found something else, "
                    "which is not shown because it may be the key itself",
                    "key_variable",
                )
            if address.scheme == "http" and not is_loopback(address.hostname or ""):
                raise InvalidValue(
                    f"a key is sent to {address.hostname} without encryption; use https, or set key_variable to null "
                    "for a service without a key",
                    "url",
                )

    @property
    def batching(self) -> dict[str, int]:
        """Limits of the requests; a service may compute other last bits for other batches."""
        return {"batch_rows": self.batch_rows, "batch_bytes": self.batch_bytes}

    def portable(self) -> dict[str, Any]:
        """Return the parameters that describe the vectors, without address, key and limits of the connection."""
        plain: dict[str, Any] = to_dict(self)
        kept = {"kind", "name", "dim", "shorten", "prompt", "normalised", "encoding", *self.batching}
        return {key: value for key, value in plain.items() if key in kept}

    def missing(self) -> str | None:
        """Return that the variable with the key is not set, or None."""
        if self.key_variable is None or api_keys.is_set(self.key_variable):
            return None
        return api_keys.missing(self.key_variable, parameter="encoder.key_variable")

    def locate(self, *, expected: str | None = None) -> LocatedService:
        """Embed the probe sentences and compute the fingerprint; adopt `expected` if the service is the same.

        Raises:
            EncoderError: the service cannot be used, or its vectors differ from those in `expected`.
            ConfigurationError: the key is missing.
        """
        service = _Service(self, dim=self.dim)
        probes_Kd = service.probe()
        found, dim = service.client.service, probes_Kd.shape[1]
        if self.normalised:
            lengths_K = np.linalg.norm(probes_Kd.astype(np.float64), axis=1)
            if (worst := float(np.abs(lengths_K - 1).max())) > _UNIT_TOLERANCE:
                raise EncoderError(
                    f"{found}: expected vectors of length 1 from the model {self.name!r} (encoder.normalised), found "
                    f"lengths that differ from 1 by up to {worst:.2g}. Set encoder.normalised to false."
                )
        identity = fingerprint(
            {
                "name": self.name, "dim": dim, "shorten": self.shorten, "prompt": self.prompt,
                "normalised": self.normalised, "probes": probes.SENTENCES, "sketch": probes.SKETCH_DIM,
            }
        )  # fmt: skip
        if expected is not None and probes.identity_of(expected) == identity:
            service.refuse_drift(probes.distance_to(expected, probes_Kd))
            mark = expected
        else:
            mark = probes.fingerprint(identity, probes_Kd)
        return LocatedService(
            name=self.name, dim=dim, normalised=self.normalised, prompt=self.prompt, fingerprint=mark,
            probes_Kd=probes_Kd,
        )  # fmt: skip

    def load(self, located: LocatedService, *, device: str | None = None) -> HttpEncoder:
        """Return the encoder; `device` has no influence, because nothing is computed here."""
        return HttpEncoder(located, self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocatedService:
    """A service that answered, with its vectors of the probe sentences (K, d)."""

    name: str
    dim: int
    normalised: bool
    prompt: str
    fingerprint: str
    probes_Kd: npt.NDArray[np.float32] = dataclasses.field(repr=False, compare=False)
    dtype: str = "unknown"

    def describe(self) -> dict[str, Any]:
        """Describe the encoder for manifests and reports, as plain JSON without its address."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del plain["probes_Kd"]
        return {"kind": "http", **plain}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Sentences in requests: `batches` are consecutive and together have `rows` sentences."""

    rows: int
    batches: list[list[str]]


class HttpEncoder:
    """An `Encoder` that sends sentences to a service."""

    def __init__(self, located: LocatedService, parameters: HttpEncoderConfig) -> None:
        self.located, self._parameters = located, parameters
        self._service = _Service(parameters, dim=located.dim)

    @property
    def dim(self) -> int:
        return self.located.dim

    @property
    def fingerprint(self) -> str:
        return self.located.fingerprint

    def prepare(self, sentences: Sequence[str]) -> Prepared:
        """Add the prompt and divide the sentences into requests, in order."""
        return self._service.prepare(sentences)

    def run(self, prepared: Prepared) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences; numbers that are not finite are returned as they are.

        Raises:
            EncoderError: a request failed for good, or an answer does not have one vector of dimension d per sentence.
        """
        return self._service.embed(prepared)

    def encode(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences."""
        return self.run(self.prepare(sentences))

    def verify(self) -> None:
        """Embed the probe sentences again and compare them with their vectors at the beginning.

        Raises:
            EncoderError: the vectors differ by more than encoder.min_cosine allows.
        """
        self._service.refuse_drift(probes.relative_distance(self._service.probe(), self.located.probes_Kd))


class _Service:
    """The requests of a configuration, on several connections; `dim` is None until the first answer."""

    def __init__(self, parameters: HttpEncoderConfig, *, dim: int | None) -> None:
        self._parameters, self._dim = parameters, dim
        variable = parameters.key_variable
        self.client = Client(
            endpoint(parameters.url).geturl(),
            api_key=None if variable is None else api_keys.read_key(
                variable, parameter="encoder.key_variable"
            ),
            requests_per_minute=parameters.requests_per_minute, timeout=parameters.timeout, retries=parameters.retries,
            max_wait=parameters.max_wait,
        )  # fmt: skip
        self._pool = ThreadPoolExecutor(parameters.connections, thread_name_prefix="embeddings")
        weakref.finalize(self, self.client.close)

    def prepare(self, sentences: Sequence[str]) -> Prepared:
        return Prepared(len(sentences), list(self._batches([self._parameters.prompt + text for text in sentences])))

    def probe(self) -> npt.NDArray[np.float32]:
        """Return the vectors of the probe sentences.

        Raises:
            EncoderError: they are not finite, or zero.
        """
        found_Kd = self.embed(self.prepare(probes.SENTENCES))
        if not np.isfinite(found_Kd).all() or not found_Kd.any(axis=1).all():
            raise EncoderError(
                f"{self.client.service}: expected finite vectors other than zero for the probe sentences, found NaN, "
                f"infinity or zeros. Check the model {self._parameters.name!r} of the service."
            )
        return found_Kd

    def refuse_drift(self, distance: float) -> None:
        """Raise EncoderError if a probe vector is at a larger relative distance than min_cosine allows."""
        least = self._parameters.min_cosine
        if distance > probes.allowed_distance(least):
            raise EncoderError(
                f"{self.client.service}: the model {self._parameters.name!r} returns other vectors than before: the "
                f"cosine of a probe sentence is {probes.cosine_at(distance):.4g}, encoder.min_cosine is {least:g}. "
                "Another model answers under this name, or another version of it. Finished shards are kept, and no "
                "further one was written. Restore the earlier model and run again, or remove the latents to embed "
                "everything with the present one."
            )

    def embed(self, prepared: Prepared) -> npt.NDArray[np.float32]:
        """Send all requests and return the vectors in the order of the sentences."""
        if not prepared.batches:
            return np.empty((0, self._dim or 0), np.float32)
        stop = threading.Event()
        jobs = [self._pool.submit(self._request, batch, stop) for batch in prepared.batches]
        try:
            blocks = [job.result() for job in jobs]
        except BaseException:
            stop.set()
            for job in jobs:
                job.cancel()
            raise
        if failures := self.client.take_failures():
            reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(failures.items()))
            logger.info("%s: repeated requests: %d (%s)", self.client.service, sum(failures.values()), reasons)
        if len(dims := {block.shape[1] for block in blocks}) > 1:
            raise EncoderError(
                f"{self.client.service}: expected vectors of one dimension, found {sorted(dims)}. Set encoder.dim, and "
                "check that one model answers."
            )
        return np.concatenate(blocks)

    def _request(self, texts: list[str], stop: threading.Event) -> npt.NDArray[np.float32]:
        if stop.is_set():
            raise Stopped
        parameters = self._parameters
        # Several services refuse an empty text, which a model may have written; encoders ignore a space.
        body: dict[str, Any] = {"model": parameters.name, "input": [text or " " for text in texts]}
        if parameters.shorten:
            body["dimensions"] = parameters.dim
        if parameters.encoding != "float":
            body["encoding_format"] = parameters.encoding
        room = (self._dim or _LARGEST_DIM) * _BYTES_PER_NUMBER + 1024
        answer = self.client.post(body, max_bytes=len(texts) * room + 65_536, stop=stop)
        return vectors_of(answer, rows=len(texts), dim=self._dim, service=self.client.service)

    def _batches(self, texts: list[str]) -> Iterator[list[str]]:
        """Divide texts into consecutive requests within both limits."""
        batch: list[str] = []
        size = 0
        for text in texts:
            own = len(text.encode("utf-8", errors="replace"))
            if batch and (len(batch) == self._parameters.batch_rows or size + own > self._parameters.batch_bytes):
                yield batch
                batch, size = [], 0
            batch.append(text)
            size += own
        if batch:
            yield batch


def vectors_of(answer: Any, *, rows: int, dim: int | None, service: str) -> npt.NDArray[np.float32]:
    """Read the vectors of an answer, in the order of the request: (rows, d) float32.

    Numbers beyond float32 become infinite.

    Raises:
        EncoderError: the answer does not contain exactly one vector for each index, or vectors of another dimension.
    """

    def refuse(expected: str, found: str) -> EncoderError:
        return EncoderError(
            f"{service}: expected {expected}, found {found}. Check that encoder.url is an embedding service with the "
            "convention /v1/embeddings, and encoder.name and encoder.dim."
        )

    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        raise refuse("an answer with the list 'data'", f"{_short(answer)}")
    if len(data) != rows:
        raise refuse(f"{rows} vectors for {rows} sentences", str(len(data)))
    by_index: dict[int, npt.NDArray[np.float32]] = {}
    for item in data:
        index = item.get("index") if isinstance(item, dict) else None
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < rows:
            raise refuse(f"an index from 0 to {rows - 1} for each vector", _short(index))
        if index in by_index:
            raise refuse("each index once", f"{index} twice")
        vector = _vector(item.get("embedding"))
        if vector is None:
            raise refuse("an embedding that is a list of numbers or base64 of float32", _short(item.get("embedding")))
        dim = len(vector) if dim is None else dim
        if len(vector) != dim:
            raise refuse(f"vectors of dimension {dim}", str(len(vector)))
        by_index[index] = vector
    return np.stack([by_index[index] for index in range(rows)])


def _vector(value: Any) -> npt.NDArray[np.float32] | None:
    """Return an embedding as (d,) float32, or None if it is not one."""
    if isinstance(value, str):
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return None
        return np.frombuffer(raw, "<f4").astype(np.float32) if raw and len(raw) % 4 == 0 else None
    if not isinstance(value, list) or not value or len(value) > _LARGEST_DIM:
        return None
    if not all(type(number) in (float, int) for number in value):
        return None
    with np.errstate(over="ignore"):
        try:
            return np.array(value, np.float64).astype(np.float32)
        except OverflowError:  # a whole number beyond float64
            return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]} …"
