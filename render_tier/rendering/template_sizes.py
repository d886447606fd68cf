"""How large the result of a template's operation will be, told before it is carried out.

Bounds are rough: what counts is that no small template can build something out of proportion, and that what
the values of a real request take never comes near the limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import chain
from typing import Any

from jinja2.utils import Namespace

from render_tier.rendering.template_meter import METER, BudgetExceeded, check_size, check_time

VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
CONTAINERS = (dict, list, tuple, set, frozenset, Namespace, *VIEWS)
SLOT = 8
"""Bytes that a list takes for an item."""
PIECE = 64
"""Bytes that a short text takes."""
NUMBER_CHARS = 24
ENTRY = 12 * SLOT
"""Bytes that a dict takes for an entry."""
MANY = 256
"""Items between two looks at the clock."""
ITERATING = frozenset(
    {
        *("list", "sort", "unique", "reverse", "map", "select", "reject", "selectattr", "rejectattr"),
        *("batch", "slice", "groupby", "min", "max", "sum"),
    }
)
"""Filters that make a list of the characters of a text."""
LOOKING = frozenset({"count", "endswith", "find", "index", "rfind", "rindex", "startswith"})
"""Methods of a text that make nothing, as do those that begin with "is"."""
WRITING = frozenset(
    {
        *("string", "upper", "lower", "title", "capitalize", "trim", "escape", "e", "forceescape", "safe"),
        *("striptags", "truncate", "urlencode", "xmlattr", "wordcount", "pprint"),
    }
)
"""Filters that write their value out, without making much more of it."""


def length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 1


def number(value: Any) -> int:
    return max(value, 0) if isinstance(value, int) else 1


def written_size(value: Any) -> int:
    """Characters of ``value`` written out. What is referred to many times counts as many times, though it is
    looked at once. Raises BudgetExceeded as soon as it is known to be too much."""
    return len(value) if isinstance(value, str) else _measure(value, {})


def _measure(value: Any, known: dict[int, int]) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    if not isinstance(value, CONTAINERS):
        return NUMBER_CHARS
    found = known.get(id(value))
    if found is not None:
        return found
    limit, total = METER.max_chars, 2
    for seen, part in enumerate(_children(value)):
        kind = type(part)
        if kind is str:
            total += len(part) + 4
        elif part is None or kind is bool:
            total += NUMBER_CHARS
        else:
            total += _measure(part, known) + 4
        if total > limit:
            raise BudgetExceeded("the chat template writes out a value that is too large")
        if seen % MANY == MANY - 1:
            check_time()
    known[id(value)] = total
    return total


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, dict):
        return chain.from_iterable(value.items())
    items: Iterable[Any] = value
    return items


def joined_size(separator: Any, items: Sequence[Any]) -> int:
    return sum(written_size(item) for item in items) + length(separator) * len(items)


def replaced_size(text: Any, old: Any, new: Any) -> int:
    size = written_size(text)
    return size + (size // max(length(old), 1) + 1) * length(new)


def format_size(form: str, arguments: Sequence[Any]) -> int:
    """Of ``form % arguments`` and ``form.format(*arguments)``: widths may stand in either."""
    widths = len(form) + sum(int(found[0][:12]) for found in re.finditer(r"\d+", form))
    if "*" in form or "{" in form:
        widths += sum(number(value) for value in arguments if not isinstance(value, bool))
    fields = form.count("%") + form.count("{")
    return widths + max(map(written_size, arguments), default=0) * max(fields, 1)


def split_size(text: str, separator: Any) -> int:
    """Of the list that a text is split into."""
    if isinstance(separator, str) and separator:
        return text.count(separator) * PIECE
    return sum(text.count(space) for space in " \t\r\n\f\v\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029") * PIECE


def method_size(owner: Any, name: str, arguments: Sequence[Any]) -> int:
    """Of ``owner.name(*arguments)`` for methods of texts, bytes and numbers."""
    first = arguments[0] if arguments else None
    if isinstance(owner, int):
        return number(first) if name == "to_bytes" else 0
    if isinstance(owner, type):
        return copied_size(arguments)
    if not isinstance(owner, str | bytes):
        return copied_size([owner]) if name == "copy" else 0
    if name == "join":
        return joined_size(owner, first) if isinstance(first, list | tuple) else 0
    if name == "replace" and len(arguments) > 1:
        return replaced_size(owner, first, arguments[1])
    if name in ("center", "ljust", "rjust", "zfill"):
        return number(first)
    if name == "expandtabs":
        return len(owner) * (number(first) if arguments else 8)
    if name in ("split", "rsplit", "splitlines"):
        return len(owner) + (split_size(owner, first) if isinstance(owner, str) else len(owner) * PIECE)
    if name in ("hex", "encode", "decode", "translate", "title", "swapcase", "capitalize", "casefold"):
        return 4 * len(owner)
    return 0 if name in LOOKING or name.startswith("is") else len(owner)


def copied_size(values: Iterable[Any]) -> int:
    """Of a copy of all values, or of a dict of their items."""
    return sum(
        len(value) * (ENTRY if isinstance(value, dict | range) else SLOT)
        for value in values
        if isinstance(value, Sized) and not isinstance(value, str | bytes)
    )


def _pad(value: Any, width: Any = 80, *_: Any) -> int:
    return written_size(value) + number(width)


def _indent(s: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    lines = s.count("\n") + 1 if isinstance(s, str) else written_size(s)
    return written_size(s) + lines * (len(width) if isinstance(width, str) else number(width))


def _groups(value: Any, count: Any = 1, *_: Any, **__: Any) -> int:
    return (length(value) + number(count)) * SLOT


def _replace(s: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> int:
    return replaced_size(s, old, new)


def _format(value: Any, *arguments: Any, **named: Any) -> int:
    return format_size(str(value) if isinstance(value, str) else "", [*arguments, *named.values()])


def _tojson(value: Any, *arguments: Any, **named: Any) -> int:
    indent = named.get("indent", arguments[1] if len(arguments) > 1 else None)
    return written_size(value) * (1 + 4 * (number(indent) if indent is not None else 0))


def _wordwrap(s: Any, width: Any = 79, long: Any = True, wrapstring: Any = None, *_: Any, **__: Any) -> int:
    size = written_size(s)
    return size + (2 * size // max(number(width), 1) + size) * (length(wrapstring) if wrapstring else 1)


def _urlize(value: Any, *arguments: Any, **named: Any) -> int:
    """Its patterns take time in proportion to the square of the text."""
    return written_size(value) ** 2 * (1 + sum(map(length, [*arguments, *named.values()])))


FILTER_SIZES: Mapping[str, Callable[..., int]] = {
    "center": lambda value, *rest, **named: _pad(value, *rest, *named.values()),
    "indent": _indent,
    "batch": lambda value, linecount=1, *rest, **named: _groups(value, linecount),
    "slice": lambda value, slices=1, *rest, **named: _groups(value, slices),
    "replace": _replace,
    "format": _format,
    "tojson": _tojson,
    "wordwrap": lambda s, width=79, break_long_words=True, wrapstring=None, *rest, **named: _wordwrap(
        s, width, break_long_words, wrapstring
    ),
    "urlize": _urlize,
    **dict.fromkeys(WRITING, lambda value, *_, **__: written_size(value)),
}


def collected(items: Any) -> list[Any]:
    """What an iterator gives, within the budget."""
    found: list[Any] = []
    for item in items:
        check_time()
        check_size(min(written_size(item), PIECE) + SLOT)
        found.append(item)
    return found
