"""What vLLM lets tool calls look like, per tool parser.

Run in vLLM's environment with the names of parsers, it writes JSON to stdout: every different answer once
(the format of a structural tag, or the schema for families that are held to JSON), and by parser and case
which of them it is. `tests/conformance/data/render/tool_constraints.json` is that output.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string"},
        "c": {"enum": ["x", 1, None]},
        "d": {"type": ["string", "number"]},
        "e": {},
    },
    "required": ["a"],
}
WITH_REFERENCE: dict[str, Any] = {
    "type": "object",
    "properties": {"p": {"$ref": "#/$defs/point"}},
    "$defs": {"point": {"type": "object"}},
}


def function(name: str, strict: bool, parameters: dict[str, Any] | None) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name}
    if parameters is not None:
        described["parameters"] = parameters
    if strict:
        described["strict"] = True
    return {"type": "function", "function": described}


NAMED = {"type": "function", "function": {"name": "f"}}
CASES: dict[str, dict[str, Any]] = {
    f"{choice if isinstance(choice, str) else 'named'}, strict {strict}, parallel {parallel}, {kind}": {
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "tools": tools(strict),
    }
    for choice in ("auto", "required", NAMED)
    for strict in (True, False)
    for parallel in (True, False)
    for kind, tools in {
        "two tools": lambda strict: [function("f", strict, PARAMETERS), function("g", False, None)],
        "one tool": lambda strict: [function("f", strict, WITH_REFERENCE)],
    }.items()
}


def main() -> None:
    import logging

    logging.disable(logging.CRITICAL)
    import vllm.parser.harmony  # noqa: F401  (registers the family's tags)
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.mistral import MistralParser
    from vllm.tool_parsers import ToolParserManager
    from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag, limit_to_single_tool_call
    from vllm.tool_parsers.tool_strict_level import ToolStrictLevel
    from vllm.tool_parsers.utils import get_json_schema_from_tools

    answers: dict[str, dict[str, Any]] = {}
    for name in sys.argv[1:]:
        parser = ToolParserManager.get_tool_parser(name)
        answers[name] = {}
        for title, case in CASES.items():
            request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], **case)
            level = parser.default_tool_strict_level or ToolStrictLevel.AUTO
            if not case["parallel_tool_calls"]:
                level = max(level, ToolStrictLevel.FUNCTION)
            answer: Any = None
            if parser.structural_tag_model is not None:
                tag = get_model_structural_tag(
                    parser.structural_tag_model, request.tools, request.tool_choice, False, strict_level=level
                )
                if tag is not None:
                    if not case["parallel_tool_calls"]:
                        limit_to_single_tool_call(tag)
                    answer = {"tag": tag.model_dump(mode="json")["format"]}
            elif name == "mistral":
                # Of tokenizers without a grammar; the method needs nothing of its object.
                if case["tool_choice"] != "auto":
                    schema = MistralParser._build_guided_schema_pre_v11(None, request)
                    answer = {"json": schema}
            elif parser.supports_required_and_named:
                schema = get_json_schema_from_tools(
                    request.tool_choice, request.tools, request.parallel_tool_calls
                )
                answer = None if schema is None else {"json": schema}
            answers[name][title] = answer
    different = sorted({json.dumps(answer) for by_case in answers.values() for answer in by_case.values()})
    number = {text: index for index, text in enumerate(different)}
    chosen = {
        name: [number[json.dumps(by_case[title])] for title in CASES] for name, by_case in answers.items()
    }
    print(json.dumps({"answers": [json.loads(text) for text in different], "parsers": chosen}))


if __name__ == "__main__":
    main()
