"""One streamed chat through the official OpenAI client, and everything the demo wants to tell about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI


@dataclass
class ChatRecord:
    """What came back. ``timing`` is the orchestrator's own report (milliseconds)."""

    prompt_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    reasoning: str = ""
    content: str = ""
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish_reason: str | None = None
    timing: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)


def stream_chat(base_url: str, request: dict[str, Any], show: Callable[[str, str], None]) -> ChatRecord:
    """Send ``request`` with ``stream=True``; ``show(kind, text)`` is called for every piece as it arrives.

    ``kind`` is "reasoning", "content" or "call". Raises ``openai.APIError`` when the server says so.
    """
    record = ChatRecord()
    # One attempt: a demo that silently tried again would hide what it is there to show.
    with OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            **request,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
            extra_headers={"X-PD-Timing": "1"},
        )
        for chunk in stream:
            extra = chunk.model_extra or {}
            record.prompt_token_ids = extra.get("prompt_token_ids") or record.prompt_token_ids
            record.timing = extra.get("pd_timing") or record.timing
            if chunk.usage is not None:
                record.usage = chunk.usage.model_dump(exclude_none=True)
            for choice in chunk.choices:
                record.finish_reason = choice.finish_reason or record.finish_reason
                record.output_token_ids += (choice.model_extra or {}).get("token_ids") or []
                _take_delta(record, choice.delta, show)
    return record


def _take_delta(record: ChatRecord, delta: Any, show: Callable[[str, str], None]) -> None:
    if reasoning := (delta.model_extra or {}).get("reasoning"):
        record.reasoning += reasoning
        show("reasoning", reasoning)
    if delta.content:
        record.content += delta.content
        show("content", delta.content)
    for call in delta.tool_calls or []:
        entry = record.tool_calls.setdefault(call.index, {"name": "", "arguments": ""})
        if call.function is None:
            continue
        if call.function.name:
            entry["name"] += call.function.name
            show("call", f"{call.function.name} ")
        if call.function.arguments:
            entry["arguments"] += call.function.arguments
            show("call", call.function.arguments)
