"""Outputs of calls between tags read a second time, the plain way: what the right value is, for tests.

The tables of `render_tier.core.formats` are taken as data: which marker leads where, how a tag is spelt, what
a schema makes of a value. What the machine, `xml_call`, `argument_writer` and `blanks` do with them piece by
piece is stated here once more over the whole output, with none of their code and without any state that could
be saved, held back or bounded. So it shares mistakes in tables (the corpus and vLLM speak against those), and
none in reading. Calls of Gemma 4 and Mistral are read for their extent only, which is what the answer around
them needs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import regex

from render_tier.core import tool_schema
from render_tier.core.awaited import AwaitedFormat
from render_tier.core.choice import ChoiceFormat
from render_tier.core.gap import GapFormat
from render_tier.core.gemma_call import GemmaCallFormat
from render_tier.core.grammar import FIRST, compose
from render_tier.core.lead import LeadFormat
from render_tier.core.table import ReasoningFormat, Region, State, ToolFormat
from render_tier.core.tool_schema import ToolSchemas
from render_tier.core.vocabulary import Vocabulary
from render_tier.core.xml_call import XmlCallFormat
from tests.families import ours
from tests.families.generators import GeneratedOutput
from tests.families.ours import ParsedCall, ParsedMessage
from tests.families.tokenization import tokenizer_of

STRAYS = r"[^\w\s<]{0,4}"
BLANKS = r"\s{0,64}"


class NotRead(Exception):
    """An output of a format that this module does not read."""


@dataclass
class _Found:
    start: int
    end: int
    kind: str


def _first(text: str, at: int, patterns: dict[str, str]) -> _Found | None:
    """The earliest match of any, in the order of the patterns where they begin alike."""
    best = None
    for kind, pattern in patterns.items():
        match = regex.search(pattern, text, pos=at)
        if match is not None and (best is None or match.start() < best.start):
            best = _Found(match.start(), match.end(), kind)
    return best


def _is_begun(patterns: list[str], rest: str) -> bool:
    """Whether more text could make this a match of any of the patterns."""
    return any(regex.fullmatch(pattern, rest, partial=True) is not None for pattern in patterns)


def _without_begun(text: str, at: int, patterns: list[str]) -> str:
    """``text[at:]`` without an end of it that may have become one of these."""
    for start in range(at, len(text)):
        if _is_begun(patterns, text[start:]):
            return text[at:start]
    return text[at:]


@dataclass
class _Values:
    """The argument text of one call, value by value."""

    fmt: XmlCallFormat
    tools: ToolSchemas
    name: str
    members: list[str] = field(default_factory=list)
    wrapper: tuple[str, str, str] | None = None
    """Key, value and inner arguments of the only parameter, where that may hold them all."""

    def json_of(self, key: str, is_text: bool, text: str) -> str:
        schema = self.tools.schema(self.name, key) if self.fmt.values.schemas else None
        if is_text:
            return tool_schema.dumps(tool_schema.typed(text, self.tools.types(schema)))
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        return tool_schema.dumps(tool_schema.retyped(value, schema, self.tools))

    def trimmed(self, text: str) -> str:
        return text.removeprefix("\n") if self.fmt.values.trims_newline else text

    def add(self, key: tuple[str, bool], text: str) -> None:
        text = self.trimmed(text)
        if self.fmt.values.trims_newline:
            text = text.removesuffix("\n")
        member = f"{tool_schema.quoted(key[0])}: {self.json_of(key[0], key[1], text)}"
        inner = self.unwrapped(key[0], text) if not self.members else None
        self.wrapper = (key[0], text, inner) if inner is not None else None
        self.members.append(member)

    def unwrapped(self, key: str, text: str) -> str | None:
        properties = self.tools.properties(self.name)
        if key not in self.fmt.values.wrappers or not properties or key in properties:
            return None
        try:
            inner = json.loads(text)
            inner = json.loads(inner) if isinstance(inner, str) else inner
        except ValueError:
            return None
        if not isinstance(inner, dict) or not inner.keys() <= properties.keys():
            return None
        return tool_schema.dumps(tool_schema.retyped_object(inner, properties, self.tools))

    def cut(self, key: tuple[str, bool], text: str) -> str:
        """The argument text when the output ends inside this value."""
        name, is_text = key
        text = self.trimmed(text)
        properties = self.tools.properties(self.name)
        wraps = (
            not self.members and name in self.fmt.values.wrappers and properties and name not in properties
        )
        types = (
            self.tools.types(self.tools.schema(self.name, name)) if self.fmt.values.schemas else frozenset()
        )
        nullable = types == tool_schema.NULLABLE and "null\n".startswith(text.lower())
        holds = not is_text or types not in (tool_schema.STRING, tool_schema.NULLABLE) or nullable
        if (
            not is_text
            and text
            and types == tool_schema.STRING
            and text[0] not in '{["-0123456789tfnNI \t\n\r'
        ):
            holds = False
        if wraps:
            holds = not is_text
        elif self.fmt.values.trims_newline:
            text = text.removesuffix("\n")
        value = "" if holds else tool_schema.quoted(text)[:-1]
        return "{" + ", ".join([*self.members, f"{tool_schema.quoted(name)}: {value}"])

    def whole(self) -> str:
        if self.wrapper is not None and len(self.members) == 1:
            return self.wrapper[2]
        return "{" + ", ".join(self.members) + "}"


@dataclass
class _Call:
    """One call, read from ``at``. ``route``: what ended it; None: the output did."""

    fmt: XmlCallFormat
    tools: ToolSchemas
    text: str
    at: int
    call: ParsedCall | None = None
    route: str | None = None

    def __post_init__(self) -> None:
        fmt = self.fmt
        self.over = {text: regex.escape(text) for text in (fmt.end, *fmt.exits)}
        self.opens = {"open": fmt.parameter.full} if fmt.parameter is not None else {}
        if fmt.name_shape is not None or fmt.parameter is None:
            raise NotRead
        self.values: _Values | None = None
        self._name()
        if self.call is not None and self.values is not None and self.call.complete is None:
            self.call.arguments, self.call.complete = self.values.whole(), True

    def _name(self) -> None:
        ends = {text: regex.escape(text) for text in self.fmt.name_ends}
        found = _first(self.text, self.at, {**ends, **self.over})
        if found is None:
            self._start(_without_begun(self.text, self.at, [*ends.values(), *self.over.values()]))
            if self.call is not None:
                self.call.arguments, self.call.complete = "{}", False
            self.at = len(self.text)
            return
        self._start(self.text[self.at : found.start])
        self.at = found.end
        if found.kind not in self.fmt.name_ends:
            self.route = found.kind
        elif self.fmt.name_ends[found.kind]:
            self._key()
        else:
            self._between()

    def _start(self, text: str) -> None:
        name = self.fmt.read_name(text) if len(text) <= 1024 else ""
        if name and (not self.fmt.checks_names or self.tools.known(name)):
            self.call = ParsedCall(name)
            self.values = _Values(self.fmt, self.tools, name)

    def _between(self) -> None:
        found = _first(self.text, self.at, {**self.opens, **self.over})
        self.at = len(self.text) if found is None else found.end
        if found is not None and found.kind == "open":
            self._key()
        elif found is not None:
            self.route = found.kind

    def _key(self) -> None:
        found = _first(self.text, self.at, {"key": regex.escape(self.fmt.key_end), **self.over})
        if found is None or found.kind != "key":
            self.at = len(self.text) if found is None else found.end
            self.route = None if found is None else found.kind
            return
        text = self.text[self.at : found.start]
        key = self.fmt.read_key(text) if len(text) <= 1024 else None
        self.at = found.end
        if self.fmt.value_open:
            opened = {"value": regex.escape(self.fmt.value_open)}
            found = _first(self.text, self.at, {**self.opens, **self.over, **opened})
            self.at = len(self.text) if found is None else found.end
            if found is not None and found.kind == "open":
                self._key()
                return
            if found is None or found.kind != "value":
                self.route = None if found is None else found.kind
                return
        self._value(tuple(key) if key is not None and key.name else None)

    def _value(self, key: Any) -> None:
        fmt, text, start = self.fmt, self.text, self.at
        follows = [*self.opens.values(), *self.over.values(), *map(regex.escape, fmt.value_ends)]
        closed = f"{fmt.close.full}{STRAYS}?{BLANKS}(?={'|'.join(follows)})"
        ends = {exit_: f"{regex.escape(fmt.end)}{BLANKS}{regex.escape(exit_)}" for exit_ in fmt.exits}
        full = {"close": closed, **(self.opens if fmt.next_closes else {}), **ends}
        begun = [
            f"{fmt.close.full}{STRAYS}{BLANKS}(?:{'|'.join(follows)})",
            *(self.opens.values() if fmt.next_closes else ()),
            *ends.values(),
        ]
        readings = 0
        for at in range(start, len(text)):
            if text[at] != "<":
                continue
            for kind, pattern in full.items():
                match = regex.match(pattern, text, pos=at)
                if match is not None:
                    self.at = match.end()
                    self._ended(key, text[start:at])
                    if kind == "close":
                        self._between()
                    elif kind == "open":
                        self._key()
                    else:
                        self.route = kind
                    return
            if _is_begun(begun, text[at:]):
                self.at = len(text)
                shut = regex.match(fmt.close.full, text, pos=at) is not None
                if (shut and _is_begun(begun[:1], text[at:])) or text.startswith(fmt.end, at):
                    self._ended(key, text[start:at])
                else:
                    self._cut(key, text[start:at])
                return
            lone = regex.match(fmt.close.full, text, pos=at)
            if lone is not None:
                readings += 1
                if readings <= 8 and self._is_whole(key, text[start:at]):
                    self.at = lone.end()
                    self._ended(key, text[start:at])
                    self._between()
                    return
        self.at = len(text)
        self._cut(key, text[start:])

    def _ended(self, key: Any, text: str) -> None:
        if self.values is not None and key is not None:
            self.values.add(key, text)

    def _cut(self, key: Any, text: str) -> None:
        if self.call is not None and self.values is not None:
            self.call.complete = False
            members = self.values.members
            begun = "{" + ", ".join(members) if members else ""
            self.call.arguments = self.values.cut(key, text) if key is not None else begun

    def _is_whole(self, key: Any, text: str) -> bool:
        """Whether the value is complete here and no string."""
        values = self.values
        if values is None or key is None:
            return False
        text = values.trimmed(text)
        types = (
            self.tools.types(self.tools.schema(values.name, key[0]))
            if self.fmt.values.schemas
            else frozenset()
        )
        if key[1] and types == tool_schema.STRING:
            return False
        if self.fmt.values.trims_newline:
            text = text.removesuffix("\n")
        return not values.json_of(key[0], key[1], text).startswith('"')


def message_of(output: GeneratedOutput) -> ParsedMessage:
    """What this output says. Raises NotRead."""
    case = output.case()
    tokenizer = tokenizer_of(case)
    grammar = ours.grammar_of_case(case, tokenizer)
    prompt = ours.prompt_of(case, tokenizer)
    return read(
        grammar.reasoning, grammar.tool, tokenizer.vocabulary, ToolSchemas(output.tools), prompt, output.text
    )


def read(
    reasoning: ReasoningFormat | None,
    tool: ToolFormat,
    vocabulary: Vocabulary,
    tools: ToolSchemas,
    prompt: bool | None,
    output: str,
) -> ParsedMessage:
    """The message of a whole output. Raises NotRead."""
    states = compose(reasoning, tool)
    known = {marker for state in states.values() for marker in (*state.on, *state.inside)}
    special = [text for text in _special_texts(vocabulary) if text not in known]
    if special:
        output = regex.sub("|".join(map(regex.escape, special)), "", output)
    tokens = {marker for marker in known if vocabulary.token_id(marker) in vocabulary.special_ids}
    if prompt is None:
        name = FIRST if FIRST in states else reasoning.initial if reasoning is not None else tool.initial
    else:
        name = reasoning.opened if reasoning is not None and prompt else tool.initial
    message = ParsedMessage()
    thoughts: list[str] = [""]
    content: list[str] = []
    calls_at: list[int] = []  # how many pieces of content stood before each call
    opened = False
    at, marker = 0, ""
    while True:
        state = states[name]
        opened = opened or state.opens_call
        if state.body is not None:
            before = len(message.calls)
            name, at, shown, marker = _body(state, tools, output, at, marker, message.calls)
            calls_at += [len(content)] * (len(message.calls) - before)
            content.append(shown)
            if not name:
                break
            continue
        piece, at, name, marker = _text(state, marker, tokens, output, at)
        if state.text is Region.REASONING:
            thoughts[-1] += piece
            left = name != "" and states[states[name].done or name].text is not Region.REASONING
            if left and reasoning is not None:
                thoughts[-1] = thoughts[-1].rstrip() if reasoning.trims else thoughts[-1]
                thoughts.append("")
        elif state.text is Region.CONTENT:
            content.append(piece)
        if not name:
            break
    if reasoning is not None and reasoning.trims:
        thoughts[-1] = thoughts[-1].rstrip()
    message.reasoning = "".join(thoughts)
    message.content = _content(tool.blanks, content, calls_at, opened)
    return message


def _special_texts(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.token_bytes(token_id).decode() for token_id in vocabulary.special_ids]


def _text(state: State, marker: str, tokens: set[str], output: str, at: int) -> tuple[str, int, str, str]:
    """(text up to the next marker, where that ends, the next state's name or "", the marker)."""
    piece = marker if state.shows_marker else ""
    silent = {text for text in tokens if text not in state.on and text not in state.inside}
    while True:
        found = _first(output, at, {text: regex.escape(text) for text in (*state.on, *silent)})
        if found is None:
            return piece + output[at:], len(output), "", ""
        piece += output[at : found.start]
        at = found.end
        if found.kind in state.on:
            return piece, at, state.on[found.kind], found.kind


def _body(
    state: State, tools: ToolSchemas, output: str, at: int, marker: str, calls: list[ParsedCall]
) -> tuple[str, int, str, str]:
    """(the next state's name or "", where that begins, text that this was after all, the marker between)."""
    body = state.body
    if isinstance(body, XmlCallFormat):
        read = _Call(body, tools, output, at)
        if read.call is not None:
            calls.append(read.call)
        return (state.routes[read.route] if read.route is not None else ""), read.at, "", ""
    if isinstance(body, GapFormat):
        while at < len(output) and output[at] in body.characters:
            at += 1
        return state.done, at, "", ""
    if isinstance(body, AwaitedFormat):
        awaited = output.find(body.text, at)
        if awaited >= 0:
            return state.done, awaited + len(body.text), "", ""
        return "", len(output), marker + output[at:], ""
    if isinstance(body, GemmaCallFormat):
        found = _first(output, at, {text: regex.escape(text) for text in state.routes})
        written = output[at : len(output) if found is None else found.start]
        name = regex.search(r":([^{(]*)", written)
        if name is not None and name[1].strip():
            calls.append(ParsedCall(name[1].strip()))
        if found is None:
            return "", len(output), "", ""
        return state.routes[found.kind], found.end, "", found.kind
    if isinstance(body, LeadFormat):
        return _lead(state, body, output, at)
    if isinstance(body, ChoiceFormat) and marker == "[TOOL_CALLS]":
        return _mistral_calls(state, output, at, marker, calls)
    raise NotRead


def _lead(state: State, body: LeadFormat, output: str, at: int) -> tuple[str, int, str, str]:
    if output.startswith(body.lead, at):
        return state.done, at + len(body.lead), "", ""
    for marker, to in state.on.items():
        found = output.find(marker, at)
        if found == at:
            return to, at + len(marker), "", marker
        if found > at and body.lead.startswith(output[at:found]):
            raise NotRead  # a lead that a marker cuts
    if body.lead.startswith(output[at:]):
        raise NotRead  # a lead that the end cuts
    return state.failed, at, "", ""


def _mistral_calls(
    state: State, output: str, at: int, marker: str, calls: list[ParsedCall]
) -> tuple[str, int, str, str]:
    """All up to the next marker: one call by name, or an array of calls."""
    found = output.find(marker, at)
    written = output[at : found if found >= 0 else len(output)]
    named = regex.match(
        r"\s*([^\s\[{](?:[^\[{]*[^\s\[{])?)\s*(?:\[CALL_ID\]\s*[^\s\[{]+)?(?:\[ARGS\]|(?=\{))", written
    )
    if written.lstrip()[:1] in ("[", "{"):
        try:
            value, _ = json.JSONDecoder().raw_decode(written.lstrip())
        except ValueError:
            raise NotRead from None  # how far a damaged array is one is `json_calls`' own rule
        items = value if isinstance(value, list) else [value]
        names = [
            item["name"] for item in items if isinstance(item, dict) and isinstance(item.get("name"), str)
        ]
        if not names:
            raise NotRead
        calls += [ParsedCall(name) for name in names]
    elif named is not None:
        calls.append(ParsedCall(named[1]))
    elif written.strip():
        raise NotRead  # a broken header: whether its text is shown is `header_call`'s rule
    if found < 0:
        return "", len(output), "", ""
    return state.on[marker], found + len(marker), "", marker


def _content(blanks: str, pieces: list[str], calls_at: list[int], opened: bool) -> str:
    """What is shown of the text of the answer."""
    shown = "".join(pieces)
    if blanks == "drop_alone":
        return "" if calls_at and not shown.strip() else shown
    if not calls_at:
        return shown if shown.strip() or not opened else ""
    before = "".join(pieces[: calls_at[0]])
    return shown.rstrip() if before.strip() else shown.strip()
