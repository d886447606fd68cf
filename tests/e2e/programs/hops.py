"""The four hops as plain HTTP calls: all that a driver of one's own needs to know.

The programs beside this file put them together. Only `httpx` is used, and only fields of the contract, but
in `derender_stream_short`, which uses what the render tier adds to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

Json = dict[str, Any]


def post(client: httpx.Client, url: str, body: Json) -> Any:
    response = client.post(url, json=body)
    if response.status_code != 200:
        raise SystemExit(f"{url} answered {response.status_code}: {response.text}")
    return response.json()


def render(client: httpx.Client, render_url: str, chat: Json) -> Json:
    """Hop 1: the chat becomes token IDs and engine-side sampling parameters."""
    rendered: Json = post(client, f"{render_url}/v1/chat/completions/render", chat)
    # An engine without tokenizer cannot look for strings; who wants stop strings looks for them in the text.
    rendered["sampling_params"].pop("stop", None)
    return rendered


def prefill(client: httpx.Client, prefill_url: str, rendered: Json) -> Json:
    """Hop 2: compute the prompt's KV and keep it; what comes back says where it is."""
    leg = {
        **rendered,
        "request_id": f"{rendered['request_id']}-prefill",
        "stream": False,
        "stream_options": None,
        "sampling_params": {**rendered["sampling_params"], "max_tokens": 1, "min_tokens": 0, "n": 1},
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    params: Json | None = post(client, f"{prefill_url}/inference/v1/generate", leg)["kv_transfer_params"]
    if not params or not params.get("do_remote_prefill"):
        raise SystemExit(f"the prefill engine kept nothing: {params}")
    return params


def generate(client: httpx.Client, engine_url: str, rendered: Json, kv: Json | None = None) -> Json:
    """Hop 3: token IDs in, token IDs out. With `kv`, the engine fetches the prompt's KV and computes none."""
    body = {**rendered, "stream": False, "stream_options": None} | ({"kv_transfer_params": kv} if kv else {})
    answer: Json = post(client, f"{engine_url}/inference/v1/generate", body)
    return answer


def generate_stream(
    client: httpx.Client, engine_url: str, rendered: Json, kv: Json | None = None
) -> Iterator[Json]:
    """Hop 3, streaming: one object per `data:` line until `[DONE]`."""
    body = {**rendered, "stream": True} | ({"kv_transfer_params": kv} if kv else {})
    with client.stream("POST", f"{engine_url}/inference/v1/generate", json=body) as response:
        if response.status_code != 200:
            raise SystemExit(f"generate answered {response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise SystemExit(f"generate failed in mid-stream: {chunk['error']}")
            yield chunk
    raise SystemExit("the generate stream ended without [DONE]")


def derender(client: httpx.Client, render_url: str, chat: Json, rendered: Json, generated: Json) -> Json:
    """Hop 4: output token IDs become a chat completion."""
    body = {
        "model": chat.get("model"),
        "generate_response": generated,
        "prompt_tokens": len(rendered["token_ids"]),
        "prompt_token_ids": rendered["token_ids"],
        "chat_request": chat,
    }
    completion: Json = post(client, f"{render_url}/v1/chat/completions/derender", body)
    return completion


def derender_stream(
    client: httpx.Client, render_url: str, chat: Json, rendered: Json, chunks: Iterator[Json]
) -> Iterator[Json]:
    """Hop 4, streaming: chunks of token IDs become chunks of the answer; the state travels with the calls."""
    states: dict[int, Json | None] = {}
    for chunk in chunks:
        index = chunk["choices"][0]["index"] if chunk["choices"] else 0
        body = {
            "stream": True,
            "model": chat.get("model"),
            "generate_chunk": chunk,
            "stream_state": states.get(index),
            "prompt_tokens": len(rendered["token_ids"]),
            "prompt_token_ids": rendered["token_ids"],
            "chat_request": chat,
        }
        answer = post(client, f"{render_url}/v1/chat/completions/derender", body)
        states[index] = answer["stream_state"]
        yield answer["chunk"]


def derender_stream_short(
    client: httpx.Client, render_urls: list[str], chat: Json, rendered: Json, chunks: Iterator[Json]
) -> Iterator[Json]:
    """`derender_stream` with small calls to any of several render tiers: the request and the prompt are sent
    once and then named by their digest; a tier that does not know it says so (409) and is sent them."""
    whole = {"prompt_token_ids": rendered["token_ids"], "chat_request": chat}
    states: dict[int, Json] = {}
    context: str | None = None
    for number, chunk in enumerate(chunks):
        index = chunk["choices"][0]["index"] if chunk["choices"] else 0
        url = f"{render_urls[number % len(render_urls)]}/v1/chat/completions/derender"
        body = {
            "stream": True,
            "model": chat.get("model"),
            "generate_chunk": chunk,
            "stream_state": states.get(index),
            "prompt_tokens": len(rendered["token_ids"]),
        }
        named = {"context": context} if context else whole
        response = client.post(url, json=body | named)
        if response.status_code == 409:
            response = client.post(url, json=body | whole)
        if response.status_code != 200:
            raise SystemExit(f"{url} answered {response.status_code}: {response.text}")
        answer = response.json()
        states[index], context = answer["stream_state"], answer["derender"]["context"]
        if not answer["derender"]["empty"]:
            yield answer["chunk"]
