"""Random model outputs of every family, each with what the model meant when nothing was spoilt.

`generate(family, seed)` is a pure function of its arguments. `outputs(family)` is the hypothesis strategy
(it draws the seed, and shrinks only towards smaller seeds). The distribution is in `Knobs`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.families import damage, values
from tests.families.catalogue import FAMILIES, TOP_TWELVE
from tests.families.writers import Call, Opening, Tools, Writer

__all__ = ["FAMILIES", "TOP_TWELVE", "GeneratedOutput", "Knobs", "generate", "outputs"]


@dataclass(frozen=True)
class Knobs:
    """How outputs are drawn; all shares are probabilities."""

    damaged: float = 0.4
    """One damage (`damage.KINDS`, evenly). Twice with a fifth of this."""
    reasoning: float = 0.75
    """Reasoning is written, where the opening leaves it to the model."""
    calls: tuple[float, ...] = (0.3, 0.35, 0.2, 0.15)
    """Weights of no call, one, two, three or more."""
    content_with_calls: float = 0.45
    text_after: float = 0.12
    """Text after the calls."""
    unknown_tool: float = 0.06
    no_tools: float = 0.05
    """The request has no tools, whatever the model writes."""
    choice_none: float = 0.05
    choice_required: float = 0.07
    choice_named: float = 0.06
    text: values.TextKnobs = field(default_factory=values.TextKnobs)


@dataclass(frozen=True)
class GeneratedOutput:
    """One output.

    ``intended`` is None when it was damaged or when the request's tool_choice changes what the text means
    (none, no tools); else {reasoning, content, after, calls} as the model meant them. Compare texts without
    white space at their ends: families differ in what they trim, and in whether ``after`` is shown.
    """

    family: str
    seed: int
    writer: Writer
    opening: Opening
    tools: Tools | None
    tool_choice: str | dict[str, Any] | None
    text: str
    damage: str
    finish_reason: str
    intended: dict[str, Any] | None

    def case(self) -> dict[str, Any]:
        """In the form of the conformance corpus."""
        writer = self.writer
        return {
            "id": f"{self.family}/seed-{self.seed}",
            "format": {"tool_parser": writer.tool_parser, "reasoning_parser": writer.reasoning_parser},
            "tokenizer": writer.tokenizer,
            "standin_tokenizer": None
            if writer.tokenizer
            else {"base": writer.base, "added": list(writer.added)},
            "prompt_tail": self.opening.tail,
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "chat_template_kwargs": self.opening.kwargs,
            "output_text": self.text,
            "finish_reason": self.finish_reason,
        }


def generate(family: str, seed: int, knobs: Knobs | None = None) -> GeneratedOutput:
    """The output that this seed stands for."""
    knobs = knobs or Knobs()
    writer = FAMILIES[family]
    rng = Random(f"{family}/{seed}")
    opening = rng.choice(writer.openings)
    text_knobs = knobs.text if writer.braces else values.TextKnobs(braces=False, near_markers=0.03)
    tools: Tools | None = [
        t for t in values.TOOLS if writer.names is None or t["function"]["name"] in writer.names
    ]
    assert tools is not None
    choice = _tool_choice(rng, knobs, tools)
    calls = _calls(rng, knobs, writer, tools)
    reasoning = _reasoning(rng, knobs, opening, text_knobs)
    content = ""
    if not calls or (writer.text_with_calls and rng.random() < knobs.content_with_calls):
        content = values.text(rng, text_knobs)
    after = values.text(rng, text_knobs) if calls and writer.after and rng.random() < knobs.text_after else ""

    bare = writer.json_choice and (choice == "required" or isinstance(choice, dict))
    if bare:
        body, calls, content, after = _bare_json(rng, writer, choice, calls, tools)
    else:
        body = _body(rng, writer, content, calls, tools, after)
    text = _with_reasoning(writer, opening, reasoning, body, content)
    intended: dict[str, Any] | None = {
        "reasoning": reasoning or "",
        "content": content,
        "after": after,
        "calls": [
            (c.name, c.arguments if bare else writer.typed(c, tools))
            for c in calls
            if not writer.checks_names or values.properties_known(tools, c.name)
        ],
    }
    request_tools: Tools | None = tools
    if rng.random() < knobs.no_tools and choice == "auto":
        request_tools, choice, intended = None, None, None
    if choice == "none":
        intended = None
    kind = "none"
    finish_reason = "stop"
    if rng.random() < knobs.damaged:
        kinds = [rng.choice(damage.KINDS)] + ([rng.choice(damage.KINDS)] if rng.random() < 0.2 else [])
        for each in kinds:
            text = damage.spoil(rng, each, text, writer.markers)
        kind, intended = "+".join(kinds), None
        if kinds[-1] == "truncated":
            finish_reason = "length"
    return GeneratedOutput(
        family, seed, writer, opening, request_tools, choice, text, kind, finish_reason, intended
    )


def outputs(family: str, knobs: Knobs | None = None) -> st.SearchStrategy[GeneratedOutput]:
    """Hypothesis strategy of this family's outputs."""
    return st.integers(min_value=0, max_value=2**32).map(lambda seed: generate(family, seed, knobs))


def _tool_choice(rng: Random, knobs: Knobs, tools: Tools) -> str | dict[str, Any]:
    draw = rng.random()
    if draw < knobs.choice_none:
        return "none"
    if draw < knobs.choice_none + knobs.choice_required:
        return "required"
    if draw < knobs.choice_none + knobs.choice_required + knobs.choice_named:
        return {"type": "function", "function": {"name": rng.choice(tools)["function"]["name"]}}
    return "auto"


def _calls(rng: Random, knobs: Knobs, writer: Writer, tools: Tools) -> list[Call]:
    count = rng.choices(range(4), weights=knobs.calls)[0]
    count = min(writer.parallel, count + (rng.randrange(3) if count == 3 else 0))
    calls = []
    for _ in range(count):
        known = rng.random() >= knobs.unknown_tool
        name = rng.choice(tools)["function"]["name"] if known else values.UNKNOWN
        calls.append(Call(name, values.arguments(rng, tools, name, writer.values)))
    return calls


def _reasoning(rng: Random, knobs: Knobs, opening: Opening, text_knobs: values.TextKnobs) -> str | None:
    """Text, "" for an empty block, None for no block at all."""
    if opening.reasoning in ("none", "closed"):
        return None
    if rng.random() >= knobs.reasoning:
        return None if opening.reasoning == "maybe" else ""
    return values.text(rng, text_knobs)


def _bare_json(
    rng: Random, writer: Writer, choice: Any, calls: list[Call], tools: Tools
) -> tuple[str, list[Call], str, str]:
    """What a model writes under a JSON grammar: an array for required, one object for a named tool."""
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        call = Call(name, values.arguments(rng, tools, name, writer.values))
        return values.dumps(rng, call.arguments), [call], "", ""
    calls = calls or [Call("tide_table", {})]
    array = [{"name": c.name, "parameters": c.arguments} for c in calls]
    return values.dumps(rng, array), calls, "", ""


def _body(rng: Random, writer: Writer, content: str, calls: list[Call], tools: Tools, after: str) -> str:
    if writer.tool_parser == "openai":
        return _harmony_body(rng, writer, content, calls, tools)
    if not calls:
        return content
    before = content + (writer.before_calls if content else "")
    return before + writer.calls(rng, calls, tools) + (f"\n{after}" if after else "")


def _with_reasoning(writer: Writer, opening: Opening, reasoning: str | None, body: str, content: str) -> str:
    if writer.tool_parser == "openai":
        if not reasoning:
            return body
        return f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant{body}"
    if reasoning is None:
        return body
    start, end = writer.think
    if writer.name == "hunyuan_a13b":
        body += "\n</answer>"
    return ("" if opening.reasoning == "open" else start) + reasoning + end + body


def _harmony_body(rng: Random, writer: Writer, content: str, calls: list[Call], tools: Tools) -> str:
    if not calls:
        return f"<|channel|>final<|message|>{content}<|return|>"
    preamble = f"<|channel|>commentary<|message|>{content}<|end|><|start|>assistant" if content else ""
    return preamble + writer.calls(rng, calls, tools)


def same_json(left: Any, right: Any) -> bool:
    """Equal as JSON values: integers exact, 1 and 1.0 the same, true not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right)


def parsed(arguments: str) -> Any:
    """The value of an argument text; a text that is not JSON stands for itself."""
    try:
        return json.loads(arguments)
    except ValueError:
        return ("text", arguments)
