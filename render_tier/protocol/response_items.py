"""Items of a Responses request's input: which of a client's lists vLLM takes, decided item by item.

vLLM validates an item against a union of some sixty types and then takes the six kinds that a chat can hold.
The rules here give the same verdicts for those six; the other kinds are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from render_tier.protocol.errors import BadRequest
from render_tier.protocol.validation import invalid, misshapen

UNFINISHED: Final = frozenset({"in_progress", "incomplete"})
STATUSES: Final = frozenset({"completed", *UNFINISHED})
PHASES: Final = frozenset({"commentary", "final_answer"})
INPUT_ROLES: Final = frozenset({"user", "system", "developer"})
PART_FIELDS: Final = {"input_text": "text", "input_image": None, "input_file": None}
"""Content part type -> the field that must be text."""
OTHER_ITEMS: Final = frozenset(
    {
        *("item_reference", "web_search_call", "file_search_call", "computer_call", "computer_call_output"),
        *("image_generation_call", "code_interpreter_call", "local_shell_call", "local_shell_call_output"),
        *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output", "program"),
        *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call", "compaction"),
        *("tool_search_call", "tool_search_output", "additional_tools", "program_output"),
        *("compaction_trigger", "configuration_update"),
    }
)
"""Kinds that need OpenAI's servers, which run the tools and keep the conversations."""

Kind = Literal["message", "said", "reasoning", "call", "result"]


def flat_name(namespace: str, name: str) -> str:
    """What a model is told a function of a namespace is called, as in vLLM."""
    return f"{namespace}__{name}"


@dataclass(frozen=True, slots=True)
class InputItem:
    """``message``: a turn as chat has it, in ``fields``: what is checked of it, and nothing else. The others
    are parts of turns: text that the assistant said, its reasoning (``text``), a call that it made
    (``call_id``, ``name``, ``text`` the arguments), and the result of one (``call_id``, ``content``).

    ``custom``: the call is of a custom tool, and ``text`` its input. ``unfinished``: the model is to go on
    with it.
    """

    kind: Kind
    fields: dict[str, Any] | None = None
    text: str = ""
    call_id: str | None = None
    name: str = ""
    content: Any = None
    custom: bool = False
    unfinished: bool = False


def check_input(given: Any) -> str | list[InputItem]:
    """Raises BadRequest with the place of the first fault."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        entry = {"type": "string_type", "loc": ("input",), "msg": "Input should be a valid string or a list"}
        raise misshapen([{**entry, "input": given}])
    return [_check_item(index, item) for index, item in enumerate(given)]


def _check_item(index: int, item: Any) -> InputItem:
    if not isinstance(item, dict):
        raise _fault(index, "", "dict_type", "Input should be a valid dictionary", item)
    kind = item.get("type")
    if kind is None and "type" not in item and "role" not in item and isinstance(item.get("id"), str):
        raise _unsupported(None)
    if kind == "message" or "type" not in item:
        return _message(index, item)
    if kind == "reasoning":
        return _reasoning(index, item)
    if kind == "function_call":
        name = _text(index, item, "name")
        namespace = _optional_text(index, item, "namespace")
        _check_status(index, item)
        return InputItem(
            "call",
            text=_text(index, item, "arguments"),
            call_id=_text(index, item, "call_id"),
            name=flat_name(namespace, name) if namespace else name,
        )
    if kind == "custom_tool_call":
        return InputItem(
            "call",
            text=_text(index, item, "input"),
            call_id=_text(index, item, "call_id"),
            name=_text(index, item, "name"),
            custom=True,
        )
    if kind == "function_call_output":
        _check_status(index, item)
        call_id = _optional_text(index, item, "call_id")
        return InputItem("result", call_id=call_id, content=_output(index, item))
    if kind == "custom_tool_call_output":
        call_id = _text(index, item, "call_id")
        return InputItem("result", call_id=call_id, content=_output(index, item))
    if _is_one_of(kind, OTHER_ITEMS):
        raise _unsupported(kind)
    raise _fault(index, "type", "union_tag_invalid", "no type of input item", kind)


def _message(index: int, item: dict[str, Any]) -> InputItem:
    role = item.get("role")
    unfinished = _is_one_of(item.get("status"), UNFINISHED)
    content = item.get("content")
    if role == "assistant":
        if item.get("type") == "message" and isinstance(content, list):
            said = _output_text(item, content)
            if said is not None:
                return InputItem("said", text=said, unfinished=unfinished)
        _check_content(index, "content", content)
        if not (item.get("phase") is None or _is_one_of(item["phase"], PHASES)):
            raise _fault(index, "phase", "literal_error", "no phase of a message", item["phase"])
        if isinstance(content, str):
            return InputItem("said", text=content, unfinished=unfinished)
        if content and isinstance(content[0].get("text"), str):
            return InputItem("said", text=content[0]["text"], unfinished=unfinished)
        return InputItem("message", fields={"role": role, "content": content}, unfinished=unfinished)
    if not _is_one_of(role, INPUT_ROLES):
        raise _fault(index, "role", "literal_error", "no role of an input message", role)
    _check_content(index, "content", content)
    return InputItem("message", fields={"role": role, "content": content}, unfinished=unfinished)


def _output_text(item: dict[str, Any], content: list[Any]) -> str | None:
    """The first text of a message as an answer holds it; None when it has not that shape. A refusal is what
    was said, too."""
    if not _is_status(item.get("status")) or not isinstance(item.get("id", ""), str):
        return None
    texts = []
    for part in content:
        if not isinstance(part, dict):
            return None
        text = part.get({"output_text": "text", "refusal": "refusal"}.get(str(part.get("type")), ""))
        if not isinstance(text, str):
            return None
        texts.append(text)
    return texts[0] if texts else ""


def _reasoning(index: int, item: dict[str, Any]) -> InputItem:
    summary, content = item.get("summary"), item.get("content")
    _check_status(index, item)
    if not isinstance(summary, list):
        raise _fault(index, "summary", "list_type", "Input should be a valid list", summary)
    if _optional_text(index, item, "encrypted_content"):
        raise invalid("Encrypted content is not supported.", "input")
    parts: list[str] = []
    for given, kind in ((content, "reasoning_text"), (summary, "summary_text")):
        for part in given if isinstance(given, list) else ():
            right = isinstance(part, dict) and part.get("type") == kind and isinstance(part.get("text"), str)
            if not right:
                raise _unsupported("reasoning")
            parts.append(part["text"])
    if content is not None and not isinstance(content, list):
        raise _fault(index, "content", "list_type", "Input should be a valid list", content)
    return InputItem(
        "reasoning", text=parts[0] if parts else "", unfinished=_is_one_of(item.get("status"), UNFINISHED)
    )


def _output(index: int, item: dict[str, Any]) -> Any:
    _check_content(index, "output", item.get("output"))
    return item["output"]


def _check_content(index: int, field: str, content: Any) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise _fault(index, field, "string_type", "Input should be a valid string or a list", content)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in PART_FIELDS:
            raise _fault(index, field, "union_tag_invalid", "no part of an input message", part)
        text = PART_FIELDS[kind]
        if text is not None and not isinstance(part.get(text), str):
            raise _fault(index, f"{field}.{text}", "string_type", "Input should be a valid string", part)


def _check_status(index: int, item: dict[str, Any]) -> None:
    if not _is_status(item.get("status")):
        raise _fault(index, "status", "literal_error", "no status of an item", item["status"])


def _is_status(value: Any) -> bool:
    return value is None or _is_one_of(value, STATUSES)


def _is_one_of(value: Any, words: frozenset[str]) -> bool:
    return isinstance(value, str) and value in words


def _text(index: int, item: dict[str, Any], field: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        kind = "string_type" if field in item else "missing"
        raise _fault(index, field, kind, "Input should be a valid string", value)
    return value


def _optional_text(index: int, item: dict[str, Any], field: str) -> str | None:
    return None if item.get(field) is None else _text(index, item, field)


def _fault(index: int, field: str, kind: str, message: str, value: Any) -> BadRequest:
    """``param`` is the list, as in vLLM, whose union of types names no single item; the message names it."""
    where = f"input.{index}.{field}" if field else f"input.{index}"
    return misshapen([{"type": kind, "loc": ("input",), "msg": f"{where}: {message}", "input": value}])


def _unsupported(kind: str | None) -> BadRequest:
    return invalid(f"Unsupported input item type: {kind}", "input")
