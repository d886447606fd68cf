"""A client's messages as a chat template sees them, normalised as vLLM does.

Contents become one string (parts joined by newlines) or a list of typed parts; tool-call arguments become
objects; unknown message keys do not reach the template. The order of keys is vLLM's, because templates print
whole objects as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from render_tier.protocol.errors import BadRequest
from render_tier.protocol.messages import BILLING_HEADER, MEDIA_FIELDS
from render_tier.protocol.validation import invalid
from render_tier.rendering.image_parts import (
    MEDIA_TYPES,
    MediaMarks,
    is_media,
    media_kind,
    refuse_literal,
    with_marks,
)
from render_tier.rendering.settings import ContentFormat

TEXT_FIELDS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Content part types that are text -> the field that holds it."""
SKIPPED_WHEN_NULL = frozenset({"text", "refusal"})
PART_KEYS = frozenset(
    {
        *(
            "text",
            "type",
            "image_url",
            "input_audio",
            "file",
            "refusal",
            "audio_url",
            "video_url",
            "image_pil",
        ),
        *("uuid", "image_embeds", "audio_embeds", "video_embeds", "data", "name", "thinking", "closed"),
    }
)
"""Keys with a meaning; any other key of a text part is handed to templates that take parts."""


def to_conversation(
    messages: Sequence[dict[str, Any]],
    content_format: ContentFormat,
    *,
    model: str,
    strict_history: bool,
    warnings: list[str],
    marks: MediaMarks | None = None,
) -> list[dict[str, Any]]:
    """``messages`` have passed `protocol.messages.check_messages`; they are not changed.

    ``warnings`` receives what was repaired. ``marks``: how images are shown; None for a model that takes text
    only. Raises BadRequest, for media too where the model does not take them.
    """
    conversation = []
    media: frozenset[str] = frozenset()
    if marks is not None:
        media, marks = marks.types, marks.of(messages)
    for index, message in enumerate(messages):
        converted = _convert(message, content_format, model, marks, media)
        if message["role"] == "assistant":
            _add_tool_calls(index, message, converted, strict_history, warnings)
        conversation.append(converted)
    return conversation


def _convert(
    message: dict[str, Any],
    content_format: ContentFormat,
    model: str,
    marks: MediaMarks | None,
    media: frozenset[str],
) -> dict[str, Any]:
    """``media``: the types of parts that the model takes beside texts."""
    role = message["role"]
    content = message.get("content")
    parts: list[Any]
    if content is None:
        parts = []
    elif isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    else:
        parts = content
    if role == "system":
        parts = _without_billing_header(parts)
    as_parts = content_format == "openai"
    converted_parts = [
        converted
        for part in parts
        if (converted := _convert_part(part, as_parts, model, marks, media)) is not None
    ]
    converted_content: Any
    if as_parts:
        converted_content = converted_parts
    elif marks is not None:
        converted_content = with_marks(converted_parts, list(filter(is_media, parts)), marks)
    else:
        converted_content = "\n".join(filter(None, converted_parts))
    result: dict[str, Any] = {"role": role, "content": converted_content}
    if role == "assistant" and message.get("reasoning") is not None:
        result["reasoning"] = message["reasoning"]
        result["reasoning_content"] = message["reasoning"]
    if role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        if isinstance(converted_content, list) and all(
            part.get("type") == "text" for part in converted_content
        ):
            result["content"] = "\n".join(part["text"] for part in converted_content)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "developer":
        tools = message.get("tools")
        result["tools"] = [_ordered_tool(tool) for tool in tools] if isinstance(tools, list) else tools
    return result


def _without_billing_header(parts: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    for part in parts:
        is_text_part = isinstance(part, dict) and part.get("type") == "text"
        text = part.get("text") if is_text_part else part
        if not (isinstance(text, str) and text.startswith(BILLING_HEADER)):
            kept.append(part)
            continue
        rest = text.partition("\n")[2]
        if rest:
            kept.append({**part, "text": rest} if is_text_part else rest)
    return kept


def _convert_part(
    part: Any, as_parts: bool, model: str, marks: MediaMarks | None, media: frozenset[str]
) -> Any:
    """One content part, or None when it holds nothing that is text."""
    if isinstance(part, str):
        if as_parts and marks is not None:
            refuse_literal(part, marks)
        return {"type": "text", "text": part} if as_parts else part
    if marks is not None and is_media(part):
        return {"type": media_kind(part), **_extras(part)} if as_parts else None
    kind = part.get("type")
    marked = part.get("uuid") is not None
    if kind is None or marked:
        if any(field in part for field in MEDIA_FIELDS):
            raise BadRequest(f"{model} is not a multimodal model")
        if kind is None:
            raise invalid("Missing 'type' field in multimodal part.", "type")
    if not isinstance(kind, str):
        raise invalid("Invalid 'type' field in multimodal part.", "type")
    if kind in TEXT_FIELDS:
        return _text_part(part, kind, as_parts, marks)
    if kind == "tool_reference":
        name = part.get("name")
        if not isinstance(name, str):
            raise invalid("A tool_reference part needs a `name`.", "name")
        return {"type": "tool_reference", "name": name} if as_parts else name
    if kind in MEDIA_TYPES:
        raise BadRequest(f"{model} is not a multimodal model")
    if kind == "prompt_embeds":
        raise invalid("You must set `--enable-prompt-embeds` to input `prompt_embeds`", "prompt_embeds")
    supported = ", ".join(sorted({*TEXT_FIELDS, "tool_reference", *media}))
    raise invalid(
        f"Unsupported chat content part type: {kind[:100]!r}. Supported types: {supported}.", "type", kind
    )


def _text_part(part: dict[str, Any], kind: str, as_parts: bool, marks: MediaMarks | None) -> Any:
    text = part.get(TEXT_FIELDS[kind])
    if text is None and kind in SKIPPED_WHEN_NULL:
        return None
    if not isinstance(text, str):
        raise invalid(f"The `{TEXT_FIELDS[kind]}` of a content part must be a string.", TEXT_FIELDS[kind])
    if not as_parts:
        return text
    if marks is not None:
        refuse_literal(text, marks)
    return {"type": "text", "text": text, **_extras(part)}


def _extras(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in PART_KEYS}


def _add_tool_calls(
    index: int, message: dict[str, Any], converted: dict[str, Any], strict: bool, warnings: list[str]
) -> None:
    """An empty list is the same as none: templates take the ordinary assistant branch."""
    calls = message.get("tool_calls")
    if not calls:
        return
    ordered = []
    for position, call in enumerate(calls):
        function = call.get("function")
        if call.get("type", "function") != "function" or not isinstance(function, dict):
            raise invalid(
                "chat completions only support assistant tool_calls of type 'function'.", "tool_calls"
            )
        arguments, fault = parse_arguments(function.get("arguments"))
        if fault:
            where = f"messages.{index}.tool_calls.{position}.function.arguments"
            if strict:
                raise invalid(f"{where}: {fault}", "messages")
            warnings.append(f"{where}: {fault}; read as an empty object")
        ordered.append(
            {
                "id": call.get("id"),
                "function": {
                    "arguments": arguments,
                    "name": function.get("name"),
                    **_others(function, "arguments", "name"),
                },
                "type": "function",
                **_others(call, "id", "function", "type"),
            }
        )
    # `tool_calls` follows `content`, before reasoning, as templates that print whole messages expect.
    later = {name: converted.pop(name) for name in list(converted) if name not in ("role", "content")}
    converted["tool_calls"] = ordered
    converted.update(later)


def parse_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """The arguments as an object, and what was wrong with them if they are not one."""
    if not arguments:
        return {}, None
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}, "not valid JSON"
    if not isinstance(parsed, dict):
        return {}, "JSON, but not an object"
    return parsed, None


def _others(mapping: dict[str, Any], *known: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in known}


def _ordered_tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or not isinstance(function := tool.get("function"), dict):
        return tool
    names = ("name", "description", "parameters", "strict")
    ordered = {name: function[name] for name in names if name in function}
    return {"function": {**ordered, **_others(function, *names)}, **_others(tool, "function")}


def developer_as_system(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates without a developer role: it becomes "system", and all system text moves to the front."""
    converted = []
    for message in conversation:
        if message["role"] == "developer":
            converted.append({**_others(message, "tools"), "role": "system"})
        else:
            converted.append(message)
    systems = [message for message in converted if message["role"] == "system"]
    if len(systems) <= 1 and converted[0]["role"] == "system":
        return converted
    texts = [text for message in systems if (text := _plain_text(message.get("content")))]
    others = [message for message in converted if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _plain_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(
            part if isinstance(part, str) else part["text"] for part in content if "text" in part
        )
    return content or ""
