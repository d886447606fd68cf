"""Chats that no template writes: models whose maker's own library turns messages into tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from render_tier.core.table import ReasoningFormat, ToolFormat
from render_tier.protocol.chat import ChatCompletionRequest, ChatTemplateFields
from render_tier.protocol.errors import BadRequest
from render_tier.rendering.image_parts import has_media, is_media
from render_tier.rendering.structural_tags import Json
from render_tier.rendering.token_ids import PromptIds

Tools = list[dict[str, Any]] | None


@dataclass(frozen=True)
class Parsers:
    """What reads the answers, and how far tool calls are held to their schemas."""

    reasoning: ReasoningFormat | None
    tools: ToolFormat | None
    strict_level: str


@dataclass(frozen=True)
class NativePrompt:
    token_ids: list[int]
    warnings: list[str]


@dataclass(frozen=True)
class OutputRules:
    """What an engine is told about the answer."""

    constraint: Json | None
    keeps_special_tokens: bool
    """A parser must see the special tokens of the output."""
    reasoning_ended: bool | None
    """Constraints hold from the first token on; None: there is no reasoning parser."""


class NativeChat(Protocol):
    """Tools are part of these models' own format, so a tool choice needs no parser."""

    cuts_to_fit: bool
    """Prompts are cut where the client asks for it."""
    joins_parts: bool
    """Reasoning, text and calls of a turn are parts of one message, where they come as items."""
    message_tokens: int
    """What a message, or a call of a tool, takes at least."""

    def check(self, request: ChatCompletionRequest) -> None:
        """Raises BadRequest for what the format cannot express."""
        ...

    def prompt(self, request: ChatTemplateFields, kwargs: dict[str, Any], tools: Tools) -> NativePrompt:
        """``kwargs``: what a template would be given. ``tools``: those that the model is to see.

        Raises BadRequest for a conversation that cannot be written.
        """
        ...

    def rules(
        self, request: ChatCompletionRequest, constraint: Json | None, prompt_ids: PromptIds
    ) -> OutputRules:
        """``constraint``: the request's own. Raises BadRequest for constraints that contradict each other."""
        ...


def refuse_media(messages: list[dict[str, Any]], model: str) -> None:
    """Raises BadRequest for anything but text."""
    if has_media(messages):
        raise BadRequest(f"{model} is not a multimodal model")


def without_media(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages without their images, videos and sounds."""
    return [
        {**message, "content": [part for part in message["content"] if not is_media(part)]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def least_tokens(messages: list[dict[str, Any]], message_tokens: int) -> int:
    """Of a prompt with these messages: each, and each call, takes ``message_tokens``; a part one."""
    count = 0
    for message in messages:
        count += message_tokens * max(1, len(message.get("tool_calls") or ()))
        content = message.get("content")
        count += len(content) if isinstance(content, list) else 0
    return count
