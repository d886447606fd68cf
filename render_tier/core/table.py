"""What a model family's table is made of.

A family writes markers (``<think>``, ``<tool_call>``) into its output. A table names the states between
markers; each state says what ordinary text is there (`Region`) and which marker leads where. A state may
instead have a *body*: a small parser that owns the text until it says that it is done or that the text is
none of its own (`body.Body`). Everything a table says is data, so the tables of a reasoning and a tool
family can be joined (`grammar.compose`) and checked when they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal

from render_tier.core.body import BodyFormat

CONTENT: Final = "content"
"""The state that every tool table has and every reasoning table leads to: the answer's visible text."""


class Region(IntEnum):
    """What a piece of output is to the client."""

    MARKUP = 0
    """Markers, and text that the family's format says is not shown."""
    REASONING = 1
    CONTENT = 2
    CALL = 3
    """Name and arguments of a tool call, with the syntax around them."""


class TableError(ValueError):
    """A table contradicts itself."""


@dataclass(frozen=True)
class State:
    """One state of a table: either text with markers, or a body.

    ``text``: what ordinary text is here. ``on``: marker to the next state's name; a marker itself is never
    shown. ``body``: the parser that owns the text instead; it goes on to ``done`` when it has read its
    value, or to ``failed`` when the text is not what it parses, and then the marker that led here and all
    the body has read become text of that state.
    """

    text: Region = Region.MARKUP
    on: Mapping[str, str] = field(default_factory=dict)
    body: BodyFormat | None = None
    done: str = ""
    failed: str = ""


@dataclass(frozen=True)
class ReasoningFormat:
    """How a family writes its reasoning.

    ``states`` go on to the state `CONTENT`. ``start`` and ``end`` are the markers by which a prompt opens
    or closes reasoning. ``initial`` is the state when the prompt says nothing, ``opened`` when it left
    reasoning open; one that closed it starts in CONTENT. In states listed in ``ended_by_tools`` the marker
    of a tool call ends the reasoning. ``content_on``: markers with a meaning in CONTENT. ``disabled_by``:
    values of chat_template_kwargs with which the prompt closes (or never opens) reasoning, for when no
    prompt is known.
    """

    name: str
    states: Mapping[str, State]
    initial: str
    opened: str
    start: str
    end: str
    ended_by_tools: frozenset[str] = frozenset()
    content_on: Mapping[str, str] = field(default_factory=dict)
    disabled_by: Mapping[str, Any] = field(default_factory=dict)
    keeps_special_tokens: bool = True


Blanks = Literal["keep", "drop_alone"]


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes its tool calls. ``states`` has at least `CONTENT`, where visible text starts.

    ``blanks``: what becomes of white space before a call. "keep": it is content. "drop_alone": it is
    dropped when the content before the call has nothing else. ``none_drops``: with tool_choice "none", vLLM
    removes the text of a call that the model wrote all the same.
    """

    name: str
    states: Mapping[str, State]
    aliases: tuple[str, ...] = ()
    blanks: Blanks = "keep"
    none_drops: bool = False
    keeps_special_tokens: bool = True
