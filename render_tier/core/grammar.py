"""The tables of a reasoning and a tool family joined into one, and made ready for one vocabulary.

`compose` merges the states; `Grammar` is the result with markers compiled: per state a search pattern, the
prefixes of markers that must be held back, and the token IDs that are markers by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from render_tier.core.body import BodyFormat
from render_tier.core.markers import Markers
from render_tier.core.table import CONTENT, Blanks, ReasoningFormat, Region, State, TableError, ToolFormat
from render_tier.core.vocabulary import Vocabulary

FIRST: Final = "first"
"""Where an output starts that may start with the answer, when answers have a start of their own."""


ENDED: Final = "ended"
"""The answer after the marker of a call that ended reasoning and is text itself."""


def compose(reasoning: ReasoningFormat | None, tool: ToolFormat) -> dict[str, State]:
    """One table of both. A tool call ends reasoning where the reasoning table says so. Raises TableError."""
    states = dict(tool.states)
    if CONTENT not in states:
        raise TableError(f"{tool.name}: no state {CONTENT!r}")
    if reasoning is None:
        return states
    if tool.name in reasoning.joined:
        return dict(reasoning.joined[tool.name])
    content = states[CONTENT]
    tool_markers = dict(content.on)
    states[CONTENT] = replace(content, on={**reasoning.content_on, **tool_markers})
    ends = tool_markers
    if tool.reasoning_ends is not None:
        ends = {marker: to for marker, to in tool_markers.items() if marker in tool.reasoning_ends}
    if tool.initial != CONTENT:
        answer = states[tool.initial]
        starts = {
            marker: tool.initial if to == CONTENT else to for marker, to in reasoning.content_on.items()
        }
        states[tool.initial] = replace(answer, on={**starts, **answer.on})
    for name, state in reasoning.states.items():
        if name in states:
            raise TableError(f"{reasoning.name} and {tool.name} both have a state {name!r}")
        on = {marker: tool.initial if to == CONTENT else to for marker, to in state.on.items()}
        done = tool.initial if state.done == CONTENT else state.done
        if name in reasoning.ended_by_tools:
            on = {**ends, **on}
            on |= {marker: ENDED for marker in reasoning.ended_by if _is_free(marker, on)}
        states[name] = replace(state, on=on, done=done)
    if any(ENDED in state.on.values() for state in states.values()):
        states[ENDED] = replace(states[CONTENT], shows_marker=True)
    if tool.initial != CONTENT and states[reasoning.initial].text is Region.CONTENT:
        # The output may start with the answer or with text in which reasoning may start.
        states[FIRST] = replace(states[tool.initial], failed=reasoning.initial)
    return states


def _is_free(marker: str, on: Mapping[str, str]) -> bool:
    """Whether this marker can be told from all others."""
    return not any(marker in other or other in marker for other in on)


class Node:
    """One state made ready: see `table.State` for the meaning."""

    __slots__ = (
        "body",
        "done",
        "drops_blanks",
        "failed",
        "firsts",
        "gives_back",
        "held",
        "ids",
        "index",
        "kept",
        "name",
        "on",
        "opens_call",
        "plain",
        "routes",
        "search",
        "separator",
        "shows_marker",
        "text",
        "width",
    )

    def __init__(self, index: int, name: str, state: State) -> None:
        self.index: Final = index
        self.name: Final = name
        self.text: Final = state.text
        self.body: Final[BodyFormat | None] = state.body
        self.separator: Final = state.separator
        self.opens_call: Final = state.opens_call
        self.gives_back: Final = state.gives_back
        self.drops_blanks: Final = state.drops_blanks
        self.shows_marker: Final = state.shows_marker
        self.kept: frozenset[int] = frozenset()
        self.done: Node = self
        self.failed: Node = self
        self.on: dict[str, Node] = {}
        self.ids: dict[int, Node] = {}
        self.routes: dict[str, Node] = {}
        try:
            markers = Markers(state.on)
        except ValueError as error:
            raise TableError(f"state {name!r}: {error}") from None
        self.search: Final = markers.search
        self.firsts: Final = markers.firsts if state.body is None else frozenset[str]()
        self.plain: Mapping[int, str | None] = {}
        self.held: Final = markers.held
        self.width: Final = markers.width


class Grammar:
    """The joined table of one deployment, for one vocabulary. Immutable; shared by all streams.

    ``marker_ids``: token ID to text for the tokens that are markers by themselves, in any state.
    ``skipped``: the special tokens that are no
    markers; their text is left out unless the request keeps special tokens.
    """

    def __init__(self, reasoning: ReasoningFormat | None, tool: ToolFormat, vocabulary: Vocabulary) -> None:
        states = compose(reasoning, tool)
        self.vocabulary: Final = vocabulary
        self.reasoning: Final = reasoning
        self.tool: Final = tool
        holds = tool.blanks == "keep" and any(state.drops_blanks for state in states.values())
        self.blanks: Final[Blanks] = "trim" if holds else tool.blanks
        self.trims: Final = reasoning is not None and reasoning.trims
        self.preface: Final = reasoning.preface if reasoning is not None else ""
        self.nodes: Final = [Node(index, name, state) for index, (name, state) in enumerate(states.items())]
        by_name = {node.name: node for node in self.nodes}
        self.marker_ids: Final[Mapping[int, str]] = _link(by_name, states, vocabulary)
        self.skipped: Final = vocabulary.special_ids - self.marker_ids.keys()
        tables: dict[frozenset[str], _PlainPieces] = {}
        for node in self.nodes:
            if node.firsts not in tables:
                tables[node.firsts] = _PlainPieces(vocabulary, self.marker_ids, node.firsts)
            node.plain = tables[node.firsts]
            if node.body is not None:
                node.body.open("", 0)  # what it looks for is compiled now, and not while an output waits
        self.content: Final = by_name[CONTENT]
        self._answer = by_name[tool.initial]
        first = FIRST if FIRST in by_name else reasoning.initial if reasoning else tool.initial
        self._initial = by_name[first]
        self._opened = by_name[reasoning.opened] if reasoning else self._initial

    def start(self, prompt: bool | None) -> Node:
        """Where an output starts after a prompt that left reasoning open, closed it, or said nothing
        (None)."""
        if prompt is None:
            return self._initial
        return self._opened if prompt else self._answer


class _PlainPieces(dict[int, str | None]):
    """Token ID to its text, for tokens of whole characters that are neither markers nor special and have none
    of ``firsts`` in them; else None. Filled when first asked."""

    def __init__(self, vocabulary: Vocabulary, marker_ids: Mapping[int, str], firsts: frozenset[str]) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._marker_ids = marker_ids
        self._firsts = firsts

    def __missing__(self, token_id: int) -> str | None:
        vocabulary = self._vocabulary
        piece = vocabulary.pieces[token_id]
        plain = None
        if isinstance(piece, str) and piece and self._firsts.isdisjoint(piece):
            special = token_id in self._marker_ids or token_id in vocabulary.special_ids
            plain = None if special else piece
        if 0 <= token_id < vocabulary.size:  # as in `Vocabulary.pieces`
            self[token_id] = plain
        return plain


def _link(by_name: Mapping[str, Node], states: Mapping[str, State], vocabulary: Vocabulary) -> dict[int, str]:
    marker_ids: dict[int, str] = {}
    for name, state in states.items():
        node = by_name[name]
        if state.body is None and state.text is Region.CALL:
            raise TableError(f"state {name!r}: text of a call needs a body")
        after = list(state.routes.values()) or [state.done]
        ends = [*after, state.failed] if state.body else []
        names = [*state.on.values(), *ends]
        if missing := [to for to in names if to not in by_name]:
            raise TableError(f"state {name!r} leads to unknown states {missing}")
        if state.body is not None:
            node.routes = {verdict: by_name[to] for verdict, to in state.routes.items()}
            node.done, node.failed = by_name[after[0]], by_name[state.failed]
            if node.failed.body is not None:
                raise TableError(f"state {name!r}: a body fails into a state of text")
        for marker, to in state.on.items():
            node.on[marker] = by_name[to]
            token_id = vocabulary.token_id(marker)
            if token_id is not None:
                node.ids[token_id] = by_name[to]
                marker_ids[token_id] = marker
        inside = {
            token_id: text for text in state.inside if (token_id := vocabulary.token_id(text)) is not None
        }
        marker_ids.update(inside)
        node.kept = frozenset(inside)
    return marker_ids
