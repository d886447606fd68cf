"""What engines are told to hold tool calls to, against what vLLM tells them, for every tool parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from render_tier.core.formats import TOOL_NAMES, tool_format
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.rendering.constraints import with_tool_choice
from tests.support.render_corpus import DATA
from tests.vllm.tool_constraints import CASES

RECORDED = json.loads((DATA / "tool_constraints.json").read_text())
TEXT_IN_FRONT = {"glm45", "glm47"}
"""When every tool is strict, vLLM lets text stand before a required call, but not when one is not strict;
here it never may."""


def test_every_parser_is_recorded() -> None:
    assert set(RECORDED["parsers"]) == set(TOOL_NAMES)


@pytest.mark.parametrize("parser", RECORDED["parsers"])
def test_constraints_equal_vllms(parser: str) -> None:
    for number, (title, case) in enumerate(CASES.items()):
        recorded = RECORDED["answers"][RECORDED["parsers"][parser][number]]
        ours = constraint(parser, case)
        if parser in TEXT_IN_FRONT and title.startswith("required") and title.endswith("one tool"):
            assert ours["tag"]["type"] == "tags_with_separator"
            continue
        if "strict False" in title and not title.startswith("auto") and "tag" in (recorded or {}):
            # A demanded call is held to its argument schema here; vLLM 0.32 asks for any JSON unless the tool
            # is strict.
            recorded = constraint(parser, CASES[title.replace("strict False", "strict True")])
        assert ours == recorded, title


def constraint(parser: str, case: dict[str, Any]) -> Any:
    request = ChatCompletionRequest.parse({"messages": [{"role": "user", "content": "x"}], **case})
    found = with_tool_choice(request, None, tool_format(parser), "auto")
    if found is None or "json" in found:
        return found
    return {"tag": json.loads(found["structural_tag"])["format"]}
