"""What a Messages request means as a chat; that vLLM reads it the same is `tests/conformance`'s."""

from __future__ import annotations

import json
from typing import Any

import pytest

from render_tier.protocol.anthropic import MessagesRequest
from render_tier.protocol.anthropic_as_chat import as_chat
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "f", "input_schema": {"properties": {"a": {"type": "integer"}}}}


def chat(*messages: dict[str, Any], merge: bool = False, **fields: Any) -> ChatCompletionRequest:
    body = {"model": "m", "max_tokens": 9, "messages": list(messages or [USER]), **fields}
    return as_chat(MessagesRequest.parse(body), merge_inline_system=merge)


class TestConversation:
    def test_system_blocks_are_one_message_without_billing_headers(self) -> None:
        blocks = [{"type": "text", "text": text} for text in ("x-anthropic-billing-header: 1", "A", "B")]
        assert chat(system=blocks).messages == [{"role": "system", "content": "AB"}, USER]

    def test_inline_system_messages_stay_where_they_are(self) -> None:
        inline = {"role": "system", "content": "Now"}
        assert chat(USER, inline, USER, system="A").messages == [
            {"role": "system", "content": "A"}, USER, inline, USER,
        ]  # fmt: skip

    def test_inline_system_messages_move_to_the_front_for_templates_that_need_it(self) -> None:
        inline = {"role": "system", "content": "Now"}
        assert chat(USER, inline, USER, system="A", merge=True).messages == [
            {"role": "system", "content": "ANow"}, USER, USER,
        ]  # fmt: skip

    def test_results_come_before_what_else_the_user_says(self) -> None:
        blocks = [
            {"type": "text", "text": "Thanks"},
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}]},
            {"type": "tool_result", "tool_use_id": "b", "content": None},
        ]
        assert chat({"role": "user", "content": blocks}).messages == [
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": ""},
            {"role": "user", "content": "Thanks"},
        ]

    def test_an_assistant_turn_keeps_thinking_text_and_calls_apart(self) -> None:
        blocks = [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        ]
        call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": 1})}}
        assert chat(USER, {"role": "assistant", "content": blocks}).messages[1] == {
            "role": "assistant", "reasoning": "hm", "tool_calls": [call], "content": "Let me see.",
        }  # fmt: skip

    def test_input_that_nests_too_deeply_is_refused(self) -> None:
        nested: dict[str, Any] = {}
        for _ in range(100_000):
            nested = {"a": nested}
        blocks = [{"type": "tool_use", "id": "t", "name": "f", "input": nested}]
        with pytest.raises(BadRequest, match="too deep"):
            chat({"role": "assistant", "content": blocks})


class TestImages:
    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ({"type": "base64", "media_type": "image/png", "data": "AA"}, "data:image/png;base64,AA"),
            ({"data": "AA"}, "data:image/jpeg;base64,AA"),
            ({"type": "url", "url": "http://h/x"}, "http://h/x"),
        ],
    )
    def test_sources(self, source: dict[str, Any], expected: str) -> None:
        image: dict[str, Any] = {"type": "image", "source": source}
        shown = {"type": "image_url", "image_url": {"url": expected}}
        assert chat({"role": "user", "content": [image]}).messages[-1]["content"] == [shown]
        result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
        assert chat({"role": "user", "content": [result]}).messages[-1]["content"] == [shown]

    @pytest.mark.parametrize(
        ("source", "field", "message"),
        [
            (None, "", "needs a source"),
            ({}, "", "needs a source"),
            ({"type": "file", "file_id": "x"}, ".type", "type file are not supported; base64 and url are"),
            ({"type": ["url"], "url": "u"}, ".type", "not supported"),
            ({"type": "base64", "media_type": "image/png"}, ".data", "needs `data`"),
            ({"type": "base64", "data": ""}, ".data", "needs `data`"),
            ({"type": "base64", "data": 5}, ".data", "needs `data`"),
            ({"type": "url"}, ".url", "needs `url`"),
            ({"type": "url", "url": {}}, ".url", "needs `url`"),
        ],
    )
    def test_sources_without_an_image_are_refused(
        self, source: dict[str, Any] | None, field: str, message: str
    ) -> None:
        """In a tool's result too."""
        said = {"type": "text", "text": "x"}
        image = {"type": "image", "source": source}
        result = {"type": "tool_result", "tool_use_id": "a", "content": [said, image]}
        for blocks, where in (([said, image], "1"), ([result], "0.content.1")):
            with pytest.raises(BadRequest, match=message) as caught:
                chat(USER, {"role": "user", "content": blocks})
            assert caught.value.param == f"messages.1.content.{where}.source{field}"

    def test_an_image_without_a_source_is_refused(self) -> None:
        with pytest.raises(BadRequest, match="needs a source"):
            chat({"role": "user", "content": [{"type": "image"}]})


class TestTools:
    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            (None, "auto"),
            ({"type": "auto"}, "auto"),
            ({"type": "any"}, "required"),
            ({"type": "none"}, "none"),
        ],
    )
    def test_choices(self, choice: dict[str, Any] | None, expected: str) -> None:
        assert chat(tools=[TOOL], tool_choice=choice).tool_choice == expected

    def test_a_named_tool(self) -> None:
        request = chat(tools=[TOOL], tool_choice={"type": "tool", "name": "f"})
        assert request.forced_function == "f"

    def test_a_name_that_no_tool_has_is_refused(self) -> None:
        with pytest.raises(BadRequest, match="'g'"):
            chat(tools=[TOOL], tool_choice={"type": "tool", "name": "g"})

    def test_parallel_use_can_be_switched_off(self) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        assert chat(tools=[TOOL], tool_choice=choice).parallel_tool_calls is False
        assert chat(tools=[TOOL], tool_choice={"type": "auto"}).parallel_tool_calls is True

    def test_schemas_are_of_objects_unless_they_say_otherwise(self) -> None:
        tools = chat(tools=[TOOL]).tools
        assert tools is not None
        assert tools[0].function.parameters == {**TOOL["input_schema"], "type": "object"}  # type: ignore[dict-item]

    def test_changes_on_the_way_leave_the_tools_of_the_end(self) -> None:
        removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}
        new = {"type": "tool_definition", "definition": {"name": "g", "input_schema": {}}}
        blocks = [removal, {"type": "tool_addition", "tool": new}]
        tools = chat(USER, {"role": "system", "content": blocks}, tools=[TOOL]).tools
        assert [tool.function.name for tool in tools or ()] == ["g"]


class TestParameters:
    def test_streams_report_usage_all_along(self) -> None:
        options = chat(stream=True).stream_options
        assert options is not None
        assert (options.include_usage, options.continuous_usage_stats) == (True, True)

    def test_thinking(self) -> None:
        assert chat(thinking={"type": "disabled"}).reasoning_effort == "none"
        budget = {"type": "enabled", "budget_tokens": 1024}
        assert chat(thinking=budget, max_tokens=2000).thinking_token_budget == 1024
        assert chat(thinking={"type": "adaptive"}).reasoning_effort is None

    def test_disabled_thinking_wins_over_an_effort(self) -> None:
        both = {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}
        assert chat(**both).reasoning_effort == "none"

    def test_too_many_stop_sequences_are_refused_under_their_name(self) -> None:
        with pytest.raises(BadRequest) as caught:
            chat(stop_sequences=list("abcde"))
        assert caught.value.param == "body.stop_sequences"
