"""Random text, tool schemas and argument values: what models put between the markers of any format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

WORDS = [
    "the",
    "ferry",
    "leaves",
    "at",
    "six",
    "bring",
    "a",
    "raincoat",
    "and",
    "two",
    "cups",
    "of",
    "tea",
    "please",
    "check",
    "gate",
    "7",
    "before",
    "noon",
    "it",
    "is",
    "42.5",
    "km",
    "to",
    "Nauvo",
    "so",
    "maybe",
    "later",
    "I",
    "think",
    "we",
    "should",
    "ask",
    "once",
    "more",
    "value",
    "x",
    "=",
    "y",
    "+",
    "1",
    "done",
]
FOREIGN = (
    *(
        "港の記録",
        "Größe",
        "naïve café",
        "שלום עולם",
        "مرحبا",
        "Первый шаг",
        "次に、航路を決める",
        "q̃ ẽ",
        "µm — ½",
    ),
    *("👩🏽‍🚀", "🛶🇫🇮", "👨‍👩‍👧‍👦", "🧭", "ﬁne", "\u200bzero", "\u00a0nbsp", "İstanbul", "\ufeff", "Ω"),
)
CODE = (
    "if (a[0] == '}') { return \"]}\"; }",
    "print(f\"{x!r}\")",
    "def f(x):\n    return {'a': [x, (1, 2)]}",
    "sed -n '1,9p' f.py | grep -E \"^[a-z]+$\"",
    "SELECT * FROM t WHERE a <> 'b' AND c >= 3;",
    "C:\\temp\\new\\u0041",
    "<div class=\"x\">a &lt; b</div>",
    "```json\n{\"name\": \"not_a_call\", \"ok\": true}\n```",
    "$x^{2}_{i}$ \\frac{1}{2}",
    "{curly} and [square] and (round)",
)  # fmt: skip
NEAR_MARKERS = (
    *(
        "<think",
        "</thi nk>",
        "< think >",
        "<tool_cal",
        "<tool_calls_>",
        "<|tool",
        "</tool-call>",
        "<function>",
    ),
    *(
        "</param>",
        "[TOOL CALLS]",
        "<|im_",
        "<｜tool",
        "<｜DSML",
        "<arg_",
        "<|channel",
        "[THIN",
        "functool",
        "<tools>",
    ),
    *(
        "Here is my plan:",
        "<",
        "</",
        "<|",
        "]]",
        "|>",
        "<response",
        "call:",
        "<|start",
        '<|"',
        "<minimax:",
        "<seed:",
    ),
)
"""Pieces of markup that no family's marker completes: they are text everywhere."""


@dataclass(frozen=True)
class TextKnobs:
    """How plain text is drawn. Shares are per piece; a text has up to ``pieces`` pieces."""

    pieces: int = 8
    foreign: float = 0.12
    code: float = 0.06
    near_markers: float = 0.05
    newline: float = 0.12
    braces: bool = True
    """Whether code, which has braces, may occur (JSON-in-prose families take a brace for a call)."""


def words(rng: Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def text(rng: Random, knobs: TextKnobs) -> str:
    """Prose of at least one visible word; never starts or ends with white space."""
    parts = [rng.choice(WORDS)]
    for _ in range(rng.randrange(knobs.pieces + 1)):
        draw = rng.random()
        separator = "\n" * rng.choice((1, 1, 2)) if rng.random() < knobs.newline else " "
        if draw < knobs.foreign:
            piece = rng.choice(FOREIGN)
        elif knobs.braces and draw < knobs.foreign + knobs.code:
            piece = rng.choice(CODE)
        elif draw < knobs.foreign + knobs.code + knobs.near_markers:
            piece = rng.choice(NEAR_MARKERS)
        else:
            piece = words(rng, rng.randint(1, 6)) + rng.choice(("", ".", ",", "?", "!", ":"))
        parts.append(separator + piece)
    return "".join(parts).strip() or "ok"


def _tool(name: str, properties: dict[str, Any] | None, *, required: tuple[str, ...] = ()) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, "description": f"{name} for tests"}
    if properties is not None:
        function["parameters"] = {
            "type": "object",
            "properties": properties,
            "required": list(required),
        }
    return {"type": "function", "function": function}


STRING = {"type": "string"}
NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
STRINGS = {"type": "array", "items": STRING}
INTEGER, NUMBER, BOOLEAN = {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
BOUNDS = {"type": "object", "properties": {"max_nm": NUMBER, "night_ok": BOOLEAN, "avoid": STRINGS}}
TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "book_berth",
        {"pier": STRING, "nights": INTEGER, "power": BOOLEAN, "memo": NULLABLE},
        required=("pier",),
    ),
    _tool("chart_course", {"start": STRING, "via": STRINGS, "bounds": BOUNDS}, required=("start",)),
    _tool("tide_table", {}),
    _tool(
        "store_sample",
        {
            "probe": STRING,
            "reading": NUMBER,
            "tick": INTEGER,
            "raw": BOOLEAN,
            "remark": {"type": ["string", "null"]},
            "series": {"type": "array", "items": NUMBER},
        },
    ),
    _tool("write_note", {"title": STRING, "body": STRING, "tags": STRINGS}),
    _tool(
        "set_dial",
        {
            "mode": {"enum": ["eco", "sport"]},
            "gain": {"anyOf": [INTEGER, STRING]},
            "limit": {"type": ["integer", "null"]},
            "blob": {"type": "object"},
        },
    ),
    _tool("get-log.v2", {"since": STRING}),
    _tool("no_schema", None),
)
"""The pool of tools. `no_schema` has no parameters at all; `get-log.v2` is no Python name."""
UNKNOWN = "summon_kraken"


@dataclass(frozen=True)
class ValueKnobs:
    """How argument values are drawn."""

    hard_strings: float = 0.35
    """Share of strings with quotes, newlines, braces, code or foreign scripts, or like other types."""
    depth: int = 2
    number_like: bool = True
    """Strings such as "00420", "true", "null" for plain string parameters."""
    newlines: bool = True
    edge_space: float = 0.08
    """Share of hard strings with white space at an end."""


def string(rng: Random, knobs: ValueKnobs) -> str:
    if rng.random() >= knobs.hard_strings:
        return words(rng, rng.randint(1, 4))
    draw = rng.randrange(7 if knobs.number_like else 6)
    if draw == 0:
        value = rng.choice(FOREIGN) + " " + rng.choice(FOREIGN)
    elif draw == 1:
        value = rng.choice(CODE)
    elif draw == 2:
        value = f"say \"{rng.choice(WORDS)}\" and '{rng.choice(WORDS)}'"
    elif draw == 3:
        value = rng.choice(NEAR_MARKERS) + rng.choice(WORDS) + rng.choice(NEAR_MARKERS)
    elif draw == 4:
        value = "\n".join(words(rng, 2) for _ in range(rng.randint(2, 3))) + rng.choice(("", "\t."))
    elif draw == 5:
        value = ""
    else:
        value = rng.choice(
            ("00420", "1e3", "true", "null", "-7", "[1]", '{"a": 1}', "None", "3.0", "NaN", "0x1F")
        )
    if rng.random() < knobs.edge_space:
        value = rng.choice((" ", "\n", "")) + value + rng.choice((" ", "\n"))
    return value if knobs.newlines else value.replace("\n", " ").replace("\t", " ").replace("\r", " ")


def number(rng: Random) -> int | float:
    return rng.choice(
        (
            0,
            1,
            -1,
            7,
            42.5,
            -0.00125,
            71.25,
            1e21,
            3e-07,
            2**53 + 1,
            rng.randint(-999, 999),
            round(rng.random() * 100, 3),
        )
    )


def integer(rng: Random) -> int:
    return rng.choice((0, 3, -12, 2026, 9007199254740993123, rng.randint(-9999, 9999)))


def anything(rng: Random, knobs: ValueKnobs, depth: int) -> Any:
    """Any JSON value; nested at most ``depth`` levels."""
    kinds = ["string", "string", "number", "integer", "boolean", "null"]
    if depth > 0:
        kinds += ["array", "object"]
    match rng.choice(kinds):
        case "string":
            return string(rng, knobs)
        case "number":
            return number(rng)
        case "integer":
            return integer(rng)
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case "array":
            return [anything(rng, knobs, depth - 1) for _ in range(rng.randrange(4))]
        case _:
            return {
                rng.choice(("a", "b c", "k_1", "ключ", 'q"')): anything(rng, knobs, depth - 1)
                for _ in range(rng.randrange(4))
            }


def of_schema(rng: Random, schema: dict[str, Any], knobs: ValueKnobs, depth: int) -> Any:
    """A value that fits the schema and that no other type of a union could be taken for."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    choices = schema.get("anyOf") or (
        [{"type": t} for t in schema["type"]] if isinstance(schema.get("type"), list) else None
    )
    if choices:
        chosen = rng.choice(choices)
        if chosen.get("type") == "string":
            return words(rng, 2)
        return of_schema(rng, chosen, knobs, depth)
    match schema.get("type"):
        case "string":
            return string(rng, knobs)
        case "integer":
            return integer(rng)
        case "number":
            return number(rng)
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case "array":
            return [
                of_schema(rng, schema.get("items", STRING), knobs, depth - 1) for _ in range(rng.randrange(4))
            ]
        case "object" if schema.get("properties"):
            return {
                name: of_schema(rng, inner, knobs, depth - 1)
                for name, inner in schema["properties"].items()
                if rng.random() < 0.7
            }
        case "object":
            return {
                rng.choice(("a", "b", "k_1")): anything(rng, knobs, max(0, depth - 1))
                for _ in range(rng.randrange(3))
            }
    return anything(rng, knobs, depth)


def properties_of(tools: list[dict[str, Any]] | None, name: str) -> dict[str, Any]:
    """The parameter schemas of a tool; empty when the tool or its schema is missing."""
    for tool in tools or []:
        if tool["function"]["name"] == name:
            parameters = tool["function"].get("parameters") or {}
            properties: dict[str, Any] = parameters.get("properties", {})
            return properties
    return {}


def properties_known(tools: list[dict[str, Any]] | None, name: str) -> bool:
    """Whether the request has a tool of this name."""
    return any(tool["function"]["name"] == name for tool in tools or [])


def arguments(rng: Random, tools: list[dict[str, Any]], name: str, knobs: ValueKnobs) -> dict[str, Any]:
    """Arguments for a call of ``name``: fitting its schema, or free when there is none."""
    properties = properties_of(tools, name)
    if properties:
        kept = [key for key in properties if rng.random() < 0.75]
        rng.shuffle(kept)
        return {key: of_schema(rng, properties[key], knobs, knobs.depth) for key in kept}
    if name == "tide_table":
        return {}
    return {
        key: anything(rng, knobs, knobs.depth)
        for key in rng.sample(("size", "depth", "why", "x1"), rng.randrange(4))
    }


def dumps(rng: Random, value: Any, *, style: str | None = None) -> str:
    """JSON as models write it: spaced like Python's default, compact, pretty, or with non-ASCII escaped."""
    match style or rng.choice(("default", "default", "default", "compact", "ascii")):
        case "compact":
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        case "ascii":
            return json.dumps(value, ensure_ascii=True)
        case "pretty":
            return json.dumps(value, ensure_ascii=False, indent=2)
        case _:
            return json.dumps(value, ensure_ascii=False)
