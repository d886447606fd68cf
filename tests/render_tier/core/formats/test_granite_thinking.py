"""Granite 4.2: reasoning."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import read


def test_newlines_before_the_answer_are_not_part_of_it() -> None:
    got = read("granite_thinking", "why\n</think>\n\nBecause.", prompt="<|im_start|>assistant\n<think>\n")
    assert (got.reasoning, got.content) == ("why", "Because.")


def test_an_answer_of_newlines_is_empty() -> None:
    assert read("granite_thinking", "why</think>\n\n").content == ""
