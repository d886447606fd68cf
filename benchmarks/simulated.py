"""Peers for the orchestrator that cost next to nothing: engines and a render tier that answer from ready-made
bytes. So the orchestrator is the busiest process, also with hundreds of streams on a few cores.

    python -m benchmarks.simulated engine PORT STEP_MS [--spread]
    python -m benchmarks.simulated render PORT

An engine moves all its streams on together every ``STEP_MS`` milliseconds, one token to a chunk, as one does
that batches; with ``--spread`` each stream has a time of its own within the step. The render tier answers
every render with the same prompt and every token of a session with the same word.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

import httptools
import msgspec
import uvloop
from aiohttp import web

PROMPT = list(range(1000, 1256))
HEADERS = b"content-type: application/json\r\ncontent-length: "


class Params(msgspec.Struct):
    max_tokens: int = 16


class Generate(msgspec.Struct):
    request_id: str = "r"
    stream: bool = False
    sampling_params: Params = msgspec.field(default_factory=Params)


_generate = msgspec.json.Decoder(Generate)


def json_reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + HEADERS + b"%d\r\n\r\n%b" % (len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(request_id: str, token: int, finish: str | None) -> bytes:
    choice = {
        "index": 0,
        "token_ids": [token],
        "finish_reason": finish,
        "stop_reason": None,
        "logprobs": None,
    }
    body = {"request_id": request_id, "choices": [choice], "usage": None, "kv_transfer_params": None}
    return chunk(b"data: " + msgspec.json.encode(body) + b"\n\n")


class Engine(asyncio.Protocol):
    """One connection."""

    streams: dict[Engine, int] = {}  # noqa: RUF012
    step = 0.02
    spread = False
    phases = itertools.count()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.parts: list[bytes] = []

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def connection_lost(self, _error: Exception | None) -> None:
        self.streams.pop(self, None)

    def on_message_complete(self) -> None:
        body = b"".join(self.parts)
        if not body:
            self.transport.write(json_reply(b"{}"))
            return
        request = _generate.decode(body)
        self.name = f"generate-tokens-{request.request_id}"
        if not request.stream:
            self.transport.write(json_reply(self.whole()))
            return
        self.middle = event(self.name, 1879, None)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        self.streams[self] = request.sampling_params.max_tokens
        if self.spread:
            delay = next(self.phases) * 0.618 % 1 * self.step
            asyncio.get_running_loop().call_later(delay, self.go_on)

    def whole(self) -> bytes:
        kv = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": "simulated",
            "remote_request_id": self.name,
            "remote_host": "127.0.0.1",
            "remote_port": 1,
            "tp_size": 1,
            "remote_num_tokens": len(PROMPT),
        }
        choice = {"index": 0, "token_ids": [1], "finish_reason": "length"}
        return json.dumps({"request_id": self.name, "choices": [choice], "kv_transfer_params": kv}).encode()

    def token(self) -> bool:
        """Send the next; whether there are more."""
        left = self.streams.get(self, 0)
        if not left:
            return False
        if left > 1:
            self.streams[self] = left - 1
            self.transport.write(self.middle)
            return True
        del self.streams[self]
        last = event(self.name, 1879, "length") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.transport.write(last)
        return False

    def go_on(self) -> None:
        if self.token():
            asyncio.get_running_loop().call_later(self.step, self.go_on)


async def engine(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Engine, "127.0.0.1", port, backlog=4096)
    due = loop.time()
    while server.is_serving():
        due = max(due + Engine.step, loop.time())
        await asyncio.sleep(due - loop.time())
        if not Engine.spread:
            for stream in list(Engine.streams):
                stream.token()


class Choice(msgspec.Struct):
    token_ids: list[int]


class Chunk(msgspec.Struct):
    choices: list[Choice]
    position: int = 0


class Frame(msgspec.Struct):
    stream: int
    open: Any = None
    chunk: Chunk | None = None


_frames = msgspec.json.Decoder(list[Frame])
WORD = (
    b'{"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"simulated","choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,'
    b'"finish_reason":null}],"usage":null}'
)
STATE = b',"stream_state":{"v":1,"s":"%b"}' % (b"A" * 200)


def answer(number: int, chunk: Chunk | None) -> bytes:
    if chunk is None:
        return b'{"stream":%d}' % number
    position = chunk.position
    words = WORD % (b" world" * len(chunk.choices[0].token_ids))
    state = STATE if position % 64 == 63 else b""
    notes = b'{"context":"0123456789abcdef","completion_tokens":%d,"empty":false}' % (position + 1)
    return b'{"stream":%d,"chunk":%b,"derender":%b%b}' % (number, words, notes, state)


async def session(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(compress=False, max_msg_size=0)
    await socket.prepare(request)
    async for message in socket:
        frames = _frames.decode(message.data)
        answers = [answer(each.stream, each.chunk) for each in frames if each.open or each.chunk]
        if answers:
            await socket.send_bytes(b"[" + b",".join(answers) + b"]")
    return socket


async def rendered(request: web.Request) -> web.Response:
    asked = await request.json()
    body = {
        "token_ids": PROMPT,
        "model": "simulated",
        "sampling_params": {"max_tokens": asked["max_tokens"]},
        "stream": True,
    }
    return web.json_response(body)


def render(port: int) -> None:
    async def ready(_request: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/v1/derender/sessions", session)
    app.router.add_post("/v1/chat/completions/render", rendered)
    app.router.add_get("/ready", ready)
    app.router.add_get("/health", ready)
    web.run_app(
        app,
        host="127.0.0.1",
        port=port,
        print=None,
        access_log=None,
        backlog=4096,
        loop=uvloop.new_event_loop(),
    )


def main() -> None:
    role, port, *rest = sys.argv[1:]
    if role == "render":
        render(int(port))
    else:
        Engine.step, Engine.spread = float(rest[0]) / 1e3, "--spread" in rest
        uvloop.run(engine(int(port)))


if __name__ == "__main__":
    main()
