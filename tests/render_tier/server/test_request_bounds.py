"""Every bound on one request, each by its setting; and the faults that public advisories have found in
servers of this kind: output without end given to derender, templates without a time limit, media that
contradicts its own metadata, n without a limit, IDs that nobody checked."""

from __future__ import annotations

from typing import Any

import httpx

from tests.render_tier.conftest import Serve

CHAT = "/v1/chat/completions/render"
COMPLETIONS = "/v1/completions/render"
MESSAGES = "/v1/messages/render"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses/render"
DERENDER = "/v1/chat/completions/derender"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Hi"}
IMAGE = "data:image/png;base64,iVBORw0KGgo="
Json = dict[str, Any]


def chat(**more: Any) -> Json:
    return {"messages": [USER]} | more


def derendered(**choice: Any) -> Json:
    answer = {"index": 0, "token_ids": [1], "finish_reason": "stop"} | choice
    return {"chat_request": chat(), "generate_response": {"request_id": "r", "choices": [answer]}}


async def refused(client: httpx.AsyncClient, path: str, body: Json, param: str | None = None) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, (body, answer.text)
    if param is not None:
        assert answer.json()["error"]["param"] == param
    assert len(answer.content) < 4096


async def test_more_of_something_than_its_setting_allows_is_refused(serve: Serve) -> None:
    client = await serve(max_messages=2, max_tools=2, max_stop_strings=2, max_prompts=2)
    for path, body, param in (
        (CHAT, {"messages": [USER] * 3}, "body.messages"),
        (MESSAGES, chat(max_tokens=1, messages=[USER] * 3), "body.messages"),
        (COUNT, {"messages": [USER] * 3}, "body.messages"),
        (RESPONSES, {"input": [USER] * 3}, "body.input"),
        (CHAT, chat(tools=[TOOL] * 3), "body.tools"),
        (MESSAGES, chat(max_tokens=1, tools=[{}] * 3), "body.tools"),
        (RESPONSES, {"input": "a", "tools": [{}] * 3}, "body.tools"),
        ("/tokenize", chat(tools=[TOOL] * 3), "body.tools"),
        (CHAT, chat(stop=["a", "b", "c"]), "body.stop"),
        (COMPLETIONS, {"prompt": "a", "stop": ["a", "b", "c"]}, "body.stop"),
        (COMPLETIONS, {"prompt": ["a", "b", "c"]}, "prompt"),
    ):
        await refused(client, path, body, param)
    at_its_bound = {"messages": [USER] * 2, "tools": [TOOL] * 2, "stop": ["a", "b"]}
    assert (await client.post(CHAT, json=at_its_bound)).status_code == 200


async def test_n_is_bounded(serve: Serve) -> None:
    client = await serve(max_choices=2)
    for body, path in ((chat(), CHAT), ({"prompt": "a"}, COMPLETIONS)):
        for n in (3, 10**9, 10**30, -1, 0):
            await refused(client, path, body | {"n": n, "temperature": 1.0})
        assert (await client.post(path, json=body | {"n": 2, "temperature": 1.0})).status_code == 200


async def test_output_for_derender_is_bounded(serve: Serve) -> None:
    client = await serve(max_choices=2)
    entry = {"token_id": 1, "logprob": 0.0, "top_logprobs": []}
    three = [{"index": 0, "token_ids": [1]}] * 3
    await refused(client, DERENDER, derendered(token_ids=[1] * 41_000))
    await refused(client, DERENDER, derendered(logprobs={"content": [entry] * 41_000}))
    await refused(
        client, DERENDER, derendered(logprobs={"content": [entry | {"top_logprobs": [entry] * 100}]})
    )
    await refused(
        client, DERENDER, derendered() | {"generate_response": {"request_id": "r", "choices": three}}
    )


async def test_ids_are_checked_wherever_a_client_can_write_them(serve: Serve) -> None:
    client = await serve()
    for wrong in (-1, 10**6, 2**31, 2**64, 1.5, "x", None):
        await refused(client, DERENDER, derendered(token_ids=[1, wrong]))
        await refused(client, COMPLETIONS, {"prompt": [1, wrong]})
        await refused(client, CHAT, chat(logit_bias={str(wrong): 1}))
        await refused(client, CHAT, chat(stop_token_ids=[1, wrong]))
        await refused(client, CHAT, chat(allowed_token_ids=[1, wrong]))


async def test_media_is_refused_whatever_it_says_of_itself(serve: Serve) -> None:
    client = await serve()
    for part in (
        {"type": "image_url", "image_url": {"url": IMAGE}},
        {"type": "image_url", "image_url": {"url": IMAGE}, "uuid": "x"},
        {"type": "image_embeds", "image_embeds": {"image_embeds": "AAAA", "image_grid_thw": "AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "http://127.0.0.1:1/v"}},
    ):
        await refused(client, CHAT, {"messages": [{"role": "user", "content": [part]}]})


async def test_what_only_render_writes_of_media_is_not_taken_from_a_client(serve: Serve) -> None:
    client = await serve()
    odd = {"mm_placeholders": {"image": [{"offset": 10**9, "length": -5}]}}
    plain = (await client.post(CHAT, json=chat())).json()
    for name in ("features", "mm_hashes", "multi_modal_data", "mm_placeholders", "token_ids"):
        answer = (await client.post(CHAT, json=chat(**{name: odd}))).json()
        assert {**answer, "request_id": ""} == {**plain, "request_id": ""}


async def test_a_clients_template_has_no_more_time_than_the_servers(serve: Serve) -> None:
    template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    client = await serve(trust_request_chat_template=True, max_template_seconds=0.1)
    await refused(client, CHAT, chat(chat_template=template))
