"""Messages as templates see them: the kinds of message that have gone wrong in the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from render_tier.protocol.errors import BadRequest
from render_tier.protocol.messages import check_messages
from render_tier.rendering.conversation import developer_as_system, to_conversation
from render_tier.rendering.settings import ContentFormat


def convert(
    *messages: dict[str, Any], content_format: ContentFormat = "string", strict: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    warnings: list[str] = []
    before = json.dumps(messages)
    conversation = to_conversation(
        check_messages(list(messages)), content_format, model="m", strict_history=strict, warnings=warnings
    )
    assert json.dumps(messages) == before, "the client's objects are not changed"
    return conversation, warnings


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_text_parts_are_joined_for_string_templates() -> None:
    (message,), _ = convert({"role": "user", "content": [text("a"), "b", text(""), text("c")]})
    assert message == {"role": "user", "content": "a\nb\nc"}


def test_parts_stay_parts_for_templates_that_loop_over_them() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    (message,), _ = convert({"role": "user", "content": [part, "b"]}, content_format="openai")
    assert message["content"] == [part, text("b")]


@pytest.mark.parametrize("content_format", ["string", "openai"])
def test_tool_result_given_as_parts_is_text(content_format: ContentFormat) -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": [text("a"), text("b")]}
    (message,), _ = convert(result, content_format=content_format)
    assert message == {"role": "tool", "content": "a\nb", "tool_call_id": "c"}


def test_tool_reference_keeps_its_structure() -> None:
    result = {"role": "tool", "content": [{"type": "tool_reference", "name": "f"}]}
    (message,), _ = convert(result, content_format="openai")
    assert message["content"] == [{"type": "tool_reference", "name": "f"}]


def test_null_content_of_a_calling_turn_is_empty_text() -> None:
    (message,), _ = convert({"role": "assistant", "content": None, "tool_calls": [call("{}")]})
    assert message["content"] == ""


@pytest.mark.parametrize("calls", [[], None])
def test_no_tool_calls_is_the_same_as_an_empty_list(calls: Any) -> None:
    (message,), _ = convert({"role": "assistant", "content": "a", "tool_calls": calls})
    assert message == {"role": "assistant", "content": "a"}


def test_reasoning_under_either_name_reaches_templates_under_both() -> None:
    for name in ("reasoning", "reasoning_content"):
        (message,), _ = convert({"role": "assistant", "content": "a", name: "why"})
        assert message["reasoning"] == message["reasoning_content"] == "why"


def test_unknown_keys_do_not_reach_templates_and_known_ones_do() -> None:
    (message,), _ = convert(
        {"role": "user", "content": "a", "name": "n", "task": "t", "x": 1, "reasoning": "r"}
    )
    assert message == {"role": "user", "content": "a", "name": "n", "task": "t"}


def test_calls_have_their_keys_in_the_order_that_vllm_prints() -> None:
    shuffled = {
        "type": "function",
        "x": 1,
        "function": {"y": 2, "name": "f", "arguments": '{"a": 1}'},
        "id": "c",
    }
    (message,), _ = convert({"role": "assistant", "content": "a", "name": "n", "tool_calls": [shuffled]})
    assert json.dumps(message) == json.dumps(
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [
                {
                    "id": "c",
                    "function": {"arguments": {"a": 1}, "name": "f", "y": 2},
                    "type": "function",
                    "x": 1,
                }
            ],
            "name": "n",
        }
    )


class TestHistoryArguments:
    @pytest.mark.parametrize(
        ("arguments", "parsed"),
        [
            ('{"a": [1, 2.0, null]}', {"a": [1, 2.0, None]}),
            ("", {}),
            ("{}", {}),
            ('{"a": 1, "a": 2}', {"a": 2}),
        ],
    )
    def test_are_parsed(self, arguments: str, parsed: dict[str, Any]) -> None:
        (message,), warnings = convert({"role": "assistant", "content": "", "tool_calls": [call(arguments)]})
        assert message["tool_calls"][0]["function"]["arguments"] == parsed
        assert warnings == []

    @pytest.mark.parametrize("arguments", ["{bad", "42", "[]", "null", "true", '"x"', " ", "[" * 100_000])
    def test_that_are_no_object_are_repaired_with_a_warning_or_refused(self, arguments: str) -> None:
        message = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
        (converted,), warnings = convert(message)
        assert converted["tool_calls"][0]["function"]["arguments"] == {}
        assert warnings[0].startswith("messages.0.tool_calls.0.function.arguments: ")
        with pytest.raises(BadRequest, match=r"messages\.0\.tool_calls\.0"):
            convert(message, strict=True)


class TestDeveloperRole:
    def test_becomes_the_system_message(self) -> None:
        conversation, _ = convert(
            {"role": "developer", "content": "d", "tools": []}, {"role": "user", "content": "u"}
        )
        assert developer_as_system(conversation) == [
            {"role": "system", "content": "d"},
            {"role": "user", "content": "u"},
        ]

    def test_is_merged_with_other_system_text_at_the_front(self) -> None:
        conversation, _ = convert(
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "developer", "content": [text("d"), text("e")]},
        )
        assert developer_as_system(conversation) == [
            {"role": "system", "content": "s\n\nd\ne"},
            {"role": "user", "content": "u"},
        ]


def test_billing_line_of_a_client_is_dropped_from_system_text() -> None:
    header = "x-anthropic-billing-header: cch=1"
    for content in (f"{header}\nreal", [text(header), text("real")], [f"{header}\nreal", text("")]):
        (message,), _ = convert({"role": "system", "content": content})
        assert message["content"] == "real"
    (message,), _ = convert({"role": "user", "content": header})
    assert message["content"] == header


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "m is not a multimodal model"),
        ({"image_url": "data:,"}, "m is not a multimodal model"),
        ({"type": "input_audio", "input_audio": {}}, "m is not a multimodal model"),
        ({"type": "video_url", "video_url": {"url": "u"}}, "m is not a multimodal model"),
        ({"type": "prompt_embeds", "data": "x"}, "prompt_embeds"),
        ({"type": "nope"}, "Unsupported chat content part type: 'nope'"),
        ({"text": "a"}, "Missing 'type'"),
        ({"type": 5, "text": "a"}, "Invalid 'type'"),
        ({"type": "thinking"}, "must be a string"),
    ],
)
def test_parts_that_text_models_cannot_take(part: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        convert({"role": "user", "content": [text("a"), part]})
