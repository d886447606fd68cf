"""LFM2: a Python list between markers."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, cut, read

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"


def test_calls_and_text_around_them() -> None:
    got = read("lfm2", f"Ok. {BEGIN}[a(x='1'), b()]{END}Done.")
    assert (got.content, calls(got)) == ("Ok. Done.", [("a", '{"x": "1"}'), ("b", "{}")])


def test_quotes_line_breaks_keywords_and_zeros_that_python_refuses() -> None:
    got = read("lfm2", f"{BEGIN}[a(cmd='sed -n '1,9p' f.py', from='x\ny', month=07)]{END}")
    assert calls(got) == [("a", '{"cmd": "sed -n \'1,9p\' f.py", "from": "x\\ny", "month": 7}')]


def test_a_second_end_marker_is_left_out() -> None:
    assert read("lfm2", f"{BEGIN}[a()]{END}{END} Done.").content == "Done."


def test_a_cut_call_keeps_what_came() -> None:
    assert cut(read("lfm2", f"{BEGIN}[a(x='two ")) == [("a", '{"x": "two ', False)]
