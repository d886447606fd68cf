"""Images and videos from the web, for clients that name a URL: bounded in bytes and time, and never from an
address that is not public.

A host is resolved here, its addresses are checked, and the connection is made to one that was checked: a name
that resolves to another address a moment later changes nothing. A redirect is a URL like the first, with all
the same checks. No proxy, cookie or credential is used, and no connection twice.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import httpx

from render_tier.multimodal.addresses import AddressRefused, Network, check_address
from render_tier.multimodal.sources import SCHEMES, SourceRefused, too_large

Resolve = Callable[[str, int], Awaitable[list[str]]]
REDIRECTS = (301, 302, 303, 307, 308)
USER_AGENT = "render-tier"
ADDRESSES_TRIED = 2
LOOKUPS = 64
"""Threads at most, which are begun as they are needed."""
LAST_PORT = 65535


class FetchFailed(Exception):
    """The URL is allowed, but nothing came of it."""


@dataclass(frozen=True)
class RemoteRules:
    max_bytes: int
    seconds: float
    """For all of one file: names, connections, redirects and bytes."""
    max_redirects: int = 5
    domains: frozenset[str] = frozenset()
    """The only hosts that images may come from; any where it is empty."""
    networks: Sequence[Network] = ()
    """Of addresses that are not public, those that are allowed."""
    what: str = "image"
    """Is fetched: a media type's first half, and for messages."""


class NameLookups:
    """The system's look-ups of hosts, on threads of their own: each may take as long as the name server of
    whoever wrote the URL likes, and nothing else is to wait for it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, "name lookup")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Raises OSError."""
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        return [str(entry[4][0]) for entry in found]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class RemoteImages:
    def __init__(
        self, rules: RemoteRules, *, resolve: Resolve | None = None, trust: ssl.SSLContext | None = None
    ) -> None:
        """``resolve``: a host to its addresses; as the system does when None. ``trust``: for https; the
        system's authorities when None."""
        self._rules = rules
        self._lookups = NameLookups()
        self._resolve = resolve or self._lookups
        self._transport = httpx.AsyncHTTPTransport(
            verify=True if trust is None else trust,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def close(self) -> None:
        self._lookups.close()
        await self._transport.aclose()

    async def fetch(self, url: str) -> bytes:
        """Raises SourceRefused for what may not be fetched, FetchFailed for what could not."""
        try:
            async with asyncio.timeout(self._rules.seconds):
                return await self._follow(url)
        except TimeoutError:
            raise FetchFailed(
                f"the {self._rules.what} did not come within {self._rules.seconds:g} seconds"
            ) from None
        except (httpx.RemoteProtocolError, httpx.ReadError) as error:
            raise FetchFailed(
                f"the {self._rules.what}'s host did not send a whole answer ({type(error).__name__})"
            ) from None
        except (httpx.TransportError, OSError, ssl.SSLError) as error:
            raise FetchFailed(
                f"the {self._rules.what}'s host cannot be reached ({type(error).__name__})"
            ) from None

    async def _follow(self, url: str) -> bytes:
        target = _parsed(url)
        for _ in range(self._rules.max_redirects + 1):
            response = await self._send(target)
            try:
                if response.status_code not in REDIRECTS:
                    return await self._body(response)
                location = response.headers.get("location")
                if location is None:
                    raise FetchFailed(f"the {self._rules.what}'s host redirects, and does not say where")
            finally:
                await response.aclose()
            try:
                target = target.join(location)
            except (httpx.InvalidURL, ValueError):
                raise SourceRefused("a redirect to an invalid URL") from None
        raise FetchFailed(f"more than {self._rules.max_redirects} redirects")

    async def _send(self, target: httpx.URL) -> httpx.Response:
        """The response to the request, with its body still to be read."""
        addresses = await self._checked_addresses(target)
        host = target.netloc.decode("ascii")
        failure: httpx.TransportError | None = None
        for address in addresses[:ADDRESSES_TRIED]:
            request = httpx.Request(
                "GET",
                target.copy_with(host=address, fragment=None),
                headers={
                    "Host": host,
                    "Accept": f"{self._rules.what}/*",
                    "Accept-Encoding": "identity",
                    "User-Agent": USER_AGENT,
                },
                # What the certificate must be for.
                extensions={"sni_hostname": target.raw_host.decode("ascii")},
            )
            try:
                return await self._transport.handle_async_request(request)
            except httpx.ConnectError as error:
                failure = error
        raise failure or FetchFailed(f"the {self._rules.what}'s host has no address")

    async def _checked_addresses(self, target: httpx.URL) -> list[str]:
        try:
            host = target.host  # decoded only now
        except UnicodeError:
            raise SourceRefused("an invalid URL") from None
        if target.scheme not in SCHEMES or not host:
            raise SourceRefused("the URL must be either a HTTP, data or file URL")
        if target.port is not None and not 0 < target.port <= LAST_PORT:
            raise SourceRefused("an invalid URL")
        if target.userinfo:
            raise SourceRefused("the URL must not hold credentials")
        if self._rules.domains and host not in self._rules.domains:
            allowed = ", ".join(sorted(self._rules.domains))
            raise SourceRefused(f"the URL must be from one of the allowed domains: {allowed}")
        port = target.port or (443 if target.scheme == "https" else 80)
        try:
            addresses = await self._resolve(target.raw_host.decode("ascii"), port)
        except (OSError, UnicodeError):
            raise FetchFailed(f"the {self._rules.what}'s host cannot be resolved") from None
        for address in addresses:
            try:
                check_address(address, self._rules.networks)
            except AddressRefused:
                # Which address it was is not for the client: names of the operator's own network resolve too.
                raise SourceRefused("the URL's host is not on the public network") from None
        return addresses

    async def _body(self, response: httpx.Response) -> bytes:
        status = response.status_code
        if status != 200:
            raise FetchFailed(f"the {self._rules.what}'s host answered with HTTP {status}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise FetchFailed(
                f"the {self._rules.what}'s host sent it in a content encoding that was not asked for"
            )
        limit = self._rules.max_bytes
        declared = response.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > limit:
            raise too_large(self._rules)
        pieces: list[bytes] = []
        size = 0
        async for piece in response.aiter_raw():
            size += len(piece)
            if size > limit:
                raise too_large(self._rules)
            pieces.append(piece)
        return b"".join(pieces)


def _parsed(url: str) -> httpx.URL:
    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError):
        raise SourceRefused("an invalid URL") from None
