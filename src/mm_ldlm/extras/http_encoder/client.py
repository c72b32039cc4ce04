"""A client for JSON over HTTP: several requests at a time, a rate limit, and repetition after transient failures.

Each exchange has one deadline, from the connection to the last byte of the answer, however slowly a service sends its
headers or its content; asyncio cancels what is under way at that moment. Transient are: no connection, a connection
that breaks, a deadline that passes, an answer that is not complete JSON, and the statuses 408, 425, 429 and 5xx. The
waits between attempts grow exponentially and are partly random; the seconds of `Retry-After` are honoured. Redirects
are never followed, because the key would be sent to another address. Proxies are not used.
"""

import asyncio
import contextlib
import json
import logging
import random
import ssl
import threading
import time
import urllib.parse
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from mm_ldlm.core import MASK, EncoderError, reason_of, show

logger = logging.getLogger(__name__)

FIRST_WAIT = 0.5
"""Seconds before the second attempt, at most; the bound doubles with each further one"""
_LOGGED_WAIT = 5.0
"""Waits of this many seconds are logged when they begin"""
_REFUSAL_BYTES = 1 << 16
"""Bytes of a refusal that are read"""
_ADVICE = {
    401: "Check the key in the variable that encoder.key_variable names.",
    403: "Check the key in the variable that encoder.key_variable names, and what it may use.",
    404: "Check encoder.url, which ends before /embeddings, and encoder.name.",
    413: "Set encoder.batch_rows or encoder.batch_bytes to a smaller number.",
}


class _Transient(Exception):
    """A failure after which the same request may succeed; `after` is the wait that the service asked for."""

    def __init__(self, reason: str, *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Client:
    """Posts JSON to one address; may be used by several threads.

    Args:
        url: http or https.
        headers: sent with every request; an `Authorization` among them is hidden from messages.
        connections: number of requests at a time.
        timeout: seconds for one exchange.
        retries: number of repetitions of one request.
        max_wait: longest wait between two attempts, in seconds.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str], connections: int, requests_per_minute: float | None,
        timeout: float, retries: int, max_wait: float,
    ) -> None:  # fmt: skip
        self._url, self._headers = url, {"Accept-Encoding": "identity", "User-Agent": "mm-ldlm", **headers}
        self.service = urllib.parse.urlsplit(url)._replace(path="").geturl()
        self._timeout, self._retries, self._max_wait = timeout, retries, max_wait
        self._interval, self._next = 60 / requests_per_minute if requests_per_minute else 0.0, 0.0
        self._slots, self._turns = asyncio.Semaphore(connections), asyncio.Lock()
        self._transport = httpx2.AsyncHTTPTransport(
            verify=ssl.create_default_context(), trust_env=False, limits=httpx2.Limits(max_connections=connections)
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(self._loop, self._transport), daemon=True, name="embeddings").start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def post_all(self, values: Sequence[Any], *, max_bytes: Sequence[int]) -> list[Any]:
        """Send each value as JSON and return the JSON of the answers, in order; the first error ends all requests.

        Raises:
            EncoderError: the service refuses a request, an answer has more than its `max_bytes`, or all attempts
                failed.
        """
        future = asyncio.run_coroutine_threadsafe(self._post_all(values, max_bytes), self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    async def _post_all(self, values: Sequence[Any], max_bytes: Sequence[int]) -> list[Any]:
        try:
            async with asyncio.TaskGroup() as group:
                each = zip(values, max_bytes, strict=True)
                tasks = [group.create_task(self._post(value, most)) for value, most in each]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _post(self, value: Any, max_bytes: int) -> Any:
        body, attempt = json.dumps(value).encode("ascii"), 0
        while True:
            async with self._slots:
                await self._turn()
                try:
                    async with asyncio.timeout(self._timeout):
                        return await self._exchange(body, max_bytes)
                except TimeoutError:
                    failure = _Transient(f"no complete answer within {self._timeout:g} s")
                except httpx2.TransportError as error:
                    failure = _Transient(f"connection failed ({reason_of(error)})")
                except (ValueError, RecursionError):
                    failure = _Transient("an answer that is not complete JSON")
                except _Transient as error:
                    failure = error
            attempt += 1
            if attempt > self._retries or (failure.after or 0) > self._max_wait:
                asks = "" if failure.after is None else f", asking to wait {failure.after:.0f} s"
                raise EncoderError(
                    f"{self.service}: gave up after attempt {attempt}: {failure}{asks}. Check the service, "
                    "or raise encoder.retries, encoder.timeout or encoder.max_wait, and run again: finished shards "
                    "are kept."
                )
            await asyncio.sleep(self._pause(failure, attempt))

    async def _turn(self) -> None:
        """Wait for the next moment at which the rate limit lets a request begin."""
        async with self._turns:
            while (left := self._next - time.monotonic()) > 0:  # a service that asks to wait may have moved it
                await asyncio.sleep(left)
            self._next = time.monotonic() + self._interval

    def _pause(self, failure: _Transient, attempt: int) -> float:
        """Return the seconds to wait after this failure; after a demand of the service all requests wait."""
        pause = min(self._max_wait, FIRST_WAIT * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        if failure.after is not None:
            pause = max(pause, failure.after)
            self._next = max(self._next, time.monotonic() + failure.after)
        if pause >= _LOGGED_WAIT:
            logger.warning(
                "%s: %s; waiting %.0f s before attempt %d of %d",
                self.service, failure, pause, attempt + 1, self._retries + 1,
            )  # fmt: skip
        return pause

    async def _exchange(self, body: bytes, max_bytes: int) -> Any:
        """Send one request and return the JSON of its answer."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self._headers}
        content = bytearray()
        response = await self._transport.handle_async_request(
            httpx2.Request("POST", self._url, headers=headers, content=body)
        )
        status = response.status_code
        try:
            most = max_bytes if status == 200 else _REFUSAL_BYTES
            async for block in response.aiter_raw():
                content += block
                if len(content) > most:
                    break
        finally:
            await response.aclose()
        if status in (408, 425, 429) or status >= 500:
            raise _Transient(f"status {status}", after=_retry_after(response.headers.get("Retry-After", "")))
        if status != 200:
            raise EncoderError(self._refusal(status, response.headers.get("Location", ""), bytes(content)))
        if len(content) > most:
            raise EncoderError(
                f"{self.service}: expected an answer of at most {max_bytes} bytes, found a larger one. Check that "
                "encoder.url is an embedding service; a smaller encoder.batch_rows makes answers smaller."
            )
        return json.loads(content)

    def _refusal(self, status: int, location: str, content: bytes) -> str:
        """Explain a status that is not repeated; a message of the service is shown without the key."""
        if 300 <= status < 400:
            return (
                f"{self.service} answered with a redirect to {show(location, 200)} (status {status}), which is not "
                "followed, because the key would go with it. Set encoder.url to the final address."
            )
        secret = self._headers.get("Authorization", "Bearer \0").removeprefix("Bearer ")
        text = content.decode("utf-8", errors="replace").replace(secret, MASK)
        advice = _ADVICE.get(status, "Check encoder.name, encoder.dim, encoder.encoding and the length of the texts.")
        return f"{self.service} refused the request with status {status} ({show(text, 300)}). {advice}"


def _serve(loop: asyncio.AbstractEventLoop, transport: httpx2.AsyncHTTPTransport) -> None:
    """Run the requests of a client until it is gone; then close its connections."""
    loop.run_forever()
    loop.run_until_complete(transport.aclose())
    loop.close()


def _retry_after(value: str) -> float | None:
    """Read the seconds of `Retry-After`; None if it is absent or a date."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    return None
