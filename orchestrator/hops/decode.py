"""Hop 3: the decode engine's stream of token chunks, or its one JSON reply, as the same sequence of
answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from orchestrator.core.sse import DONE, NotAnEventStream, SSEDecoder, StreamTooLarge
from orchestrator.hops.errors import Failed, Garbled, HopError, Unreachable
from orchestrator.hops.idle_clock import IdleClock
from orchestrator.hops.messages import EngineAnswer, present
from orchestrator.hops.prefill import GENERATE
from orchestrator.hops.transport import Transport, encode, garbled, timeout_as_hop_error

_decoder = msgspec.json.Decoder(EngineAnswer)

ENDED_BY_ENGINE = frozenset({"abort", "error"})
"""Finish reasons of a request that the engine gave up: not an answer."""


class DecodeClient:
    def __init__(self, transport: Transport, *, first_timeout: float, idle_timeout: float) -> None:
        """``first_timeout`` bounds the wait for the first chunk (queueing and KV transfer are in it),
        ``idle_timeout`` each later one; seconds."""
        self._transport = transport
        self._first_timeout = first_timeout
        self._idle_timeout = idle_timeout

    async def decode(
        self,
        base_url: str,
        request: Mapping[str, Any],
        headers: Mapping[str, str],
        *,
        on_accepted: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[EngineAnswer, None]:
        """Yield the engine's answers until one per choice has a finish reason and the stream has ended.

        ``on_accepted`` is called when status 200 has been read. Raises ``HopError`` when the engine refuses,
        fails, stops talking, or ends the stream without a finish reason. Closing the generator closes the
        connection.
        """
        url = base_url + GENERATE
        with timeout_as_hop_error("decode", url), ExitStack() as exits:
            async with (
                asyncio.timeout(self._first_timeout) as clock,
                self._transport.open("decode", "POST", url, encode(request), headers) as response,
            ):
                idle = exits.enter_context(IdleClock(clock, self._idle_timeout))
                await self._transport.expect_ok("decode", url, response)
                on_accepted()
                if response.content_type != "text/event-stream":
                    body = await self._transport.read(
                        "decode", url, response, self._transport.max_event_bytes
                    )
                    answer = _read(url, body)
                    _check_finished(url, answer)
                    idle.pause()
                    yield answer
                    return
                sse = SSEDecoder(self._transport.max_event_bytes)
                finished = False
                async for piece in response.content.iter_any():
                    try:
                        payloads = sse.feed(piece)
                    except (StreamTooLarge, NotAnEventStream) as error:
                        raise garbled("decode", url, error) from error
                    for payload in payloads:
                        if payload == DONE:
                            if not finished:
                                raise Unreachable("decode", "the decode stream ended early", member=url)
                            return
                        answer = _read(url, payload)
                        finished = finished or _finish(url, answer)
                        idle.pause()
                        yield answer
                        idle.run()
                if not finished:
                    raise Unreachable("decode", "the decode stream ended early", member=url)


def _read(url: str, payload: bytes) -> EngineAnswer:
    try:
        answer = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise garbled("decode", url, problem) from problem
    error = present(answer.error)
    if error is not None:
        detail = bytes(error)[:2000].decode("utf-8", "replace")
        raise Failed("decode", "the decode engine failed", retry_safe=True, detail=detail, member=url)
    if len(answer.choices) > 1:
        raise Garbled("decode", "the decode engine answered several choices to a request for one", member=url)
    return answer


def _finish(url: str, answer: EngineAnswer) -> bool:
    """Whether the choice is over; raises when the engine gave it up."""
    reason = answer.choices[0].finish_reason if answer.choices else None
    if reason in ENDED_BY_ENGINE:
        raise Failed(
            "decode", "the decode engine gave the request up", retry_safe=True, detail=reason, member=url
        )
    return reason is not None


def _check_finished(url: str, answer: EngineAnswer) -> None:
    if not _finish(url, answer):
        raise _incomplete(url)


def _incomplete(url: str) -> HopError:
    return Garbled("decode", "the decode engine's answer is not complete", member=url)
