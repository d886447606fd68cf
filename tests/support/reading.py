"""Reading one output text in the parsers of a family, in every way at once: whole, and by character with the
state written down between any two. A test that gets an answer has seen that all ways agree."""

from __future__ import annotations

from functools import cache
from typing import Any

from render_tier.core.formats import PLAIN, reasoning_format, tool_format
from render_tier.core.grammar import Grammar
from render_tier.core.machine import Machine, MachineOptions
from render_tier.core.tool_schema import ToolSchemas
from render_tier.core.vocabulary import build_vocabulary
from tests.support.collected import Collected

Schema = dict[str, Any]


def tool(name: str, **properties: Schema) -> dict[str, Any]:
    """A function tool of the request with these parameters."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NULLABLE: Schema = {"anyOf": [STRING, {"type": "null"}]}
TOOLS = [
    tool(
        "brew",
        leaf=STRING,
        minutes=INTEGER,
        sweet={"type": "boolean"},
        note=NULLABLE,
        grams={"type": "number"},
        steps={"type": "array", "items": INTEGER},
        opts={"type": "object", "properties": {"deg": {"type": "number"}}},
        either={"anyOf": [INTEGER, STRING]},
    ),
    tool("ping"),
]


def read(
    text: str,
    *,
    reasoning: str | None = None,
    tool: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    prompt: bool | None = None,
    **options: Any,
) -> Collected:
    """The answer that the text is read as. ``tools``: of the request, `TOOLS` when not given."""
    grammar = _grammar(reasoning, tool)
    opts = MachineOptions(tools=ToolSchemas(TOOLS if tools is None else tools), **options)
    machine = Machine(grammar, opts, prompt)
    whole = Collected().add(machine.feed_text(text)).add(machine.finish())
    machine = Machine(grammar, opts, prompt)
    got = Collected()
    for character in text:
        machine = Machine.restore(grammar, opts, machine.snapshot())
        got.add(machine.feed_text(character))
    assert got.add(machine.finish()) == whole
    return whole


def calls(got: Collected) -> list[tuple[str, str]]:
    """Names and argument texts."""
    return [(call.name, call.arguments) for call in got.calls]


def arguments(text: str, family: str, **more: Any) -> str:
    """The argument text of the one call in this output."""
    got = read(text, tool=family, **more)
    assert len(got.calls) == 1, got
    assert got.content == ""
    return got.calls[0].arguments


@cache
def _grammar(reasoning: str | None, tool: str | None) -> Grammar:
    vocabulary = build_vocabulary({"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}})
    return Grammar(
        reasoning_format(reasoning) if reasoning else None, tool_format(tool) if tool else PLAIN, vocabulary
    )
