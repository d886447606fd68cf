"""A fault injector: one aiohttp server that plays the render tier and the engines, and fails on purpose.

It is scripted, not a simulation of quality: a prompt is one token per word, output token ``t`` reads ``t<id>
``, and an engine sends tokens 100, 101, … (from 100 + 1000 times the seed). It does keep the books that real
engines keep and that matter here: which legs it saw, which KV it holds under a lease, whether params are used
twice, which ids were aborted, which streams broke off.

``tier.faults[path]`` is a list of faults for the next calls of that path, first in, first out; ``None`` lets
one pass.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiohttp import web

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"


BLOCK_SIZE = 16
"""Tokens in a block of an engine's KV."""

MESSAGE_STOPS = {
    ("length", False): "max_tokens",
    ("stop", False): "end_turn",
    ("stop", True): "stop_sequence",
}
"""(finish reason, whether a stop string matched) in Anthropic's words."""


@dataclass(frozen=True)
class Status:
    """Answer with this status and body instead."""

    status: int
    body: bytes = b'{"error":{"message":"scripted","type":"Scripted","param":null,"code":0}}'


@dataclass(frozen=True)
class Stall:
    """Never answer; ``after`` chunks of a stream have been sent before."""

    after: int = 0


@dataclass(frozen=True)
class HalfClose:
    """Break the connection, ``after`` chunks into the answer."""

    after: int = 0


@dataclass(frozen=True)
class Garbage:
    """Send bytes that are not the protocol, ``after`` chunks into the answer."""

    body: bytes = b"data: {not json\n\n"
    after: int = 0


@dataclass(frozen=True)
class ErrorEvent:
    """An engine's error inside its stream, with status 200."""

    after: int = 0


@dataclass(frozen=True)
class Answer:
    """Prefill answers with these fields replaced; a stream ends with this finish reason."""

    fields: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None


@dataclass(frozen=True)
class Slow:
    """Answer properly, this many seconds late."""

    seconds: float = 0.05


@dataclass(frozen=True)
class Expired:
    """Prefill answers with params whose lease is over already."""


@dataclass(frozen=True)
class Reused:
    """Prefill answers with the params of an earlier request, if there was one."""


Fault = Status | Stall | HalfClose | Garbage | ErrorEvent | Answer | Slow | Expired | Reused | None

Plan = Callable[[str, dict[str, Any]], Fault]
"""Given path and body of a call: what happens to it."""


class Tier:
    """``pace`` is the time between an engine's tokens, in seconds."""

    def __init__(self, name: str = "tier", pace: float = 0.0) -> None:
        self.name = name
        self.pace = pace
        self.url = ""
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.requests: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.headers: dict[str, list[dict[str, str]]] = defaultdict(list)
        self.aborted: list[str] = []
        self.held: dict[str, list[int]] = {}
        """KV by remote request id: the prompt it belongs to."""
        self.broken_off: list[str] = []
        """Generate legs whose connection the caller closed before the end."""
        self.sent_tokens = 0
        self.prefilled = asyncio.Event()
        self.hold = asyncio.Event()
        """Cleared by a test, engines and derender stop before their next answer until it is set."""
        self.hold.set()
        self.waiting = asyncio.Event()
        """Somebody waits for ``hold``."""
        self.healthy = True
        self.generation = ""
        """Pulling KV of an engine of another one fails the test."""
        self.facts: dict[str, Any] = {}
        """What ``/server_info`` tells, by section; nothing: there is no such route."""
        self.reports: dict[str, dict[str, Any]] = {}
        """What other routes that are read tell, by path."""
        self.plan: Plan | None = None
        """Asked for a fault when none is scripted for the path."""
        self.paused: bool | None = None
        """What ``/is_paused`` tells; None: there is no such route."""
        self.weight_versions: list[dict[str, Any]] = []
        """What the last chunk of a stream says."""
        self.violations: list[str] = []
        """What a real engine would have answered with status 200 and wrong text."""
        self.dead = False
        self.keeps_turns = False
        """As a decode engine with bidirectional transfer."""
        self.kept: dict[str, list[int]] = {}
        """KV of ended decodes by remote request id: the IDs it was computed from."""
        self.encodes = False
        """As an encoder: it says where it keeps what it has made of the images that it is shown."""
        self.encoded: dict[str, Any] = {}
        """As an encoder: by hash, the image's data."""
        self.images: dict[str, str | None] | None = None
        """As an engine that keeps them: by hash, the images that it has got."""
        self.features: dict[str, Any] | None = None
        """What it says, as a render tier, of the images of every prompt."""
        self.pictures: dict[str, Any] = {}
        """What it says of them in their place."""
        self.warnings: list[str] | None = None
        """What it says, as a render tier, of every request."""
        self.fingerprint = ""
        self.known_items: list[str] = []
        """As a render tier: what the orchestrator has said that it has, with each request."""
        self.item_names = "content"
        """As a render tier: what it says of their hashes."""
        self.continues = True
        """As a render tier, it knows ``continuation``; every one holds."""
        self.pushes = False
        """KV goes to the decode that has the id of the prefill."""
        self._earlier_params: dict[str, Any] | None = None
        self.stop_text_seen: list[str] = []
        self.kill: Callable[[], Awaitable[None]]
        self.revive: Callable[[], Awaitable[None]]

    # ---- the books of a real engine ------------------------------------------------------------------------

    def params(self, request_id: str) -> dict[str, Any]:
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2]],
            "remote_engine_id": self.name,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": self.facts.get("parallel_config", {}).get("tensor_parallel_size", 1),
            "remote_num_tokens": len(self.held.get(request_id, ())),
            "transfer_mode": "push" if self.pushes else "pull",
        }

    def turn_params(self, request_id: str) -> dict[str, Any]:
        """Of KV that is kept for the next turn's prefill; the expiry is by a clock of the engine's own."""
        tokens = len(self.kept[request_id])
        return {
            **self.params(request_id),
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "remote_block_ids": [list(range(-(-tokens // BLOCK_SIZE)))],
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": 1.5,
        }

    def _read_turn(self, params: dict[str, Any], token_ids: list[int]) -> None:
        """Read a decode engine's KV as a prefill engine does."""
        source = self.peers[params["remote_engine_id"]]
        kept = source.kept.pop(params["remote_request_id"], None)
        if kept is None or source.dead:
            raise web.HTTPInternalServerError(text="there is no such KV")
        covered = params["remote_num_tokens"]
        if params["remote_blocks_expiry_time"] != 1.5 or token_ids[:covered] != kept[:covered]:
            self.violations.append(f"{kept} is not the KV of the beginning of {token_ids}")

    async def _pause(self) -> None:
        if not self.hold.is_set():
            self.waiting.set()
            await self.hold.wait()

    async def _aborted(self, engine_id: str) -> None:
        while engine_id not in self.aborted or self.deaf:
            await asyncio.sleep(0.005)

    deaf = False
    """Aborts are taken and come too late."""

    # ---- routes --------------------------------------------------------------------------------------------

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body, fault, early = await self._begin(request, GENERATE)
        if early is not None:
            return early
        engine_id = f"generate-tokens-{body['request_id']}"
        params = body.get("kv_transfer_params") or {}
        sampling = body["sampling_params"]
        if self._lacks_images(body):
            return self._error_as_vllm(stream=body["stream"])
        self._find_images(body)
        if sampling.get("stop"):
            return web.json_response(
                {"error": {"message": "stop strings", "type": "BadRequestError"}}, status=400
            )
        try:
            if not body["stream"]:
                if not self.hold.is_set():
                    waits = [asyncio.ensure_future(w) for w in (self._pause(), self._aborted(engine_id))]
                    try:
                        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for wait in waits:
                            wait.cancel()
                if engine_id in self.aborted and not self.deaf:
                    # As real engines answer a leg that was aborted.
                    choice = {"index": 0, "token_ids": [], "finish_reason": "abort"}
                    return web.json_response({"request_id": engine_id, "choices": [choice]})
                return self._whole(body, engine_id, params, fault)
            if params.get("do_remote_prefill"):
                self._pull(params, body["token_ids"], engine_id)
            return await self._stream(request, body, engine_id, fault)
        except (asyncio.CancelledError, ConnectionError):
            self.broken_off.append(body["request_id"])
            raise

    peers: ClassVar[dict[str, Tier]] = {}
    """By engine name: where a decode engine pulls from."""

    def _pull(self, params: dict[str, Any], token_ids: list[int], engine_id: str) -> None:
        """Consume the KV as a decode engine does. Everything a real one would answer wrongly fails the
        test."""
        source = self.peers[params["remote_engine_id"]]
        if source.generation != self.generation or source.facts_that_shape_kv != self.facts_that_shape_kv:
            self.violations.append(f"{self.name} pulled KV of {source.name}, which is of another kind")
        if source.pushes and engine_id != params["remote_request_id"]:
            self.violations.append(f"nothing is pushed to {engine_id}: a real engine would wait for ever")
            raise web.HTTPInternalServerError(text="a real engine would wait here")
        held = source.held.pop(params["remote_request_id"], None)
        if held is None and source.lost_kv:
            raise web.HTTPInternalServerError(text="the prefill engine is another one now")
        if held != token_ids:
            self.violations.append(f"{params['remote_request_id']}: {held} is not the KV of {token_ids}")
            raise web.HTTPInternalServerError(text="a real engine would answer wrongly here")

    lost_kv = False
    """The engine has been killed once, and with it what it held."""

    def _whole(
        self, body: dict[str, Any], engine_id: str, params: dict[str, Any], fault: Fault
    ) -> web.StreamResponse:
        sampling = body["sampling_params"]
        tokens = [100 + i for i in range(sampling["max_tokens"])]
        answer: dict[str, Any] = {
            "request_id": engine_id,
            "choices": [{"index": 0, "token_ids": tokens, "finish_reason": "length", "stop_reason": None}],
            "usage": {
                "prompt_tokens": len(body["token_ids"]),
                "completion_tokens": len(tokens),
                "total_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
            "kv_transfer_params": None,
        }
        if sampling.get("prompt_logprobs") is not None:
            answer["prompt_logprobs"] = [None, {"7": {"logprob": -1.5, "rank": 1}}]
        if params.get("do_remote_decode"):
            assert sampling["max_tokens"] == 1
            assert sampling["ignore_eos"] is True
            if params.get("remote_block_ids"):
                self._read_turn(params, body["token_ids"])
            self.held[engine_id] = body["token_ids"]
            params = self.params(engine_id)
            if isinstance(fault, Reused) and self._earlier_params is not None:
                params = self._earlier_params
            if isinstance(fault, Expired):
                params |= {"remote_blocks_expiry_time": 1.0}
            self._earlier_params = answer["kv_transfer_params"] = params
            self.prefilled.set()
        elif params.get("do_remote_prefill"):
            self._pull(params, body["token_ids"], engine_id)
            if self.keeps_turns:
                # The last token's KV is never computed.
                self.kept[engine_id] = body["token_ids"] + tokens[:-1]
                answer["kv_transfer_params"] = self.turn_params(engine_id)
        if self.encodes:
            answer["ec_transfer_params"] = self._encode(body)
        if isinstance(fault, Answer):
            answer |= fault.fields
            if fault.finish_reason is not None:
                answer["choices"][0]["finish_reason"] = fault.finish_reason
        return web.json_response(answer)

    def _encode(self, body: dict[str, Any]) -> dict[str, Any]:
        [[image]], [[place]], [[data]] = (
            list(body["features"][name].values()) for name in ("mm_hashes", "mm_placeholders", "kwargs_data")
        )
        if place != {"offset": 0, "length": len(body["token_ids"])}:
            self.violations.append(f"{place} are not the placeholders of {body['token_ids']}")
        self.encoded[image] = data
        return {image: {"item_indices": [0], "metadata": {}, "kept_by": self.name}}

    def _lacks_images(self, body: dict[str, Any]) -> bool:
        """As an engine that keeps images, and fails a request that names one which it does not have."""
        if self.images is None or not body.get("features"):
            return False
        hashes = body["features"]["mm_hashes"]
        given = {
            name: data
            for modality, datas in body["features"]["kwargs_data"].items()
            for name, data in zip(hashes[modality], datas, strict=True)
        }
        told = body.get("ec_transfer_params") or {}
        named = {name for name, data in given.items() if data is None} - set(told)
        # Of an encoded image it may have got the metadata alone, which takes the place of the image.
        self.images |= {name: data for name, data in given.items() if name not in named}
        self.violations += [
            f"{name}: an item without data" for name in named if self.images.get(name, "") is None
        ]
        return not given.keys() <= self.images.keys()

    @staticmethod
    def _error_as_vllm(*, stream: bool) -> web.Response:
        error = {
            "message": "Internal server error",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        if not stream:
            return web.json_response({"error": error}, status=500)
        event = f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n"
        return web.Response(text=event, content_type="text/event-stream")

    def _find_images(self, body: dict[str, Any]) -> None:
        """As an engine that computes a prompt. One that lacks an image ends."""
        found = body.get("ec_transfer_params") or {}
        features = body.get("features") or {"mm_hashes": {}}
        for modality, hashes in features["mm_hashes"].items():
            for image, data in zip(hashes, features["kwargs_data"][modality], strict=True):
                kept_by = found.get(image, {}).get("kept_by")
                kept = None if kept_by is None else self.peers[kept_by].encoded[image]
                if data is None and kept is None and self.images is None:
                    raise web.HTTPInternalServerError(text="this engine has ended")
                if None not in (data, kept) and data != kept:
                    self.violations.append(f"{image}: encoders have made something of another image")

    async def _stream(
        self, request: web.Request, body: dict[str, Any], engine_id: str, fault: Fault
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        count = body["sampling_params"]["max_tokens"]
        first = 100 + 1000 * (body["sampling_params"].get("seed") or 0)
        # A prompt that ends with the answer's beginning goes on from there, as greedy sampling would.
        first += sum(token >= first for token in body["token_ids"])
        reason = fault.finish_reason if isinstance(fault, Answer) else None
        for i in range(count + 1):
            await self._pause()
            if isinstance(fault, Stall | HalfClose | Garbage | ErrorEvent) and fault.after == i:
                if isinstance(fault, Stall):
                    await asyncio.Event().wait()
                elif isinstance(fault, HalfClose):
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                elif isinstance(fault, Garbage):
                    await response.write(fault.body)
                else:
                    await response.write(b'data: {"error":{"message":"EngineCore: secrets","code":500}}\n\n')
                    await response.write(b"data: [DONE]\n\n")
                    return response
            if i == count:
                break
            if self.pace:
                await asyncio.sleep(self.pace)
            choice: dict[str, Any] = {
                "index": 0,
                "token_ids": [first + i],
                "finish_reason": (reason or "length") if i == count - 1 else None,
                "stop_reason": None,
                "logprobs": None,
            }
            if body["sampling_params"].get("logprobs") is not None:
                top = [{"token_id": first + i, "logprob": -0.5, "rank": 1}]
                entry = {"token_id": first + i, "logprob": -0.5, "rank": 1, "top_logprobs": top}
                choice["logprobs"] = {"content": [entry]}
            if self.weight_versions and i == count - 1:
                choice["weight_versions"] = self.weight_versions
            self.sent_tokens += 1
            await self._event(response, {"request_id": engine_id, "choices": [choice], "usage": None})
        usage = {
            "prompt_tokens": len(body["token_ids"]),
            "completion_tokens": count,
            "total_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 5},
        }
        await self._event(response, {"request_id": engine_id, "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def abort(self, request: web.Request) -> web.StreamResponse:
        ids, _, early = await self._begin(request, ABORT)
        self.aborted += ids["request_ids"]
        return web.Response() if early is None else early

    async def render(self, request: web.Request) -> web.StreamResponse:
        body, _, early = await self._begin(request, request.path)
        if early is not None:
            return early
        await self._pause()
        if request.path.startswith((CHAT, MESSAGES)):
            if not body.get("messages"):
                error = {
                    "message": "messages is empty",
                    "type": "BadRequestError",
                    "param": "messages",
                    "code": 400,
                }
                return web.json_response({"error": error}, status=400)
            rendered = self._rendered(body, " ".join(m["content"] for m in body["messages"]), None)
            self._leave_out(rendered, request.headers.get("X-Known-Items", ""))
            if self.continues and body.get("continuation"):
                self._go_on(rendered, body)
            headers = {"X-Item-Names": self.item_names, "X-Render-Fingerprint": self.fingerprint}
            return web.json_response(rendered, headers={k: v for k, v in headers.items() if v})
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        return web.json_response([self._rendered(body, prompt, 16) for prompt in prompts])

    def _leave_out(self, rendered: dict[str, Any], known: str) -> None:
        """The data of images that the caller has."""
        self.known_items.append(known)
        if not known or self.item_names != "content" or not rendered["features"]:
            return
        rendered["features"] = features = json.loads(json.dumps(rendered["features"]))
        for modality, hashes in features["mm_hashes"].items():
            data = features["kwargs_data"][modality]
            for index, name in enumerate(hashes):
                if name[:16] in known.split(","):
                    data[index] = None

    def _go_on(self, rendered: dict[str, Any], body: dict[str, Any]) -> None:
        turn = body["continuation"]
        given = turn["prompt_token_ids"] + turn["output_token_ids"]
        rendered["token_ids"] = given + [len(word) for word in body["messages"][-1]["content"].split()]
        rendered["continuation"] = {"exact": True, "kept_tokens": len(given)}

    def _rendered(self, body: dict[str, Any], text: str, default_max: int | None) -> dict[str, Any]:
        stop = body.get("stop") or body.get("stop_sequences") or []
        sampling: dict[str, Any] = {
            "temperature": body.get("temperature", 1.0),
            "stop": [stop] if isinstance(stop, str) else stop,
            "stop_token_ids": [2],
            "max_tokens": body.get("max_tokens") or default_max or 8,
            "extra_args": {"kv_transfer_params": {"do_remote_prefill": True}, "kept": 1},
        }
        for name in (
            "n",
            "seed",
            "logprobs",
            "prompt_logprobs",
            "min_tokens",
            "structured_outputs",
            "bad_words",
        ):
            if body.get(name) is not None:
                sampling[name] = body[name]
        if sampling["max_tokens"] == 16:
            # Renderers that leave out defaults leave out this one.
            del sampling["max_tokens"]
        return {
            "request_id": "client-chosen",
            "token_ids": [len(word) for word in text.split()],
            "sampling_params": sampling,
            "model": body.get("model"),
            "stream": bool(body.get("stream")),
            "stream_options": body.get("stream_options"),
            "cache_salt": body.get("cache_salt"),
            "features": self.features,
            **self.pictures,
            **({} if self.warnings is None else {"warnings": self.warnings}),
            "unknown_field": {"kept": [1, 2.5, "x"]},
        }

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        body, _, early = await self._begin(request, request.path)
        if early is not None:
            return early
        await self._pause()
        count = sum(len(message["content"].split()) for message in body["messages"])
        return web.json_response({"input_tokens": count})

    async def derender(self, request: web.Request) -> web.StreamResponse:
        body, _, early = await self._begin(request, request.path)
        if early is not None:
            return early
        await self._pause()
        chat = request.path.startswith(CHAT)
        message = request.path.startswith(MESSAGES)
        if not body.get("stream"):
            return self._message(body) if message else self._derender_whole(body, chat)
        state = json.loads(body["stream_state"]["s"]) if body.get("stream_state") else {"n": 0}
        name = "chat_request" if chat else "messages_request" if message else "completion_request"
        if state["n"] == 0:
            assert body.get(name) is not None
            assert body.get("prompt_token_ids")
            state["stop"] = body[name].get("stop") or body[name].get("stop_sequences") or []
        elif self.forget_contexts and body.get("context"):
            self.forget_contexts = False
            error = {"message": "send it again", "type": "ContextRequiredError", "param": None, "code": 409}
            return web.json_response({"error": error}, status=409)
        chunk = body["generate_chunk"]
        choice = chunk["choices"][0]
        text, finish, stop_reason = "", choice["finish_reason"], None
        for token in choice["token_ids"]:
            piece = f"t{token} "
            state["n"] += 1
            if piece.strip() in state["stop"]:
                finish, stop_reason = "stop", piece.strip()
                self.stop_text_seen.append(piece)
                break
            text += piece
        if message:
            return self._message_events(body, state, text, finish, stop_reason)
        delta: dict[str, Any] = {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
        out = {
            "id": chunk["request_id"],
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": chunk["created"],
            "model": body["model"] or "scripted",
            "choices": [
                {
                    "index": choice["index"],
                    **delta,
                    "logprobs": choice["logprobs"],
                    "finish_reason": finish,
                    "stop_reason": stop_reason,
                }
            ],
            "usage": None,
        }
        if chunk.get("prompt_token_ids"):
            out["prompt_token_ids"] = chunk["prompt_token_ids"]
            out["choices"][0]["token_ids"] = choice["token_ids"]
        notes = {"context": "digest", "completion_tokens": state["n"], "reasoning_tokens": 0,
                 "empty": not text and not finish}  # fmt: skip
        return web.json_response(
            {"chunk": out, "stream_state": {"v": 1, "s": json.dumps(state)}, "derender": notes}
        )

    def _message_events(
        self, body: dict[str, Any], state: dict[str, Any], text: str, finish: str | None, stop: str | None
    ) -> web.StreamResponse:
        usage = {"input_tokens": body["prompt_tokens"], "output_tokens": state["n"]}
        events: list[dict[str, Any]] = []
        if not state.get("begun"):
            state["begun"] = True
            message = self._empty_message(body, body["generate_chunk"]["request_id"], usage)
            block = {"type": "text", "text": ""}
            events += [
                {"type": "message_start", "message": message},
                {"type": "content_block_start", "index": 0, "content_block": block},
            ]
        if text:
            delta = {"type": "text_delta", "text": text}
            events.append({"type": "content_block_delta", "index": 0, "delta": delta})
        if finish:
            end = {"stop_reason": MESSAGE_STOPS[finish, stop is not None], "stop_sequence": stop}
            events += [
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": end, "usage": usage},
                {"type": "message_stop"},
            ]
        notes = {"context": "digest", "completion_tokens": state["n"], "reasoning_tokens": 0,
                 "empty": not events, "finished": bool(finish)}  # fmt: skip
        return web.json_response(
            {"events": events, "stream_state": {"v": 1, "s": json.dumps(state)}, "derender": notes}
        )

    def _empty_message(self, body: dict[str, Any], identifier: str, usage: dict[str, int]) -> dict[str, Any]:
        named = {
            "id": identifier,
            "type": "message",
            "role": "assistant",
            "model": body["model"] or "scripted",
        }
        return {**named, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}

    def _message(self, body: dict[str, Any]) -> web.StreamResponse:
        reply = body["generate_response"]
        [choice] = reply["choices"]
        words = [f"t{token}" for token in choice["token_ids"]]
        stops = body["messages_request"].get("stop_sequences") or []
        cut = min((words.index(s) for s in stops if s in words), default=None)
        counted = len(words) if cut is None else cut + 1
        usage = {"input_tokens": body["prompt_tokens"], "output_tokens": counted}
        message = self._empty_message(body, reply["request_id"], usage)
        message["content"] = [{"type": "text", "text": "".join(word + " " for word in words[:cut])}]
        finish = choice["finish_reason"] if cut is None else "stop"
        message["stop_reason"] = MESSAGE_STOPS[finish, cut is not None]
        message["stop_sequence"] = None if cut is None else words[cut]
        return web.json_response(message)

    forget_contexts = False
    """Answer the next call that names its context with 409."""

    def _derender_whole(self, body: dict[str, Any], chat: bool) -> web.StreamResponse:
        replies = [body["generate_response"]] if chat else body["generate_responses"]
        stop = body["chat_request" if chat else "completion_request"].get("stop") or []
        choices = []
        completion = 0
        for reply in replies:
            for choice in reply["choices"]:
                words = [f"t{token}" for token in choice["token_ids"]]
                cut = min((words.index(s) for s in stop if s in words), default=None)
                if cut is not None:
                    choice["finish_reason"], choice["stop_reason"], words = "stop", words[cut], words[:cut]
                completion += len(words) + (cut is not None)
                text = "".join(word + " " for word in words)
                content: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
                choices.append(
                    {
                        "index": len(choices),
                        **(content if chat else {"text": text}),
                        **({"token_ids": choice["token_ids"]} if replies[0]["prompt_token_ids"] else {}),
                        "finish_reason": choice["finish_reason"],
                        "stop_reason": choice["stop_reason"],
                        "logprobs": choice["logprobs"],
                    }
                )
        prompt = body["prompt_tokens"] if chat else sum(body["prompt_tokens"])
        return web.json_response(
            {
                "id": replies[0]["request_id"],
                "object": "chat.completion" if chat else "text_completion",
                "created": 1,
                "model": body["model"] or "scripted",
                "choices": choices,
                "prompt_token_ids": replies[0]["prompt_token_ids"],
                "prompt_logprobs": replies[0]["prompt_logprobs"],
                "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0},
            }
        )

    async def models(self, request: web.Request) -> web.StreamResponse:
        cards = {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
        return web.json_response(self.reports.get(request.path, cards))

    async def report(self, request: web.Request) -> web.StreamResponse:
        if request.path not in self.reports:
            raise web.HTTPNotFound
        return web.json_response(self.reports[request.path])

    @property
    def facts_that_shape_kv(self) -> dict[str, Any]:
        model = self.facts.get("model_config", {})
        return {"revision": model.get("revision"), "cache": self.facts.get("cache_config")}

    async def is_paused(self, _request: web.Request) -> web.StreamResponse:
        if self.paused is None:
            raise web.HTTPNotFound
        return web.json_response({"is_paused": self.paused})

    async def server_info(self, _request: web.Request) -> web.StreamResponse:
        if not self.facts:
            raise web.HTTPNotFound
        return web.json_response({"vllm_config": self.facts})

    async def health(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if self.healthy else 503)

    async def _begin(
        self, request: web.Request, path: str
    ) -> tuple[dict[str, Any], Fault, web.StreamResponse | None]:
        body = await request.json()
        self.requests[path].append(body)
        self.headers[path].append({name.lower(): value for name, value in request.headers.items()})
        faults = self.faults[path]
        fault = faults.pop(0) if faults else self.plan(path, body) if self.plan is not None else None
        streaming = path == GENERATE and body["stream"]
        early: web.StreamResponse | None = None
        if isinstance(fault, Slow):
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, Status):
            early = web.Response(body=fault.body, status=fault.status, content_type="application/json")
        elif not streaming and isinstance(fault, Stall):
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if path == GENERATE:
                    self.broken_off.append(body["request_id"])
                raise
        elif not streaming and isinstance(fault, HalfClose):
            assert request.transport is not None
            request.transport.abort()
            early = web.Response()
        elif not streaming and isinstance(fault, Garbage):
            early = web.Response(body=fault.body, content_type="application/json")
        return body, fault, early

    @staticmethod
    async def _event(response: web.StreamResponse, message: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(message).encode() + b"\n\n")


@asynccontextmanager
async def serving(tier: Tier) -> AsyncIterator[Tier]:
    """The tier on a port of the system's choice."""
    app = web.Application(client_max_size=2**26)
    app.router.add_post(GENERATE, tier.generate)
    app.router.add_post(ABORT, tier.abort)
    for path in (CHAT, COMPLETIONS, MESSAGES):
        app.router.add_post(f"{path}/render", tier.render)
        app.router.add_post(f"{path}/derender", tier.derender)
    app.router.add_post(f"{MESSAGES}/count_tokens", tier.count_tokens)
    app.router.add_get("/v1/models", tier.models)
    for path in ("/ready", "/version"):
        app.router.add_get(path, tier.report)
    app.router.add_get("/health", tier.health)
    app.router.add_get("/server_info", tier.server_info)
    app.router.add_get("/is_paused", tier.is_paused)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]

    async def kill() -> None:
        """End it as a kill does: connections reset, new ones refused, everything held forgotten."""
        nonlocal site
        tier.dead = tier.lost_kv = True
        tier.held.clear()
        await site.stop()
        assert runner.server is not None
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def revive() -> None:
        nonlocal site
        site = web.TCPSite(runner, host, port)
        await site.start()
        tier.dead = False

    tier.kill, tier.revive = kill, revive
    tier.url = f"http://{host}:{port}"
    Tier.peers[tier.name] = tier
    try:
        yield tier
    finally:
        Tier.peers.pop(tier.name)
        await runner.cleanup()
