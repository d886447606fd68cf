"""Shape of chat messages: which of a client's message lists vLLM takes, decided without building models.

vLLM validates messages against a union of typed dictionaries per role and, failing those, an open one; list
contents are checked part by part. The rules here give the same verdicts (``tests/render_tier/protocol``).
"""

from __future__ import annotations

from typing import Any

from render_tier.protocol.errors import BadRequest
from render_tier.protocol.validation import invalid, misshapen

KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool", "developer", "function"})
NULL_CONTENT_ROLES = frozenset({"assistant", "function"})
STRING_FIELDS = ("name", "task")


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """``messages`` with ``reasoning_content`` renamed to ``reasoning``; the caller's objects are not changed.

    Raises BadRequest with the path of the first fault.
    """
    if not isinstance(messages, list):
        entry = {"type": "list_type", "loc": ("messages",), "msg": "Input should be a valid list"}
        raise misshapen([{**entry, "input": messages}])
    return [_check_message(index, message) for index, message in enumerate(messages)]


def _check_message(index: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _fault(index, (), "dict_type", "Input should be a valid dictionary", message)
    role = message.get("role")
    if not isinstance(role, str):
        if "role" not in message:
            raise _fault(index, ("role",), "missing", "Field required", message)
        raise _fault(index, ("role",), "string_type", "Input should be a valid string", role)
    for name in STRING_FIELDS:
        if message.get(name) is not None and not isinstance(message[name], str):
            raise _fault(index, (name,), "string_type", "Input should be a valid string", message[name])
    call_id = message.get("tool_call_id")
    if role == "tool" and call_id is not None and not isinstance(call_id, str):
        raise _fault(index, ("tool_call_id",), "string_type", "Input should be a valid string", call_id)
    _check_content(index, role, message)
    checked = dict(message)
    reasoning_content = checked.pop("reasoning_content", None)
    if reasoning_content is not None and checked.get("reasoning") is None:
        checked["reasoning"] = reasoning_content
    if (role == "assistant" or role not in KNOWN_ROLES) and checked.get("tool_calls") is not None:
        _check_tool_calls(index, checked["tool_calls"])
    return checked


def _check_content(index: int, role: str, message: dict[str, Any]) -> None:
    content = message.get("content")
    if content is None:
        if "content" in message and role not in NULL_CONTENT_ROLES:
            raise _fault(index, ("content",), "string_type", "Input should be a valid string", None)
        return
    if isinstance(content, str) or content == []:
        return
    if not isinstance(content, list):
        raise _fault(index, ("content",), "string_type", "Input should be a valid string or a list", content)
    for position, part in enumerate(content):
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            where = ("content", position)
            raise _fault(index, where, "dict_type", "Input should be a valid dictionary", part)
        text = part.get("text")
        if text is not None and not isinstance(text, str):
            location = ("content", position, "text")
            raise _fault(index, location, "string_type", "Input should be a valid string", text)
    if role in KNOWN_ROLES and not any(_is_typed_part(part) for part in content):
        message_text = f"no valid content part in the {role} message's content list"
        raise invalid(f"messages.{index}: {message_text}: the first {_lack(content[0])}")


PART_FIELDS = {
    "text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "tool_reference": "name",
    "image_url": "image_url",
    "input_audio": "input_audio",
    "audio_url": "audio_url",
    "video_url": "video_url",
    "image_embeds": "image_embeds",
    "audio_embeds": "audio_embeds",
    "video_embeds": "video_embeds",
    "prompt_embeds": "data",
}
"""Content part type -> the field that carries it."""
BILLING_HEADER = "x-anthropic-billing-header"
"""First line of a coding client's system text. It changes with every request, so prompts that keep it never
share a cached prefix; it is dropped."""
MEDIA_FIELDS = (
    "image_url",
    "image_pil",
    "audio_url",
    "video_url",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
)


def _is_typed_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if isinstance(kind, str) and kind in PART_FIELDS:
        is_named = kind in MEDIA_FIELDS and part.get("uuid") is not None
        return is_named or part.get(PART_FIELDS[kind]) is not None
    return kind is None and any(field in part for field in MEDIA_FIELDS)


def _lack(part: Any) -> str:
    """What a part that is not valid is."""
    if not isinstance(part, dict):
        return "is a string and has no 'type'"
    kind = part.get("type")
    if not isinstance(kind, str):
        return "has no 'type'"
    missing = f" and has no {PART_FIELDS[kind]!r}" if kind in PART_FIELDS else ""
    return f"is of type {kind[:100]!r}{missing}"


def _check_tool_calls(index: int, calls: Any) -> None:
    if not isinstance(calls, list):
        raise _fault(index, ("tool_calls",), "list_type", "Input should be a valid list", calls)
    for position, call in enumerate(calls):
        location = ("tool_calls", position)
        if not isinstance(call, dict):
            raise _fault(index, location, "dict_type", "Input should be a valid dictionary", call)
        _require_string(index, location, call, "id")
        kind = call.get("type")
        if kind not in ("function", "custom"):
            fault = "missing" if "type" not in call else "literal_error"
            raise _fault(index, (*location, "type"), fault, "Input should be 'function'", kind)
        body = call.get(kind)
        if not isinstance(body, dict):
            fault = "missing" if kind not in call else "dict_type"
            raise _fault(index, (*location, kind), fault, "Input should be a valid dictionary", body)
        _require_string(index, (*location, kind), body, "name")
        _require_string(index, (*location, kind), body, "arguments" if kind == "function" else "input")


def _require_string(index: int, location: tuple[object, ...], holder: dict[str, Any], name: str) -> None:
    if name not in holder:
        raise _fault(index, (*location, name), "missing", "Field required", holder)
    if not isinstance(holder[name], str):
        raise _fault(index, (*location, name), "string_type", "Input should be a valid string", holder[name])


def _fault(index: int, location: tuple[object, ...], kind: str, message: str, value: Any) -> BadRequest:
    return misshapen([{"type": kind, "loc": ("messages", index, *location), "msg": message, "input": value}])
