"""A tool call whose arguments are tagged texts, turned into JSON argument text as it comes.

``<function=NAME><parameter=KEY>VALUE</parameter></function>`` and its relatives: `XmlCallFormat` says how
one family spells it. Theory of operation. The body reads the name, then looks for parameters, reads a key,
then a value, which an `ArgumentWriter` passes on. Each phase has a `Scanner` of the markup that matters
there; what may be the beginning of markup is held back, everything else is dealt with at once, so that every
character costs the same.

A value ends at its closing tag only where the structure goes on behind it: at the next parameter, the end
of the call, or the end of the output. A few stray signs may stand between (``</parameter>>``): they are no
part of anything. The same tag inside a value is text, unless what stands before it is whole and no string.

The body is committed from the start, unless its format has a ``name_shape``: then text that does not fit it
is no call and is given back. A call that is not to be made (no name, or a name that the request has no tool
for) is read without a word. A call cut by the end of the output keeps its arguments as far as they came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from render_tier.core.argument_writer import VERBATIM, ArgumentWriter, Key, Values
from render_tier.core.body import Calls, Status
from render_tier.core.fragments import Fragment, Look, Scanner, blanks, either, literal, sequence

# Phases.
_NAME: Final = 0
_BETWEEN: Final = 1  # before, between and after parameters: other text has no meaning
_KEY: Final = 2
_GAP: Final = 3  # between a key and its value, in formats where both have tags
_VALUE: Final = 4

_OPEN: Final = "open"
_CLOSE: Final = "close"
_LONE_CLOSE: Final = "lone close"
_VALUE_BEGINS: Final = "value"

_NAME_LIMIT: Final = 1024
"""Longest name or key; a longer one is none."""
_STRAYS: Final = Fragment(r"[^\w\s<]{0,4}?", r"[^\w\s<]{1,4}")
"""What may stand behind a closing tag by mistake. No words: prose goes on with one."""
_HELD_LIMIT: Final = 512
"""More than any family's markup and the white space inside it."""


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

    ``values``: how the values are written. ``checks_names``: a call of a tool that the request does not have
    is not made.
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
    checks_names: bool = False
    values: Values = VERBATIM

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
        value = {_CLOSE: Look(sequence(self.close, _STRAYS, blanks()), either(follows))}
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
        self._value_scanner = fmt.scanners[_VALUE]
        self._marker = "" if self.committed else marker
        self._phase = _NAME
        self._held = ""  # may be the beginning of markup
        self._read = ""  # of the name or the key
        self._key: Key | None = None  # whose value is to come
        self._arguments = ArgumentWriter(fmt.values, hold_limit)

    @property
    def _failed(self) -> bool:
        return self.status is Status.FAILED

    @property
    def raw(self) -> str:
        return "" if self.committed else self._marker + self._read + self._held

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
            if found.kind == _LONE_CLOSE and not self._arguments.whole(calls):
                self._plain(text[index : found.end], calls)
            else:
                self._markup(found.kind, calls)
            index = found.end
        return index - before

    def plain(self, text: str) -> str | None:
        if self._phase != _VALUE or self._held or self._value_scanner.first(text) is not None:
            return None
        return self._arguments.plain(text)

    def finish(self, calls: Calls) -> None:
        if not self.committed:
            self.status = Status.FAILED
            return
        self.status, self.route = Status.DONE, self._format.end
        arguments = self._arguments
        if self._phase == _NAME:
            self._start_call(calls)
            arguments.end(calls, complete=False)
        elif self._phase != _VALUE:
            arguments.end(calls)
        elif self._scanners[_VALUE].at_end(self._held):
            arguments.end_value(calls)
            arguments.end(calls)
        else:
            arguments.cut(calls)

    close = finish

    def _plain(self, text: str, calls: Calls) -> None:
        if self._phase == _VALUE:
            self._arguments.value(text, calls)
        elif self._phase in (_NAME, _KEY):
            if self.committed:
                text = text[: max(0, _NAME_LIMIT + 1 - len(self._read))]
            self._read += text  # bounded: a name's shape is
            shapes = self._format.shapes
            if not self.committed and shapes is not None and not shapes[1].fullmatch(self._read):
                self.status = Status.FAILED

    def _markup(self, kind: str, calls: Calls) -> None:
        fmt = self._format
        if self._phase == _NAME:
            self._name_ends(kind, calls)
        elif kind == _OPEN:
            self._end_value(calls, _KEY)
        elif kind in (_CLOSE, _LONE_CLOSE):
            self._end_value(calls, _BETWEEN if fmt.parameter is not None else _KEY)
        elif kind == fmt.key_end and self._phase == _KEY:
            key, self._read = self._read, ""
            self._key = fmt.read_key(key) if len(key) <= _NAME_LIMIT else None
            if fmt.value_open:
                self._phase = _GAP
            else:
                self._begin_value(calls)
        elif kind == _VALUE_BEGINS:
            self._begin_value(calls)
        else:
            self._end_value(calls, _BETWEEN)
            self._arguments.end(calls)
            self.status, self.route = Status.DONE, kind

    def _begin_value(self, calls: Calls) -> None:
        self._phase = _VALUE
        self._arguments.begin(self._key, calls)

    def _end_value(self, calls: Calls, phase: int) -> None:
        if self._phase == _VALUE:
            self._arguments.end_value(calls)
        self._phase = phase

    def _name_ends(self, kind: str, calls: Calls) -> None:
        follows = self._format.name_ends.get(kind)
        if not self.committed:
            shapes = self._format.shapes
            assert shapes is not None
            if follows is None:  # another call begins: this marker was for nothing
                self.status, self.route = Status.DONE, kind
                return
            if not shapes[0].fullmatch(self._read):
                self._read += kind
                self.status = Status.FAILED
                return
            self.committed, self._marker = True, ""
        self._start_call(calls)
        if follows is None:
            self._arguments.end(calls)
            self.status, self.route = Status.DONE, kind
        else:
            self._phase = _KEY if follows else _BETWEEN

    def _start_call(self, calls: Calls) -> None:
        text, self._read = self._read, ""
        name = self._format.read_name(text) if len(text) <= _NAME_LIMIT else ""
        if name and (not self._format.checks_names or calls.tools.known(name)):
            self._arguments.start(name, calls)

    def dump(self) -> list[Any]:
        return [
            self._phase,
            self.committed,
            self._marker,
            self._held,
            self._read,
            list(self._key) if self._key is not None else None,
            self._arguments.dump(),
        ]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises msgspec.ValidationError or ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        if (
            not _NAME <= saved.phase <= _VALUE
            or (not saved.committed and (self._format.name_shape is None or saved.phase != _NAME))
            or max(len(saved.marker), len(saved.held)) > _HELD_LIMIT
            or len(saved.read) > _NAME_LIMIT + 1
        ):
            raise ValueError("impossible call state")
        self.committed = saved.committed
        self._phase, self._marker, self._held = saved.phase, saved.marker, saved.held
        self._read = saved.read
        self._key = Key(*saved.key) if saved.key is not None else None
        self._arguments.restore(saved.arguments)


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    phase: int
    committed: bool
    marker: str
    held: str
    read: str
    key: tuple[str, bool] | None
    arguments: list[Any]
