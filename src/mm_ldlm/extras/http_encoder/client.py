"""A client for JSON over HTTP: persistent connections, a rate limit, and repetition after transient failures.

Transient are: no connection, a connection that breaks, a time-out, an answer that is cut short, and the statuses 408,
425, 429 and 5xx. The waits between attempts grow exponentially and are partly random; `Retry-After` is honoured.
Redirects are never followed, because the key would be sent to another address. Proxies are not used.
"""

from __future__ import annotations

import datetime
import email.utils
import http.client
import json
import logging
import random
import ssl
import threading
import time
import urllib.parse
from collections import Counter
from typing import Any

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.extras.http_encoder.keys import ApiKey

logger = logging.getLogger(__name__)

FIRST_WAIT = 0.5
"""Seconds before the second attempt, at most; the bound doubles with each further one."""
_LOGGED_WAIT = 5.0
"""Waits of this many seconds are logged when they begin."""
_BLOCK = 1 << 16


class Stopped(Exception):
    """The request was given up because another one failed for good."""


class _Transient(Exception):
    """A failure after which the same request may succeed; `after` is the wait that the service asked for."""

    def __init__(self, reason: str, *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class RateLimit:
    """Distributes requests evenly over time, for all connections together."""

    def __init__(self, per_minute: float | None) -> None:
        self._interval = 60 / per_minute if per_minute else 0.0
        self._next, self._lock = 0.0, threading.Lock()

    def wait(self, stop: threading.Event) -> None:
        """Wait for the next free moment, or until `stop` is set."""
        with self._lock:
            start = max(self._next, time.monotonic())
            self._next = start + self._interval
        delay = start - time.monotonic()
        if delay > 0:
            stop.wait(delay)

    def hold(self, seconds: float) -> None:
        """Let no request begin before this many seconds have passed."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


class Client:
    """Posts JSON to one address; may be used by several threads, each of which has its own connection.

    Args:
        url: http or https.
        api_key: sent as a bearer token.
        timeout: seconds for one request, from sending to the end of the answer.
        retries: number of repetitions of one request.
        max_wait: longest wait between two attempts, in seconds.
    """

    def __init__(
        self, url: str, *, api_key: ApiKey | None, requests_per_minute: float | None, timeout: float,
        retries: int, max_wait: float,
    ) -> None:  # fmt: skip
        parts = urllib.parse.urlsplit(url)
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path or "/"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.service = f"{parts.scheme}://{parts.netloc}"
        self._key, self._limit = api_key, RateLimit(requests_per_minute)
        self._timeout, self._retries, self._max_wait = timeout, retries, max_wait
        self._local = threading.local()
        self._failures: Counter[str] = Counter()
        self._opened: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections of all threads; no request may be under way."""
        while self._opened:
            self._opened.pop().close()

    def take_failures(self) -> dict[str, int]:
        """Return the number of failures by reason since the last call."""
        with self._lock:
            found, self._failures = dict(self._failures), Counter()
        return found

    def post(self, value: Any, *, max_bytes: int, stop: threading.Event) -> Any:
        """Send a value as JSON and return the JSON of the answer.

        Raises:
            EncoderError: the service refuses the request, its answer has more than `max_bytes`, or all attempts failed.
            Stopped: `stop` was set.
        """
        body = json.dumps(value).encode("ascii")
        started, attempt = time.monotonic(), 0
        while True:
            self._limit.wait(stop)
            if stop.is_set():
                raise Stopped
            try:
                return self._attempt(body, max_bytes)
            except _Transient as failure:
                with self._lock:
                    self._failures[str(failure)] += 1
                attempt += 1
                if attempt > self._retries:
                    raise EncoderError(
                        f"{self.service} failed {attempt} times in {time.monotonic() - started:.0f} s, the last time "
                        f"with: {failure}. Check the service, or raise encoder.retries or encoder.timeout, and run "
                        "again: finished shards are kept."
                    ) from None
                stop.wait(self._pause(failure, attempt))

    def _pause(self, failure: _Transient, attempt: int) -> float:
        """Return the seconds to wait after this failure; after a demand of the service all connections wait."""
        bound = min(self._max_wait, FIRST_WAIT * 2.0 ** (attempt - 1))
        pause = bound * random.uniform(0.5, 1.0)
        if failure.after is not None:
            if failure.after > self._max_wait:
                raise EncoderError(
                    f"{self.service} asks to wait {failure.after:.0f} s ({failure}), but encoder.max_wait is "
                    f"{self._max_wait:g}. Run again later (finished shards are kept), or raise encoder.max_wait."
                )
            pause = max(pause, failure.after)
            self._limit.hold(failure.after)
        if pause >= _LOGGED_WAIT:
            logger.warning(
                "%s: %s; waiting %.0f s before attempt %d of %d",
                self.service, failure, pause, attempt + 1, self._retries + 1,
            )  # fmt: skip
        return pause

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _attempt(self, body: bytes, max_bytes: int) -> Any:
        try:
            status, headers, content = self._exchange(body, max_bytes)
        except ssl.SSLCertVerificationError as error:
            self._close()
            raise EncoderError(
                f"{self.service}: the certificate is not trusted ({error.verify_message}). Correct encoder.url, or add "
                "the authority of the service to the certificates of this system."
            ) from None
        except TimeoutError:
            self._close()
            raise _Transient(f"no complete answer within {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            self._close()
            raise _Transient(f"connection failed ({type(error).__name__})") from None
        except BaseException:
            self._close()
            raise
        if status == 200:
            try:
                return json.loads(content)
            except (ValueError, RecursionError):
                raise _Transient("an answer that is not complete JSON") from None
        if status in (408, 425, 429) or status >= 500:
            raise _Transient(f"status {status}", after=_retry_after(headers.get("Retry-After")))
        raise EncoderError(self._refusal(status, headers, content))

    def _exchange(self, body: bytes, max_bytes: int) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send one request and read its answer completely.

        Raises:
            TimeoutError, OSError, http.client.HTTPException: no complete answer.
            EncoderError: the answer is too large.
        """
        connection = self._connection()
        deadline = time.monotonic() + self._timeout
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "mm-ldlm"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        connection.request("POST", self._path, body, headers)
        response = connection.getresponse()
        limit = max_bytes if response.status == 200 else _BLOCK
        content = bytearray()
        while block := response.read1(_BLOCK):
            content += block
            if len(content) > limit:
                if response.status != 200:  # the beginning of an error message suffices
                    self._close()
                    return response.status, response.headers, bytes(content)
                raise EncoderError(
                    f"{self.service}: expected an answer of at most {max_bytes} bytes, found a larger one. Check that "
                    "encoder.url is an embedding service; a smaller encoder.batch_rows makes answers smaller."
                )
            if time.monotonic() > deadline:
                raise TimeoutError
        length = response.headers.get("Content-Length")
        if length is not None and length.isdecimal() and len(content) != int(length):
            raise http.client.IncompleteRead(bytes(content))
        response.close()  # the connection stays open for the next request of this thread
        return response.status, response.headers, bytes(content)

    def _connection(self) -> http.client.HTTPConnection:
        """Return the connection of this thread; it is opened when a request is sent."""
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            if self._tls is not None:
                found = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)
            else:
                found = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
            self._local.connection = found
            with self._lock:
                self._opened.add(found)
        return found

    def _close(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None
            with self._lock:
                self._opened.discard(connection)

    def _refusal(self, status: int, headers: http.client.HTTPMessage, content: bytes) -> str:
        """Explain a status that is not repeated; a message of the service is shown without the key."""
        if 300 <= status < 400:
            target = urllib.parse.urlsplit(headers.get("Location") or "")
            where = f" to {target.scheme}://{target.hostname}" if target.hostname else ""
            return (
                f"{self.service} answered with a redirect{where} (status {status}), which is not followed, because the "
                "key would go with it. Set encoder.url to the final address."
            )
        advice = {
            401: "Check the key in the variable that encoder.key_variable names.",
            403: "Check the key in the variable that encoder.key_variable names, and what it may use.",
            404: "Check encoder.url, which ends before /embeddings, and encoder.name.",
            413: "Set encoder.batch_rows or encoder.batch_bytes to a smaller number.",
        }.get(status, "Check encoder.name, encoder.dim and encoder.encoding, and the length of the texts.")
        said = self._message(content)
        return f"{self.service} refused the request with status {status}{f' ({said})' if said else ''}. {advice}"

    def _message(self, content: bytes) -> str:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        for key in ("error", "message", "detail"):
            if isinstance(found, dict):
                found = found.get(key, found)
        text = found if isinstance(found, str) else content.decode("utf-8", errors="replace")
        text = self._key.redact(text) if self._key is not None else text
        return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))[:300]


def _retry_after(value: str | None) -> float | None:
    """Read `Retry-After`: seconds or a date; None if it is absent or neither."""
    if value is None:
        return None
    try:
        return min(max(0.0, float(value)), 1e9) if value.strip().replace(".", "", 1).isdecimal() else _until(value)
    except (ValueError, OverflowError):
        return None


def _until(date: str) -> float:
    moment = email.utils.parsedate_to_datetime(date)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0.0, (moment - datetime.datetime.now(datetime.UTC)).total_seconds())
