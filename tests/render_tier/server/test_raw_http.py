"""The real process at the level of bytes, and over TLS: framing that could smuggle a request, heads and
bodies that are too large or too slow, certificates on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.certificates import Authority
from tests.support.processes import ServerProcess, render_tier_server
from tests.support.raw_http import REFUSED, SMUGGLED, answers, exchange

PATH = b"/v1/chat/completions/render"
BODY = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}'
HEAD = b"POST " + PATH + b" HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    bounds = ("--max-header-bytes", "4096", "--header-timeout", "0.5", "--body-timeout", "0.5")
    options = (*bounds, "--tokenizer-engine", "tokenizers")
    with render_tier_server(smollm2_dir, *options, log_dir=tmp_path_factory.mktemp("raw")) as started:
        yield started


async def test_framing_that_could_be_read_in_two_ways_is_refused(server: ServerProcess) -> None:
    for name, request in REFUSED.items():
        received = await exchange(server.port, request.replace(b"PATH", PATH))
        assert len(answers(received)) <= 1, (name, received)
        assert all(400 <= status < 500 for status in answers(received)), (name, received)
        assert b"/smuggled" not in received, name


@pytest.mark.parametrize("chunk", [b"zz\r\n{}", b"-2\r\n{}", b"f" * 17 + b"\r\n{}", b"1\r\n{}"])
async def test_a_body_in_broken_chunks_is_400(server: ServerProcess, chunk: bytes) -> None:
    broken = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n" + chunk + b"\r\n0\r\n\r\n"
    received = await exchange(server.port, broken)
    assert answers(received) == [400]
    assert b"Invalid HTTP request received." in received
    # Behind a request that is whole it would be taken for that one's answer, which comes.
    first = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    assert answers(await exchange(server.port, first + broken)) == [200]


async def test_good_requests_of_bytes_are_answered(server: ServerProcess) -> None:
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
    last = SMUGGLED.replace(b"Host: h", b"Host: h\r\nConnection: close")
    assert answers(await exchange(server.port, whole + chunked + last)) == [200, 200, 404]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 3_000_000,
        b"GET /v1/derender/session HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: "
        + b"x" * 5000
        + b"\r\n\r\n",
    ],
    ids=["line", "number", "endless value", "handshake"],
)
async def test_a_head_that_is_too_large_is_refused(server: ServerProcess, head: bytes) -> None:
    assert set(answers(await exchange(server.port, head))) <= {431}
    assert answers(await exchange(server.port, b"GET /health HTTP/1.0\r\n\r\n")) == [200]


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HTTP/1.1\r\nHost: h\r\n", HEAD + b"Content-Length: 9\r\n\r\n{"]
)
async def test_what_does_not_come_ends_the_connection(server: ServerProcess, sent: bytes) -> None:
    assert answers(await exchange(server.port, sent)) == ([408] if sent else [])


def test_clients_show_a_certificate_over_tls(smollm2_dir: Path, tmp_path: Path) -> None:
    ca, others = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    pair = ca.pair("127.0.0.1")
    tls = ("--ssl-certfile", pair.certificate, "--ssl-keyfile", pair.key, "--ssl-ca-certs", ca.file)
    server = render_tier_server(
        smollm2_dir, *tls, "--workers", "2", "--tokenizer-engine", "tokenizers", log_dir=tmp_path
    )
    server._spawn(None)  # it is awaited here: over TLS
    url = f"https://127.0.0.1:{server.port}"
    try:
        with httpx.Client(verify=ca.client_context(ca.pair("client")), trust_env=False) as client:
            until = time.monotonic() + 60
            while time.monotonic() < until and server.running:
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{url}/ready").status_code == 200:
                        break
                time.sleep(0.05)
            headers = {"content-type": "application/json"}
            assert client.post(url + PATH.decode(), content=BODY, headers=headers).status_code == 200
        contexts: list[ssl.SSLContext] = [ca.client_context(), ca.client_context(others.pair("client"))]
        for context in contexts:
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{url}/health", verify=context, trust_env=False)
        assert answers(asyncio.run(exchange(server.port, b"GET /health HTTP/1.0\r\n\r\n"))) == []
        assert server.stop() == 0, server.log()
    finally:
        server.stop()
