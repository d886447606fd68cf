"""Whole requests to GenerateRequests: what the parts decide together."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest

from render_tier.model import ModelAssets
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import BadRequest, NotFound
from render_tier.protocol.generate import GenerateRequest
from render_tier.rendering.renderer import Renderer
from render_tier.rendering.settings import RenderSettings
from tests.render_tier.conftest import QWEN3_RENDER

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
THINK, END_THINK = 151667, 151668
END_OF_TURN, IMAGE_PAD = 151645, 151655
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def chat(
    renderer: Renderer, *messages: dict[str, Any], request_id: str | None = None, **fields: Any
) -> GenerateRequest:
    request = ChatCompletionRequest.parse({"messages": list(messages) or [USER], **fields})
    return renderer.chat(request, request_id=request_id)


def text(renderer: Renderer, assets: ModelAssets, *messages: dict[str, Any], **fields: Any) -> str:
    return assets.vocabulary.text(chat(renderer, *messages, **fields).token_ids)


def with_settings(assets: ModelAssets, **changes: Any) -> Renderer:
    return Renderer(assets, dataclasses.replace(QWEN3_RENDER, **changes))


class TestIds:
    def test_header_over_body_over_random(self, qwen3_renderer: Renderer) -> None:
        assert chat(qwen3_renderer, request_id="h").request_id == "chatcmpl-h"
        request = ChatCompletionRequest.parse({"messages": [USER], "request_id": "b"})
        assert qwen3_renderer.chat(request).request_id == "chatcmpl-b"
        assert qwen3_renderer.chat(request, request_id="h").request_id == "chatcmpl-h"
        assert chat(qwen3_renderer).request_id != chat(qwen3_renderer).request_id

    def test_prompts_are_numbered(self, qwen3_renderer: Renderer) -> None:
        many = CompletionRequest.parse({"prompt": ["a", "b"], "request_id": "r"})
        assert [one.request_id for one in qwen3_renderer.completions(many)] == ["cmpl-r-0", "cmpl-r-1"]
        single = CompletionRequest.parse({"prompt": ["a"], "request_id": "r"})
        assert [one.request_id for one in qwen3_renderer.completions(single)] == ["cmpl-r"]


class TestModelName:
    @pytest.mark.parametrize("model", ["qwen3", "", None])
    def test_served(self, qwen3_renderer: Renderer, model: str | None) -> None:
        assert chat(qwen3_renderer, model=model).model == model

    def test_unknown(self, qwen3_renderer: Renderer) -> None:
        with pytest.raises(NotFound, match="Valid aliases: qwen3"):
            chat(qwen3_renderer, model="other")


class TestTools:
    def test_reach_the_prompt_unless_excluded(
        self, qwen3_assets: ModelAssets, qwen3_renderer: Renderer
    ) -> None:
        assert '"name": "f"' in text(qwen3_renderer, qwen3_assets, tools=[TOOL])
        assert '"name": "f"' in text(qwen3_renderer, qwen3_assets, tools=[TOOL], tool_choice="none")
        excluding = with_settings(qwen3_assets, exclude_tools_when_tool_choice_none=True)
        assert '"name": "f"' not in text(excluding, qwen3_assets, tools=[TOOL], tool_choice="none")
        assert '"name": "f"' in text(excluding, qwen3_assets, tools=[TOOL])

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            (
                "auto",
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            ),
            ("required", 'tool_choice="required" requires --tool-call-parser to be set'),
            ({"type": "function", "function": {"name": "f"}}, 'tool_choice=function "f" requires'),
        ],
    )
    def test_need_a_parser(self, qwen3_assets: ModelAssets, choice: Any, message: str) -> None:
        for settings in ({"tool_call_parser": None}, {"enable_auto_tool_choice": False}):
            with pytest.raises(BadRequest, match=message):
                chat(with_settings(qwen3_assets, **settings), tools=[TOOL], tool_choice=choice)
        chat(with_settings(qwen3_assets, tool_call_parser=None), tools=[TOOL], tool_choice="none")


class TestSpecialTokens:
    """Whether the engine keeps special tokens in the output, so that a parser sees its markers."""

    def test_reasoning_parser_keeps_them(self, qwen3_renderer: Renderer) -> None:
        assert chat(qwen3_renderer).sampling_params.skip_special_tokens is False

    def test_tool_parser_keeps_them_when_tools_are_used(self, qwen3_assets: ModelAssets) -> None:
        renderer = with_settings(qwen3_assets, reasoning_parser=None)
        assert chat(renderer).sampling_params.skip_special_tokens is True
        assert chat(renderer, tools=[TOOL]).sampling_params.skip_special_tokens is False
        assert chat(renderer, tools=[TOOL], tool_choice="none").sampling_params.skip_special_tokens is True

    def test_without_parsers_the_request_decides(self, qwen3_assets: ModelAssets) -> None:
        renderer = Renderer(qwen3_assets, RenderSettings())
        assert chat(renderer).sampling_params.skip_special_tokens is True
        assert chat(renderer, skip_special_tokens=False).sampling_params.skip_special_tokens is False


class TestReasoning:
    @pytest.mark.parametrize(
        ("fields", "ended"),
        [
            ({}, False),
            ({"chat_template_kwargs": {"enable_thinking": False}}, True),
            ({"chat_template_kwargs": {"enable_thinking": True}}, False),
            ({"reasoning_effort": "none"}, True),
            ({"reasoning_effort": "low"}, False),
            ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, False),
            ({"include_reasoning": False}, True),
        ],
    )
    def test_ended_agrees_with_the_prompt(
        self, qwen3_renderer: Renderer, fields: dict[str, Any], ended: bool
    ) -> None:
        generate = chat(qwen3_renderer, **fields)
        assert generate.reasoning_ended is ended
        if fields.get("include_reasoning", True):
            assert (END_THINK in generate.token_ids) is ended

    def test_server_default_and_request_make_one_set_of_kwargs(self, qwen3_assets: ModelAssets) -> None:
        renderer = with_settings(qwen3_assets, default_chat_template_kwargs={"enable_thinking": False})
        closed = chat(renderer)
        assert closed.reasoning_ended is True
        assert closed.reasoning_parser_kwargs == {
            "chat_template_kwargs": {
                "enable_thinking": False,
                "add_generation_prompt": True,
                "continue_final_message": False,
            }
        }
        opened = chat(renderer, chat_template_kwargs={"enable_thinking": True})
        assert opened.reasoning_ended is False
        assert END_THINK not in opened.token_ids

    def test_of_another_turn_says_nothing(self, qwen3_renderer: Renderer) -> None:
        example = {"role": "user", "content": "Write <think>x</think> and then stop"}
        assert chat(qwen3_renderer, example).reasoning_ended is False

    def test_continued_turn(self, qwen3_renderer: Renderer) -> None:
        def continued(content: str) -> bool | None:
            message = {"role": "assistant", "content": content}
            return chat(
                qwen3_renderer, USER, message, continue_final_message=True, add_generation_prompt=False
            ).reasoning_ended

        assert continued("<think>\nso far") is False
        assert continued("<think>\nall\n</think>\n\nThe answer") is True

    def test_without_a_parser_is_left_to_the_engine(self, qwen3_assets: ModelAssets) -> None:
        generate = chat(with_settings(qwen3_assets, reasoning_parser=None))
        assert generate.reasoning_ended is None
        assert generate.reasoning_parser_kwargs is None


class TestTemplates:
    def test_of_a_request_needs_trust(self, qwen3_assets: ModelAssets, qwen3_renderer: Renderer) -> None:
        for fields in ({"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}):
            with pytest.raises(BadRequest, match="--trust-request-chat-template"):
                chat(qwen3_renderer, **fields)
            assert (
                text(with_settings(qwen3_assets, trust_request_chat_template=True), qwen3_assets, **fields)
                == "1"
            )

    def test_that_loops_is_refused(self, qwen3_assets: ModelAssets) -> None:
        renderer = with_settings(qwen3_assets, trust_request_chat_template=True, max_template_seconds=0.1)
        endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        with pytest.raises(BadRequest, match="too long"):
            chat(renderer, chat_template=endless)
        assert chat(renderer).token_ids

    def test_cannot_have_their_messages_replaced(self, qwen3_renderer: Renderer) -> None:
        with pytest.raises(BadRequest, match="messages"):
            chat(qwen3_renderer, chat_template_kwargs={"messages": []})

    def test_unknown_kwargs_have_no_effect(self, qwen3_renderer: Renderer) -> None:
        plain = chat(qwen3_renderer).token_ids
        for kwargs in ({"unknown": 1}, {"padding": True, "tokenize": True}, {"add_generation_prompt": False}):
            assert chat(qwen3_renderer, chat_template_kwargs=kwargs).token_ids == plain

    def test_model_without_one(self, qwen3_assets: ModelAssets) -> None:
        bare = dataclasses.replace(qwen3_assets, chat_template=None, tool_chat_template=None)
        with pytest.raises(BadRequest, match="chat template"):
            chat(Renderer(bare, RenderSettings()))
        assert Renderer(bare, RenderSettings()).completions(CompletionRequest.parse({"prompt": "a"}))

    def test_with_tools_of_its_own(self, qwen3_assets: ModelAssets) -> None:
        split = dataclasses.replace(qwen3_assets, chat_template="plain", tool_chat_template="tools")
        renderer = Renderer(split, QWEN3_RENDER)
        assert text(renderer, qwen3_assets) == "plain"
        assert text(renderer, qwen3_assets, tools=[TOOL]) == "tools"

    def test_no_messages(self, qwen3_renderer: Renderer) -> None:
        with pytest.raises(BadRequest, match="empty conversation"):
            qwen3_renderer.chat(ChatCompletionRequest.parse({"messages": []}))


class TestContinuedMessage:
    FIELDS: ClassVar = {"continue_final_message": True, "add_generation_prompt": False}

    @pytest.mark.parametrize(
        "content", ["Sure, it", "Sure, it ", "Sure\n", "  Sure", [{"type": "text", "text": "Sure"}]]
    )
    def test_prompt_ends_with_the_given_text(
        self, qwen3_assets: ModelAssets, qwen3_renderer: Renderer, content: Any
    ) -> None:
        prompt = text(
            qwen3_renderer, qwen3_assets, USER, {"role": "assistant", "content": content}, **self.FIELDS
        )
        given = content if isinstance(content, str) else content[0]["text"]
        assert prompt.endswith((given, given.strip()))
        assert not prompt.endswith("<|im_end|>\n")

    def test_with_nothing_to_continue(self, qwen3_assets: ModelAssets) -> None:
        template = "{% for m in messages %}{{ m.role }}{{ m.content|length }}{% endfor %}"
        renderer = with_settings(qwen3_assets, trust_request_chat_template=True)
        with pytest.raises(BadRequest, match="does not appear in the chat"):
            chat(renderer, USER, {"role": "assistant", "content": "a"}, chat_template=template, **self.FIELDS)


class TestReusedPrompt:
    def test_skips_the_template_and_is_taken_out(self, qwen3_renderer: Renderer) -> None:
        params = {"prompt_token_ids": [5, 6], "remote": 1}
        generate = chat(qwen3_renderer, kv_transfer_params=params)
        assert generate.token_ids == [5, 6]
        assert generate.sampling_params.extra_args == {"kv_transfer_params": {"remote": 1}}
        assert params == {"prompt_token_ids": [5, 6], "remote": 1}

    def test_is_ignored_with_echo(self, qwen3_renderer: Renderer) -> None:
        assert chat(qwen3_renderer, kv_transfer_params={"prompt_token_ids": [5]}, echo=True).token_ids != [5]

    @pytest.mark.parametrize("ids", [[], "x", [True], [1.5], [-1], [999_999], [2**80]])
    def test_must_be_a_prompt(self, qwen3_renderer: Renderer, ids: Any) -> None:
        with pytest.raises(BadRequest) as refused:
            chat(qwen3_renderer, kv_transfer_params={"prompt_token_ids": ids})
        assert refused.value.param == "kv_transfer_params.prompt_token_ids"

    def test_goes_on_with_sampled_ids_as_they_are(
        self, qwen3_assets: ModelAssets, qwen3_renderer: Renderer
    ) -> None:
        """A model may spell a text in other tokens than the tokenizer would."""
        first = chat(qwen3_renderer, request_id="turn")
        sampled = [qwen3_assets.tokenizer.ids(letter, add_special_tokens=False)[0] for letter in "sunlight"]
        known = [*first.token_ids, *sampled, END_OF_TURN]
        assert qwen3_assets.tokenizer.ids("sunlight", add_special_tokens=False) != sampled
        assert chat(qwen3_renderer, kv_transfer_params={"prompt_token_ids": known}).token_ids == known
        for prompt in (known, [known]):
            [generate] = qwen3_renderer.completions(CompletionRequest.parse({"prompt": prompt}))
            assert generate.token_ids == known

    def test_must_fit(self, qwen3_renderer: Renderer) -> None:
        with pytest.raises(BadRequest) as refused:
            chat(qwen3_renderer, kv_transfer_params={"prompt_token_ids": [1] * 40961})
        assert refused.value.param == "input_tokens"


def test_malformed_history_is_reported(qwen3_assets: ModelAssets, qwen3_renderer: Renderer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{bad"}}
    history = (USER, {"role": "assistant", "content": None, "tool_calls": [call]}, USER)
    warnings = chat(qwen3_renderer, *history).warnings
    assert isinstance(warnings, list)
    assert "messages.1" in warnings[0]
    with pytest.raises(BadRequest):
        chat(with_settings(qwen3_assets, strict_history=True), *history)


def test_user_text_that_spells_special_tokens_is_tokenized_as_vllm_does(qwen3_renderer: Renderer) -> None:
    assert chat(qwen3_renderer, {"role": "user", "content": "<|im_end|>"}).token_ids.count(END_OF_TURN) == 2


def test_a_placeholder_of_images_in_text_stands_for_none_and_an_image_beside_it_is_refused(
    qwen3_renderer: Renderer,
) -> None:
    said = {"type": "text", "text": "What is <|image_pad|>?"}
    generate = chat(qwen3_renderer, {"role": "user", "content": [said]})
    assert generate.token_ids.count(IMAGE_PAD) == 1
    assert generate.features is None
    for parts in ([said, IMAGE], [IMAGE, said]):
        with pytest.raises(BadRequest, match="not a multimodal model"):
            chat(qwen3_renderer, {"role": "user", "content": parts})


def test_a_reply_is_whole_and_a_refusal_the_same_however_often_they_were_given(
    qwen3_renderer: Renderer,
) -> None:
    replies = [chat(qwen3_renderer, request_id="r") for _ in range(3)]
    assert replies[0].token_ids
    assert replies[1:] == replies[:-1]
    refusals = []
    for _ in range(3):
        with pytest.raises(BadRequest) as refused:
            chat(qwen3_renderer, {"role": "user", "content": [IMAGE]})
        refusals.append((refused.value.status, refused.value.message))
    assert len(set(refusals)) == 1


def test_arguments_of_earlier_calls_stay_json(qwen3_assets: ModelAssets, qwen3_renderer: Renderer) -> None:
    function = {"name": "f", "arguments": '{"deep": false, "none": null, "n": 1.50, "s": "é"}'}
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    prompt = text(qwen3_renderer, qwen3_assets, USER, calling, result)
    assert '"arguments": {"deep": false, "none": null, "n": 1.5, "s": "é"}' in prompt


def test_output_asked_beyond_the_context_is_refused_and_below_it_clamped(qwen3_renderer: Renderer) -> None:
    with pytest.raises(BadRequest) as refused:
        chat(qwen3_renderer, max_completion_tokens=40961, max_tokens=5)
    assert refused.value.param == "max_completion_tokens"
    generate = chat(qwen3_renderer, max_tokens=40960)
    assert generate.sampling_params.max_tokens == 40960 - len(generate.token_ids)


def test_template_use_of_null_tool_fields_is_vllms(
    qwen3_assets: ModelAssets, qwen3_renderer: Renderer
) -> None:
    bare = {"type": "function", "function": {"name": "f", "x": 1}, "y": 2}
    shown = text(qwen3_renderer, qwen3_assets, tools=[bare])
    assert '{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}' in shown
