"""MiMo: values verbatim between their tags."""

from __future__ import annotations

import json

from tests.support.reading import arguments, read


def test_newlines_belong_to_the_value() -> None:
    text = "<tool_call><function=brew><parameter=leaf>\nmint\n</parameter></function></tool_call>"
    assert json.loads(arguments(text, "mimo")) == {"leaf": "\nmint\n"}


def test_reasoning_is_verbatim() -> None:
    got = read("hm\n</think>\nYes.", tool="mimo", reasoning="mimo")
    assert (got.reasoning, got.content) == ("hm\n", "\nYes.")
