"""Answers made again from their records alone, by a render tier's derender calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import msgspec

from render_tier.protocol.record import Record, RecordedChoice, RecordedResponse

Kind = Literal["chat", "completions"]

_PATHS = {"chat": "/v1/chat/completions/derender", "completions": "/v1/completions/derender"}
_REQUESTS = {"chat": "chat_request", "completions": "completion_request"}


def without_record(answer: bytes) -> tuple[bytes, Record]:
    """The answer as it would be for a client that had not asked, and its record."""
    fields = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
    record = msgspec.json.decode(fields.pop("record"), type=Record)
    return msgspec.json.encode(fields), record


def whole_again(render: str, kind: Kind, request: dict[str, Any], record: Record) -> bytes:
    replies = record.generate_responses
    call: dict[str, Any] = {"model": record.model, _REQUESTS[kind]: request}
    if kind == "chat":
        call["generate_response"] = replies[0]
    else:
        call["generate_responses"] = replies
    return _derendered(render, kind, call)


def streams_again(render: str, kind: Kind, request: dict[str, Any], record: Record) -> dict[int, list[bytes]]:
    """The data of each choice's events, by the number of the choice."""
    answers: dict[int, list[bytes]] = {}
    for reply in record.generate_responses:
        for choice in reply.choices:
            number = len(answers)
            answers[number] = list(_stream_again(render, kind, request, record, reply, choice, number))
    return answers


def _stream_again(
    render: str,
    kind: Kind,
    request: dict[str, Any],
    record: Record,
    reply: RecordedResponse,
    choice: RecordedChoice,
    number: int,
) -> Iterator[bytes]:
    assert choice.token_ids is not None
    assert sum(choice.chunk_lens) == len(choice.token_ids)
    begin, state = 0, None
    for position, length in enumerate(choice.chunk_lens):
        end, last = begin + length, position == len(choice.chunk_lens) - 1
        part: dict[str, Any] = {"index": number, "token_ids": choice.token_ids[begin:end]}
        if choice.logprobs is not None and choice.logprobs.content is not None:
            part["logprobs"] = {"content": choice.logprobs.content[begin:end]}
        if last:
            part |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        chunk = {"request_id": reply.request_id, "created": reply.created, "choices": [part]}
        if not begin:
            chunk["prompt_token_ids"] = reply.prompt_token_ids
        call = {
            "stream": True,
            "model": record.model,
            _REQUESTS[kind]: request,
            "generate_chunk": chunk,
            "stream_state": state,
            "prompt_tokens": len(reply.prompt_token_ids),
            "prompt_token_ids": reply.prompt_token_ids,
        }
        fields = msgspec.json.decode(_derendered(render, kind, call), type=dict[str, msgspec.Raw])
        begin, state = end, fields["stream_state"]
        if not json.loads(bytes(fields["derender"]))["empty"]:
            yield bytes(fields["chunk"])


def _derendered(render: str, kind: Kind, call: dict[str, Any]) -> bytes:
    body = msgspec.json.encode(call)
    reply = httpx.post(
        render + _PATHS[kind], content=body, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert reply.status_code == 200, reply.text
    return reply.content
