"""InternLM 2: one object after two markers."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read

HEAD = "<|action_start|><|plugin|>"


def test_a_call_and_text_before_it() -> None:
    got = read("internlm", f'Ok.{HEAD}\n{{"name": "a", "parameters": {{"x": 1}}}}<|action_end|>\nx')
    assert (got.content, calls(got)) == ("Ok.", [("a", '{"x": 1}')])


def test_a_call_without_arguments() -> None:
    assert calls(read("internlm", f'{HEAD}{{"name": "a"}}<|action_end|>')) == [("a", "{}")]


def test_a_damaged_call_does_not_fail_the_request() -> None:
    got = read("internlm", f'Hm{HEAD}{{"name": "cha')
    assert (got.content, got.calls) == ('Hm<|plugin|>{"name": "cha', [])
