"""Images from the web: what is fetched, what is bounded, and what a URL cannot reach."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from render_tier.multimodal.addresses import networks
from render_tier.multimodal.remote import FetchFailed, RemoteImages, RemoteRules
from render_tier.multimodal.sources import SourceRefused
from tests.support.image_origin import ok, origin, redirect
from tests.support.images import LOCAL

LOOPBACK = networks(["127.0.0.0/8"])
IMAGE = b"\xff\xd8picture" * 100


def names(**addresses: str | list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """Hosts ``NAME.test`` and what they resolve to: one after the other, a list changes from look-up to
    look-up."""
    left = {f"{name}.test": list(found) for name, found in addresses.items() if isinstance(found, list)}

    async def resolve(host: str, port: int) -> list[str]:
        if host in left:
            return [left[host].pop(0)]
        found = addresses.get(host.removesuffix(".test"), host)
        assert isinstance(found, str)
        return [found]

    return resolve


@asynccontextmanager
async def fetcher(
    resolve: Callable[[str, int], Awaitable[list[str]]] | None = None, **rules: object
) -> AsyncIterator[RemoteImages]:
    given = {"max_bytes": 10_000, "seconds": 10.0, "networks": LOOPBACK, **rules}
    images = RemoteImages(RemoteRules(**given), resolve=resolve or names(host="127.0.0.1"))  # type: ignore[arg-type]
    yield images
    await images.close()


async def test_image_is_fetched() -> None:
    async with origin(lambda _: ok(IMAGE)) as (port, heads), fetcher() as images:
        assert await images.fetch(f"http://host.test:{port}/a.jpg?x=1#part") == IMAGE
    assert heads[0].startswith("GET /a.jpg?x=1 HTTP/1.1\r\n")
    assert f"host: host.test:{port}\r\n" in heads[0].lower()
    assert "cookie" not in heads[0].lower()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",
        "http://127.1/x",
        "http://0x7f000001/x",
        "http://2130706433/x",
        "http://localhost/x",
        "http://[::1]/x",
        "http://[::ffff:127.0.0.1]/x",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/x",
    ],
)
async def test_private_address_is_not_reached(url: str) -> None:
    images = RemoteImages(RemoteRules(max_bytes=10, seconds=10.0))
    with pytest.raises(SourceRefused, match="not on the public network"):
        await images.fetch(url)
    await images.close()


async def test_what_is_no_host_or_port_is_refused() -> None:
    """In a redirect too."""
    async with origin(lambda path: redirect(f"http:/{path}")) as (port, _), fetcher() as images:
        for place in ("xn--a", "xn--", "host.test:99999", "host.test:0", "host.test:-1"):
            for url in (f"http://{place}/", f"http://host.test:{port}/{place}/"):
                with pytest.raises(SourceRefused, match="an invalid URL"):
                    await images.fetch(url)


async def test_connection_is_made_to_the_address_that_was_checked() -> None:
    """A name that resolves to another address a moment later is not asked again."""
    resolve = names(rebound=["127.0.0.1", "10.0.0.1"])
    async with origin(lambda _: ok(IMAGE)) as (port, heads), fetcher(resolve) as images:
        assert await images.fetch(f"http://rebound.test:{port}/") == IMAGE
        with pytest.raises(SourceRefused, match="not on the public network"):
            await images.fetch(f"http://rebound.test:{port}/")
    assert len(heads) == 1


async def test_redirects_are_followed_and_checked() -> None:
    answers = {
        "/start": redirect("/next"),
        "/next": redirect("/image", "308 Permanent Redirect"),
        "/image": ok(IMAGE),
        "/inside": redirect("http://inside.test/secret"),
        "/file": redirect(f"{LOCAL}/etc/passwd"),
        "/loop": redirect("/loop"),
    }
    resolve = names(host="127.0.0.1", inside="10.0.0.1")
    async with origin(answers.__getitem__) as (port, heads), fetcher(resolve, max_redirects=3) as images:
        base = f"http://host.test:{port}"
        assert await images.fetch(f"{base}/start") == IMAGE
        with pytest.raises(SourceRefused, match="not on the public network"):
            await images.fetch(f"{base}/inside")
        with pytest.raises(SourceRefused, match="HTTP, data or file"):
            await images.fetch(f"{base}/file")
        heads.clear()
        with pytest.raises(FetchFailed, match="more than 3 redirects"):
            await images.fetch(f"{base}/loop")
        assert len(heads) == 4


async def test_redirect_must_stay_among_the_allowed_domains() -> None:
    resolve = names(host="127.0.0.1", other="127.0.0.1")
    async with (
        origin(lambda _: redirect("http://other.test/x")) as (port, heads),
        fetcher(resolve, domains=frozenset({"host.test"})) as images,
    ):
        with pytest.raises(SourceRefused, match=r"allowed domains: host\.test"):
            await images.fetch(f"http://host.test:{port}/")
        with pytest.raises(SourceRefused, match="allowed domains"):
            await images.fetch(f"http://other.test:{port}/")
    assert len(heads) == 1


@pytest.mark.parametrize(
    "answer",
    [
        ok(b"x" * 10_001),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"2711\r\n"
        + b"x" * 10_001
        + b"\r\n0\r\n\r\n",
    ],
)
async def test_bytes_are_bounded(answer: bytes) -> None:
    async with origin(lambda _: answer) as (port, _), fetcher() as images:
        with pytest.raises(SourceRefused, match="larger than 10000 bytes"):
            await images.fetch(f"http://host.test:{port}/")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP 404"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "HTTP 503"),
        (ok(b"x", "Content-Encoding: gzip"), "content encoding"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "did not send a whole answer"),
        (b"nonsense\r\n\r\n", "did not send a whole answer"),
        (b"", "did not send a whole answer"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "does not say where"),
    ],
)
async def test_host_that_does_not_answer_well(answer: bytes, message: str) -> None:
    async with origin(lambda _: answer) as (port, _), fetcher() as images:
        with pytest.raises(FetchFailed, match=message):
            await images.fetch(f"http://host.test:{port}/")


async def test_time_is_bounded() -> None:
    never = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server, fetcher(seconds=0.05) as images:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(FetchFailed, match="did not come within"):
            await images.fetch(f"http://host.test:{port}/")
        never.set()


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://user:secret@host.test/", "http:///x"])
async def test_urls_that_are_refused(url: str) -> None:
    async with fetcher() as images:
        with pytest.raises(SourceRefused):
            await images.fetch(url)


async def test_names_that_take_long_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server is that of whoever wrote the URL."""
    look_up, answer = socket.getaddrinfo, threading.Event()

    def slow(host: str, *rest: Any, **options: Any) -> Any:
        if host == "slow.test":
            answer.wait(30)
            raise socket.gaierror
        return look_up(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    images = RemoteImages(RemoteRules(max_bytes=10_000, seconds=10.0, networks=LOOPBACK))
    waiting = [asyncio.create_task(images.fetch("http://slow.test/")) for _ in range(40)]
    await asyncio.sleep(0)
    async with origin(lambda _: ok(IMAGE)) as (port, _):
        assert await images.fetch(f"http://127.0.0.1:{port}/") == IMAGE
    await asyncio.to_thread(answer.set)
    assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {FetchFailed}
    await images.close()
