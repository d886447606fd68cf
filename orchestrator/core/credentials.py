"""Which credential a request shows, and whether it comes from this very machine. Header names are lower case.

Where two readers of one request could come to different answers (a proxy takes the first of two headers, we
the last), there is none.
"""

from __future__ import annotations

import ipaddress
from base64 import b64decode
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]

FORWARDING: Final = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
)
"""A proxy has set them: its own address says nothing of who asks."""


class Ambiguous(ValueError):
    """Several credentials that differ."""


def shown_key(headers: Headers) -> bytes | None:
    """Of ``Authorization: Bearer`` or ``x-api-key``. Raises ``Ambiguous``."""
    shown = set()
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            shown.add(token.strip() if scheme.lower() == b"bearer" else b"")
        elif name == b"x-api-key":
            shown.add(value.strip())
    if len(shown) > 1:
        raise Ambiguous("several credentials that differ")
    return next(iter(shown), None) or None


def shown_password(headers: Headers) -> bytes | None:
    """Of the one ``Authorization: Basic``, whatever its user name; None where there is none that can be
    read."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].strip().partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        return b64decode(token.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return None


def from_this_machine(client: str | None, headers: Headers) -> bool:
    """Whether a request that came from the address ``client`` was made here, and neither passed on by a proxy
    that runs here nor written by a web page that a browser here shows."""
    if client is None or not _is_loopback(client):
        return False
    seen: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in FORWARDING or (name in seen and name in (b"host", b"origin")):
            return False
        seen[name] = value
    # A name of somebody else's that leads here is how a web page would get at loopback.
    host = _host_of(b"//" + seen.get(b"host", b""))
    if host is None or not (host == "localhost" or _is_loopback(host)):
        return False
    if seen.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        return False
    origin = seen.get(b"origin")
    return origin is None or origin.partition(b"://")[2] == seen[b"host"]


def _host_of(url: bytes) -> str | None:
    try:
        return urlsplit(url.decode("ascii")).hostname
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
