"""Seed-OSS: tags of its own around `qwen3_coder`'s calls, and bare JSON under a grammar."""

from __future__ import annotations

from tests.support.reading import calls, read

NAMES = {"tool": "seed_oss", "reasoning": "seed_oss"}
CALL = (
    "<seed:tool_call>\n<function=brew>\n<parameter=leaf>\nmint\n</parameter>\n</function>\n</seed:tool_call>"
)


def test_reasoning_is_verbatim_and_ended_by_a_call() -> None:
    got = read("<seed:think>look\n" + CALL, **NAMES)
    assert (got.reasoning, got.content, calls(got)) == ("look\n", "", [("brew", '{"leaf": "mint"}')])


def test_the_tags_of_other_families_are_text() -> None:
    got = read("</seed:think><tool_call>x</tool_call></think>", **NAMES)
    assert (got.content, got.calls) == ("<tool_call>x</tool_call></think>", [])


def test_an_output_that_opens_nothing_is_reasoning() -> None:
    assert read("just words", **NAMES).reasoning == "just words"
