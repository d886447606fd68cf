"""Requests of the other APIs as the chats that this model can be asked."""

from __future__ import annotations

from render_tier.model import ModelAssets
from render_tier.protocol import responses_as_chat
from render_tier.protocol.anthropic import CountTokensRequest
from render_tier.protocol.anthropic_as_chat import as_chat
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.responses_request import ResponsesRequest
from render_tier.rendering.native_chat import NativeChat
from render_tier.rendering.system_order import refuses_inline_system


class AsChats:
    def __init__(self, assets: ModelAssets, native: NativeChat | None) -> None:
        """``native``: of a model whose chats no template writes."""
        self._joins_parts = native is None or native.joins_parts
        templates = (assets.chat_template, assets.tool_chat_template)
        self._merges_inline_system = refuses_inline_system(templates)

    def messages(self, request: CountTokensRequest) -> ChatCompletionRequest:
        """Of Anthropic's API. Raises ApiError."""
        return as_chat(request, merge_inline_system=self._merges_inline_system)

    def responses(self, request: ResponsesRequest) -> ChatCompletionRequest:
        """Raises ApiError."""
        if not self._joins_parts and request.previous_input_messages:
            raise BadRequest(
                "previous_input_messages is not supported. Send the history as items of `input`.",
                param="previous_input_messages",
            )
        return responses_as_chat.as_chat(request, joined=self._joins_parts)
