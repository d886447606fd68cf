"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from render_tier.protocol.chat import ChatTemplateFields
from render_tier.protocol.messages import check_messages
from render_tier.protocol.request_fields import INT64_MAX, RequestModel
from render_tier.protocol.validation import invalid, validate_as


class TokenizeTextRequest(RequestModel):
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(ChatTemplateFields):
    model: str | None = None
    return_token_strs: bool | None = False


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=INT64_MAX)]]


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str


def parse_tokenize(data: dict[str, Any]) -> TokenizeTextRequest | TokenizeChatRequest:
    """The chat form when there are messages, else the text form. Raises BadRequest."""
    if "messages" not in data or "prompt" in data:
        return validate_as(TokenizeTextRequest, data)
    if data.get("continue_final_message") and data.get("add_generation_prompt"):
        raise invalid("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    return validate_as(TokenizeChatRequest, {**data, "messages": check_messages(data["messages"])})


def parse_detokenize(data: dict[str, Any]) -> DetokenizeRequest:
    """Raises BadRequest."""
    return validate_as(DetokenizeRequest, data)
