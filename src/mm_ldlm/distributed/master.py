"""The first host of a run: probed before the launch, so that a wrong address is reported and not a time-out."""

from __future__ import annotations

import logging
import socket
import time

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import interfaces

log = logging.getLogger(__name__)
_CONNECT = 5.0
"""Seconds for one connection"""


def probe(endpoint: str, *, node_rank: int, seconds: float, every: float = 1.0) -> None:
    """Check the address "host:port" where the hosts of a run meet, from this host.

    The first host (`node_rank` 0) checks that the port is free. Any other host waits until the first one answers, which
    may start later.

    Args:
        seconds: longest time to wait for the first host.

    Raises:
        WorkerFailed: the address is not valid or unknown, the port is taken, or the first host does not answer.
    """
    host, port = _parts(endpoint)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise WorkerFailed(
            f"expected the name or the address of the first host, found {host!r} (port {port}), which this host cannot "
            f"resolve ({error.strerror or error}). Correct MASTER_ADDR or training.launch.rendezvous."
        ) from None
    if node_rank == 0:
        if not any(interfaces.interface_of(str(address[0])) is not None for *_, address in found):
            log.warning(
                "this host is the first one (NODE_RANK 0), but %s is not an address of it; the other hosts must reach "
                "it there", host,
            )  # fmt: skip
        _refuse_taken(port)
    else:
        _wait(host, port, seconds=seconds, every=every)


def _parts(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    if not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65536:
        raise WorkerFailed(
            f"expected the first host as HOST:PORT, found {endpoint!r}. Set MASTER_ADDR and MASTER_PORT, or "
            "training.launch.rendezvous."
        )
    return host.strip("[]"), int(port)


def _refuse_taken(port: int) -> None:
    """Raise WorkerFailed if another process of this host listens on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise WorkerFailed(
                f"port {port} of this host, where the other hosts are to meet it, cannot be used "
                f"({error.strerror}). End the process that uses it (`ss -ltnp 'sport = :{port}'` names it), or choose "
                "another MASTER_PORT on every host."
            ) from None


def _wait(host: str, port: int, *, seconds: float, every: float) -> None:
    """Connect to the first host, again and again for `seconds`."""
    deadline, told = time.monotonic() + seconds, False
    while True:
        try:
            socket.create_connection((host, port), timeout=min(_CONNECT, max(seconds, 0.1))).close()
            return
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        if time.monotonic() + every > deadline:
            raise WorkerFailed(
                f"the first host does not answer at {host}, port {port}, within {seconds:g} s ({reason}). Start the "
                "same command there first (NODE_RANK 0), and check MASTER_ADDR, MASTER_PORT and the firewall: `nc -vz "
                f"{host} {port}`."
            )
        if not told:
            log.info("waiting up to %g s for the first host at %s, port %d (%s)", seconds, host, port, reason)
            told = True
        time.sleep(every)
