"""Prompts that go on from the IDs of the turn before, and refusals that name the message that differs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.core.vocabulary import Vocabulary, vocabulary_of_bytes
from render_tier.model import ModelAssets
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.generate import ContinuationReport, GenerateRequest
from render_tier.rendering.continuation import Continued, Parted, continued, ends_inside_character
from render_tier.rendering.renderer import Renderer
from tests.render_tier.rendering.test_renderer import with_settings

SMALL = vocabulary_of_bytes(["<s>", "</s>", "<x>"], [b"a", b"b", b"ab", b"abc", b"c", b"\xc3", b"\xa9", b""])
S, END, X, A, B, AB, ABC, C, LEAD, TRAIL, EMPTY = range(11)


def encode(text: str) -> list[int]:
    return [{"a": A, "b": B, "c": C}[character] for character in text]


class TestOnIds:
    @pytest.mark.parametrize(
        ("before", "rendered", "tail"),
        [
            ([S, AB], [S, AB, END, A], [END, A]),
            ([S, A, B], [S, AB, END], [END]),
            ([S, AB, END], [S, A, B, END, C], [C]),
            ([S, A], [S, ABC, END], [B, C, END]),
            ([S, A], [S, A], []),
        ],
        ids=[
            "same IDs",
            "cut otherwise",
            "the stop token is the template's",
            "inside a token",
            "nothing new",
        ],
    )
    def test_go_on(self, before: list[int], rendered: list[int], tail: list[int]) -> None:
        assert continued(before, rendered, SMALL, encode) == Continued(tail)

    @pytest.mark.parametrize(
        ("before", "rendered", "parted"),
        [
            ([S, A, C], [S, AB, END], Parted(2, 1, 4)),
            ([S, AB, END, A], [S, AB, END], Parted(3, 3, 8)),
            ([S, AB, X], [S, AB, END], Parted(2, 2, 5)),
            ([S, AB, EMPTY], [S, AB, END], Parted(2, 2, 5)),
        ],
        ids=["another text", "longer than it", "another special token", "an ID that spells nothing"],
    )
    def test_part(self, before: list[int], rendered: list[int], parted: Parted) -> None:
        assert continued(before, rendered, SMALL, encode) == parted

    def test_what_spells_a_special_token_is_not_one(self) -> None:
        marks = vocabulary_of_bytes(["<x>"], [b"<", b"x", b">"])
        assert isinstance(continued([1, 2, 3], [0], marks, encode), Parted)

    def test_a_rest_that_the_tokenizer_cannot_spell_is_refused(self) -> None:
        assert continued([S, A], [S, ABC], SMALL, lambda _: [C]) == Parted(2, 1, 4)

    @given(st.lists(st.sampled_from([A, B, AB, ABC, C, END])), st.data())
    def test_whatever_the_cut_the_text_is_the_same(self, rendered: list[int], data: st.DataObject) -> None:
        """Of any text, any beginning, in any tokens."""
        before: list[int] = []
        for token in rendered[: data.draw(st.integers(0, len(rendered)))]:
            whole = token == END or data.draw(st.booleans())
            before += [token] if whole else encode(SMALL.text([token]))
        result = continued(before, rendered, SMALL, encode)
        assert isinstance(result, Continued)
        assert SMALL.text([*before, *result.tail]) == SMALL.text(rendered)

    @pytest.mark.parametrize(
        ("ids", "inside"),
        [([A], False), ([A, LEAD], True), ([LEAD, TRAIL], False), ([], False), ([LEAD, END], True)],
    )
    def test_the_end_of_a_character(self, ids: list[int], inside: bool) -> None:
        assert ends_inside_character(ids, SMALL) is inside


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Hi there"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
ANSWER = {"role": "assistant", "content": "", "reasoning": "Let me see", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "42"}
OUTPUT = ("<think>\nLet ", "me see\n</think>\n\n", '<tool_call>\n{"name": "f", "argu', 'ments": {"a": 1}}\n')
END_OF_TURN, END_OF_TEXT = 151645, 151643


class Conversation:
    """One turn with Qwen3: what was asked, and IDs of an answer that its tokenizer would cut otherwise."""

    def __init__(self, renderer: Renderer, assets: ModelAssets) -> None:
        self.renderer = renderer
        self.vocabulary: Vocabulary = assets.vocabulary
        self.prompt = self.render([USER]).token_ids
        self.output = [
            token
            for piece in (*OUTPUT, "</tool_call>")
            for token in assets.tokenizer.ids(piece, add_special_tokens=False)
        ]

    @property
    def ended(self) -> list[int]:
        return [*self.output, END_OF_TURN]

    def render(self, messages: list[dict[str, Any]], **fields: Any) -> GenerateRequest:
        return self.renderer.chat(
            ChatCompletionRequest.parse({"messages": messages, "tools": [TOOL], **fields})
        )

    def go_on(
        self, messages: list[dict[str, Any]], output: list[int] | None = None, **fields: Any
    ) -> GenerateRequest:
        ids = self.ended if output is None else output
        before = {"prompt_token_ids": self.prompt, "output_token_ids": ids}
        return self.render(messages, continuation=before, **fields)

    def report(self, messages: list[dict[str, Any]], **fields: Any) -> tuple[str | None, int | None]:
        report = self.go_on(messages, **fields).continuation
        assert isinstance(report, ContinuationReport)
        return report.reason, report.message


@pytest.fixture
def turn(qwen3_renderer: Renderer, qwen3_assets: ModelAssets) -> Conversation:
    return Conversation(qwen3_renderer, qwen3_assets)


NEXT = [USER, ANSWER, RESULT]


class TestChat:
    @pytest.mark.parametrize("ended", [True, False])
    def test_the_ids_stay_and_the_text_is_that_of_a_whole_render(
        self, turn: Conversation, ended: bool
    ) -> None:
        output = turn.ended if ended else turn.output
        reply, whole = turn.go_on(NEXT, output), turn.render(NEXT)
        before = turn.prompt + output
        assert reply.token_ids[: len(before)] == before
        assert reply.token_ids != whole.token_ids
        assert turn.vocabulary.text(reply.token_ids) == turn.vocabulary.text(whole.token_ids)
        assert reply.continuation == ContinuationReport(exact=True, kept_tokens=len(before))
        assert reply.reasoning_ended == whole.reasoning_ended

    def test_the_whole_render_is_the_same_with_and_without_a_cache(
        self, turn: Conversation, qwen3_assets: ModelAssets
    ) -> None:
        plain = Conversation(with_settings(qwen3_assets, prompt_cache_bytes=0), qwen3_assets)
        assert turn.go_on(NEXT).token_ids == plain.go_on(NEXT).token_ids

    @pytest.mark.parametrize(
        ("messages", "expected"),
        [
            ([*NEXT, USER], ("reasoning_dropped", 1)),
            ([{"role": "user", "content": "Hi thexe"}, ANSWER, RESULT], ("message_differs", 0)),
            ([{"role": "user", "content": "Hi there, you"}, ANSWER, RESULT], ("message_differs", 0)),
            ([{"role": "user", "content": "Hi"}, ANSWER, RESULT], ("message_differs", 0)),
            ([{"role": "user", "content": [{"type": "text", "text": "H"}]}, ANSWER], ("message_differs", 0)),
            ([USER, USER, ANSWER, RESULT], ("frame_differs", 1)),
            ([USER, {**ANSWER, "reasoning": None}, RESULT], ("reasoning_missing", 1)),
            ([USER, {**ANSWER, "reasoning": "Let me hear"}, RESULT], ("answer_differs", 1)),
            ([USER, {**ANSWER, "content": "Hm."}, RESULT], ("answer_differs", 1)),
            ([USER], ("history_ends_early", 1)),
        ],
    )
    def test_what_differs_is_named(
        self, turn: Conversation, messages: list[dict[str, Any]], expected: tuple[str, int]
    ) -> None:
        reply = turn.go_on(messages)
        assert turn.report(messages) == expected
        assert reply.token_ids == turn.render(messages).token_ids
        param = "continuation" if expected[1] is None else f"messages.{expected[1]}"
        with pytest.raises(BadRequest, match=expected[0]) as refused:
            turn.go_on(messages, continuation_strict=True)
        assert (refused.value.status, refused.value.type, refused.value.param) == (
            400,
            "ContinuationRefusedError",
            param,
        )

    def test_an_answer_that_the_template_writes_otherwise(
        self, turn: Conversation, qwen3_assets: ModelAssets
    ) -> None:
        compact = (
            '<think>\nLet me see\n</think>\n\n<tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call>'
        )
        output = qwen3_assets.tokenizer.ids(compact, add_special_tokens=False)
        assert turn.report(NEXT, output=output) == ("answer_rewritten", 1)

    def test_tools_that_are_gone(self, turn: Conversation) -> None:
        assert turn.report(NEXT, tools=None) == ("frame_differs", 0)

    def test_instructions_that_were_put_in(self, turn: Conversation) -> None:
        turn.prompt = turn.render([USER], tools=None).token_ids
        told = {"role": "system", "content": "Be brief."}
        assert turn.report([told, *NEXT], tools=None) == ("frame_differs", 0)

    def test_an_output_that_is_longer_than_its_message(
        self, turn: Conversation, qwen3_assets: ModelAssets
    ) -> None:
        more = qwen3_assets.tokenizer.ids("\n<tool_call>\n{}\n</tool_call>", add_special_tokens=False)
        assert turn.report(NEXT, output=[*turn.output, *more]) == ("answer_rewritten", 1)

    def test_what_the_generation_prompt_wrote(self, turn: Conversation, qwen3_assets: ModelAssets) -> None:
        quiet: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
        turn.prompt = turn.render([USER], **quiet).token_ids
        output = [*qwen3_assets.tokenizer.ids("Hello", add_special_tokens=False), END_OF_TURN]
        messages = [USER, {"role": "assistant", "content": "Hello"}, USER]
        assert turn.report(messages, output=output, **quiet) == ("generation_prompt_dropped", 1)

    def test_another_stop_token_is_replaced_and_all_before_it_kept(self, turn: Conversation) -> None:
        reply = turn.go_on(NEXT, [*turn.output, END_OF_TEXT])
        kept = turn.prompt + turn.output
        assert turn.report(NEXT, output=[*turn.output, END_OF_TEXT]) == ("stop_token", 1)
        assert reply.token_ids[: len(kept) + 1] == [*kept, END_OF_TURN]
        assert reply.continuation.kept_tokens == len(kept)  # type: ignore[union-attr]

    def test_an_output_that_ends_inside_a_character(
        self, turn: Conversation, qwen3_assets: ModelAssets
    ) -> None:
        output = qwen3_assets.tokenizer.ids("<think>\nLet me see\n</think>\n\n𓀀", add_special_tokens=False)[
            :-1
        ]
        shown = turn.vocabulary.text(output).rpartition("\n\n")[2]
        answer = {"role": "assistant", "content": shown, "reasoning": "Let me see"}
        assert "\ufffd" in shown
        assert turn.report([USER, answer, RESULT], output=output) == ("partial_character", 1)

    def test_the_search_for_the_message_is_bounded(self, qwen3_assets: ModelAssets) -> None:
        turn = Conversation(with_settings(qwen3_assets, continuation_renders=0), qwen3_assets)
        assert turn.report([*NEXT, USER]) == ("unknown", None)


class TestBounds:
    @pytest.mark.parametrize(
        ("before", "param"),
        [
            ({"prompt_token_ids": [], "output_token_ids": [1]}, "continuation.prompt_token_ids"),
            ({"prompt_token_ids": [151936], "output_token_ids": []}, "continuation.prompt_token_ids"),
            ({"prompt_token_ids": [1], "output_token_ids": [-1]}, "continuation.output_token_ids"),
            ({"prompt_token_ids": [1], "output_token_ids": [2**70]}, "continuation.output_token_ids"),
            ({"prompt_token_ids": [1], "output_token_ids": ["1"]}, "body.continuation.output_token_ids.0"),
            ({"prompt_token_ids": [True], "output_token_ids": []}, "body.continuation.prompt_token_ids.0"),
            ({"prompt_token_ids": [1]}, "body.continuation.output_token_ids"),
            ({"prompt_token_ids": [1] * 40961, "output_token_ids": []}, "input_tokens"),
            ("x", "body.continuation"),
        ],
    )
    def test_ids_are_checked(self, turn: Conversation, before: Any, param: str) -> None:
        with pytest.raises(BadRequest) as refused:
            turn.render(NEXT, continuation=before)
        assert refused.value.param == param

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
            ({"return_token_offsets": True}, "return_token_offsets"),
            ({"kv_transfer_params": {"prompt_token_ids": [1]}}, "continuation"),
        ],
    )
    def test_fields_that_contradict_it(self, turn: Conversation, fields: dict[str, Any], param: str) -> None:
        with pytest.raises(BadRequest) as refused:
            turn.go_on(NEXT, **fields)
        assert refused.value.param == param
