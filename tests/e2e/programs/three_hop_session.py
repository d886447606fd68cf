"""One streamed chat over render, one engine and a derender session that goes on elsewhere when it is lost.

three_hop_session.py --render URL [--render URL] --engine URL < CHAT_REQUEST.json

The program keeps the last snapshot and the tokens since. `--break-after N` loses the connection after N
chunks, to show that the answer does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from itertools import cycle
from typing import Any

import aiohttp
import hops
import httpx

parser = argparse.ArgumentParser()
parser.add_argument("--render", required=True, action="append")
parser.add_argument("--engine", required=True)
parser.add_argument("--break-after", type=int, default=0)
options = parser.parse_args()

Json = dict[str, Any]


class Lost(Exception):
    """The session is gone, or is about to go."""


class Session:
    """One stream, which is number 1 on its connection."""

    def __init__(self, http: aiohttp.ClientSession, opening: Json) -> None:
        self.http = http
        self.opening = opening
        self.urls = cycle(options.render)
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self.state: Json | None = None
        self.since: Json | None = None

    async def read(self, chunk: Json) -> Json:
        """The answer to one chunk of the engine."""
        while True:
            try:
                if self.socket is None:
                    await self.open()
                answer = await self.ask({"stream": 1, "chunk": {"choices": chunk["choices"]}})
            except (Lost, aiohttp.ClientError, OSError):
                self.socket = None  # a program in earnest would count its attempts
                continue
            self.remember(answer, chunk)
            return answer["chunk"]

    async def open(self) -> None:
        self.socket = await self.http.ws_connect(next(self.urls) + "/v1/derender/sessions")
        start = {**self.opening, "stream_state": self.state}
        again = {"chunk": {"choices": [self.since]}} if self.since else {}
        await self.ask({"stream": 1, "open": start, **again})  # what it says again, the client has

    async def ask(self, frame: Json) -> Json:
        assert self.socket is not None
        await self.socket.send_json([frame])
        while True:
            message = await self.socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise Lost
            for answer in json.loads(message.data):
                if answer.get("moving"):
                    continue  # this call is still answered; the next connection is another server's
                if "error" in answer:
                    if answer["error"]["code"] in (404, 409, 503):
                        raise Lost
                    raise SystemExit(f"derender failed: {answer['error']}")
                return answer

    def remember(self, answer: Json, chunk: Json) -> None:
        if "stream_state" in answer:
            self.state, self.since = answer["stream_state"], None
        elif chunk["choices"]:
            [choice] = chunk["choices"]
            if self.since is None:
                self.since = {**choice, "token_ids": []}
            self.since["token_ids"] = self.since["token_ids"] + choice["token_ids"]
            self.since |= {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}


async def main() -> None:
    chat = {**json.load(sys.stdin), "stream": True}
    with httpx.Client(timeout=120, trust_env=False) as client:
        rendered = hops.render(client, options.render[0], chat)
        async with aiohttp.ClientSession() as http:
            session = Session(
                http,
                {
                    "endpoint": "chat",
                    "request_id": rendered["request_id"],
                    "model": chat.get("model"),
                    "request": chat,
                    "prompt_token_ids": rendered["token_ids"],
                },
            )
            for number, chunk in enumerate(hops.generate_stream(client, options.engine, rendered), 1):
                print(json.dumps(await session.read(chunk)), flush=True)
                if number == options.break_after and session.socket is not None:
                    await session.socket.close()


asyncio.run(main())
