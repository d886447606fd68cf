"""An output of a family, read whole and in pieces that must agree."""

from __future__ import annotations

from typing import Any

from tests.families import ours, values
from tests.families.catalogue import FAMILIES
from tests.families.ours import ParsedMessage


def read(
    family: str,
    text: str,
    *,
    prompt: str | None = None,
    choice: str | dict[str, Any] | None = "auto",
    kwargs: dict[str, Any] | None = None,
    tools: bool = True,
) -> ParsedMessage:
    """The message of an output. ``prompt``: how the prompt ends; by default as the family's first opening."""
    writer = FAMILIES[family]
    default_kwargs = writer.openings[0].kwargs if prompt is None else {}
    case = {
        "format": {"tool_parser": writer.tool_parser, "reasoning_parser": writer.reasoning_parser},
        "tokenizer": writer.tokenizer,
        "standin_tokenizer": None if writer.tokenizer else {"base": writer.base, "added": list(writer.added)},
        "prompt_tail": writer.openings[0].tail if prompt is None else prompt,
        "tools": list(values.TOOLS) if tools else None,
        "tool_choice": choice,
        "chat_template_kwargs": kwargs if kwargs is not None else default_kwargs,
        "output_text": text,
    }
    whole = ours.parse_whole(case)
    for chunking in (1, 2, 5):
        assert ours.parse_stream(case, chunking) == whole, f"{chunking} tokens a chunk"
    return whole


def calls(message: ParsedMessage) -> list[tuple[str, str]]:
    """Name and argument text of complete calls."""
    assert all(call.complete for call in message.calls), message.calls
    return [(call.name, call.arguments) for call in message.calls]


def cut(message: ParsedMessage) -> list[tuple[str, str, bool]]:
    """Name, argument text, and whether it is complete."""
    return [(call.name, call.arguments, bool(call.complete)) for call in message.calls]


NAMED = {"type": "function", "function": {"name": "tide_table"}}
