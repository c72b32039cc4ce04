"""A small embedding service on the loopback interface, whose answers can be damaged in every way that services know."""

import base64
import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from mm_ldlm.extras.http_encoder.probes import SENTENCES

DIM = 12
Vectors = Callable[[str], np.ndarray]
Fault = Callable[[int, list[str]], str | None]
"""Number of the request, from 0, and its texts → name of a fault, or None."""


CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "reordered": lambda found: found.reverse(),
    "duplicate": lambda found: found[-1].update(index=0),
    "missing": lambda found: found.pop(),
    "surplus": lambda found: found.append(dict(found[-1])),
    "beyond": lambda found: found[-1].update(index=len(found)),
    "no_index": lambda found: found[-1].pop("index"),
    "index_text": lambda found: found[-1].update(index="0"),
    "dimension": lambda found: found[-1]["embedding"].pop(),
    "no_numbers": lambda found: found[-1].update(embedding=[None] * DIM),
    "text": lambda found: found[-1].update(embedding="~not base64~"),
    "empty": lambda found: found[-1].update(embedding=[]),
    "nan": lambda found: found[-1].update(embedding=[float("nan")] * DIM),
    "overflow": lambda found: found[-1].update(embedding=[1e300] * DIM),
}
"""Faults of the vectors in an answer"""
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "not_json": lambda content: content[: len(content) // 2],
    "html": lambda content: b"<html>Welcome</html>",
    "list": lambda content: b"[1, 2]",
    "error_in_200": lambda content: b'{"error": {"message": "overloaded"}}',
    "huge": lambda content: content + b" " * 2_000_000,
}
"""Faults of the bytes of an answer"""


def unit(text: str, *, salt: str = "", dim: int = DIM) -> np.ndarray:
    """A vector of length 1 that depends on the text only."""
    raw = np.frombuffer(hashlib.shake_256((salt + text).encode("utf-8", "replace")).digest(2 * dim), "<i2")
    vector = raw.astype(np.float64) + 0.5
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Service:
    """State of a running service: what it answers, and what it was asked."""

    def __init__(self) -> None:
        self.vectors: Vectors = unit
        self.fault: Fault = lambda number, texts: None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.moments: list[float] = []
        self.open = self.most_open = 0
        self.lock = threading.Lock()
        self.url = ""

    @property
    def texts(self) -> list[str]:
        """All texts that were asked for, without the probes."""
        return [text for request in self.requests for text in request["input"] if text not in SENTENCES]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
            self.headers.append(dict(handler.headers.items()))
            self.moments.append(time.monotonic())
        fault = self.fault(number, body["input"])
        if fault == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
            return
        if fault is not None and fault.startswith("redirect "):
            self.send(handler, 307, b"", {"Location": fault.removeprefix("redirect ")})
            return
        if fault is not None and fault[:3].isdecimal():
            status, _, after = fault.partition(" ")
            sent = handler.headers.get("Authorization", "").removeprefix("Bearer ")
            message = json.dumps({"error": {"message": f"no: {sent}\nsecond line"}}).encode()
            self.send(handler, int(status), message, {"Retry-After": after} if after else {})
            return
        content = json.dumps({"object": "list", "data": self.data(body, fault), "model": body["model"]}).encode()
        content = CONTENTS.get(str(fault), lambda content: content)(content)
        if fault in ("silent", "drip_headers", "drip_content"):
            self.drip(handler, fault, content)
            return
        self.send(handler, 200, content, {}, missing=40 if fault == "truncated" else 0)

    def data(self, body: dict[str, Any], fault: str | None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for index, text in enumerate(body["input"]):
            vector = self.vectors(text)[: body.get("dimensions")]
            encoded: Any = [float(x) for x in vector]
            if body.get("encoding_format") == "base64":
                encoded = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            found.append({"object": "embedding", "index": index, "embedding": encoded})
        CHANGES.get(str(fault), len)(found)
        return found

    @staticmethod
    def drip(handler: BaseHTTPRequestHandler, fault: str, content: bytes) -> None:
        """Answer correctly, but so slowly that it would take minutes; every read of the client gets a byte in time."""
        answer = b"HTTP/1.1 200 OK\r\nX-Padding: " + b"x" * 10_000
        if fault == "drip_content":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content))
            answer = content
        for byte in answer if fault != "silent" else [0] * 10_000:
            time.sleep(0.02)
            handler.wfile.write(bytes([byte]) if fault != "silent" else b"")
            handler.wfile.flush()

    @staticmethod
    def send(
        handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str], *, missing: int = 0
    ) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) - missing])
        handler.close_connection = handler.close_connection or bool(missing)


@contextmanager
def running() -> Iterator[Service]:
    """A service on a free port of the loopback interface."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            with service.lock:
                service.open += 1
                service.most_open = max(service.most_open, service.open)
            try:
                assert self.path == "/v1/embeddings", self.path
                service.answer(self)
            except OSError:  # the client gave up
                self.close_connection = True
            finally:
                with service.lock:
                    service.open -= 1

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
