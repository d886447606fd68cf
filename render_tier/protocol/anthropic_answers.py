"""Hop 4, out, for ``/v1/messages``: Anthropic's message object and the events of its stream.

An event is the ``data`` of a server-sent event that is named by its ``type``.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType


class OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: int


class MessageUsage(msgspec.Struct, kw_only=True, gc=False):
    """``input_tokens`` are those not read from a cache; the others are absent when nobody reported them."""

    input_tokens: int
    cache_read_input_tokens: int | UnsetType = UNSET
    output_tokens: int
    output_tokens_details: OutputDetails | UnsetType = UNSET


class Typed(msgspec.Struct, tag_field="type", gc=False):
    """Objects that carry their kind as ``type``."""


# --- content blocks ---


class TextBlock(Typed, tag="text"):
    text: str


class ThinkingBlock(Typed, tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(Typed, tag="tool_use"):
    """``input`` is the JSON that the model wrote."""

    id: str
    name: str
    input: Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageOut(Typed, tag="message", kw_only=True):
    id: str
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


# --- events of a stream ---


class MessageStart(Typed, tag="message_start"):
    message: MessageOut


class BlockStart(Typed, tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(Typed, tag="text_delta"):
    text: str


class ThinkingDelta(Typed, tag="thinking_delta"):
    thinking: str


class SignatureDelta(Typed, tag="signature_delta"):
    signature: str


class InputDelta(Typed, tag="input_json_delta"):
    partial_json: str


class BlockDelta(Typed, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Typed, tag="content_block_stop"):
    index: int


class Stopping(msgspec.Struct, gc=False):
    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Typed, tag="message_delta"):
    delta: Stopping
    usage: MessageUsage


class MessageStop(Typed, tag="message_stop"):
    pass


BlockEvent = BlockStart | BlockDelta | BlockStop
MessageEvent = MessageStart | BlockEvent | MessageDelta | MessageStop

EMPTY_INPUT: Any = Raw(b"{}")
