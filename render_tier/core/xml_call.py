"""A tool call whose arguments are tagged texts, turned into JSON argument text as it comes.

``<function=NAME><parameter=KEY>VALUE</parameter></function>`` and its relatives: `XmlCallFormat` says how
one family spells it. Theory of operation. The body reads the name, then looks for parameters, reads a key,
then a value. Each phase has a `Scanner` of the markup that matters there; what may be the beginning of
markup is held back, everything else is dealt with at once, so that every character costs the same.

A key goes out when its value begins. The value of a parameter that can only be a string goes out as it
comes; any other is held until it is complete, then typed by the tool's schema (`tool_schema`). A held value
longer than ``hold_limit`` is a string. Nothing that went out is ever taken back: a parameter written twice
is in the text twice, and for every reader of JSON the last one counts.

A value ends at its closing tag only where the structure goes on behind it: at the next parameter, the end
of the call, or the end of the output. The same tag inside a value is text, unless what stands before it is
whole and no string.

The body is committed from the start, unless its format has a ``name_shape``: then text that does not fit it
is no call and is given back. A call that is not to be made (no name, or a name that the request has no tool
for) is read without a word. A call cut by the end of the output keeps its arguments as far as they came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from render_tier.core.body import Calls, Status
from render_tier.core.fragments import Fragment, Look, Scanner, blanks, either, literal, sequence
from render_tier.core.tool_schema import (
    NULLABLE,
    STRING,
    dumps,
    quoted,
    retyped,
    retyped_object,
    typed,
)

# Phases.
_NAME: Final = 0
_BETWEEN: Final = 1  # before, between and after parameters: other text has no meaning
_KEY: Final = 2
_GAP: Final = 3  # between a key and its value, in formats where both have tags
_VALUE: Final = 4

# What becomes of the value that is being read.
_SKIP: Final = 0  # nothing: it has no usable key, or the call is not made
_STREAM: Final = 1  # a string, passed on as it comes
_MAYBE_NULL: Final = 2  # null if it is that word, else a string
_HOLD: Final = 3  # typed when it is complete
_WRAPPER: Final = 4  # may hold all arguments of the call: decided when the call ends

_OPEN: Final = "open"
_CLOSE: Final = "close"
_LONE_CLOSE: Final = "lone close"
_LONE_CLOSES: Final = 8
"""How many closing tags inside one value are looked at: each costs a reading of the value so far."""
_VALUE_BEGINS: Final = "value"

_NAME_LIMIT: Final = 1024
"""Longest name or key; a longer one is none."""
_HELD_LIMIT: Final = 512
"""More than any family's markup and the white space inside it."""
_JSON_STARTS: Final = frozenset('{["-0123456789tfnNI \t\n\r')
"""How a JSON value may begin, white space and Python's non-finite numbers included."""


class Key(NamedTuple):
    """``text``: the value is text, to be typed by the schema; else it is JSON, if it can be read as that."""

    name: str
    text: bool = True


@dataclass(frozen=True)
class XmlCallFormat:
    """How a family writes one call, from behind the marker that opens it.

    ``name_ends``: literal that ends the name, and whether a key follows at once. ``read_name``: the name
    from the text before that; empty for none. ``name_shape``: the text of a name; where another comes, the
    marker did not open a call. ``parameter``: the start of one, up to its key (None: a key follows the name
    and each value at once). ``key_end``: the end of a key. ``read_key``: the key from the text before that,
    None for none. ``value_open``: what stands between a key and its value. ``close``: the end of a value;
    ``next_closes``: so is the next parameter. ``value_ends``: literals that may follow a value, beside
    parameters and ends. ``end``: the end of the call. ``exits``: literals of the table's that end the call
    as well. The state's ``routes`` has ``end`` and all ``exits``.

    ``trims_newline``: one newline at either end of a value is markup. ``checks_names``: a call of a tool
    that the request does not have is not made. ``wrappers``: keys under which models put all arguments as
    one object. ``schemas``: the request's schemas type the values.
    """

    name_ends: Mapping[str, bool]
    read_name: Callable[[str], str]
    key_end: str
    read_key: Callable[[str], Key | None]
    close: Fragment
    end: str
    parameter: Fragment | None = None
    exits: tuple[str, ...] = ()
    name_shape: Fragment | None = None
    value_open: str = ""
    value_ends: tuple[str, ...] = ()
    next_closes: bool = False
    trims_newline: bool = False
    checks_names: bool = False
    wrappers: tuple[str, ...] = ()
    schemas: bool = True

    def open(self, marker: str, hold_limit: int) -> XmlCall:
        return XmlCall(self, hold_limit, marker)

    def load(self, state: Any, hold_limit: int) -> XmlCall:
        call = XmlCall(self, hold_limit, "")
        call.restore(state)
        return call

    @cached_property
    def scanners(self) -> tuple[Scanner, ...]:
        """What each phase looks for."""
        over = {text: Look(literal(text)) for text in (self.end, *self.exits)}
        opens = {_OPEN: Look(self.parameter)} if self.parameter is not None else {}
        gap = {_VALUE_BEGINS: Look(literal(self.value_open))} if self.value_open else {}
        names = {text: Look(literal(text)) for text in self.name_ends}
        if self.name_shape is not None:  # nothing but a name may stand there
            names |= {text: over[text] for text in self.exits}
        else:
            names |= over
        follows = [look.what for look in (*opens.values(), *over.values())]
        follows += [literal(text) for text in self.value_ends]
        value = {_CLOSE: Look(sequence(self.close, blanks()), either(follows))}
        if self.next_closes:
            value |= opens
        # The end of a call ends a value that was not closed, but only where the table's own markup or the
        # end of the output follows.
        end = sequence(literal(self.end), blanks())
        nothing = Fragment("(?!)", either(map(literal, self.exits)).begin if self.exits else "(?!)")
        value |= {text: Look(sequence(end, literal(text))) for text in self.exits}
        value[self.end] = Look(end, nothing)
        value[_LONE_CLOSE] = Look(self.close, last=True)
        return tuple(
            Scanner(looks)
            for looks in (
                names,
                {**opens, **over},
                {self.key_end: Look(literal(self.key_end)), **over},
                {**opens, **over, **gap},
                value,
            )
        )

    @cached_property
    def shapes(self) -> tuple[re.Pattern[str], re.Pattern[str]] | None:
        """Patterns of a whole name and of any beginning of one."""
        shape = self.name_shape
        return (re.compile(shape.full), re.compile(shape.begin)) if shape is not None else None


class XmlCall:
    """The body parser (`body.RoutedBody`) of `XmlCallFormat`."""

    def __init__(self, fmt: XmlCallFormat, hold_limit: int, marker: str) -> None:
        self.status = Status.RUNNING
        self.committed = fmt.name_shape is None
        self.route = ""
        self._format = fmt
        self._scanners = fmt.scanners
        self._hold_limit = hold_limit
        self._marker = "" if self.committed else marker
        self._phase = _NAME
        self._held = ""  # may be the beginning of markup
        self._parts: list[str] = []  # of the name, the key, or a value that does not go out as it comes
        self._size = 0  # characters in _parts
        self._name = ""  # of the call that is made; empty: none is
        self._count = 0  # parameters that have gone out
        self._key = Key("")
        self._mode = _SKIP
        self._fresh = False  # the value has had no character yet
        self._newline = False  # a newline of a streamed value that may be its last character
        self._closes = 0  # closing tags inside the value
        self._wrapped: tuple[Key, str] | None = None  # the complete value of the only parameter so far

    @property
    def _failed(self) -> bool:
        return self.status is Status.FAILED

    @property
    def raw(self) -> str:
        return "" if self.committed else self._marker + self._taken() + self._held

    def feed(self, text: str, start: int, calls: Calls) -> int:
        if start:
            text = text[start:]
        before = len(self._held) - start
        if self._held:
            text, self._held = self._held + text, ""
        index = 0
        while self.status is Status.RUNNING:
            found = self._scanners[self._phase].next(text, index)
            if found.start > index:
                self._plain(text[index : found.start], calls)
            index = found.start
            if self._failed:
                break
            if not found.kind:
                self._held = text[index:]
                index = len(text)
                break
            if found.kind == _LONE_CLOSE and not self._whole(calls):
                self._plain(text[index : found.end], calls)
            else:
                self._markup(found.kind, calls)
            index = found.end
        return index - before

    def finish(self, calls: Calls) -> None:
        if not self.committed:
            self.status = Status.FAILED
            return
        self.status, self.route = Status.DONE, self._format.end
        if self._phase == _NAME:
            self._start_call(calls)
            self._end_call(calls, complete=False)
        elif self._phase != _VALUE:
            self._end_call(calls)
        elif self._scanners[_VALUE].at_end(self._held):
            self._end_value(calls)
            self._end_call(calls)
        else:
            self._cut_value(calls)

    close = finish

    # --- text and markup by phase ---

    def _plain(self, text: str, calls: Calls) -> None:
        if self._phase == _VALUE:
            self._value(text, calls)
        elif self._phase in (_NAME, _KEY):
            room = _NAME_LIMIT + 1 - self._size
            if room > 0 or not self.committed:
                self._keep(text if not self.committed else text[:room])
            shapes = self._format.shapes
            if not self.committed and shapes is not None and not shapes[1].fullmatch(self._text()):
                self.status = Status.FAILED

    def _markup(self, kind: str, calls: Calls) -> None:
        fmt = self._format
        if self._phase == _NAME:
            self._name_ends(kind, calls)
        elif kind == _OPEN:
            self._end_value(calls)
            self._phase = _KEY
        elif kind in (_CLOSE, _LONE_CLOSE):
            self._end_value(calls)
            self._phase = _BETWEEN if fmt.parameter is not None else _KEY
        elif kind == fmt.key_end and self._phase == _KEY:
            size, text = self._size, self._taken()
            self._key = (fmt.read_key(text) if size <= _NAME_LIMIT else None) or Key("")
            self._phase = _GAP if fmt.value_open else _VALUE
            if self._phase == _VALUE:
                self._begin_value(calls)
        elif kind == _VALUE_BEGINS:
            self._phase = _VALUE
            self._begin_value(calls)
        else:
            self._end_value(calls)
            self._end_call(calls)
            self.status, self.route = Status.DONE, kind

    def _name_ends(self, kind: str, calls: Calls) -> None:
        fmt = self._format
        follows = fmt.name_ends.get(kind)
        if not self.committed:
            shapes = fmt.shapes
            assert shapes is not None
            if follows is None:  # another call begins: this marker was for nothing
                self.status, self.route = Status.DONE, kind
                return
            if not shapes[0].fullmatch(self._text()):
                self._keep(kind)
                self.status = Status.FAILED
                return
            self.committed, self._marker = True, ""
        self._start_call(calls)
        if follows is None:
            self._end_call(calls)
            self.status, self.route = Status.DONE, kind
        else:
            self._phase = _KEY if follows else _BETWEEN

    # --- the call ---

    def _start_call(self, calls: Calls) -> None:
        size = self._size
        name = self._format.read_name(self._taken()) if size <= _NAME_LIMIT else ""
        if name and (not self._format.checks_names or calls.tools.known(name)):
            self._name = name
            calls.call_start(name)

    def _end_call(self, calls: Calls, *, complete: bool = True) -> None:
        if not self._name:
            return
        if self._wrapped is not None:
            inner = self._unwrapped(calls)
            if inner is not None:
                calls.call_arguments(inner)
                calls.call_end(complete)
                return
            self._send_wrapped(calls)
        calls.call_arguments("}" if self._count else "{}")
        calls.call_end(complete)

    # --- values ---

    def _begin_value(self, calls: Calls) -> None:
        name, text = self._key
        self._fresh, self._newline, self._mode = self._format.trims_newline, False, _SKIP
        self._closes = 0
        if not self._name or not name:
            return
        self._send_wrapped(calls)
        if self._count == 0 and name in self._format.wrappers:
            properties = calls.tools.properties(self._name)
            if properties and name not in properties:
                self._mode = _WRAPPER
                return
        self._send_key(calls)
        types = self._types(calls)
        if text and types == STRING:
            calls.call_arguments('"')
            self._mode = _STREAM
        else:
            self._mode = _MAYBE_NULL if text and types == NULLABLE else _HOLD

    def _types(self, calls: Calls) -> frozenset[str]:
        tools = calls.tools
        return tools.types(tools.schema(self._name, self._key.name)) if self._format.schemas else STRING

    def _send_key(self, calls: Calls) -> None:
        calls.call_arguments(f"{', ' if self._count else '{'}{quoted(self._key.name)}: ")
        self._count += 1

    def _value(self, text: str, calls: Calls) -> None:
        if self._fresh:
            self._fresh = False
            text = text.removeprefix("\n")
        mode = self._mode
        if mode == _STREAM:
            self._stream(text, calls)
        elif mode != _SKIP:
            first = self._size == 0
            self._keep(text)
            if mode == _MAYBE_NULL:
                word = self._text()
                if not "null\n".startswith(word.lower()):
                    self._begin_stream(calls)
            elif self._size > self._hold_limit or (
                first
                and text
                and mode == _HOLD
                and not self._key.text
                and text[0] not in _JSON_STARTS
                and self._types(calls) == STRING
            ):
                self._begin_stream(calls)

    def _begin_stream(self, calls: Calls) -> None:
        """What was held is a string."""
        if self._mode == _WRAPPER:
            self._send_key(calls)
        self._mode = _STREAM
        calls.call_arguments('"')
        self._stream(self._taken(), calls)

    def _stream(self, text: str, calls: Calls) -> None:
        if self._format.trims_newline and text:
            if self._newline:
                text = "\n" + text
            self._newline = text.endswith("\n")
            if self._newline:
                text = text[:-1]
        if text:
            calls.call_arguments(quoted(text)[1:-1])

    def _end_value(self, calls: Calls) -> None:
        mode, self._mode = self._mode, _SKIP
        if self._phase != _VALUE or mode == _SKIP:
            return
        if mode == _STREAM:
            calls.call_arguments('"')
            return
        text = self._taken()
        if self._format.trims_newline:
            text = text.removesuffix("\n")
        if mode == _WRAPPER:
            self._wrapped = self._key, text
        else:
            calls.call_arguments(self._json(text, calls))

    def _whole(self, calls: Calls) -> bool:
        """Whether the held value is complete as it is: it can be read as something that is no string."""
        self._closes += 1
        if self._mode not in (_HOLD, _MAYBE_NULL) or self._closes > _LONE_CLOSES:
            return False
        text = self._text()
        if self._format.trims_newline:
            text = text.removesuffix("\n")
        return not self._json(text, calls).startswith('"')

    def _cut_value(self, calls: Calls) -> None:
        """The output ends inside a value: nothing is said of it that could turn out to be wrong."""
        if self._mode == _WRAPPER:
            self._send_key(calls)
            if self._key.text:
                calls.call_arguments(quoted(self._taken())[:-1])
        if self._name:
            calls.call_end(False)

    def _json(self, text: str, calls: Calls) -> str:
        """A complete value of the current key as JSON text."""
        tools = calls.tools
        schema = tools.schema(self._name, self._key.name) if self._format.schemas else None
        try:
            if self._key.text:
                return dumps(typed(text, tools.types(schema)))
            return dumps(retyped(_parsed(text), schema, tools))
        except RecursionError:
            return quoted(text)

    def _send_wrapped(self, calls: Calls) -> None:
        """The wrapper turned out to be a parameter like others."""
        if self._wrapped is not None:
            (wrapper, text), self._wrapped = self._wrapped, None
            key, self._key = self._key, wrapper
            self._send_key(calls)
            calls.call_arguments(self._json(text, calls))
            self._key = key

    def _unwrapped(self, calls: Calls) -> str | None:
        """The arguments inside the wrapper, None when they are none of the tool's."""
        assert self._wrapped is not None
        properties = calls.tools.properties(self._name)
        try:
            inner = json.loads(self._wrapped[1])
            if isinstance(inner, str):
                inner = json.loads(inner)
            if isinstance(inner, dict) and inner.keys() <= properties.keys():
                return dumps(retyped_object(inner, properties, calls.tools))
        except (ValueError, RecursionError):
            pass
        return None

    # --- held text ---

    def _keep(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)

    def _text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def _taken(self) -> str:
        text = self._text()
        self._parts, self._size = [], 0
        return text

    def dump(self) -> list[Any]:
        return [
            self._phase,
            self.committed,
            self._marker,
            self._held,
            self._text(),
            self._name,
            self._count,
            list(self._key),
            self._mode,
            self._fresh,
            self._newline,
            self._closes,
            [list(self._wrapped[0]), self._wrapped[1]] if self._wrapped is not None else None,
        ]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises msgspec.ValidationError or ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        if (
            not _NAME <= saved.phase <= _VALUE
            or not _SKIP <= saved.mode <= _WRAPPER
            or (not saved.committed and (self._format.name_shape is None or saved.phase != _NAME))
            or max(len(saved.marker), len(saved.held)) > _HELD_LIMIT
            or len(saved.text) > max(self._hold_limit, _NAME_LIMIT + 1)
            or saved.count < 0
        ):
            raise ValueError("impossible call state")
        self.committed = saved.committed
        self._phase, self._marker, self._held = saved.phase, saved.marker, saved.held
        self._parts, self._size = ([saved.text] if saved.text else []), len(saved.text)
        self._name, self._count = saved.name, saved.count
        self._key, self._mode = Key(*saved.key), saved.mode
        self._fresh, self._newline, self._closes = saved.fresh, saved.newline, saved.closes
        if saved.wrapped is not None:
            key, text = saved.wrapped
            self._wrapped = Key(*key), text


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    phase: int
    committed: bool
    marker: str
    held: str
    text: str
    name: str
    count: int
    key: tuple[str, bool]
    mode: int
    fresh: bool
    newline: bool
    closes: int
    wrapped: tuple[tuple[str, bool], str] | None


def _parsed(text: str) -> Any:
    """JSON as Python reads it, the text itself when it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text
