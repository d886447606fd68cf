"""A Messages request as the chat request that renders to the same prompt and parameters; vLLM's mapping.

Render and derender both go through it: one for the prompt, the other for tools, stop strings and switches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from render_tier.protocol.anthropic import (
    TOOL_CHANGES,
    AnthropicMessage,
    AnthropicTool,
    Content,
    ContentBlock,
    CountTokensRequest,
    MessagesRequest,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolDefinition,
)
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import ApiError, BadRequest
from render_tier.protocol.messages import BILLING_HEADER, check_messages
from render_tier.protocol.request_fields import check_cache_salt
from render_tier.protocol.validation import summarise

Json = dict[str, Any]

DEFAULT_IMAGE_TYPE = "image/jpeg"
SOURCE_FIELDS = {"base64": "data", "url": "url"}
"""Type of an image's source -> the field that carries it."""
COPIED_FIELDS = (
    *("temperature", "top_p", "top_k", "watermarking", "cache_salt", "mm_payload"),
    *("kv_transfer_params", "ec_transfer_params", "vllm_xargs"),
)
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def as_chat(request: CountTokensRequest, *, merge_inline_system: bool = False) -> ChatCompletionRequest:
    """``merge_inline_system``: system messages inside the conversation move to its beginning, for templates
    that take them nowhere else. Raises BadRequest."""
    fields: Json = {
        "model": request.model,
        "messages": chat_messages(request, merge_inline_system=merge_inline_system),
        "chat_template_kwargs": request.chat_template_kwargs,
        **_reasoning_fields(request),
        **_tool_fields(request),
    }
    if isinstance(request, MessagesRequest):
        fields |= {name: getattr(request, name) for name in COPIED_FIELDS}
        fields["max_tokens"] = fields["max_completion_tokens"] = request.max_tokens
        fields["stop"] = request.stop_sequences
        if request.stream:
            fields["stream"] = True
            fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    check_cache_salt(fields)
    try:
        fields["messages"] = check_messages(fields["messages"])
        return ChatCompletionRequest.model_validate(fields)
    except (ApiError, ValidationError) as error:
        # The fault is of a field that the client did not write.
        raise BadRequest(error.message if isinstance(error, ApiError) else str(error)) from None


def chat_messages(request: CountTokensRequest, *, merge_inline_system: bool) -> list[Json]:
    """The conversation, system text first."""
    messages: list[Json] = []
    inline = [message.content for message in request.messages if message.role == "system"]
    texts = [_top_system_text(request.system), *map(_system_text, inline if merge_inline_system else ())]
    if system := "".join(texts):
        messages.append({"role": "system", "content": system})
    for index, message in enumerate(request.messages):
        if message.role != "system":
            messages += _turn(message, f"messages.{index}")
        elif not merge_inline_system and (text := _system_text(message.content)):
            messages.append({"role": "system", "content": text})
    return messages


def _top_system_text(system: Content | None) -> str:
    return system if isinstance(system, str) else _system_text(system or [])


def _system_text(content: Content) -> str:
    texts = [content] if isinstance(content, str) else [_text(block) for block in content]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _text(block: ContentBlock) -> str:
    return (block.text or "") if block.type == "text" else ""


def _turn(message: AnthropicMessage, where: str) -> list[Json]:
    """What one message becomes: tool results are messages of their own, ahead of what else a user says.
    ``where`` it is in the request."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[Json] = []
    parts: list[Json] = []
    calls: list[Json] = []
    reasoning: list[str] = []
    for position, block in enumerate(message.content):
        place = f"{where}.content.{position}"
        if block.type == "text" and block.text:
            parts.append({"type": "text", "text": block.text})
        elif block.type == "image":
            parts.append(_image(block.source, place))
        elif block.type == "thinking" and block.thinking is not None:
            reasoning.append(block.thinking)
        elif block.type == "tool_use":
            calls.append(_call(block, len(calls)))
        elif block.type == "tool_result" and message.role == "user":
            results += _tool_result(block, place)
        elif block.type == "tool_result":
            shown = str(block.content) if block.content else ""
            parts.append({"type": "text", "text": f"Tool result: {shown}"})
    turn: Json = {"role": message.role}
    if reasoning:
        turn["reasoning"] = "".join(reasoning)
    if calls:
        turn["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        turn["content"] = parts[0]["text"]
    elif parts:
        turn["content"] = parts
    return results if message.role == "user" and not parts else [*results, turn]


def _image(source: object, where: str) -> Json:
    """Raises BadRequest for a source without an image, which vLLM leaves out, or takes for an empty file."""
    where = f"{where}.source"
    if not isinstance(source, dict) or not source:
        raise BadRequest(f"{where}: the image needs a source, which is an object", param=where)
    kind = source.get("type", "base64")
    field = SOURCE_FIELDS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise BadRequest(
            f"{where}.type: sources of the type {summarise(kind)} are not supported; "
            f"{' and '.join(SOURCE_FIELDS)} are",
            param=f"{where}.type",
        )
    held = source.get(field)
    if not isinstance(held, str) or not held:
        raise BadRequest(
            f"{where}.{field}: the image needs `{field}`, which is a string", param=f"{where}.{field}"
        )
    if field == "data":
        held = f"data:{source.get('media_type', DEFAULT_IMAGE_TYPE)};base64,{held}"
    return {"type": "image_url", "image_url": {"url": held}}


def _call(block: ContentBlock, position: int) -> Json:
    try:
        arguments = json.dumps(block.input or {})
    except RecursionError:
        raise BadRequest("the input of a tool_use block nests too deeply") from None
    return {
        "id": block.id or f"call_{position}",
        "type": "function",
        "function": {"name": block.name or "", "arguments": arguments},
    }


def _tool_result(block: ContentBlock, where: str) -> list[Json]:
    answered: Json = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
    if not isinstance(block.content, list):
        return [{**answered, "content": block.content or ""}]
    texts: list[str] = []
    images: list[Json] = []
    references: list[Json] = []
    for position, item in enumerate(block.content):
        kind = item.get("type")
        if kind == "text":
            texts.append(_string(item.get("text", "")))
        elif kind == "image":
            images.append(_image(item.get("source"), f"{where}.content.{position}"))
        elif kind == "tool_reference" and (name := item.get("tool_name") or item.get("name")):
            references.append({"type": "tool_reference", "name": name})
    messages = [{**answered, "content": "\n".join(texts)}]
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append({**answered, "content": references})
    return messages


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise BadRequest("the text of a tool result must be a string")
    return value


def _reasoning_fields(request: CountTokensRequest) -> Json:
    fields: Json = {}
    config, thinking = request.output_config, request.thinking
    if config is not None and config.format is not None and config.format.json_schema:
        schema = {"name": config.format.type, "schema": config.format.json_schema}
        fields["response_format"] = {"type": config.format.type, "json_schema": schema}
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    if isinstance(thinking, ThinkingDisabled):
        fields["reasoning_effort"] = "none"
    elif isinstance(thinking, ThinkingEnabled):
        fields["thinking_token_budget"] = thinking.budget_tokens
    return fields


def _tool_fields(request: CountTokensRequest) -> Json:
    fields: Json = {"tool_choice": None}
    choice = request.tool_choice
    if choice is not None:
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        named = {"type": "function", "function": {"name": choice.name}}
        fields["tool_choice"] = TOOL_CHOICES.get(choice.type, named)
    tools = _tools_at_the_end(request.tools, request.messages)
    if tools is not None:
        if (
            tools
            and choice is not None
            and choice.type == "tool"
            and choice.name not in {t.name for t in tools}
        ):
            raise BadRequest(f"tool_choice names {choice.name!r}, which is not one of the tools")
        fields["tools"] = [_chat_tool(tool) for tool in tools]
        if choice is None:
            fields["tool_choice"] = "auto"
    return fields


def _chat_tool(tool: AnthropicTool) -> Json:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
        "defer_loading": tool.defer_loading,
    }
    return {"type": "function", "function": function}


def _tools_at_the_end(
    declared: list[AnthropicTool] | None, messages: Sequence[AnthropicMessage]
) -> list[AnthropicTool] | None:
    """The tools after the changes that system messages make on the way: templates see one list."""
    changes = [
        block
        for message in messages
        if isinstance(message.content, list)
        for block in message.content
        if block.type in TOOL_CHANGES
    ]
    if not changes:
        return declared
    tools = {tool.name: tool for tool in declared or ()}
    removed: set[str] = set()
    for block in changes:
        if isinstance(block.tool, ToolDefinition):
            name = block.tool.definition.name
            tools[name] = block.tool.definition
        else:
            assert block.tool is not None
            name = block.tool.name
            if name not in tools:
                raise BadRequest(f"{block.type} references tool {name!r}, which is not declared in tools")
            if block.type == "tool_addition":
                tools[name] = tools[name].model_copy(update={"defer_loading": None})
        if block.type == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in tools.items() if name not in removed]
