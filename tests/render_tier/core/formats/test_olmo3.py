"""OLMo 3: reasoning in ordinary tokens, Python calls one a line."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import NAMED, calls, cut, read


def test_reasoning_whether_or_not_it_is_opened() -> None:
    for text in ("why</think>Because.", "<think>why</think>Because."):
        got = read("olmo3", text)
        assert (got.reasoning, got.content) == ("why", "Because.")


def test_calls_on_lines_of_their_own() -> None:
    got = read("olmo3", "</think><function_calls>\na(x='1')\nb()\n</function_calls>\nDone.")
    assert (got.content, calls(got)) == ("Done.", [("a", '{"x": "1"}'), ("b", "{}")])


def test_bare_calls_as_the_whole_answer() -> None:
    assert calls(read("olmo3", "</think>a(x=1)\nb()")) == [("a", '{"x": 1}'), ("b", "{}")]


def test_prose_with_brackets_is_text() -> None:
    assert read("olmo3", "</think>print (x) and f(y)").content == "print (x) and f(y)"


def test_a_cut_call_keeps_what_came() -> None:
    got = read("olmo3", "</think><function_calls>a(x='1', y='cu")
    assert cut(got) == [("a", '{"x": "1", "y": "cu', False)]


def test_forced_choices_are_json_after_reasoning() -> None:
    assert calls(read("olmo3", 'why</think>{"x": 1}', choice=NAMED)) == [("tide_table", '{"x": 1}')]
