"""Addresses of services: what an address may contain, and whether it stays on this machine."""

from __future__ import annotations

import ipaddress
import urllib.parse


def endpoint(url: str) -> urllib.parse.SplitResult:
    """Return the address of the embeddings of a service: `url` with `/embeddings` at the end of its path.

    Raises:
        ValueError: not http or https, no host, a port that is none, or a user, password, query or fragment, which may
            contain a key; the message does not show them.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ValueError("expected an address such as https://host/v1, found one that cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected an address such as https://host/v1, found the scheme {parts.scheme!r}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "expected an address without user, password, query and fragment, which would be stored with the run; "
            "put the key into the environment variable that key_variable names"
        )
    if port == 0 or not all("!" <= character <= "~" for character in parts.geturl()):
        raise ValueError("expected ASCII characters without spaces, and a port from 1 to 65535")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith("/embeddings") else f"{path}/embeddings")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: localhost, 127.0.0.0/8 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
