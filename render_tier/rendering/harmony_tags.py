"""What gpt-oss may write, as structural tags: reasoning, then a call of a tool or the final answer.

A head names the recipient before or after its channel, and the kind of content with or without its marker;
models write all of these. Tags end with the marker or with nothing, because an engine takes tokens that end
an answer for none of the grammar's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from render_tier.rendering.structural_tags import (
    CallableTool,
    Demand,
    Json,
    either,
    json_schema,
    sequence,
    tag,
    text,
)

JSON_KINDS: Final = (" json", " <|constrain|>json")
CHANNELS: Final = ("<|channel|>commentary", "<|channel|>analysis", "<|channel|>final")
ENDS: Final = ("<|end|>", "")
ANY_TEXT: Final[Json] = {"type": "any_text", "excludes": [], "max_tokens": None, "max_chars": None}


class HarmonyCalls:
    """A `structural_tags.ToolGrammar`. How many calls an answer holds is not for it to say: each of them ends
    the answer."""

    strict_level: Literal["auto", "function"] = "auto"

    def build(self, tools: Sequence[CallableTool], demand: Demand, single: bool) -> Json:
        heads = [
            (tool, head.format(name=tool.name, channel=channel, kind=kind))
            for tool in tools
            for head in (
                " to=functions.{name}{channel}{kind}<|message|>",
                "{channel} to=functions.{name}{kind}<|message|>",
            )
            for kind in JSON_KINDS
            for channel in CHANNELS
        ]
        messages = [tag(head, json_schema(tool.arguments), ENDS) for tool, head in heads]
        if demand == "auto":
            messages += [_final(ANY_TEXT, kind) for kind in (*JSON_KINDS, "")]
        return sequence(_before("analysis"), _before("commentary"), either(messages))


def in_final_message(content: Json) -> Json:
    """A constraint's format, held in the message that is the answer."""
    if content["type"] == "json_schema":
        return sequence(_before("analysis"), either([_final(content, kind) for kind in JSON_KINDS]))
    return sequence(_before("analysis"), _final(content, ""))


def _final(content: Json, kind: str) -> Json:
    return tag(f"<|channel|>final{kind}<|message|>", content, ENDS)


def _before(channel: str) -> Json:
    """A message on a channel, with the head of the next one, or nothing."""
    message = tag(f"<|channel|>{channel}<|message|>", ANY_TEXT, "<|end|>")
    return {"type": "optional", "content": sequence(message, text("<|start|>assistant"))}
