"""Harmony: channels, recipients, and streams that lose their way."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, cut, read

S, C, M = "<|start|>assistant", "<|channel|>", "<|message|>"
THOUGHT = f"{C}analysis{M}why<|end|>{S}"


def test_channels_are_told_apart_by_token() -> None:
    got = read("openai_gptoss", f"{THOUGHT}{C}final{M}Hi.<|return|>")
    assert (got.reasoning, got.content) == ("why", "Hi.")


def test_messages_of_one_kind_are_joined_by_newlines() -> None:
    got = read("openai_gptoss", f"{THOUGHT}{THOUGHT}{C}final{M}a<|end|>{S}{C}final{M}b<|return|>")
    assert (got.reasoning, got.content) == ("why\nwhy", "a\nb")


def test_commentary_without_a_recipient_is_content() -> None:
    call = f"{C}commentary to=functions.a{M}{{}}<|call|>"
    got = read("openai_gptoss", f"{C}commentary{M}First.<|end|>{S}{call}")
    assert (got.content, calls(got)) == ("First.", [("a", "{}")])


def test_the_recipient_in_either_place_and_with_any_type() -> None:
    for head in (
        f"{C}commentary to=functions.a.b-c <|constrain|>json",
        f"{C}commentary to=functions.a.b-c json",
        f"{C}analysis to=functions.a.b-c",
        f" to=functions.a.b-c{C}commentary <|constrain|>json",
        f" to=functions.a.b-c<|constrain|>json{C}commentary",
    ):
        assert calls(read("openai_gptoss", f"{THOUGHT}{head}{M}{{}}<|call|>")) == [("a.b-c", "{}")], head


def test_the_models_own_tools_and_unknown_channels_are_not_shown() -> None:
    own, unknown = f"{C}commentary to=browser.search{M}q<|call|>", f"{C}other{M}z<|end|>"
    got = read("openai_gptoss", f"{own}{S}{unknown}{S}{C}final{M}x")
    assert (got.content, got.calls) == ("x", [])


def test_a_message_of_another_author_is_not_shown() -> None:
    result = f"<|start|>functions.a to=assistant{C}commentary{M}r<|end|>"
    got = read("openai_gptoss", f"{C}analysis{M}why<|end|>{result}")
    assert (got.reasoning, got.content) == ("why", "")


def test_arguments_that_are_no_json_come_as_written() -> None:
    assert cut(read("openai_gptoss", f"{C}commentary to=functions.a code{M}print(1)<|call|>")) == [
        ("a", "print(1)", False)
    ]


def test_a_call_cut_at_its_end_token_is_complete_and_earlier_it_is_not() -> None:
    assert cut(read("openai_gptoss", f"{C}commentary to=functions.a{M}{{}}")) == [("a", "{}", True)]
    assert cut(read("openai_gptoss", f'{C}commentary to=functions.a{M}{{"x')) == [("a", '{"x', False)]


def test_an_empty_call_has_an_empty_object() -> None:
    assert calls(read("openai_gptoss", f"{C}commentary to=functions.a{M}<|call|>")) == [("a", "{}")]


def test_a_head_without_its_message_is_text() -> None:
    got = read("openai_gptoss", f"{THOUGHT}{C}comm")
    assert (got.reasoning, got.content) == ("why", f"{S}{C}comm")


def test_an_output_without_any_head_is_text_at_once() -> None:
    got = read("openai_gptoss", "plain words without any header")
    assert got.content == "plain words without any header"


def test_text_after_the_end_of_a_message_is_text_and_the_stream_goes_on() -> None:
    got = read("openai_gptoss", f"{THOUGHT}{C}final{M}Hi<|end|> and so on {S}{C}final{M}more<|return|>tail")
    assert (got.reasoning, got.content) == ("why", "Hi and so on \nmoretail")


def test_a_head_in_the_middle_of_a_message_starts_a_new_one() -> None:
    got = read("openai_gptoss", f"{C}analysis{M}why{C}final{M}Hi<|return|>")
    assert (got.reasoning, got.content) == ("why", "Hi")


def test_without_tools_a_message_to_a_function_is_not_shown() -> None:
    got = read("openai_gptoss", f"{C}commentary to=functions.a{M}{{}}<|call|>", tools=False, choice=None)
    assert (got.content, got.calls) == ("", [])
