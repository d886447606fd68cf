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
    shown. ``separator``: what stands between the text of an earlier visit and the first text of this one,
    for formats whose messages are parts of one text.

    ``body``: the parser that owns the text instead; it goes on to ``done`` when it has read its value, or to
    ``failed`` when the text is not what it parses, and then the marker that led here and all the body has
    read become text of that state. ``routes``: instead of ``done``, where the body's own verdict leads
    (`body.RoutedBody`). ``on`` of a state with a body holds for tokens that are markers by themselves: they
    end the body wherever it is, because a model cannot mean such a token as text; the same characters in
    ordinary tokens are the body's to judge. ``inside``: markers that the body reads as text, to be kept even
    where special tokens are left out.

    ``inside`` of a state of text: tokens that are text there although the vocabulary calls them special.

    ``gives_back``: the marker that led to a body which fails is text too; otherwise it is markup.

    ``shows_marker``: the marker that leads here is the beginning of the text here.

    ``drops_blanks``: white space of the answer right before the marker that leads here is not shown.

    ``opens_call``: the markup of a call has begun here (`ToolFormat.blanks`).
    """

    text: Region = Region.MARKUP
    on: Mapping[str, str] = field(default_factory=dict)
    separator: str = ""
    body: BodyFormat | None = None
    done: str = ""
    failed: str = ""
    routes: Mapping[str, str] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    gives_back: bool = True
    shows_marker: bool = False
    drops_blanks: bool = False
    opens_call: bool = False


@dataclass(frozen=True)
class ReasoningFormat:
    """How a family writes its reasoning.

    ``states`` go on to the state `CONTENT`. ``start`` and ``end`` are the markers by which a prompt opens
    or closes reasoning. ``initial`` is the state when the prompt says nothing, ``opened`` when it left
    reasoning open; one that closed it starts in CONTENT. In states listed in ``ended_by_tools`` the marker
    of a tool call ends the reasoning; so do the markers ``ended_by``, which are text of the answer where the
    tool format (none, or another family's) gives them no meaning. ``content_on``: markers with a meaning in
    CONTENT. ``disabled_by``: values of chat_template_kwargs with which the prompt closes (or never opens)
    reasoning, for when no prompt is known; ``enabled_by``: values with which the answer starts with reasoning
    although the prompt says nothing. ``trims``: white space at the end of reasoning is not shown.
    ``preface``: content before all output. ``repeated_by``: values of chat_template_kwargs with which
    reasoning is repeated as content when there is no other (`MachineOptions.repeat_reasoning`). ``joined``:
    the states of this format and a tool format (by name) that are one and cannot be told apart, instead of
    the states of both.
    """

    name: str
    states: Mapping[str, State]
    initial: str
    opened: str
    start: str
    end: str
    aliases: tuple[str, ...] = ()
    ended_by_tools: frozenset[str] = frozenset()
    ended_by: tuple[str, ...] = ()
    content_on: Mapping[str, str] = field(default_factory=dict)
    disabled_by: Mapping[str, Any] = field(default_factory=dict)
    enabled_by: Mapping[str, Any] = field(default_factory=dict)
    trims: bool = False
    preface: str = ""
    repeated_by: Mapping[str, Any] = field(default_factory=dict)
    joined: Mapping[str, Mapping[str, State]] = field(default_factory=dict)
    keeps_special_tokens: bool = True


Blanks = Literal["keep", "drop_alone", "trim"]


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes its tool calls. ``states`` has at least `CONTENT`, where visible text starts.

    ``blanks``: what becomes of white space before a call. "keep": it is content. "drop_alone": it is
    dropped when the content before the call has nothing else. "trim": content beside a call has none at its
    ends, but for what stood before the first visible character when no call was in sight; white space alone
    is dropped too where a state with ``opens_call`` was reached and no call came of it.

    ``reasoning_ends``: the markers of CONTENT that have their meaning in reasoning too (None: all of them).
    ``answer_states``: the states for a request whose calls are not wanted (`formats.bypassed`), for formats
    that write the answer itself in markup; otherwise all text is the answer, markers included.
    ``none_drops``: with tool_choice "none", vLLM removes the text of a call that the model wrote all the
    same. ``bare_json``: with tool_choice "required" or a named function the model is held to JSON
    (`formats.guided`) instead of this format. ``bare_list``: the same, but the JSON is a list of this
    format's own calls, without the marker in front of them. ``call_id_length``: how many letters and digits
    the IDs of calls have that the model reads in a history; None: any. ``numbers_calls``: the
    model writes IDs ``functions.NAME:N``, where N counts the calls of the whole conversation. ``initial``:
    where the answer starts, after reasoning or without.
    """

    name: str
    states: Mapping[str, State]
    aliases: tuple[str, ...] = ()
    blanks: Blanks = "keep"
    reasoning_ends: frozenset[str] | None = None
    answer_states: Mapping[str, State] = field(default_factory=dict)
    none_drops: bool = False
    bare_json: bool = False
    bare_list: bool = False
    call_id_length: int | None = None
    numbers_calls: bool = False
    initial: str = CONTENT
    keeps_special_tokens: bool = True
