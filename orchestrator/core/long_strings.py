"""The long strings of a JSON text apart from it, so that what is left can be read, changed and written often.

An image is a string of millions of characters in the middle of what render answers, and every look at the
JSON around it would go through all of them. So they are cut out as soon as the answer is there, and a
reference stands for each, until the JSON is sent to an engine, in pieces. A reference is a string that the
text has nowhere else; where it has, nothing is cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

LONG: Final = 1 << 16
"""Bytes. A shorter string stays where it is."""

Strings = tuple[memoryview, ...]
"""With their quotes, by the numbers in references."""

Pieces = list[bytes | memoryview]
"""Of one text, in their order."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A JSON value, and the strings that it refers to."""

    text: msgspec.Raw
    strings: Strings

    def pieces(self) -> Pieces:
        """The whole value; the strings are not copied."""
        pieces: Pieces = list(_REFERENCE.split(bytes(self.text)))
        pieces[1::2] = [self.strings[int(number)] for number in pieces[1::2]]
        return pieces


def with_strings(text: msgspec.Raw, strings: Strings) -> msgspec.Raw | Apart:
    """For `written`; what looks like a reference is none where nothing was cut."""
    return Apart(text, strings) if strings else text


def written(request: Mapping[str, Any]) -> Pieces:
    """A JSON object, whose values may be `Apart`."""
    apart = {name: value for name, value in request.items() if isinstance(value, Apart)}
    others = msgspec.json.encode({name: value for name, value in request.items() if name not in apart})
    if not apart:
        return [others]
    pieces: Pieces = [others[:-1]]
    comma = b"," if len(others) > len(b"{}") else b""
    for name, value in apart.items():
        pieces += [b"%b%b:" % (comma, msgspec.json.encode(name)), *value.pieces()]
        comma = b","
    return [*pieces, b"}"]


def cut(text: bytes, after: bytes) -> tuple[bytes, Strings]:
    """``text`` with references for the long strings that follow on ``after``, and those strings, which are
    still parts of ``text``."""
    at = text.find(after)
    if at < 0 or len(text) < LONG:
        return text, ()
    at += len(after)
    view, done = memoryview(text), 0
    kept: list[bytes | memoryview] = []
    strings: list[memoryview] = []
    while (begin := text.find(b'"', at)) >= 0 and (end := _end(text, begin)) >= 0:
        at = end
        if end - begin >= LONG:
            kept += [view[done:begin], b'%b%d"' % (_BEGIN, len(strings))]
            strings.append(view[begin:end])
            done = end
    left = b"".join((*kept, view[done:]))
    if left.count(_BEGIN) != len(strings):
        return text, ()
    return left, tuple(strings)


def references(text: bytes | msgspec.Raw, behind: bytes = b"") -> int:
    """How many are in ``text``, which is part of one that strings were cut out of, next to ``behind``."""
    return bytes(text).count(behind + _BEGIN)


def reference(number: int) -> msgspec.Raw:
    return msgspec.Raw(b'%b%d"' % (_BEGIN, number))


def referred(value: msgspec.Raw, strings: Sequence[memoryview]) -> memoryview | None:
    """The string that a JSON value refers to, if it is a reference. Where nothing was cut none is, whatever
    it looks like."""
    found = _REFERENCE.fullmatch(value) if strings else None
    return None if found is None else strings[int(found[1])]


def size_of(value: msgspec.Raw, strings: Sequence[memoryview]) -> int:
    """Of a JSON value, in bytes, or of the string that it refers to."""
    found = referred(value, strings)
    return memoryview(value).nbytes if found is None else found.nbytes


_BEGIN: Final = b'"\\u0001'
_REFERENCE: Final = re.compile(rb'"\\u0001(\d+)"')


def _end(text: bytes, begin: int) -> int:
    """Behind the string that begins there; -1 where it has no end."""
    end = text.find(b'"', begin + 1)
    while end >= 0 and _escapes(text, end) % 2:
        end = text.find(b'"', end + 1)
    return end + 1 if end >= 0 else -1


def _escapes(text: bytes, end: int) -> int:
    first = end
    while text[first - 1] == ord("\\"):
        first -= 1
    return end - first
