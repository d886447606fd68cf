"""The JSON argument text of one call, written while parameters of another notation come in.

A key goes out when its value begins. The value of a parameter that can only be a string goes out as it comes;
any other is held until it is complete, then typed by the tool's schema (`tool_schema`). A held value longer
than ``hold_limit`` is a string. Nothing that went out is ever taken back: a parameter written twice is in the
text twice, and for every reader of JSON the last one counts.

A call without a name is not made: everything that is written of it goes nowhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from render_tier.core.body import Calls
from render_tier.core.tool_schema import (
    NULLABLE,
    STRING,
    dumps,
    quoted,
    retyped,
    retyped_object,
    typed,
)

# What becomes of the value that is being written.
_SKIP: Final = 0  # nothing: there is none, it has no usable key, or the call is not made
_STREAM: Final = 1  # a string, passed on as it comes
_MAYBE_NULL: Final = 2  # null if it is that word, else a string
_HOLD: Final = 3  # typed when it is complete
_WRAPPER: Final = 4  # may hold all arguments of the call: decided when the call ends

_READINGS: Final = 8
"""How often one value is looked at before it is complete: each look costs a reading of the value so far."""
_JSON_STARTS: Final = frozenset('{["-0123456789tfnNI \t\n\r')
"""How a JSON value may begin, white space and Python's non-finite numbers included."""


class Key(NamedTuple):
    """A parameter. ``text``: its value is text, to be typed by the schema; else it is JSON, if it can be read
    as that."""

    name: str
    text: bool = True


@dataclass(frozen=True)
class Values:
    """How a format writes values. ``trims_newline``: one newline at either end is markup. ``wrappers``: keys
    under which models put all arguments as one object. ``schemas``: the request's schemas type the values."""

    trims_newline: bool = False
    wrappers: tuple[str, ...] = ()
    schemas: bool = True


VERBATIM: Final = Values()


class ArgumentWriter:
    """``name``: of the call, empty while there is none."""

    def __init__(self, values: Values, hold_limit: int) -> None:
        self.name = ""
        self._values = values
        self._hold_limit = hold_limit
        self._count = 0  # parameters that have gone out
        self._key = Key("")
        self._mode = _SKIP
        self._held: list[str] = []  # of the value
        self._size = 0  # characters in _held
        self._fresh = False  # the value has had no character yet, and its first may be markup
        self._newline = False  # a newline of a streamed value that may be its last character
        self._readings = 0
        self._wrapped: tuple[Key, str] | None = None  # the complete value of the only parameter so far

    def start(self, name: str, calls: Calls) -> None:
        """The call is made under this name."""
        self.name = name
        calls.call_start(name)

    def end(self, calls: Calls, *, complete: bool = True) -> None:
        """The arguments are all there."""
        if not self.name:
            return
        inner = self._unwrapped(calls) if self._wrapped is not None else None
        if inner is None:
            self._send_wrapped(calls)
            inner = "}" if self._count else "{}"
        calls.call_arguments(inner)
        calls.call_end(complete)

    def begin(self, key: Key | None, calls: Calls) -> None:
        """A value begins; None: it belongs to no parameter."""
        self._key = key or Key("")
        self._fresh, self._newline, self._readings = self._values.trims_newline, False, 0
        self._mode = _SKIP
        name, text = self._key
        if not self.name or not name:
            return
        self._send_wrapped(calls)
        if self._count == 0 and name in self._values.wrappers:
            properties = calls.tools.properties(self.name)
            if properties and name not in properties:
                self._mode = _WRAPPER
                return
        self._send_key(calls)
        types = self._types(calls)
        if text and types == STRING:
            self._mode = _STREAM
            calls.call_arguments('"')
        else:
            self._mode = _MAYBE_NULL if text and types == NULLABLE else _HOLD

    def value(self, text: str, calls: Calls) -> None:
        """More text of the value."""
        mode = self._mode
        if self._fresh:
            self._fresh = False
            text = text.removeprefix("\n")
        if mode == _STREAM:
            calls.call_arguments(self._streamed(text))
        elif mode != _SKIP and text:
            starts = self._size == 0
            self._held.append(text)
            self._size += len(text)
            if mode == _MAYBE_NULL:
                if not "null\n".startswith(self._text().lower()):
                    self._begin_stream(calls)
            elif self._size > self._hold_limit or (starts and self._no_json(text[0], calls)):
                self._begin_stream(calls)

    def plain(self, text: str) -> str | None:
        """The short way of `value` for most text (not empty) of most values: the argument text to be passed
        on now. None when it is for `value`."""
        mode = self._mode
        if self._fresh:
            return None
        if mode == _STREAM:
            return self._streamed(text)
        if mode == _SKIP:
            return ""
        size = self._size + len(text)
        if mode == _MAYBE_NULL or not self._size or size > self._hold_limit:
            return None
        self._held.append(text)
        self._size = size
        return ""

    def _no_json(self, character: str, calls: Calls) -> bool:
        """Whether a value that is JSON or text is text, because of how it begins."""
        key_says = self._mode == _HOLD and not self._key.text
        return key_says and character not in _JSON_STARTS and self._types(calls) == STRING

    def end_value(self, calls: Calls) -> None:
        """The value is complete."""
        mode, self._mode = self._mode, _SKIP
        if mode == _STREAM:
            calls.call_arguments('"')
        elif mode != _SKIP:
            text = self._trimmed()
            self._held, self._size = [], 0
            if mode == _WRAPPER:
                self._wrapped = self._key, text
            else:
                calls.call_arguments(self._json(text, calls))

    def whole(self, calls: Calls) -> bool:
        """Whether the value may be complete as it is: it is held, and can be read as something that is no
        string."""
        self._readings += 1
        if self._mode not in (_HOLD, _MAYBE_NULL) or self._readings > _READINGS:
            return False
        return not self._json(self._trimmed(), calls).startswith('"')

    def cut(self, calls: Calls) -> None:
        """The output ends inside a value: nothing is said of it that could turn out to be wrong."""
        if self._mode == _WRAPPER:
            self._send_key(calls)
            if self._key.text:
                calls.call_arguments(quoted(self._text())[:-1])
        if self.name:
            calls.call_end(False)

    def put(self, name: str, value: Any, calls: Calls) -> None:
        """A whole parameter whose value has types of its own, to be corrected by the schema. Raises
        RecursionError, and says nothing, for one nested too deep."""
        if not self.name or not name:
            return
        schema = calls.tools.schema(self.name, name) if self._values.schemas else None
        text = dumps(retyped(value, schema, calls.tools))
        self._key = Key(name)
        self._send_key(calls)
        calls.call_arguments(text)

    def _types(self, calls: Calls) -> frozenset[str]:
        tools = calls.tools
        return tools.types(tools.schema(self.name, self._key.name)) if self._values.schemas else STRING

    def _send_key(self, calls: Calls) -> None:
        calls.call_arguments(f"{', ' if self._count else '{'}{quoted(self._key.name)}: ")
        self._count += 1

    def _begin_stream(self, calls: Calls) -> None:
        """What was held is a string."""
        if self._mode == _WRAPPER:
            self._send_key(calls)
        text = self._text()
        self._held, self._size = [], 0
        self._mode = _STREAM
        calls.call_arguments('"')
        calls.call_arguments(self._streamed(text))

    def _streamed(self, text: str) -> str:
        """More of a streamed string, as JSON."""
        if self._values.trims_newline and (self._newline or text[-1:] == "\n"):
            if self._newline:
                text = "\n" + text
            self._newline = text.endswith("\n")
            if self._newline:
                text = text[:-1]
        return quoted(text)[1:-1]

    def _json(self, text: str, calls: Calls) -> str:
        """A complete value of the current key as JSON text."""
        tools = calls.tools
        schema = tools.schema(self.name, self._key.name) if self._values.schemas else None
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
        properties = calls.tools.properties(self.name)
        try:
            inner = json.loads(self._wrapped[1])
            if isinstance(inner, str):
                inner = json.loads(inner)
            if isinstance(inner, dict) and inner.keys() <= properties.keys():
                return dumps(retyped_object(inner, properties, calls.tools))
        except (ValueError, RecursionError):
            pass
        return None

    def _text(self) -> str:
        if len(self._held) > 1:
            self._held = ["".join(self._held)]
        return self._held[0] if self._held else ""

    def _trimmed(self) -> str:
        return self._text().removesuffix("\n") if self._values.trims_newline else self._text()

    def dump(self) -> list[Any]:
        return [
            self.name,
            self._count,
            list(self._key),
            self._mode,
            self._text(),
            self._fresh,
            self._newline,
            self._readings,
            [list(self._wrapped[0]), self._wrapped[1]] if self._wrapped is not None else None,
        ]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises msgspec.ValidationError or ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        if not _SKIP <= saved.mode <= _WRAPPER or len(saved.held) > self._hold_limit or saved.count < 0:
            raise ValueError("impossible state of arguments")
        self.name, self._count = saved.name, saved.count
        self._key, self._mode = Key(*saved.key), saved.mode
        self._held, self._size = ([saved.held] if saved.held else []), len(saved.held)
        self._fresh, self._newline, self._readings = saved.fresh, saved.newline, saved.readings
        if saved.wrapped is not None:
            key, text = saved.wrapped
            self._wrapped = Key(*key), text


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    count: int
    key: tuple[str, bool]
    mode: int
    held: str
    fresh: bool
    newline: bool
    readings: int
    wrapped: tuple[tuple[str, bool], str] | None


def _parsed(text: str) -> Any:
    """JSON as Python reads it, the text itself when it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text
