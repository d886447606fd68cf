"""Where our answer to a recorded model output is not the recorded one, and why (policy: docs/parsers.md).

`ANSWERS` holds the whole answer of single cases. `whitespace_before_a_call` is the one rule that is not a
list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KEPT = "without tools, or with tool_choice none, the text of a call is kept (users' side of the dispute)"
AFTER = "text after a call is kept where the recorded whole answer loses it"
CUT = "a cut call is passed on as far as its arguments came"
BEFORE = "text before a call is kept where the recorded whole answer loses it"
NAMELESS = "a call that is cut within its name is none: names come whole"
REST = "text after the list of calls does not turn the calls into text: they were passed on as they came"
STREAMED = {CUT, REST}
"""Reasons for which an answer differs even from one that vLLM's streams do not agree on: what the recorded
answer takes back has been passed on by then."""


@dataclass(frozen=True)
class Answer:
    """``calls``: (name, argument text, complete). Fields that are None are as recorded."""

    why: str
    reasoning: str | None = None
    content: str | None = None
    calls: tuple[tuple[str, str, bool], ...] | None = None


@dataclass(frozen=True)
class TextKept:
    """The content is all of the output after this marker."""

    after: str
    why: str = field(default=KEPT)


ANSWERS: dict[str, Answer | TextKept] = {
    "deepseek_v3/truncated_args": Answer(CUT, calls=(("brew_tea", '{"leaf": "mi', False),)),
    "deepseek_v31/truncated_args": Answer(CUT, calls=(("brew_tea", '{"leaf": "mi', False),)),
    "deepseek_v4/tool_choice_none": TextKept("</think>"),
    "glm47/tool_choice_none": TextKept("</think>"),
    "glm47/text_after_call": Answer(AFTER, content="Kettle is on."),
    "granite/text_after_call": Answer(AFTER, content="Kettle is on."),
    "granite/required_json_truncated": Answer(CUT, calls=(("brew_tea", '{"leaf": "roo', False),)),
    "kimi_k2/tool_choice_none": TextKept("</think>"),
    "kimi_k2/truncated_id": Answer(NAMELESS, calls=()),
    "llama3_json/text_before_call": Answer(BEFORE, content="Let me heat some water.\n"),
    "llama3_json/second_call_truncated": Answer(
        CUT, calls=(("ping_dock", "{}", True), ("brew_tea", '{"leaf": "mi', False))
    ),
    "llama4_pythonic/text_after_call": Answer(
        REST, content="\nKettle is on.", calls=(("brew_tea", '{"leaf": "mint"}', True),)
    ),
    "llama4_pythonic/required_json_truncated": Answer(CUT, calls=(("brew_tea", '{"leaf": "roo', False),)),
    "minimax_m2/tool_choice_none": TextKept("</think>"),
    "minimax_m2/no_tools": TextKept("</think>"),
    "minimax_m2/text_after_call": Answer(AFTER, content="Kettle is on."),
    "mistral/tool_choice_none": Answer(KEPT, content='Sure. [TOOL_CALLS]brew_tea[ARGS]{"leaf": "mint"}'),
    "mistral/truncated_name": Answer(NAMELESS, content="Ok. ", calls=()),
    "mistral/v3_truncated": Answer(CUT, content="", calls=(("brew_tea", '{"leaf": "mi', False),)),
    "nemotron_v3/tool_choice_none": TextKept("</think>"),
    "nemotron_v3/force_nonempty": Answer(
        "streamed reasoning is not taken back: it is repeated as content, as in the coupled stream",
        reasoning="All of it is a thought",
    ),
    "phi4_mini_json/text_before_call": Answer(BEFORE, content="Let me heat some water.\n"),
    "phi4_mini_json/text_after_call": Answer(AFTER, content="\nKettle is on."),
    "phi4_mini_json/required_json_truncated": Answer(CUT, calls=(("brew_tea", '{"leaf": "roo', False),)),
    "pythonic/text_after_call": Answer(
        REST, content="\nKettle is on.", calls=(("brew_tea", '{"leaf": "mint"}', True),)
    ),
    "pythonic/truncated": Answer(
        CUT, content="", calls=(("save_snippet", '{"title": "cut", "body": "never en', False),)
    ),
    "pythonic/required_json_truncated": Answer(CUT, calls=(("brew_tea", '{"leaf": "roo', False),)),
    "qwen3_coder/tool_choice_none": TextKept("</think>"),
    "qwen3_coder/no_tools": TextKept("</think>"),
    "qwen3_coder/markup_in_code_block": Answer(AFTER, content="\n\nFormat:\n```xml\n\n```"),
    "qwen3_coder/truncated_second_call": Answer(
        CUT, calls=(("ping_dock", "{}", True), ("brew_tea", '{"leaf": "mi', False))
    ),
    "seed_oss/required_json_truncated": Answer(CUT, calls=(("brew_tea", '{"leaf": "roo', False),)),
    "step3p5/tool_choice_none": TextKept("</think>"),
}

OPEN_CALLS = {"qwen3_coder/truncated_mid_name"}
"""Calls that are cut but whose arguments, none, are valid JSON."""


def whitespace_before_a_call(case: dict[str, Any], content: str, recorded: str) -> bool:
    """Whether the contents differ only by white space at the start, before a call.

    The recorded whole answer has none there when a call follows and keeps it when none does; a stream has
    shown it before it can know.
    """
    blanks = content[: len(content) - len(content.lstrip())]
    return (
        bool(case["expected"]["tool_calls"])
        and case["stream_class"] == "whitespace"
        and content.lstrip() == recorded
        and blanks in case["output_text"]
    )
