"""Compressed request bodies: the same answers, bounded, and refused precisely."""

from __future__ import annotations

import gzip
import json
import zlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.protocol.errors import ApiError
from render_tier.server.compression import decompress
from tests.render_tier.conftest import Serve

PATH = "/v1/chat/completions/render"
BODY = {"messages": [{"role": "user", "content": "Hello " * 2000}], "request_id": "one", "temperature": 0.5}
PLAIN = json.dumps(BODY).encode()


def headers(encoding: str) -> dict[str, str]:
    return {"content-type": "application/json", "content-encoding": encoding}


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
async def test_a_gzip_body_is_answered_as_a_plain_one(client: httpx.AsyncClient, encoding: str) -> None:
    plain = await client.post(PATH, json=BODY)
    packed = await client.post(PATH, content=gzip.compress(PLAIN), headers=headers(encoding))
    assert (packed.status_code, packed.content) == (200, plain.content)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (PLAIN, 400, "not gzip"),
        (gzip.compress(PLAIN)[:-9], 400, "cut short"),
        (gzip.compress(PLAIN) + b"x", 400, "followed by"),
        (b"", 400, "cut short"),
        (zlib.compress(PLAIN), 400, "not gzip"),
    ],
)
async def test_what_is_no_gzip_is_refused(
    client: httpx.AsyncClient, body: bytes, status: int, reason: str
) -> None:
    reply = await client.post(PATH, content=body, headers=headers("gzip"))
    assert reply.status_code == status
    assert reason in reply.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
async def test_other_codings_are_named(client: httpx.AsyncClient, encoding: str) -> None:
    reply = await client.post(PATH, content=PLAIN, headers=headers(encoding))
    assert reply.status_code == 415
    assert "gzip is" in reply.json()["error"]["message"]


async def test_a_small_body_that_grows_too_large_is_refused(serve: Serve) -> None:
    client = await serve(max_body_bytes=100_000)
    bomb = gzip.compress(b" " * 5_000_000)
    assert len(bomb) < 10_000
    reply = await client.post(PATH, content=bomb, headers=headers("gzip"))
    assert reply.status_code == 413
    assert "decompressed" in reply.json()["error"]["message"]


@given(st.binary(max_size=2_000), st.integers(0, 2_000))
def test_decompression_is_exact_or_refused(body: bytes, most: int) -> None:
    packed = gzip.compress(body)
    if len(body) <= most:
        assert decompress(packed, most) == body
    else:
        with pytest.raises(ApiError) as refused:
            decompress(packed, most)
        assert refused.value.status == 413
