"""Asking a server for completions, whole and streamed, and what of an answer tests compare."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.processes import ServerProcess

MODEL = "smollm2"
TOKENS = 12
CONCURRENCY = 4


@dataclass
class Answer:
    """One choice of a completion."""

    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None = None


def client(server: ServerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{server.url}/v1", timeout=240, trust_env=False)


def body(prompt: list[int] | str, **options: Any) -> dict[str, Any]:
    fixed = {
        "model": MODEL,
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": TOKENS,
        "return_token_ids": True,
    }
    return fixed | options


async def events(
    http: httpx.AsyncClient, sent: dict[str, Any], path: str = "/completions"
) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end with [DONE]."""
    async with http.stream("POST", path, json=sent | {"stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    chunks: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert not [chunk for chunk in chunks if "error" in chunk]
    return chunks


async def whole(http: httpx.AsyncClient, sent: dict[str, Any], path: str = "/completions") -> dict[str, Any]:
    response = await http.post(path, json=sent)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


async def ask(http: httpx.AsyncClient, sent: dict[str, Any], stream: bool) -> list[Answer]:
    """The choices in order."""
    if not stream:
        choices = (await whole(http, sent))["choices"]
        return [Answer(c["text"], c["token_ids"], c["finish_reason"], c.get("stop_reason")) for c in choices]
    answers = [Answer("", [], None) for _ in range(sent.get("n", 1))]
    for chunk in await events(http, sent):
        for choice in chunk["choices"]:
            answer = answers[choice["index"]]
            answer.text += choice["text"]
            answer.token_ids += choice.get("token_ids") or []
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            answer.stop_reason = choice.get("stop_reason") or answer.stop_reason
    return answers


async def ask_all(
    server: ServerProcess, prompts: Sequence[list[int]], stream: bool, **options: Any
) -> list[Answer]:
    """One answer for each prompt, `CONCURRENCY` at a time."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(prompt: list[int]) -> Answer:
        async with gate:
            [answer] = await ask(http, body(prompt, **options), stream)
            return answer

    async with client(server) as http:
        return await asyncio.gather(*map(one, prompts))
