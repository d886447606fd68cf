"""Requests to bytes and answers to records, without a connection: shared by both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from render_tier.client.errors import Unreadable
from render_tier.client.records import Chat, Prompt, Sample
from render_tier.protocol.generate import GenerateResponse
from render_tier.protocol.unreadable import UNREADABLE

FINGERPRINT = "x-render-fingerprint"
RENDER, DERENDER = "/v1/chat/completions/render", "/v1/chat/completions/derender"
GENERATE, CHAT = "/inference/v1/generate", "/v1/chat/completions"
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    path: str
    body: bytes


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Choice(msgspec.Struct, kw_only=True):
    index: int = 0
    message: dict[str, Any]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct, kw_only=True):
    id: str
    choices: list[_Choice]
    prompt_token_ids: list[int] | None = None
    system_fingerprint: str | None = None


Read = TypeVar("Read")


def call(path: str, body: Json) -> Call:
    return Call(path, msgspec.json.encode(body))


def chat_call(request: Json) -> Call:
    return call(CHAT, {**request, "return_token_ids": True, "stream": False})


def generate_call(prompt: Prompt | Sequence[int], sampling_params: Json | None, extra: Json) -> Call:
    """``sampling_params`` win over those of a rendered prompt; ``extra`` are other fields of the request."""
    if isinstance(prompt, Prompt):
        sampling = {**prompt.sampling_params, **(sampling_params or {})}
        fields = {name: value for name, value in prompt.request.items() if name != "continuation"}
    else:
        sampling, fields = dict(sampling_params or {}), {"token_ids": list(prompt)}
    body = {**fields, "sampling_params": sampling, **extra, "stream": False, "return_token_ids": True}
    body.pop("stream_options", None)
    return call(GENERATE, body)


def derender_call(request: Json, sample: Sample) -> Call:
    choice = {
        "index": sample.index,
        "token_ids": sample.output_token_ids,
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
    }
    body = {
        "generate_response": {"request_id": sample.request_id, "choices": [choice]},
        "chat_request": {**request, "stream": False},
        "prompt_token_ids": sample.prompt_token_ids,
    }
    if request.get("model"):
        body["model"] = request["model"]
    return call(DERENDER, body)


def read_prompt(body: bytes, headers: Mapping[str, str]) -> Prompt:
    """Raises Unreadable."""
    fields = _decoded(body, dict[str, Any])
    try:
        return Prompt(
            token_ids=fields["token_ids"],
            sampling_params=fields["sampling_params"],
            request=fields,
            continuation=fields.get("continuation"),
            fingerprint=headers.get(FINGERPRINT),
        )
    except KeyError as error:
        raise Unreadable(f"the rendered prompt has no {error}") from None


def read_chat(body: bytes, headers: Mapping[str, str]) -> Chat:
    """Raises Unreadable, also where the server did not return token IDs."""
    answer = _decoded(body, _Answer)
    samples = []
    for choice in answer.choices:
        if answer.prompt_token_ids is None or choice.token_ids is None:
            raise Unreadable("the answer has no token IDs: the server does not know return_token_ids")
        told = choice.logprobs.content if choice.logprobs is not None else None
        samples.append(
            Sample(
                request_id=answer.id,
                index=choice.index,
                prompt_token_ids=answer.prompt_token_ids,
                output_token_ids=choice.token_ids,
                logprobs=_aligned(told, choice.token_ids),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                message=choice.message,
                fingerprint=headers.get(FINGERPRINT) or answer.system_fingerprint,
            )
        )
    return Chat(samples=samples, body=_decoded(body, dict[str, Any]))


def read_generated(body: bytes, headers: Mapping[str, str], prompt: Sequence[int]) -> list[Sample]:
    """Raises Unreadable."""
    answer = _decoded(body, GenerateResponse)
    samples = []
    for choice in answer.choices:
        ids = choice.token_ids or []
        told = choice.logprobs.content if choice.logprobs is not None else None
        samples.append(
            Sample(
                request_id=answer.request_id,
                index=choice.index,
                prompt_token_ids=answer.prompt_token_ids or list(prompt),
                output_token_ids=ids,
                logprobs=_aligned(told, ids),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                message=None,
                fingerprint=headers.get(FINGERPRINT),
            )
        )
    return samples


def read_message(body: bytes) -> dict[str, Any]:
    """The chat completion of one sample."""
    return _decoded(body, dict[str, Any])


def _aligned(told: Sequence[Any] | None, token_ids: list[int]) -> list[float] | None:
    """One for each token, or none: a list with gaps would be read wrongly."""
    return [one.logprob for one in told] if told is not None and len(told) == len(token_ids) else None


def _decoded(body: bytes, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise Unreadable(f"the answer cannot be read: {error}") from error
