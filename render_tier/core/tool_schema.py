"""Values of tool arguments that were written as text, typed by the tool's JSON schema.

The rules are vLLM's (`tool_parsers/utils.py` and `parser/engine/parser_engine.py` of 0.32): the types that
a schema allows are tried in a fixed order, and a text that fits none of them stays a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, Final

STRING: Final = frozenset({"string"})
NULLABLE: Final = frozenset({"string", "null"})

_ALIASES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(
        ("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"), "integer"
    ),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    "bool": "boolean",
    "dict": "object",
    **dict.fromkeys(("arr", "list", "sequence"), "array"),
}
_JSON_TYPES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
    (type(None), "null"),
)

Schema = Mapping[str, Any]


class ToolSchemas:
    """The tools of a request, as far as parsing their calls needs them. Not changed after it is made."""

    def __init__(self, tools: Sequence[Any] | None) -> None:
        """``tools``: the request's list. Entries that are no function tools are left out; of several with one
        name the first counts."""
        self._properties: dict[str, dict[str, Schema]] = {}
        self._types: dict[int, frozenset[str]] = {}
        for tool in tools or ():
            function = tool.get("function") if isinstance(tool, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
                continue
            parameters = function.get("parameters")
            listed = parameters.get("properties") if isinstance(parameters, Mapping) else None
            properties = dict(listed) if isinstance(listed, Mapping) else {}
            self._properties.setdefault(name, properties)

    def known(self, name: str) -> bool:
        """Whether a call of this name may be made: there is such a tool, or the request has none at all."""
        return not self._properties or name in self._properties

    def properties(self, name: str) -> Mapping[str, Any]:
        """The schemas of a tool's parameters; empty when the tool or its schema is unknown."""
        return self._properties.get(name, {})

    def schema(self, name: str, key: str) -> Schema | None:
        """The schema of one parameter, None when it has none."""
        schema = self.properties(name).get(key)
        return schema if isinstance(schema, Mapping) else None

    def types(self, schema: Schema | None) -> frozenset[str]:
        """The types that a schema of this request allows; a schema that says nothing allows strings."""
        if schema is None:
            return STRING
        known = self._types.get(id(schema))  # the schema lives as long as this object
        if known is None:
            known = self._types[id(schema)] = allowed_types(schema)
        return known


NO_TOOLS: Final = ToolSchemas(None)


def allowed_types(schema: Schema) -> frozenset[str]:
    """The types named by ``type``, by the values of ``enum``, and by ``anyOf``, ``oneOf`` and ``allOf``."""
    types: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping):
            types.add("string")
            continue
        named = part.get("type")
        found = [named] if isinstance(named, str) else named if isinstance(named, list) else []
        own = {name for name in found if isinstance(name, str)}
        values = part.get("enum")
        for value in values if isinstance(values, list) else ():
            own.add(next(name for kind, name in _JSON_TYPES if isinstance(value, kind)))
        choices = [
            choice
            for field in ("anyOf", "oneOf", "allOf")
            if isinstance(part.get(field), list)
            for choice in part[field]
        ]
        types.update(own)
        if not own and not choices:
            types.add("string")
        waiting.extend(choices)
    return frozenset(_ALIASES.get(name, name) for name in (name.strip().lower() for name in types))


def typed(text: str, types: frozenset[str]) -> Any:
    """The value of a text under a schema that allows these types."""
    if types == STRING:
        return text
    if "null" in types and text.lower() == "null":
        return None
    if "integer" in types:
        try:
            return int(text)
        except ValueError:
            pass
    if "number" in types and (number := _number(text)) is not None:
        return number
    if "boolean" in types:
        word = text.lower().strip()
        if word in ("true", "1"):
            return True
        if word in ("false", "0"):
            return False
    if ("object" in types or "array" in types) and (parsed := finite_json(text)) is not text:
        return parsed
    return text if "string" in types else finite_json(text)


def _number(text: str) -> float | int | None:
    try:
        return int(text)  # whole numbers stay exact
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) else number


def finite_json(text: str) -> Any:
    """The JSON value that a text spells; the text itself when it spells none, or one with numbers that JSON
    cannot carry."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if _finite(value) else text


def _finite(value: Any) -> bool:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, float):
            if not math.isfinite(part):
                return False
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return True


def retyped(value: Any, schema: Schema | None, tools: ToolSchemas) -> Any:
    """A value of a notation with types of its own, corrected by the schema at every depth.

    Raises RecursionError for a value nested some hundred levels deep.
    """
    if schema is None:
        return value
    if isinstance(value, str):
        return typed(value, tools.types(schema))
    if isinstance(value, dict):
        properties = schema.get("properties")
        return retyped_object(value, properties, tools) if isinstance(properties, Mapping) else value
    if isinstance(value, list):
        items = schema.get("items")
        return [retyped(item, items, tools) for item in value] if isinstance(items, Mapping) else value
    return typed(json.dumps(value), tools.types(schema))


def retyped_object(value: Mapping[str, Any], properties: Mapping[str, Any], tools: ToolSchemas) -> Any:
    """`retyped` for the members of an object, by the schemas of its properties."""
    return {
        key: retyped(member, inner if isinstance(inner := properties.get(key), Mapping) else None, tools)
        for key, member in value.items()
    }


def dumps(value: Any) -> str:
    """A value as JSON in the manner of Python's default, characters unescaped.

    What JSON or UTF-8 cannot carry is never written: a number that is not finite becomes its name as a
    string, a lone surrogate an escape. Raises RecursionError as `retyped` does.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_named(value), ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or _encodable(text) else json.dumps(value)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, dict):
        return {key: _named(member) for key, member in value.items()}
    return [_named(member) for member in value] if isinstance(value, list) else value


def quoted(text: str) -> str:
    """A text as a JSON string; pieces of a text give pieces of its string, between the quotes."""
    return encode_basestring(text)
