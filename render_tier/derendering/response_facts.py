"""What an answer needs of a Responses request besides the reading of its output: what it repeats, and what
the tools are called towards the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from render_tier.derendering.served import ServedModel
from render_tier.protocol.responses_as_chat import custom_names, namespaced_names
from render_tier.protocol.responses_request import ResponsesRequest

REPEATED: Mapping[str, Raw] = {
    name: Raw(default)
    for name, default in (
        ("instructions", b"null"),
        ("max_output_tokens", b"null"),
        ("max_tool_calls", b"null"),
        ("metadata", b"{}"),
        ("parallel_tool_calls", b"true"),
        ("prompt_cache_key", b"null"),
        ("reasoning", b"null"),
        ("safety_identifier", b"null"),
        ("service_tier", b'"auto"'),
        ("text", b'{"format":{"type":"text"}}'),
        ("tool_choice", b'"auto"'),
        ("tools", b"[]"),
        ("top_logprobs", b"0"),
        ("truncation", b'"disabled"'),
        ("user", b"null"),
    )
}
"""Fields of the response that repeat the request -> what they are when it has none."""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Sampling parameters that the response names -> OpenAI's defaults."""


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """``repeated``: fields of the response as JSON. ``namespaced``: names of functions as the model knows
    them -> (name, namespace). ``custom``: names of the custom tools. ``top_logprobs``: alternatives to each
    token that were asked for."""

    repeated: Mapping[str, Any]
    namespaced: Mapping[str, tuple[str, str]]
    custom: frozenset[str]
    top_logprobs: int


def response_facts(request: ResponsesRequest, data: Mapping[str, Any], model: ServedModel) -> ResponseFacts:
    """``data``: the same request as the client wrote it."""
    repeated = {
        name: default if data.get(name) is None else _json(data[name]) for name, default in REPEATED.items()
    }
    for name, default in SAMPLING.items():
        asked: Any = getattr(request, name)
        used = model.generation_config.get(name, default) if asked is None else asked
        repeated[name] = _json(used)
    namespaced, custom = namespaced_names(request.tools), custom_names(request.tools)
    return ResponseFacts(repeated, namespaced, custom, request.top_logprobs)


def _json(value: Any) -> Raw:
    """Python's reader of JSON takes integers, and depths, that no client could read back; such a value is not
    repeated."""
    try:
        return Raw(msgspec.json.encode(value))
    except (OverflowError, RecursionError):
        return Raw(b"null")
