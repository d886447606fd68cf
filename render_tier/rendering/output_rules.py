"""What an engine is told about the answer to a chat, and the tool choices that nothing could read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render_tier.core.formats import starts_with_reasoning
from render_tier.core.vocabulary import Vocabulary
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.rendering.constraints import requested_constraint, with_tool_choice
from render_tier.rendering.native_chat import NativeChat, OutputRules, Parsers
from render_tier.rendering.token_ids import PromptIds


class AnswerRules:
    """Thread-safe; keeps nothing between requests."""

    def __init__(self, parsers: Parsers, vocabulary: Vocabulary, native: NativeChat | None) -> None:
        """``native``: of a model whose chats no template writes."""
        self._parsers = parsers
        self._vocabulary = vocabulary
        self._native = native

    def check_tool_choice(self, request: ChatCompletionRequest) -> None:
        """Raises BadRequest for calls that no parser would read."""
        choice = request.tool_choice
        if self._native is not None or self._parsers.tools is not None or choice is None or choice == "none":
            return
        if choice == "auto":
            raise BadRequest(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            )
        named = request.forced_function
        described = f'"{choice}"' if named is None else f'function "{named[:100]}"'
        raise BadRequest(f"tool_choice={described} requires --tool-call-parser to be set")

    def rules(
        self, request: ChatCompletionRequest, kwargs: Mapping[str, Any], prompt_ids: PromptIds
    ) -> OutputRules:
        """``kwargs``: what the template was given. Raises BadRequest for constraints that contradict each
        other."""
        constraint = requested_constraint(request)
        if self._native is not None:
            return self._native.rules(request, constraint, prompt_ids)
        return OutputRules(
            with_tool_choice(request, constraint, self._parsers.tools, self._parsers.strict_level),
            keeps_special_tokens=self._keeps_special_tokens(request),
            reasoning_ended=self._reasoning_ended(request, kwargs, prompt_ids),
        )

    def _keeps_special_tokens(self, request: ChatCompletionRequest) -> bool:
        """Whether a parser must see the special tokens of the output."""
        reasoning, tools = self._parsers.reasoning, self._parsers.tools
        if reasoning is not None and reasoning.keeps_special_tokens:
            return True
        uses_tools = bool(request.tools) and request.tool_choice != "none"
        return tools is not None and tools.keeps_special_tokens and uses_tools

    def _reasoning_ended(
        self, request: ChatCompletionRequest, kwargs: Mapping[str, Any], prompt_ids: PromptIds
    ) -> bool | None:
        if not request.include_reasoning:
            return True
        fmt = self._parsers.reasoning
        if fmt is None:
            return None
        is_open = starts_with_reasoning(fmt, self._parsers.tools, prompt_ids, self._vocabulary, kwargs)
        if is_open is not None:
            return not is_open
        return fmt.initial not in fmt.states
