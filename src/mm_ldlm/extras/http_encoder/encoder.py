"""Encoders that a service runs, behind the convention `POST /v1/embeddings` of hosted services and of many servers.

Request: {"model", "input": [text, …], "dimensions"?, "encoding_format"?}.
Answer: {"data": [{"index", "embedding"}, …]}, in any order. A service is identified by its vectors of probe sentences
(`http_encoder.probes`), because its weights cannot be read.
"""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
import os
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import httpx2
import numpy as np
import numpy.typing as npt

from mm_ldlm.core import ConfigurationError, EncoderError, Size, bounded, config, refuse_if, show, to_dict
from mm_ldlm.data.encoders.base import Encoder, LocatedEncoder, Name
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.http_encoder import probes
from mm_ldlm.extras.http_encoder.client import Client

_UNIT_TOLERANCE = 1e-2
"""Largest difference of the length of a probe vector from 1, for a service that is declared to normalise"""
_LARGEST_DIM = 65_536
_BYTES_PER_NUMBER = 32
"""Longest form of a number in an answer, with separators and spaces"""
Seconds = Annotated[float, bounded(ge=0.001, le=3600)]


@config
class HttpEncoderConfig:
    """An encoder behind an embedding service.

    Attributes:
        url: address of the service up to and including its version (`https://host/v1`); `/embeddings` is added.
        name: the service's name of the model.
        dim: expected dimension of the vectors; null accepts the dimension of the first answer.
        shorten: ask the service for `dim` dimensions, for models that were trained for it.
        prompt: text prepended to every sentence.
        normalised: the vectors have unit length; checked with the probe sentences.
        encoding: "float" for numbers in JSON, "base64" for float32 bytes, which are a quarter as long.
        key_variable: name of the environment variable that contains the key; null sends none. Parameters are stored
            with runs and shown by MLflow and the report, so that they never contain the key itself.
        batch_rows: maximum number of sentences in one request.
        batch_bytes: maximum number of bytes of the sentences in one request; a longer sentence is a request by itself.
        connections: number of requests at the same time.
        requests_per_minute: limit of one process; null for none.
        timeout: seconds for one exchange, from the connection to the last byte of the answer.
        retries: number of repetitions of a request after transient failures.
        max_wait: longest wait between two attempts, in seconds.
        min_cosine: smallest cosine of a probe sentence's vector to its earlier one; below it, the service has changed.
    """

    kind: str = "http"
    url: str
    name: Name
    dim: Size | None = None
    shorten: bool = False
    prompt: str = ""
    normalised: bool = True
    encoding: Literal["float", "base64"] = "float"
    key_variable: str | None = None
    batch_rows: Size = 64
    batch_bytes: Annotated[int, bounded(gt=0, le=1 << 28)] = 100_000
    connections: Annotated[int, bounded(gt=0, le=64)] = 4
    requests_per_minute: Annotated[float, bounded(ge=0.1, le=1e6)] | None = None
    timeout: Seconds = 60.0
    retries: Annotated[int, bounded(ge=0, le=100)] = 8
    max_wait: Seconds = 120.0
    min_cosine: Annotated[float, bounded(ge=0.5, lt=1)] = 0.999

    device: ClassVar[None] = None

    def __post_init__(self) -> None:
        address = urllib.parse.urlsplit(endpoint(self.url))
        refuse_if(
            self.shorten and self.dim is None,
            "expected dim, the number of dimensions to request, found null",
            "shorten",
            "dim",
        )
        if self.key_variable is not None:
            refuse_if(
                not (self.key_variable.isascii() and self.key_variable.isidentifier()),
                "expected the name of an environment variable (letters, digits and '_'), found something else, "
                "which is not shown because it may be the key itself",
                "key_variable",
            )
            refuse_if(
                address.scheme == "http" and not is_loopback(address.hostname or ""),
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
        kept = {"kind", "name", "dim", "shorten", "prompt", "normalised", "encoding", *self.batching}
        return {key: value for key, value in to_dict(self).items() if key in kept}

    def missing(self) -> str | None:
        """Return that the variable with the key is not set, or None."""
        if self.key_variable is None or os.environ.get(self.key_variable, "").strip():
            return None
        return (
            f"parameter 'encoder.key_variable': expected a key in the environment variable {self.key_variable}, found "
            "none. Set the variable in the shell that starts the run, or name another one."
        )

    @property
    def headers(self) -> dict[str, str]:
        """The header with the key, from the environment.

        Raises:
            ConfigurationError: the variable is not set, or contains characters that a header cannot contain. The
                message does not contain the value.
        """
        if self.key_variable is None:
            return {}
        if (lacking := self.missing()) is not None:
            raise ConfigurationError(lacking)
        value = os.environ[self.key_variable].strip()
        if not all("!" <= character <= "~" for character in value):
            raise ConfigurationError(
                "parameter 'encoder.key_variable': expected a key of printable ASCII characters without spaces in the "
                f"environment variable {self.key_variable}, found others in its {len(value)} characters. Set the "
                "variable to the key and nothing else."
            )
        return {"Authorization": f"Bearer {value}"}

    def locate(self, *, expected: str | None = None) -> LocatedService:
        """Embed the probe sentences and compute the fingerprint; adopt `expected` if the service is the same.

        Raises:
            EncoderError: the service cannot be used, or its vectors differ from those in `expected`.
            ConfigurationError: the key is missing.
        """
        service = _Service(self, dim=self.dim)
        probes_Kd = service.probe()
        if self.normalised:
            lengths_K = np.linalg.norm(probes_Kd.astype(np.float64), axis=1)
            if (worst := float(np.abs(lengths_K - 1).max())) > _UNIT_TOLERANCE:
                raise EncoderError(
                    f"{service.name}: expected vectors of length 1 from the model {self.name!r} (encoder.normalised), "
                    f"found lengths that differ from 1 by up to {worst:.2g}. Set encoder.normalised to false."
                )
        identity = fingerprint(
            {
                "name": self.name, "dim": probes_Kd.shape[1], "shorten": self.shorten, "prompt": self.prompt,
                "normalised": self.normalised, "probes": probes.SENTENCES, "sketch": probes.SKETCH_DIM,
            }
        )  # fmt: skip
        mark = probes.fingerprint(identity, probes_Kd)
        if expected is not None and probes.identity_of(expected) == identity:
            service.refuse_drift(probes.distance_to(expected, probes_Kd))
            mark = expected
        return LocatedService(
            name=self.name, dim=probes_Kd.shape[1], normalised=self.normalised, fingerprint=mark,
            about={"kind": self.kind, "prompt": self.prompt}, probes_Kd=probes_Kd,
        )  # fmt: skip

    def load(self, located: LocatedService, *, device: str | None = None) -> HttpEncoder:
        """Return the encoder; `device` has no influence, because nothing is computed here."""
        return HttpEncoder(located, self)


def endpoint(url: str) -> str:
    """Return the address of the embeddings of a service: `url` with `/embeddings` at the end of its path.

    Raises:
        InvalidValue: not http or https, no host, a port that is none, or a user, password, query or fragment, which
            may contain a key; the message does not show them.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(httpx2.URL(url.strip()).host) and parts.port != 0
    except (ValueError, httpx2.InvalidURL):
        usable = False
    refuse_if(
        not usable
        or "@" in parts.netloc
        or parts.query
        or parts.fragment
        or not re.fullmatch("[!-~]+", parts.geturl()),
        "expected an address such as https://host/v1, in ASCII, without spaces, user, password, query and "
        "fragment, found another one, which is not shown because it may contain a key. Put the key into the "
        "environment variable that key_variable names",
        "url",
    )
    return parts._replace(path=f"{parts.path.rstrip('/').removesuffix('/embeddings')}/embeddings").geturl()


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: localhost, 127.0.0.0/8 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocatedService(LocatedEncoder):
    """A service that answered, with its vectors of the probe sentences (K, d)."""

    probes_Kd: npt.NDArray[np.float32] = dataclasses.field(repr=False, compare=False)


class HttpEncoder(Encoder):
    """An `Encoder` that sends sentences to a service; non-finite numbers are returned as they are."""

    def __init__(self, located: LocatedService, parameters: HttpEncoderConfig) -> None:
        super().__init__(located)
        self._probes_Kd = located.probes_Kd
        self.dim = self._probes_Kd.shape[1]
        self._service = _Service(parameters, dim=self.dim)

    def run(self, prepared: list[str]) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences.

        Raises:
            EncoderError: a request failed for good, or an answer does not have one vector of dimension d per sentence.
        """
        return self._service.embed(prepared)

    def verify(self) -> None:
        """Embed the probe sentences again and compare them with their vectors at the beginning.

        Raises:
            EncoderError: the vectors differ by more than encoder.min_cosine allows.
        """
        self._service.refuse_drift(probes.relative_distance(self._service.probe(), self._probes_Kd))


class _Service:
    """The requests of a configuration; `dim` is None until the first answer."""

    def __init__(self, parameters: HttpEncoderConfig, *, dim: int | None) -> None:
        self._parameters, self._dim = parameters, dim
        self._client = Client(
            endpoint(parameters.url), headers=parameters.headers, connections=parameters.connections,
            requests_per_minute=parameters.requests_per_minute, timeout=parameters.timeout, retries=parameters.retries,
            max_wait=parameters.max_wait,
        )  # fmt: skip
        self.name = self._client.service

    def probe(self) -> npt.NDArray[np.float32]:
        """Return the vectors of the probe sentences.

        Raises:
            EncoderError: they are non-finite or zero.
        """
        found_Kd = self.embed(probes.SENTENCES)
        if not np.isfinite(found_Kd).all() or not found_Kd.any(axis=1).all():
            raise EncoderError(
                f"{self.name}: expected finite vectors other than zero for the probe sentences, found NaN, infinity or "
                f"zeros. Check the model {self._parameters.name!r} of the service."
            )
        return found_Kd

    def refuse_drift(self, distance: float) -> None:
        """Raise EncoderError if a probe vector is at a larger relative distance than min_cosine allows."""
        least, cosine = self._parameters.min_cosine, max(-1.0, 1 - distance**2 / 2)
        if cosine < least:
            raise EncoderError(
                f"{self.name}: the model {self._parameters.name!r} returns different vectors than before: the cosine "
                f"of a probe sentence is {cosine:.4g}, encoder.min_cosine is {least:g}. Another model "
                "answers under this name, or another version of it. Finished shards are kept, and no further one was "
                "written. Restore the earlier model and run again, or remove the latents to embed everything with the "
                "present one."
            )

    def embed(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        """Send all requests and return the vectors in the order of the sentences."""
        parameters, dim = self._parameters, self._dim
        body: dict[str, Any] = {"model": parameters.name}
        if parameters.shorten:
            body["dimensions"] = parameters.dim
        if parameters.encoding != "float":
            body["encoding_format"] = parameters.encoding
        batches = list(self._batches(sentences))
        room = (dim or _LARGEST_DIM) * _BYTES_PER_NUMBER + 1024
        answers = self._client.post_all(
            [{**body, "input": batch} for batch in batches],
            max_bytes=[len(batch) * room + 65_536 for batch in batches],
        )
        blocks = []
        for batch, answer in zip(batches, answers, strict=True):
            blocks.append(vectors_of(answer, rows=len(batch), dim=dim, service=self.name))
            dim = blocks[-1].shape[1]
        return np.concatenate(blocks) if blocks else np.empty((0, dim or 0), np.float32)

    def _batches(self, sentences: Sequence[str]) -> Iterator[list[str]]:
        """Divide the sentences with their prompts into consecutive requests within both limits."""
        batch: list[str] = []
        size = 0
        for sentence in sentences:
            # Several services refuse an empty text, which a model may have written; encoders ignore a space.
            text = self._parameters.prompt + sentence or " "
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
    data = answer.get("data") if isinstance(answer, dict) else None
    data = data if isinstance(data, list) else []
    named = [item for item in data if isinstance(item, dict) and type(item.get("index")) is int]
    items = {item["index"]: item.get("embedding") for item in named}
    vectors = [_vector(items.get(index)) for index in range(rows)]
    dims = {len(vector) for vector in vectors if vector is not None}
    complete = len(data) == len(items) == rows and all(each is not None for each in vectors)
    if not complete or len(dims) > 1 or (dim is not None and dims - {dim}):
        raise EncoderError(
            f"{service}: expected one vector{'' if dim is None else f' of dimension {dim}'} for each index from 0 to "
            f"{rows - 1}, found vectors of dimensions {sorted(dims)} in {show(answer, 120)}. Check that encoder.url is "
            "an embedding service with the convention /v1/embeddings, and encoder.name and encoder.dim."
        )
    return np.stack([vector for vector in vectors if vector is not None])


def _vector(value: Any) -> npt.NDArray[np.float32] | None:
    """Return an embedding, a list of numbers or base64 of float32, as (d,) float32; None if it is neither."""
    with np.errstate(over="ignore"):
        try:
            if isinstance(value, str):
                found = np.frombuffer(base64.b64decode(value, validate=True), "<f4").astype(np.float32)
            elif isinstance(value, list) and all(type(number) in (float, int) for number in value):
                found = np.array(value, np.float64).astype(np.float32)
            else:
                return None
        except (ValueError, OverflowError):  # not base64, or a whole number beyond float64
            return None
    return found if 0 < len(found) <= _LARGEST_DIM else None
