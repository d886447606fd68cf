"""The Messages endpoints over HTTP: what a client sees beside the rendered request itself."""

from __future__ import annotations

import httpx

RENDER, COUNT, CHAT = "/v1/messages/render", "/v1/messages/count_tokens", "/v1/chat/completions/render"
PROMPT = {"model": "qwen3", "system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}
AS_CHAT = {
    "model": "qwen3",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
}


async def test_the_prompt_is_that_of_the_same_chat(client: httpx.AsyncClient) -> None:
    messages = await client.post(RENDER, json={**PROMPT, "max_tokens": 5}, headers={"x-request-id": "r"})
    chat = await client.post(CHAT, json={**AS_CHAT, "max_tokens": 5}, headers={"x-request-id": "r"})
    assert messages.json() == chat.json()
    assert messages.headers["x-render-fingerprint"] == chat.headers["x-render-fingerprint"]


async def test_tokens_are_counted_without_max_tokens(client: httpx.AsyncClient) -> None:
    rendered = await client.post(CHAT, json=AS_CHAT)
    counted = await client.post(COUNT, json=PROMPT)
    count = len(rendered.json()["token_ids"])
    assert counted.json() == {
        "input_tokens": count,
        "context_management": {"original_input_tokens": count},
    }


async def test_counting_knows_the_tools(client: httpx.AsyncClient) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    plain = await client.post(COUNT, json=PROMPT)
    with_tool = await client.post(COUNT, json={**PROMPT, "tools": [tool]})
    assert with_tool.json()["input_tokens"] > plain.json()["input_tokens"]


async def test_errors_have_the_shape_of_the_other_endpoints(client: httpx.AsyncClient) -> None:
    response = await client.post(RENDER, json=PROMPT)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "body.max_tokens"
    for path in (RENDER, COUNT):
        response = await client.post(path, json={**PROMPT, "max_tokens": 5, "model": "other"})
        assert response.status_code == 404
        assert response.json()["error"]["param"] == "model"
