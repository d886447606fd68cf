"""Bodies to requests: what is tolerated, and errors that stay small whatever was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.tokenize import (
    TokenizeChatRequest,
    TokenizeTextRequest,
    parse_detokenize,
    parse_tokenize,
)
from render_tier.protocol.validation import MAX_DEPTH, decode_object, invalid

USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.parse({"messages": [USER], **fields})


class TestBodies:
    @pytest.mark.parametrize(
        ("body", "value"),
        [
            (b'{"a": NaN}', None),
            (b'{"a": 1, "a": 2}', 2),
            (b'\xef\xbb\xbf{"a": 1}', 1),
            (b'{"a": 123456789012345678901234567890}', 123456789012345678901234567890),
            (b'{"a": 1e400}', float("inf")),
        ],
    )
    def test_that_python_reads(self, body: bytes, value: Any) -> None:
        decoded = decode_object(body)["a"]
        assert decoded == value or value is None

    @pytest.mark.parametrize(
        "body", [b"", b" ", b"{", b"[]", b"5", b"\xff", b'{"a": "\\udc00"}', b"{" * 100_000, b"1" * 10_000]
    )
    def test_that_are_no_json_object(self, body: bytes) -> None:
        with pytest.raises(BadRequest) as refused:
            decode_object(body)
        assert refused.value.type == "Bad Request"
        assert str(refused.value.param).startswith("body")

    @pytest.mark.parametrize("spare", [b"", b', "b": NaN'], ids=["strict", "lenient"])
    @pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")], ids=str)
    def test_nested_deeper_than_the_bound(self, begin: bytes, end: bytes, spare: bytes) -> None:
        levels = begin.count(b"[") + begin.count(b"{")

        def body(depth: int) -> bytes:
            count = (depth - 1) // levels
            return b'{"a":' + begin * count + b"0" + end * count + spare + b"}"

        decode_object(body(MAX_DEPTH - (MAX_DEPTH - 1) % levels))
        for depth in (MAX_DEPTH + levels, 900, 997, 5_000):
            with pytest.raises(BadRequest, match="nested too deeply"):
                decode_object(body(depth))

    def test_wide_is_not_deep(self) -> None:
        decode_object(b'{"a":[' + b",".join([b"[{}]"] * 5_000) + b"]}")


class TestErrors:
    def test_stay_small(self) -> None:
        huge = "x" * 1_000_000
        for fields in (
            {"temperature": huge},
            {"tools": [{"function": huge}] * 1000},
            {"tool_choice": huge, "tools": [TOOL]},
            {"stop_token_ids": ["x"] * 100_000},
            {"messages": [{"role": "user", "content": [{"type": huge}]}]},
            {"prompt_logprobs": huge},
        ):
            with pytest.raises(BadRequest) as refused:
                chat(**fields)
            assert len(refused.value.encode()) < 10_000

    def test_name_the_field_and_the_value(self) -> None:
        error = invalid("wrong.", "field", [1, 2])
        assert (error.message, error.param) == ("wrong. (parameter=field, value=<list of 2 items>)", "field")


class TestChat:
    def test_tools_alone_mean_auto(self) -> None:
        assert chat().tool_choice == "none"
        assert chat(tools=[TOOL]).tool_choice == "auto"
        assert chat(tools=[TOOL], tool_choice=None).tool_choice is None
        named = chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})
        assert named.forced_function == "f"

    def test_unknown_fields_are_ignored(self) -> None:
        chat(guided_json={"type": "object"}, anything=[1])

    def test_null_means_default_where_vllm_says_so(self) -> None:
        request = chat(top_logprobs=None, n=None, stream=None, stop=None, logprobs=None)
        assert request.top_logprobs == 0

    @pytest.mark.parametrize(
        ("fields", "kind", "param"),
        [
            ({"tools": []}, "BadRequestError", "tools"),
            ({"tool_choice": "auto"}, "BadRequestError", "tool_choice"),
            ({"tools": [TOOL], "tool_choice": "weird"}, "BadRequestError", "tool_choice"),
            ({"tools": [TOOL], "tool_choice": {}}, "BadRequestError", "tool_choice.function"),
            (
                {"tools": [TOOL], "tool_choice": {"function": {}}},
                "BadRequestError",
                "tool_choice.function.name",
            ),
            (
                {"tools": [TOOL], "tool_choice": {"function": {"name": ""}}},
                "BadRequestError",
                "tool_choice.function.name",
            ),
            ({"tools": [TOOL], "tool_choice": {"function": {"name": "g"}}}, "BadRequestError", "tool_choice"),
            ({"continue_final_message": True, "add_generation_prompt": True}, "BadRequestError", None),
            ({"stream_options": {"include_usage": True}}, "BadRequestError", "stream_options"),
            ({"top_logprobs": 2}, "BadRequestError", "top_logprobs"),
            ({"top_logprobs": -2, "logprobs": True}, "BadRequestError", "top_logprobs"),
            ({"logprob_token_ids": [1]}, "BadRequestError", "logprob_token_ids"),
            ({"stream": True, "prompt_logprobs": 1}, "BadRequestError", "prompt_logprobs"),
            ({"thinking_token_budget": -2}, "BadRequestError", "thinking_token_budget"),
            ({"thinking_token_budget": True}, "BadRequestError", "thinking_token_budget"),
            ({"cache_salt": ""}, "BadRequestError", "cache_salt"),
            ({"cache_salt": "a" * 129}, "BadRequestError", "cache_salt"),
            ({"cache_salt": "a@b"}, "BadRequestError", "cache_salt"),
            ({"response_format": {"type": "json_schema"}}, "BadRequestError", "response_format"),
            ({"response_format": {"type": "structural_tag"}}, "BadRequestError", "response_format"),
            ({"structured_outputs": {"structural_tag": "{"}}, "BadRequestError", "structured_outputs"),
            ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "BadRequestError", None),
            ({"stop": ["a"] * 5}, "Bad Request", "body.stop"),
            ({"temperature": "hot"}, "Bad Request", "body.temperature"),
            ({"seed": 2**63}, "Bad Request", "body.seed"),
            ({"truncate_prompt_tokens": -2}, "Bad Request", "body.truncate_prompt_tokens"),
            ({"reasoning_effort": "weird"}, "Bad Request", "body.reasoning_effort"),
            ({"response_format": {"type": "weird"}}, "Bad Request", "body.response_format.type"),
            ({"request_id": None}, "Bad Request", "body.request_id"),
            ({"messages": "x"}, "Bad Request", "body.messages"),
        ],
        ids=str,
    )
    def test_refused(self, fields: dict[str, Any], kind: str, param: str | None) -> None:
        with pytest.raises(BadRequest) as refused:
            chat(**fields)
        assert (refused.value.type, refused.value.param) == (kind, param)

    def test_messages_are_required(self) -> None:
        with pytest.raises(BadRequest) as refused:
            ChatCompletionRequest.parse({})
        assert refused.value.param == "body.messages"

    def test_stop_count_is_the_operators(self) -> None:
        ChatCompletionRequest.parse({"messages": [USER], "stop": ["a"] * 9}, max_stop_strings=9)


class TestCompletions:
    @pytest.mark.parametrize(
        ("prompt", "prompts"),
        [
            ("a", ["a"]),
            (["a", "b"], ["a", "b"]),
            ([1, 2], [[1, 2]]),
            ([1.0, True], [[1, 1]]),
            ([[1], [2, 3]], [[1], [2, 3]]),
            ([[]], [[]]),
        ],
    )
    def test_prompts(self, prompt: Any, prompts: Any) -> None:
        assert CompletionRequest.parse({"prompt": prompt}).prompts == prompts

    @pytest.mark.parametrize(
        "prompt",
        ["", None, [], 5, {}, ["a", 1], [[1], "a"], [-1], [1.5], [[-1]], [None], [["a"]], ["a"] * 1025],
    )
    def test_that_are_none(self, prompt: Any) -> None:
        with pytest.raises(BadRequest):
            CompletionRequest.parse({"prompt": prompt})

    def test_max_tokens_is_16_unless_given(self) -> None:
        assert CompletionRequest.parse({"prompt": "a"}).max_tokens == 16
        assert CompletionRequest.parse({"prompt": "a", "max_tokens": None}).max_tokens == 16
        assert CompletionRequest.parse({"prompt": "a", "max_tokens": 0}).max_tokens == 0

    def test_fields_of_chat_are_unknown(self) -> None:
        CompletionRequest.parse({"prompt": "a", "tools": "ignored", "reasoning_effort": 5})


class TestTokenize:
    def test_forms(self) -> None:
        assert isinstance(parse_tokenize({"prompt": "x"}), TokenizeTextRequest)
        assert isinstance(parse_tokenize({"messages": [USER]}), TokenizeChatRequest)
        assert isinstance(parse_tokenize({"messages": [USER], "prompt": "x"}), TokenizeTextRequest)

    @pytest.mark.parametrize(
        "data",
        [
            {},
            {"prompt": 5},
            {"messages": [5]},
            {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
        ],
        ids=json.dumps,
    )
    def test_refused(self, data: dict[str, Any]) -> None:
        with pytest.raises(BadRequest):
            parse_tokenize(data)

    @pytest.mark.parametrize("tokens", [["a"], [-1], [2**63], "x", None], ids=str)
    def test_ids_to_text_refused(self, tokens: Any) -> None:
        with pytest.raises(BadRequest):
            parse_detokenize({"tokens": tokens})
