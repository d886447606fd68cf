"""Chats that no template writes: models whose maker's own library turns messages into tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from render_tier.core.table import ReasoningFormat, ToolFormat
from render_tier.protocol.chat import ChatCompletionRequest, ChatTemplateFields
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.messages import MEDIA_FIELDS
from render_tier.rendering.conversation import MEDIA_TYPES
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
    for message in messages:
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and (
                part.get("type") in MEDIA_TYPES or any(field in part for field in MEDIA_FIELDS)
            ):
                raise BadRequest(f"{model} is not a multimodal model")
