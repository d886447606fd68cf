"""Tables are checked when they are joined, names resolve, and a prompt's end decides about reasoning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from render_tier.core.formats import (
    PLAIN,
    REASONING_NAMES,
    TOOL_NAMES,
    UnknownFormat,
    prompt_reasoning,
    reasoning_format,
    starts_with_reasoning,
    tool_format,
)
from render_tier.core.grammar import Grammar
from render_tier.core.table import CONTENT, Region, State, TableError, ToolFormat
from render_tier.core.vocabulary import Vocabulary

TEXT = State(text=Region.CONTENT)


def test_every_name_resolves_and_every_pair_with_plain_is_a_grammar(vocabulary: Vocabulary) -> None:
    for name in TOOL_NAMES:
        assert Grammar(None, tool_format(name), vocabulary).nodes
    for name in REASONING_NAMES:
        assert Grammar(reasoning_format(name), PLAIN, vocabulary).nodes
    assert tool_format("qwen3_json") is tool_format("hermes")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownFormat, match=r"unknown reasoning parser 'nope'; valid names: .*qwen3"
    ) as refused:
        reasoning_format("nope")
    assert isinstance(refused.value, KeyError)
    with pytest.raises(UnknownFormat, match=r"unknown tool call parser 'nope'; valid names: .*hermes"):
        tool_format("nope")


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"other": TEXT}, "no state 'content'"),
        ({CONTENT: replace(TEXT, on={"<a>": "nowhere"})}, "unknown states"),
        ({CONTENT: replace(TEXT, on={"": CONTENT})}, "empty or part"),
        ({CONTENT: replace(TEXT, on={"<a": CONTENT, "<a>": CONTENT})}, "empty or part"),
        ({CONTENT: State(text=Region.CALL)}, "needs a body"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(
    vocabulary: Vocabulary, states: dict[str, State], message: str
) -> None:
    with pytest.raises(TableError, match=message):
        Grammar(None, ToolFormat(name="x", states=states), vocabulary)


def test_two_tables_with_one_state_name_are_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(TableError, match="both have a state"):
        Grammar(
            reasoning_format("qwen3"),
            ToolFormat(name="x", states={CONTENT: TEXT, "reasoning": TEXT}),
            vocabulary,
        )


@pytest.mark.parametrize(
    ("prompt", "open_"),
    [
        ("<|im_start|>assistant\n", None),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n<think>\nfirst, the boats", True),
        ("<think>a</think><|im_end|>\n<|im_start|>assistant\n", None),
        ("<|im_start|>user\nsay <think>x</think><|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("", None),
    ],
)
def test_the_end_of_the_prompt_decides(
    vocabulary: Vocabulary, tokenizer: Tokenizer, prompt: str, open_: bool | None
) -> None:
    qwen3 = reasoning_format("qwen3")
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    assert prompt_reasoning(qwen3, ids, vocabulary) is open_
    # The same where the markers are not single tokens.
    brackets = replace(qwen3, start="[THINK]", end="[/THINK]")
    ids = tokenizer.encode(
        prompt.replace("<think>", "[THINK]").replace("</think>", "[/THINK]"), add_special_tokens=False
    ).ids
    assert prompt_reasoning(brackets, ids, vocabulary) is open_


@pytest.mark.parametrize(
    ("prompt", "kwargs", "starts"),
    [
        ("<|im_start|>assistant\n<think>\na<tool_call>\n", {}, False),
        ("<|im_start|>assistant\n<tool_call>", {}, False),
        ("<|im_start|>assistant\n<tool_call>{}</tool_call><think>", {}, True),
        ("<|im_start|>user\n<tool_call><|im_end|>\n<|im_start|>assistant\n", {}, None),
        ("<|im_start|>assistant\n", {"enable_thinking": False}, False),
        ("<|im_start|>assistant\n", {"enable_thinking": 0}, None),
        ("<|im_start|>assistant\n<think>\nwhy", {"enable_thinking": False}, True),
    ],
)
def test_prompt_then_switches_decide_whether_the_answer_starts_with_reasoning(
    vocabulary: Vocabulary, tokenizer: Tokenizer, prompt: str, kwargs: dict[str, object], starts: bool | None
) -> None:
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    qwen3, hermes = reasoning_format("qwen3"), tool_format("hermes")
    assert starts_with_reasoning(qwen3, hermes, ids, vocabulary, kwargs) is starts


def test_switches_decide_where_no_prompt_is_known(vocabulary: Vocabulary) -> None:
    v3 = reasoning_format("deepseek_v3")
    assert starts_with_reasoning(v3, None, None, vocabulary, {"thinking": True}) is True
    assert starts_with_reasoning(v3, None, None, vocabulary, {"thinking": False}) is False
    assert starts_with_reasoning(v3, None, None, vocabulary, {}) is None
    # Values that came in as JSON are equal, not identical.
    v4 = reasoning_format("deepseek_v4")
    assert (
        starts_with_reasoning(v4, None, None, vocabulary, {"reasoning_effort": "".join(["no", "ne"])})
        is False
    )
