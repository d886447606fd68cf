"""From a client's bytes to a checked request object, with vLLM's error body for whatever is wrong.

Two kinds of refusal exist on the wire: type ``Bad Request`` for a body of the wrong shape (``param`` is a
path such as ``body.messages``) and ``BadRequestError`` for a value that breaks a rule (``param`` is a field).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from render_tier.protocol.errors import BadRequest

SHAPE_ERROR = "Bad Request"
MAX_REPORTED_ERRORS = 10
MAX_INPUT_CHARS = 200
INTERNAL_LOCATIONS = frozenset(
    (
        *("function-wrap", "function-after", "function-before", "function-plain", "json-or-python"),
        *("lax-or-strict", "chain", "default", "nullable", "tagged-union", "union"),
        *("is-instance", "is-subclass", "callable", "str", "int", "float", "bool", "bytes", "list", "tuple"),
        *("dict", "set", "frozenset", "none", "nonetype"),
    )
)
"""Segments of a pydantic error location that name a validator and not a field."""

MAX_DEPTH = 200
"""How deep a body may be nested. What reads or writes a part of it later, a level or two deeper or with
several calls a level, stays clear of Python's limit."""

Model = TypeVar("Model", bound=BaseModel)


def invalid(message: str, param: str | None = None, value: object = None) -> BadRequest:
    """A broken rule: the message ends with the field (and value) at fault, as vLLM's does."""
    extras = []
    if param is not None:
        extras.append(f"parameter={param}")
    if value is not None:
        extras.append(f"value={summarise(value)}")
    suffix = f" ({', '.join(extras)})" if extras else ""
    return BadRequest(message + suffix, param=param)


def misshapen(entries: Iterable[dict[str, Any]]) -> BadRequest:
    """A body of the wrong shape. ``entries`` are pydantic-like errors with ``loc`` below ``body``."""
    listed = list(entries)
    lines = []
    for entry in listed[:MAX_REPORTED_ERRORS]:
        shown = {"type": entry["type"], "loc": _path(entry["loc"]), "msg": entry["msg"]}
        if "input" in entry:
            shown["input"] = summarise(entry["input"])
        lines.append(f"  {shown}")
    noun = "error" if len(listed) == 1 else "errors"
    if len(listed) > MAX_REPORTED_ERRORS:
        lines.append(f"  ...and {len(listed) - MAX_REPORTED_ERRORS} more {noun}")
    message = f"{len(listed)} validation {noun}:\n" + "\n".join(lines)
    return BadRequest(message, param=_path(listed[0]["loc"]), type=SHAPE_ERROR)


def summarise(value: object) -> object:
    """A stand-in for a rejected value that cannot make the error longer than the request."""
    if isinstance(value, str):
        return value if len(value) <= MAX_INPUT_CHARS else value[:MAX_INPUT_CHARS] + "...[truncated]"
    if isinstance(value, list | tuple | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    if isinstance(value, int) and not -(1 << 64) < value < (1 << 64):
        return "<integer beyond 64 bits>"
    return value if isinstance(value, bool | int | float | None) else f"<{type(value).__name__}>"


def _path(location: Iterable[object]) -> str:
    parts = [str(part) for part in location]
    named = [part for part in parts if not _is_internal(part)]
    return ".".join(["body", *(named or parts)])


def _is_internal(part: str) -> bool:
    return part.lower() in INTERNAL_LOCATIONS or any(bracket in part for bracket in "[](){}")


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``.

    Accepts what Python's json accepts (NaN, duplicate keys) but no text that is not Unicode: a lone surrogate
    cannot be tokenized. Raises BadRequest, also for what is nested deeper than `MAX_DEPTH`.
    """
    if not body.strip():
        raise misshapen([{"type": "missing", "loc": (), "msg": "Field required", "input": None}])
    try:
        data = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        data = _decode_leniently(body)
    if not isinstance(data, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise misshapen([{"type": "model_attributes_type", "loc": (), "msg": message, "input": data}])
    # Counting brackets is much faster than looking at the values.
    if _has_brackets(body, MAX_DEPTH + 1) and _deeper_than(data, MAX_DEPTH):
        raise _too_deep()
    return data


def _has_brackets(body: bytes, number: int) -> bool:
    """Whether so many are in ``body``. To find the next one is much faster than to count them all, where a
    body is mostly one string."""
    for bracket in (b"[", b"{"):
        place = body.find(bracket)
        while place >= 0:
            number -= 1
            if not number:
                return True
            place = body.find(bracket, place + 1)
    return False


def _deeper_than(data: dict[str, Any], depth: int) -> bool:
    level: list[Any] = [data]
    for _ in range(depth):
        level = [
            inner
            for value in level
            for inner in (value.values() if type(value) is dict else value)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _too_deep() -> BadRequest:
    return misshapen([{"type": "json_invalid", "loc": (), "msg": "JSON nested too deeply"}])


def _decode_leniently(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig")
        data = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"JSON decode error: {error.msg}"
        raise misshapen(
            [{"type": "json_invalid", "loc": (error.pos,), "msg": message, "input": {}}]
        ) from None
    except UnicodeDecodeError as error:
        message = f"JSON decode error: not UTF-8: {error.reason}"
        raise misshapen([{"type": "json_invalid", "loc": (error.start,), "msg": message}]) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # an integer literal longer than Python converts
        raise misshapen([{"type": "json_invalid", "loc": (), "msg": f"JSON decode error: {error}"}]) from None
    try:
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        message = "JSON decode error: a lone surrogate is not valid text"
        raise misshapen([{"type": "json_invalid", "loc": (), "msg": message}]) from None
    except RecursionError:
        raise _too_deep() from None
    return data


def validate_as(model: type[Model], data: dict[str, Any], within: tuple[object, ...] = ()) -> Model:
    """``data``, which stands at ``within`` in the body, as a ``model``. Raises BadRequest."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        entries = error.errors(include_url=False, include_context=False)
        raise misshapen([{**entry, "loc": (*within, *entry["loc"])} for entry in entries]) from None
    except RecursionError:
        raise _too_deep() from None
