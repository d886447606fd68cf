"""How each model family writes reasoning, text and calls, in the manner of its chat template.

A `Writer` is data plus two functions: one writes the block of calls, one says what arguments a client should
see (XML-like formats turn text into typed values, so without a schema everything is a string).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.families import values


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Opening:
    """How the prompt ends and what that means for reasoning.

    "self": the model writes a block of its own, "maybe": it may, "open": the prompt left one open, "closed":
    the prompt closed it, "none": the format has none here.
    """

    tail: str
    reasoning: str
    kwargs: dict[str, Any] = field(default_factory=dict)


Tools = list[dict[str, Any]]
WriteCalls = Callable[[Random, list[Call], Tools | None], str]
Typed = Callable[[Call, Tools | None], dict[str, Any]]


def as_given(call: Call, tools: Tools | None) -> dict[str, Any]:
    """JSON arguments arrive as they were written."""
    return call.arguments


def by_schema(call: Call, tools: Tools | None) -> dict[str, Any]:
    """XML-like arguments are typed by the schema; a parameter without one is the string that was written."""
    properties = values.properties_of(tools, call.name)
    return {key: value if key in properties else xml_text(value) for key, value in call.arguments.items()}


def xml_text(value: Any) -> str:
    """A value as the text of an XML-like parameter."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Writer:
    """One family (a reasoning and a tool parser that go together).

    ``think``: the markers around reasoning, with the template's white space; ``calls`` writes all calls of a
    turn; ``typed`` gives the intended arguments. ``text_with_calls``: whether text may stand before calls.
    ``after``: text may follow the calls (whether it is shown is the family's affair). ``parallel``: most
    calls a turn. ``json_choice``: with tool_choice required or named the model is held to bare JSON.
    ``checks_names``: calls of tools that are not in the request are dropped. ``braces``: text may have
    braces. ``values``: limits of what this format can carry.
    """

    name: str
    reasoning_parser: str | None
    tool_parser: str | None
    openings: tuple[Opening, ...]
    markers: tuple[str, ...]
    calls: WriteCalls
    tokenizer: str | None = None
    base: str | None = None
    added: tuple[str, ...] = ()
    think: tuple[str, str] = ("", "")
    typed: Typed = as_given
    text_with_calls: bool = True
    before_calls: str = ""
    parallel: int = 4
    json_choice: bool = False
    checks_names: bool = False
    braces: bool = True
    after: bool = True
    values: values.ValueKnobs = field(default_factory=values.ValueKnobs)
    names: tuple[str, ...] | None = None
    """The names that this format can carry; None: all of the pool."""


# --- JSON objects


def envelope(rng: Random, call: Call, key: str = "arguments", style: str | None = None) -> str:
    return values.dumps(rng, {"name": call.name, key: call.arguments}, style=style)


def tagged_json(start: str, end: str, joiner: str = "\n", inner: str = "\n") -> WriteCalls:
    """``<tag>\\n{"name": ..., "arguments": ...}\\n</tag>`` for every call."""

    def write(rng: Random, calls: list[Call], tools: Tools | None) -> str:
        return joiner.join(f"{start}{inner}{envelope(rng, call)}{inner}{end}" for call in calls)

    return write


def json_array(start: str, end: str) -> WriteCalls:
    """One array of call objects between markers."""

    def write(rng: Random, calls: list[Call], tools: Tools | None) -> str:
        return start + values.dumps(rng, [{"name": c.name, "arguments": c.arguments} for c in calls]) + end

    return write


def llama_json(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    opener = rng.choice(("", "", "<|python_tag|>"))
    return opener + "; ".join(envelope(rng, call, "parameters") for call in calls)


def apertus(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    return "<|tools_prefix|>" + values.dumps(rng, [{c.name: c.arguments} for c in calls]) + "<|tools_suffix|>"


def internlm(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    key = rng.choice(("parameters", "arguments"))
    return f"<|action_start|><|plugin|>\n{envelope(rng, calls[0], key)}<|action_end|>"


def xlam(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    array = values.dumps(rng, [{"name": c.name, "arguments": c.arguments} for c in calls])
    return rng.choice(
        (f"{array}", f"```json\n{array}\n```", f"<tool_call>{array}</tool_call>", f"[TOOL_CALLS]{array}")
    )


def kimi(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    body = "".join(
        f"<|tool_call_begin|>functions.{c.name}:{i}<|tool_call_argument_begin|>"
        f"{values.dumps(rng, c.arguments)}<|tool_call_end|>"
        for i, c in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def mistral(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    separator = rng.choice(("[ARGS]", "[ARGS]", "[ARGS]", ""))
    return "".join(f"[TOOL_CALLS]{c.name}{separator}{values.dumps(rng, c.arguments)}" for c in calls)


def deepseek_v3(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    body = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{c.name}\n```json\n"
        f"{values.dumps(rng, c.arguments)}\n```<｜tool▁call▁end｜>"
        for c in calls
    )
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def deepseek_v31(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    body = "".join(
        f"<｜tool▁call▁begin｜>{c.name}<｜tool▁sep｜>{values.dumps(rng, c.arguments)}<｜tool▁call▁end｜>"
        for c in calls
    )
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


# --- XML-like


def qwen_xml(start: str, end: str, *, newline: str = "\n", verbatim: bool = False) -> WriteCalls:
    """``<function=name><parameter=key>value</parameter></function>``; ``verbatim``: bare values."""
    around = "" if verbatim else newline

    def write(rng: Random, calls: list[Call], tools: Tools | None) -> str:
        def one(call: Call) -> str:
            parameters = "".join(
                f"<parameter={key}>{around}{xml_text(value)}{around}</parameter>{newline}"
                for key, value in call.arguments.items()
            )
            return f"{start}{newline}<function={call.name}>{newline}{parameters}</function>{newline}{end}"

        return newline.join(one(call) for call in calls)

    return write


def glm(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    newline = rng.choice(("", "", "\n"))

    def one(call: Call) -> str:
        body = newline.join(
            f"<arg_key>{key}</arg_key>{newline}<arg_value>{xml_text(value)}</arg_value>"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>{call.name}{newline}{body}{newline}</tool_call>"

    return rng.choice(("", "\n")).join(one(call) for call in calls)


def minimax(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    def one(call: Call) -> str:
        parameters = "".join(
            f'<parameter name="{key}">{xml_text(value)}</parameter>\n'
            for key, value in call.arguments.items()
        )
        return f'<invoke name="{call.name}">\n{parameters}</invoke>'

    return "<minimax:tool_call>\n" + "\n".join(one(call) for call in calls) + "\n</minimax:tool_call>"


def dsml(wrapper: str) -> WriteCalls:
    def write(rng: Random, calls: list[Call], tools: Tools | None) -> str:
        def one(call: Call) -> str:
            parameters = "".join(
                f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
                f"{xml_text(value)}</｜DSML｜parameter>\n"
                for key, value in call.arguments.items()
            )
            return f'<｜DSML｜invoke name="{call.name}">\n{parameters}</｜DSML｜invoke>'

        return f"<｜DSML｜{wrapper}>\n" + "\n".join(one(call) for call in calls) + f"\n</｜DSML｜{wrapper}>"

    return write


# --- own notations


def gemma_value(value: Any, delimiter: str) -> str:
    match value:
        case str():
            return f"{delimiter}{value}{delimiter}"
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case list():
            return "[" + ",".join(gemma_value(v, delimiter) for v in value) + "]"
        case dict():
            return "{" + ",".join(f"{k}:{gemma_value(v, delimiter)}" for k, v in value.items()) + "}"
    return json.dumps(value)


GEMMA_QUOTE = '<|"|>'


def gemma4(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    def one(call: Call) -> str:
        body = ",".join(f"{key}:{gemma_value(value, GEMMA_QUOTE)}" for key, value in call.arguments.items())
        return f"<|tool_call>call:{call.name}{{{body}}}<tool_call|>"

    return "".join(one(call) for call in calls)


def functiongemma(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    def one(call: Call) -> str:
        body = ",".join(f"{key}:<escape>{xml_text(value)}<escape>" for key, value in call.arguments.items())
        return f"<start_function_call>call:{call.name}{{{body}}}<end_function_call>"

    return "".join(one(call) for call in calls)


def json_or_text(call: Call, tools: Tools | None) -> dict[str, Any]:
    """FunctionGemma: whatever reads as JSON is JSON, also a string that looks like it; NaN is none."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    out: dict[str, Any] = {}
    for key, value in call.arguments.items():
        try:
            out[key] = json.loads(xml_text(value), parse_constant=refuse)
        except ValueError:
            out[key] = value
    return out


def gemma_typed(call: Call, tools: Tools | None) -> dict[str, Any]:
    """Gemma 4: bare values are strings until the schema, at any depth, types them."""
    properties = values.properties_of(tools, call.name)

    def typed(value: Any, schema: dict[str, Any]) -> Any:
        match value:
            case str():
                return value
            case dict():
                inner = schema.get("properties", {})
                return {k: typed(v, inner.get(k, {})) for k, v in value.items()}
            case list():
                return [typed(v, schema.get("items", {})) for v in value]
        known = schema.keys() & {"type", "anyOf", "enum"} and schema.get("type") != "object"
        return value if known else gemma_value(value, "")

    return {key: typed(value, properties.get(key, {})) for key, value in call.arguments.items()}


def python_calls(calls: list[Call], joiner: str) -> str:
    return joiner.join(f"{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})" for c in calls)


def pythonic(start: str, end: str) -> WriteCalls:
    def write(rng: Random, calls: list[Call], tools: Tools | None) -> str:
        return f"{start}[{python_calls(calls, ', ')}]{end}"

    return write


def olmo(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    return "<function_calls>" + python_calls(calls, "\n") + "</function_calls>"


def harmony(rng: Random, calls: list[Call], tools: Tools | None) -> str:
    """Calls as whole Harmony messages; the generator writes the other messages (see `generators`)."""
    shapes = (
        "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{body}<|call|>",
        "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{body}<|call|>",
        "<|channel|>commentary to=functions.{name} json<|message|>{body}<|call|>",
        "<|channel|>commentary to=functions.{name}<|message|>{body}<|call|>",
        " to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>{body}<|call|>",
    )
    return "<|start|>assistant".join(
        rng.choice(shapes).format(name=c.name, body=values.dumps(rng, c.arguments)) for c in calls
    )
