"""Workers that are replaced or told to stop while streams run: nothing is lost, repeated or changed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from tokenizers import Tokenizer

from render_tier.protocol.session import SESSION_PATH
from tests.support.processes import ServerProcess, render_tier_server

PARSERS = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice")
REQUEST = {"messages": [{"role": "user", "content": "hi"}], "return_token_ids": True}
TEXT = "<think>\nHm — 𓂀. " + "Step by step. " * 12 + "\n</think>\n\nSure: " + "é and 🌦, " * 12
STREAMS = 8
MESSAGES = "render_tier_session_messages_total"
Json = dict[str, Any]


class Tally:
    """What a client has read of one answer. ``moves``: how often it went on elsewhere."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reasoning = self.content = ""
        self.ids: list[int] = []
        self.finish: list[str] = []
        self.moves = 0

    def add(self, chunk: Json) -> None:
        [choice] = chunk["choices"]
        self.reasoning += choice["delta"]["reasoning"] or ""
        self.content += choice["delta"]["content"] or ""
        self.ids += choice["token_ids"] or []
        self.finish += [choice["finish_reason"]] if choice["finish_reason"] else []

    @property
    def read(self) -> tuple[str, str, list[int], list[str]]:
        return self.reasoning, self.content, self.ids, self.finish


def choice_of(ids: list[int], place: int) -> Json:
    last = place == len(ids) - 1
    return {"index": 0, "token_ids": [ids[place]], "finish_reason": "length" if last else None}


class Lost(Exception):
    """The connection, or the stream on it, is gone."""


class SessionReader:
    """A client of one stream that goes on by a new connection whenever it must."""

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        self.http, self.url = http, url
        self.tally = Tally(name)
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self.state: Json | None = None
        self.since: list[int] = []

    async def step(self, ids: list[int], place: int) -> None:
        while True:
            try:
                if self.socket is None:
                    await self._open()
                answer = await self._ask({"stream": 1, "chunk": {"choices": [choice_of(ids, place)]}})
                break
            except (Lost, aiohttp.ClientError, OSError):
                self.tally.moves += 1
                self.socket = None
                await asyncio.sleep(0.02)
        self.tally.add(answer["chunk"])
        self.since.append(ids[place])
        if "stream_state" in answer:
            self.state, self.since = answer["stream_state"], []

    async def _open(self) -> None:
        self.socket = await self.http.ws_connect(self.url + SESSION_PATH)
        start = {"endpoint": "chat", "request_id": self.tally.name, "created": 5, "request": REQUEST}
        again = {"index": 0, "token_ids": self.since, "finish_reason": None}
        frame = {"stream": 1, "open": {**start, "prompt_token_ids": [1], "stream_state": self.state}}
        await self._ask(frame | ({"chunk": {"choices": [again]}} if self.since else {}))

    async def _ask(self, frame: Json) -> Json:
        assert self.socket is not None
        await self.socket.send_json([frame])
        while True:
            message = await self.socket.receive(timeout=30)
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise Lost
            for answer in json.loads(message.data):
                if answer.get("moving"):
                    continue
                if "error" in answer:
                    assert answer["error"]["code"] in (404, 409, 503), answer
                    raise Lost
                return dict(answer)


class CallReader:
    """A client that makes one call a chunk, again when it was not answered."""

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        self.http, self.url = http, url
        self.tally = Tally(name)
        self.state: Json | None = None

    async def step(self, ids: list[int], place: int) -> None:
        chunk = {"request_id": self.tally.name, "created": 5, "choices": [choice_of(ids, place)]}
        body = {
            "stream": True,
            "generate_chunk": {**chunk, "position": place},
            "stream_state": self.state,
            "chat_request": REQUEST,
            "prompt_token_ids": [1],
        }
        while True:
            try:
                async with self.http.post(self.url + "/v1/chat/completions/derender", json=body) as response:
                    answer = await response.json()
                    assert response.status == 200, answer
                    break
            except (aiohttp.ClientError, OSError):
                self.tally.moves += 1
                await asyncio.sleep(0.02)
        self.tally.add(answer["chunk"])
        self.state = answer["stream_state"]


def workers_of(server: ServerProcess) -> set[int]:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return set(map(int, children))


async def replaced(server: ServerProcess, before: set[int]) -> None:
    """Wait until none of the workers that were there is left."""
    async with asyncio.timeout(60):
        while workers_of(server) & before or len(workers_of(server)) < 2:
            await asyncio.sleep(0.05)


def two_workers(model: Path, directory: Path) -> ServerProcess:
    options = ("--workers", "2", "--session-snapshot-tokens", "16", "--tokenizer-engine", "tokenizers")
    return render_tier_server(model, "--served-model-name", "qwen3", *PARSERS, *options, log_dir=directory)


@pytest.fixture(scope="module")
def server(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Outlives its workers."""
    with two_workers(qwen3_dir, tmp_path_factory.mktemp("workers")) as running:
        yield running


@pytest.fixture(scope="module")
def ids(qwen3_dir: Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))
    return list(tokenizer.encode(TEXT, add_special_tokens=False).ids)


def whole(server: ServerProcess, ids: list[int]) -> tuple[str, str, list[int], list[str]]:
    answer = {"request_id": "whole", "choices": [{"index": 0, "token_ids": ids, "finish_reason": "length"}]}
    body = {"generate_response": answer, "chat_request": REQUEST, "prompt_token_ids": [1]}
    reply = httpx.post(server.url + "/v1/chat/completions/derender", json=body, trust_env=False)
    [choice] = reply.json()["choices"]
    message = choice["message"]
    return message["reasoning"], message["content"], choice["token_ids"], [choice["finish_reason"]]


def readers(http: aiohttp.ClientSession, server: ServerProcess) -> list[SessionReader | CallReader]:
    kinds = (SessionReader, CallReader)
    return [kinds[number % 2](http, server.url, f"chatcmpl-{number}") for number in range(2 * STREAMS)]


async def test_workers_are_replaced_under_streams(server: ServerProcess, ids: list[int]) -> None:
    expected = whole(server, ids)
    async with aiohttp.ClientSession() as http:
        everyone = readers(http, server)
        before = workers_of(server)
        for place in range(len(ids)):
            if place == len(ids) // 3:
                os.kill(server.pid, signal.SIGHUP)
                # Those that are told to move have not done so yet: they are answered where they are.
                await asyncio.gather(*(reader.step(ids, place) for reader in everyone))
                continue
            if place == 2 * len(ids) // 3:
                for reader in everyone:
                    if isinstance(reader, SessionReader) and reader.socket is not None:
                        await reader.socket.close()
                await replaced(server, before)
            await asyncio.gather(*(reader.step(ids, place) for reader in everyone))
        assert not workers_of(server) & before
    for reader in everyone:
        assert reader.tally.read == expected
    moved = [reader.tally.moves for reader in everyone if isinstance(reader, SessionReader)]
    assert all(moved), "every session ended with its worker"
    assert "Traceback" not in server.log(100_000)


async def test_told_to_stop_a_server_answers_open_streams_to_their_end(
    qwen3_dir: Path, tmp_path: Path, ids: list[int]
) -> None:
    with two_workers(qwen3_dir, tmp_path) as server:
        await stopped_under_streams(server, ids)


async def stopped_under_streams(server: ServerProcess, ids: list[int]) -> None:
    expected = whole(server, ids)
    async with aiohttp.ClientSession() as http:
        sessions = [SessionReader(http, server.url, f"chatcmpl-{number}") for number in range(STREAMS)]
        for place in range(len(ids)):
            if place == len(ids) // 2:
                os.kill(server.pid, signal.SIGTERM)
            await asyncio.gather(*(reader.step(ids, place) for reader in sessions))
        assert all(reader.tally.moves == 0 for reader in sessions)
        assert all(reader.tally.read == expected for reader in sessions)
        for reader in sessions:
            assert reader.socket is not None
            with suppress(OSError):
                await reader.socket.send_json([{"stream": 1, "close": True}])
        assert server.process is not None
        assert await asyncio.to_thread(server.process.wait, 30) == 0
    assert "Traceback" not in server.log(100_000)


async def test_a_worker_that_is_killed_under_streams_is_replaced(
    server: ServerProcess, ids: list[int]
) -> None:
    expected = whole(server, ids)
    async with aiohttp.ClientSession() as http:
        everyone = readers(http, server)
        for place in range(len(ids)):
            if place in (len(ids) // 3, 2 * len(ids) // 3):
                before = workers_of(server)
                os.kill(min(before), signal.SIGKILL)
            await asyncio.gather(*(reader.step(ids, place) for reader in everyone))
    assert all(reader.tally.read == expected for reader in everyone)
    assert sum(reader.tally.moves for reader in everyone) > 0


async def test_any_worker_shows_the_streams_of_all(server: ServerProcess, ids: list[int]) -> None:
    async def shown(client: httpx.AsyncClient) -> list[str]:
        return (await client.get(server.url + "/metrics")).text.splitlines()

    async def shows(line: str) -> None:
        async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False) as client:
            while line not in await shown(client):
                await asyncio.sleep(0.05)

    await asyncio.sleep(1.1)  # what earlier streams said has been published
    async with httpx.AsyncClient(trust_env=False) as client:
        counted = [line for line in await shown(client) if line.startswith(f"{MESSAGES} ")]
    before = float(counted[0].split()[1]) if counted else 0.0

    async with aiohttp.ClientSession() as http:
        readers = [SessionReader(http, server.url, f"chatcmpl-{number}") for number in range(STREAMS)]
        await asyncio.gather(*(reader.step(ids, 0) for reader in readers))
        await shows(f"render_tier_session_streams {STREAMS:.1f}")
        await shows(f"render_tier_sessions {STREAMS:.1f}")
        await shows("render_tier_in_flight 0.0")
        for reader in readers:
            assert reader.socket is not None
            await reader.socket.close()
        await shows("render_tier_session_streams 0.0")
        # Two messages, the opening and a chunk, of each.
        await shows(f"{MESSAGES} {before + 2 * STREAMS:.1f}")
