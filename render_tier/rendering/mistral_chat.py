"""Models with a tokenizer of Mistral's format: chats are checked and encoded by ``mistral-common``.

The library refuses conversations that the model was not trained on (order of roles, IDs of calls, reasoning
where the model has none). Tool calls are held to a grammar of the library's where the tokenizer has the
tokens for one (version 11 and later), before that to a JSON list of calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import structlog

from render_tier.core.formats import prompt_reasoning
from render_tier.core.vocabulary import Vocabulary
from render_tier.model.mistral_tokenizer import MistralTokenizer
from render_tier.protocol.chat import ChatCompletionRequest, ChatTemplateFields
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.validation import invalid
from render_tier.rendering.constraints import with_tool_choice
from render_tier.rendering.conversation import parse_arguments, to_conversation
from render_tier.rendering.image_parts import MediaMarks, is_media
from render_tier.rendering.mistral_grammar import MistralGrammar
from render_tier.rendering.native_chat import NativePrompt, OutputRules, Parsers, Tools
from render_tier.rendering.structural_tags import Json
from render_tier.rendering.token_ids import PromptIds

log = structlog.get_logger()
CALL_ID_LENGTH = 9
"""IDs of calls have exactly so many letters and digits; of longer ones the end is kept, in the calls and in
their results alike."""
EFFORT_VERSION = 15
"""Tokenizers from this version on take a reasoning effort."""
TOOL_PARSER = "mistral"


class MistralChat:
    """A `native_chat.NativeChat`. Thread-safe."""

    cuts_to_fit = True
    joins_parts = True
    message_tokens = 1

    def __init__(
        self,
        model: str,
        tokenizer: MistralTokenizer,
        vocabulary: Vocabulary,
        parsers: Parsers,
        *,
        strict_history: bool,
        marks: MediaMarks | None = None,
    ) -> None:
        """``strict_history``: refuse malformed arguments in the history instead of reading them as {}.
        ``marks``: for a model that takes images."""
        from mistral_common.protocol.instruct.request import ChatCompletionRequest as LibraryRequest

        self._request_type = LibraryRequest
        self._model = model
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._parsers = parsers
        self._strict_history = strict_history
        # The tokenizer reads no token out of a text.
        self._marks = None if marks is None else replace(marks, literal_is_text=True)
        self._holds = parsers.tools is not None and parsers.tools.name == TOOL_PARSER
        has_grammar = self._holds and MistralGrammar.exists(tokenizer)
        self._grammar = MistralGrammar(tokenizer) if has_grammar else None

    def check(self, request: ChatCompletionRequest) -> None:
        if request.chat_template is not None or request.chat_template_kwargs is not None:
            raise invalid("chat_template is not supported for Mistral tokenizers.", "chat_template")

    def prompt(self, request: ChatTemplateFields, kwargs: dict[str, Any], tools: Tools) -> NativePrompt:
        _check_final_message(request)
        warnings: list[str] = []
        # Parts that are no text never reach the library as they are: it would fetch and decode some of them.
        to_conversation(
            request.messages,
            "string" if self._marks is None else "openai",
            model=self._model,
            strict_history=self._strict_history,
            warnings=warnings,
            marks=self._marks,
        )
        numbers = count()
        messages = [
            self._read(place, said | {"content": _as_chunks(said.get("content"), numbers)}, warnings)
            for place, said in enumerate(request.messages)
        ]
        options = {"reasoning_effort": kwargs.get("reasoning_effort")}
        try:
            chat = self._request_type.from_openai(
                messages=messages,
                tools=tools,
                continue_final_message=request.continue_final_message,
                **(options if self._tokenizer.version >= EFFORT_VERSION else {}),
            )
            token_ids, images = self._tokenizer.chat(chat)
        except Exception as error:
            from mistral_common.exceptions import MistralCommonException

            # Exceptions of the library's own, assertions, and whatever odd messages run into: all are taken
            # for the conversation's fault; those of unknown kinds are logged.
            if isinstance(error, MistralCommonException | ValueError | AssertionError):
                raise BadRequest(str(error)) from None
            kind = type(error).__name__
            log.warning("mistral_chat_failed", error=kind, reason=str(error)[:200])
            raise BadRequest(f"mistral-common cannot read the conversation: {kind} {error}") from None
        if images != list(range(next(numbers))):
            raise BadRequest(
                "the prompt does not have the images in the order of the messages: put the results of tools"
                " in the order of their calls",
                param="messages",
            )
        return NativePrompt(token_ids, warnings)

    def rules(
        self, request: ChatCompletionRequest, constraint: Json | None, prompt_ids: PromptIds
    ) -> OutputRules:
        parsers = self._parsers
        grammar = self._grammar
        if grammar is not None and grammar.covers(request):
            # The grammar itself says where reasoning may stand.
            return OutputRules(
                grammar.of(request, constraint), keeps_special_tokens=False, reasoning_ended=True
            )
        keeps = (self._holds and (bool(request.tools) and request.tool_choice != "none")) or (
            parsers.reasoning is not None
        )
        return OutputRules(
            with_tool_choice(request, constraint, parsers.tools, parsers.strict_level),
            keeps_special_tokens=keeps,
            reasoning_ended=self._reasoning_ended(request, prompt_ids),
        )

    def _read(self, place: int, message: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
        """A copy of the message whose IDs of calls are no longer than the model's own and whose arguments
        are objects."""
        message, where = dict(message), f"messages.{place}"
        if message["role"] == "assistant":
            message["tool_calls"] = [
                self._read_call(call, f"{where}.tool_calls.{index}", warnings)
                for index, call in enumerate(message.get("tool_calls") or ())
            ]
        elif message["role"] in ("tool", "tool_results") and "tool_call_id" in message:
            message["tool_call_id"] = _short(message["tool_call_id"], f"{where}.tool_call_id", warnings)
        return message

    def _read_call(self, call: dict[str, Any], where: str, warnings: list[str]) -> dict[str, Any]:
        call = {**call, "id": _short(call.get("id"), f"{where}.id", warnings)}
        function = call.get("function")
        if isinstance(function, dict):
            arguments, _ = parse_arguments(function.get("arguments"))  # its fault is in the warnings already
            call["function"] = {**function, "arguments": arguments}
        return call

    def _reasoning_ended(self, request: ChatCompletionRequest, prompt_ids: PromptIds) -> bool | None:
        if not request.include_reasoning:
            return True
        reasoning = self._parsers.reasoning
        if reasoning is None:
            return None
        if not MistralGrammar.exists(self._tokenizer):
            return True  # models of that age do not reason
        return prompt_reasoning(reasoning, prompt_ids, self._vocabulary, self._parsers.tools) is False


def _as_chunks(content: Any, numbers: Iterator[int]) -> Any:
    """In the library's words: texts of the Responses API are such as others, and an image has its number,
    counted over all messages, for its URL."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "image_url", "image_url": {"url": str(next(numbers))}}
        if is_media(part)
        else {"type": "text", "text": part["text"]}
        if isinstance(part, dict) and part.get("type") == "input_text"
        else part
        for part in content
    ]


def _check_final_message(request: ChatTemplateFields) -> None:
    if not request.messages:
        raise BadRequest("messages must not be empty")
    is_assistant = request.messages[-1]["role"] == "assistant"
    if request.add_generation_prompt and is_assistant:
        raise BadRequest(
            "Cannot set `add_generation_prompt` to True when the last message is from the assistant. "
            "Consider using `continue_final_message` instead."
        )
    if request.continue_final_message and not is_assistant:
        raise BadRequest(
            "Cannot set `continue_final_message` to True when the last message is not from the assistant."
        )


def _short(identifier: Any, where: str, warnings: list[str]) -> Any:
    if not isinstance(identifier, str) or len(identifier) <= CALL_ID_LENGTH:
        return identifier
    warnings.append(f"{where}: cut to its last {CALL_ID_LENGTH} characters")
    return identifier[-CALL_ID_LENGTH:]
