"""Compressed bodies: requests give the same answers, bounded, or are refused; replies where asked for."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib

import httpx
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from render_tier.protocol.errors import ApiError
from render_tier.server.compression import Coding, accepted, decompress
from tests.render_tier.conftest import Serve

PATH = "/v1/chat/completions/render"
BODY = {"messages": [{"role": "user", "content": "Hello " * 2000}], "request_id": "one", "temperature": 0.5}
PLAIN = json.dumps(BODY).encode()


def headers(encoding: str) -> dict[str, str]:
    return {"content-type": "application/json", "content-encoding": encoding}


PACK = {"gzip": gzip.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "zstd"])
async def test_a_compressed_body_is_answered_as_a_plain_one(client: httpx.AsyncClient, encoding: str) -> None:
    plain = await client.post(PATH, json=BODY)
    pack = PACK["zstd" if encoding == "zstd" else "gzip"]
    packed = await client.post(PATH, content=pack(PLAIN), headers=headers(encoding))
    assert (packed.status_code, packed.content) == (200, plain.content)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_what_is_not_of_the_named_coding_is_refused(client: httpx.AsyncClient, encoding: str) -> None:
    packed = PACK[encoding](PLAIN)
    bodies = {
        PLAIN: f"not {encoding}",
        packed[:-9]: "cut short",
        packed + b"x": "followed by",
        packed + packed: "followed by",
        b"": "cut short",
        zlib.compress(PLAIN): f"not {encoding}",
    }
    for body, reason in bodies.items():
        reply = await client.post(PATH, content=body, headers=headers(encoding))
        assert reply.status_code == 400
        assert reason in reply.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip"])
async def test_other_codings_are_named(client: httpx.AsyncClient, encoding: str) -> None:
    reply = await client.post(PATH, content=PLAIN, headers=headers(encoding))
    assert reply.status_code == 415
    assert "gzip and zstd are" in reply.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_small_body_that_grows_too_large_is_refused(serve: Serve, encoding: str) -> None:
    client = await serve(max_body_bytes=100_000)
    bomb = PACK[encoding](b" " * 5_000_000)
    assert len(bomb) < 10_000
    reply = await client.post(PATH, content=bomb, headers=headers(encoding))
    assert reply.status_code == 413
    assert "decompressed" in reply.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_takes_no_more_memory_than_the_bound(encoding: Coding) -> None:
    bomb = PACK[encoding](bytes(200_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            decompress(bomb, encoding, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413


def test_a_frame_that_claims_a_larger_window_than_http_allows_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.compression_level: 1}
    compressor = zstd.ZstdCompressor(options=options)
    frame = compressor.compress(b"x" * 1000) + compressor.flush()
    with pytest.raises(ApiError, match="not zstd"):
        decompress(frame, "zstd", 100_000)


@given(st.binary(max_size=2_000), st.integers(0, 2_000), st.sampled_from(("gzip", "zstd")))
def test_decompression_is_exact_or_refused(body: bytes, most: int, coding: Coding) -> None:
    packed = PACK[coding](body)
    if len(body) <= most:
        assert decompress(packed, coding, most) == body
    else:
        with pytest.raises(ApiError) as refused:
            decompress(packed, coding, most)
        assert refused.value.status == 413


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("", None),
        ("gzip, deflate", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("GZIP;q=1.0, zstd;q=0", "gzip"),
        ("zstd; q=0.000, gzip;q=0", None),
        ("zstd;q=0.001", "zstd"),
        ("identity, *", None),
        (";;,,q=", None),
    ],
)
def test_the_coding_of_a_reply(header: str, coding: Coding | None) -> None:
    assert accepted({b"accept-encoding": header.encode()}) == coding


async def raw_post(
    client: httpx.AsyncClient, accept: str, content: bytes = PLAIN
) -> tuple[httpx.Response, bytes]:
    sent = {"content-type": "application/json", "accept-encoding": accept}
    async with client.stream("POST", PATH, content=content, headers=sent) as reply:
        return reply, b"".join([piece async for piece in reply.aiter_raw()])


@pytest.mark.parametrize(("accept", "coding"), [("gzip", "gzip"), ("gzip, zstd", "zstd")])
async def test_long_replies_are_compressed_for_clients_that_accept_it(
    serve: Serve, accept: str, coding: str
) -> None:
    client = await serve(compression_min_bytes=1_000)
    _, plain = await raw_post(client, "identity")
    reply, packed = await raw_post(client, accept)
    unpack = gzip.decompress if coding == "gzip" else zstd.decompress
    assert reply.headers["content-encoding"] == coding
    assert reply.headers["vary"] == "accept-encoding"
    assert int(reply.headers["content-length"]) == len(packed) < len(plain)
    assert unpack(packed) == plain


async def test_short_replies_and_those_of_a_server_that_does_not_compress_are_plain(
    serve: Serve, client: httpx.AsyncClient
) -> None:
    short = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
    for server, content in ((await serve(compression_min_bytes=5_000), short), (client, PLAIN)):
        reply, body = await raw_post(server, "gzip, zstd", content)
        assert "content-encoding" not in reply.headers
        assert json.loads(body)["token_ids"]
