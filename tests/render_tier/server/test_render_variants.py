"""Other forms of the chat render reply: explained, and with its IDs in compact form."""

from __future__ import annotations

import asyncio
import sys
from array import array
from base64 import b64decode

import httpx
import pytest

from tests.render_tier.conftest import Serve

PATH = "/v1/chat/completions/render"
BODY = {"messages": [{"role": "user", "content": "Hello " * 100}], "request_id": "one"}


async def test_explain(client: httpx.AsyncClient) -> None:
    plain = (await client.post(PATH, json=BODY)).json()
    for query in ("explain=true", "a=b&explain=1", "explain=false&explain=TRUE"):
        reply = await client.post(f"{PATH}?{query}", json=BODY)
        assert reply.status_code == 200
        assert reply.json()["request"] == plain
        assert reply.json()["prompt"].startswith("<|im_start|>user")
        assert reply.headers["x-render-fingerprint"] == reply.json()["fingerprint"]
    for query in ("explain=false", "explain=0", "explain", "other=true"):
        assert (await client.post(f"{PATH}?{query}", json=BODY)).json() == plain


@pytest.mark.parametrize("query", ["explain=maybe", "explain=%ff", "&".join(["explain=true"] * 200)])
async def test_a_query_that_means_nothing_is_refused(client: httpx.AsyncClient, query: str) -> None:
    reply = await client.post(f"{PATH}?{query}", json=BODY)
    assert reply.status_code == 400


async def test_explain_refuses_what_the_plain_endpoint_refuses(client: httpx.AsyncClient) -> None:
    body = {**BODY, "temperature": 9}
    plain, explained = [await client.post(PATH + query, json=body) for query in ("", "?explain=true")]
    assert (explained.status_code, explained.content) == (plain.status_code, plain.content)


async def test_the_schema_names_both(client: httpx.AsyncClient) -> None:
    operation = (await client.get("/openapi.json")).json()["paths"][PATH]["post"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["explain", "X-Token-Ids"]


async def test_compact_ids(client: httpx.AsyncClient) -> None:
    plain = await client.post(PATH, json=BODY)
    assert "x-token-ids" not in plain.headers
    reply = await client.post(PATH, json=BODY, headers={"x-token-ids": "base64"})
    assert reply.headers["x-token-ids"] == "base64"
    ids = array("I", b64decode(reply.json()["token_ids"]))
    if sys.byteorder == "big":
        ids.byteswap()
    assert reply.json() | {"token_ids": ids.tolist()} == plain.json()


async def test_a_form_of_ids_that_does_not_exist_is_named(client: httpx.AsyncClient) -> None:
    reply = await client.post(PATH, json=BODY, headers={"x-token-ids": "varint"})
    assert reply.status_code == 400
    assert "'varint'" in reply.json()["error"]["message"]


async def test_a_template_that_loops_does_not_hold_up_the_event_loop(serve: Serve) -> None:
    """Requests that bring templates are short; they go to the pool nevertheless."""
    client = await serve(trust_request_chat_template=True, max_template_seconds=0.3, max_queue=0)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    looping = asyncio.create_task(client.post(PATH, json={**BODY, "chat_template": endless}))
    await asyncio.sleep(0.05)
    assert (await client.get("/health")).status_code == 200
    assert not looping.done()
    assert (await looping).status_code == 400
