"""Kimi K2: reasoning, calls and their IDs."""

from __future__ import annotations

from render_tier.core.events import CallStart
from tests.families import ours
from tests.families.tokenization import load
from tests.render_tier.core.formats.reading import calls, cut, read

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def call(header: str, arguments: str = "{}") -> str:
    return f"{CALL}{header}{ARGUMENTS}{arguments}{CALL_END}"


def test_the_header_is_the_id_and_holds_the_name() -> None:
    tokenizer = load("qwen3", (BEGIN, END, CALL, ARGUMENTS, CALL_END))
    machine_grammar = ours.grammar_of("kimi_k2", "kimi_k2", tokenizer)
    machine = ours.Machine(machine_grammar, ours.MachineOptions(), False)
    text = BEGIN + call("functions.brew_tea:3") + END
    starts = [event for event in machine.feed(tokenizer.encode(text)) if isinstance(event, CallStart)]
    assert starts == [CallStart(0, "brew_tea", "functions.brew_tea:3")]


def test_text_before_the_section_is_kept_and_no_marker_leaks() -> None:
    got = read("kimi_k2", f"<think>x</think>Hm. {BEGIN}{call('functions.a:0')}{END}")
    assert (got.reasoning, got.content, calls(got)) == ("x", "Hm. ", [("a", "{}")])


def test_a_newline_in_the_header_does_not_lose_the_call() -> None:
    call_with_newline = call("functions.a:0\n")
    assert calls(read("kimi_k2", f"<think>x</think>{BEGIN}{call_with_newline}{END}")) == [("a", "{}")]


def test_a_header_without_an_index_is_a_name() -> None:
    assert calls(read("kimi_k2", f"<think>x</think>{BEGIN}{call('functions.a')}{END}")) == [("a", "{}")]


def test_a_header_without_a_name_is_no_call() -> None:
    assert read("kimi_k2", f"<think>x</think>{BEGIN}{call('functions.:0')}{END}").calls == []


def test_a_header_that_its_end_follows_at_once_is_a_call_without_arguments() -> None:
    text = f"<think>x</think>{BEGIN}{CALL}functions.a:0{CALL_END}{call('functions.b:1')}{END}"
    got = read("kimi_k2", text)
    assert (calls(got), got.content) == ([("a", "{}"), ("b", "{}")], "")


def test_arguments_without_their_marker_are_the_calls_own() -> None:
    text = f'<think>x</think>{BEGIN}{CALL}functions.a:0{{"raw": false}}{CALL_END}{END}'
    assert calls(read("kimi_k2", text)) == [("a", '{"raw": false}')]


def test_a_stray_character_in_the_header_does_not_lose_the_call() -> None:
    assert calls(read("kimi_k2", f"<think>x</think>{BEGIN}{call('functions.a:0<')}{END}")) == [("a", "{}")]


def test_the_text_of_a_broken_call_does_not_vanish() -> None:
    text = f"<think>x</think>{BEGIN}{CALL}no header here{CALL_END}: so{CALL}functions.b:1{ARGUMENTS}{{}}{END}"
    got = read("kimi_k2", text)
    assert (got.content, calls(got)) == (f"{CALL}no header here: so", [("b", "{}")])


def test_long_arguments_are_not_cut() -> None:
    arguments = '{"x": "' + "wave " * 4000 + '"}'
    assert calls(read("kimi_k2", f"<think>x</think>{BEGIN}{call('functions.a:0', arguments)}{END}")) == [
        ("a", arguments)
    ]


def test_a_section_in_reasoning_ends_it() -> None:
    got = read("kimi_k2", f"<think>x{BEGIN}{call('functions.a:0')}{END}")
    assert (got.reasoning, calls(got)) == ("x", [("a", "{}")])


def test_white_space_at_the_end_of_reasoning_is_not_shown() -> None:
    got = read("kimi_k2", "<think>abc \n</think>\nHi")
    assert (got.reasoning, got.content) == ("abc", "\nHi")


def test_a_think_block_in_the_history_says_nothing_about_this_turn() -> None:
    prompt = "<think>old</think>Hi.<|im_end|><|im_assistant|>assistant<|im_middle|>"
    got = read("kimi_k2", "<think>new</think>Answer.", prompt=prompt)
    assert (got.reasoning, got.content) == ("new", "Answer.")


def test_a_call_without_its_end_is_closed_by_the_section() -> None:
    text = f'<think>x</think>{BEGIN}{CALL}functions.a:0{ARGUMENTS}{{"x": 1}}{END}'
    assert calls(read("kimi_k2", text)) == [("a", '{"x": 1}')]


def test_a_cut_call_keeps_what_came_and_a_cut_header_is_no_call() -> None:
    section = f"<think>x</think>{BEGIN}{call('functions.a:0')}{CALL}functions.b:1"
    got = read("kimi_k2", f'{section}{ARGUMENTS}{{"t": "c')
    assert cut(got) == [("a", "{}", True), ("b", '{"t": "c', False)]
    assert read("kimi_k2", f"<think>x</think>{BEGIN}{CALL}functions.b").calls == []
