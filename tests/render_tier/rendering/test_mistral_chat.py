"""Mistral's chats and grammars: what is not in the corpus of `tests/conformance/test_render_corpus.py`.

With parsers for a tokenizer that has a grammar, vLLM 0.32 refuses every chat (it calls mistral-common 1.13
as an older version), so what the grammars accept is tried out here with the engine's own compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from render_tier.model import ModelAssets, load_assets
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.generate import GenerateRequest
from render_tier.protocol.tokenize import TokenizeChatRequest, TokenizeTextRequest
from render_tier.rendering.mistral_chat import MistralChat
from render_tier.rendering.native_chat import NativePrompt
from render_tier.rendering.renderer import Renderer
from render_tier.rendering.settings import RenderSettings
from tests.support.render_corpus import NATIVE, lay_out

ASK: dict[str, Any] = {"role": "user", "content": "Weather?"}
PARSERS: dict[str, Any] = {
    "reasoning_parser": "mistral",
    "tool_call_parser": "mistral",
    "enable_auto_tool_choice": True,
}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
Load = Callable[[str], ModelAssets]


@pytest.fixture(scope="module")
def load(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Load:
    loaded: dict[str, ModelAssets] = {}

    def assets(name: str) -> ModelAssets:
        if name not in loaded:
            directory = lay_out(
                NATIVE[name], model_dir(NATIVE[name].tokenizer), tmp_path_factory.mktemp(name)
            )
            loaded[name] = load_assets(str(directory), served_names=("m",), max_model_len=4000)
        return loaded[name]

    return assets


@pytest.fixture(scope="module")
def v3(load: Load) -> Renderer:
    return Renderer(load("mistral"), RenderSettings(**PARSERS))


@pytest.fixture(scope="module")
def v13(load: Load) -> Renderer:
    return Renderer(load("mistral_v13"), RenderSettings(**PARSERS))


def request(*messages: dict[str, Any], **fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.parse({"messages": list(messages) or [ASK], **fields})


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **fields}}


def text_of(renderer: Renderer, rendered: GenerateRequest) -> str:
    return renderer._assets.vocabulary.text(rendered.token_ids)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_texts_longer_than_any_prompt_are_encoded_only_to_be_cut(
    v13: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = 0

    def prompt(*_: object) -> NativePrompt:
        nonlocal encoded
        encoded += 1
        return NativePrompt([1] * 5000, [])

    monkeypatch.setattr(v13._native, "prompt", prompt)
    long = {"role": "user", "content": "a" * (4000 * v13._assets.max_chars_per_token + 1)}
    with pytest.raises(BadRequest, match="upper bound for 4000 input tokens"):
        v13.chat(request(long))
    with pytest.raises(BadRequest, match="upper bound for 4000 input tokens"):
        v13.tokenize(TokenizeChatRequest.model_validate({"messages": [long]}))
    assert encoded == 0
    assert len(v13.chat(request(long, truncate_prompt_tokens=5)).token_ids) == 5
    assert encoded == 1


class TestHistory:
    def test_long_ids_of_calls_are_cut_alike_and_named(self, v3: Renderer) -> None:
        identifier = "chatcmpl-tool-0123456789abcdef"
        call = {"id": identifier, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        said = (
            ASK,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": identifier, "content": "mild"},
        )
        asked = request(*said)
        rendered = v3.chat(asked)
        assert text_of(v3, rendered).count("789abcdef") == 2
        assert "56789abcdef" not in text_of(v3, rendered)
        assert len(rendered.warnings) == 2
        assert asked.messages[2]["tool_call_id"] == identifier, "the client's request is left as it is"

    def test_reasoning_of_the_history_is_kept_where_the_model_has_it(self, v13: Renderer) -> None:
        answer = {"role": "assistant", "content": "Mild.", "reasoning": "Look up."}
        text = text_of(v13, v13.chat(request(ASK, answer, ASK)))
        assert "[/INST][THINK]Look up.[/THINK]Mild.</s>[INST]" in text

    def test_a_continued_message_stays_open(self, v13: Renderer) -> None:
        said = (ASK, {"role": "assistant", "content": "Sure, it"})
        fields = {"continue_final_message": True, "add_generation_prompt": False}
        assert text_of(v13, v13.chat(request(*said, **fields))).endswith("[/INST]Sure, it")

    @pytest.mark.parametrize("fields", [{}, {"add_generation_prompt": True}])
    def test_an_answer_at_the_end_is_refused_with_the_remedy_unless_it_is_continued(
        self, v3: Renderer, fields: dict[str, Any]
    ) -> None:
        said = (ASK, {"role": "assistant", "content": "Sure, it"})
        with pytest.raises(BadRequest, match="Consider using `continue_final_message` instead"):
            v3.chat(request(*said, **fields))
        with pytest.raises(BadRequest, match="when the last message is not from the assistant"):
            v3.chat(request(ASK, continue_final_message=True, add_generation_prompt=False))

    @pytest.mark.parametrize(
        "messages",
        [
            [],
            [{"role": "weird", "content": "x"}],
            [ASK, {"role": "assistant", "content": "x"}],
            [ASK, {"role": "tool", "tool_call_id": "abcdefghi", "content": "x"}],
            [ASK, {"role": "tool", "content": "x"}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
            [{"role": "user", "content": ["text"]}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "image": "x"}]}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "audio_url"}]}],
        ],
    )
    def test_what_the_model_was_not_trained_on_is_refused(
        self, v3: Renderer, messages: list[dict[str, Any]]
    ) -> None:
        with pytest.raises(BadRequest):
            v3.chat(ChatCompletionRequest.parse({"messages": messages}))

    def test_a_run_that_is_too_long_for_the_tokenizer_is_refused(self, v3: Renderer) -> None:
        text = " " * 1_000_000
        with pytest.raises(BadRequest, match="tokenizing"):
            v3.tokenize(TokenizeTextRequest.model_validate({"prompt": text}))
        with pytest.raises(BadRequest, match="tokenizing"):
            v3.chat(request({"role": "user", "content": text}, truncate_prompt_tokens=5))

    @pytest.mark.parametrize("fields", [{"chat_template": "x"}, {"chat_template_kwargs": {"a": 1}}])
    def test_templates_are_refused(self, v3: Renderer, fields: dict[str, Any]) -> None:
        with pytest.raises(BadRequest, match="not supported for Mistral tokenizers"):
            v3.chat(request(**fields))

    def test_tokenize_gives_the_ids_of_the_chat(self, v3: Renderer) -> None:
        asked = TokenizeChatRequest.model_validate({"messages": [ASK], "return_token_strs": True})
        tokens = v3.tokenize(asked)
        assert tokens.tokens == v3.chat(request()).token_ids
        assert tokens.token_strs is not None
        assert tokens.token_strs[:2] == ["<s>", "[INST]"]


CALL = '[TOOL_CALLS]f[ARGS]{"city": "Paris"}'
OTHER = '[TOOL_CALLS]g[ARGS]{"city": "Rome"}'
OPEN = '[TOOL_CALLS]f[ARGS]{"any": 1}'
THOUGHT = "[THINK]hm[/THINK]"
GRAMMARS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "no tools": ({}, ["Hi", f"{THOUGHT}Hi"], [CALL, f"{THOUGHT}{CALL}"]),
    "none": ({"tools": [tool("f")], "tool_choice": "none"}, ["Hi"], [CALL]),
    "auto": ({"tools": [tool("f")]}, ["Hi", CALL, OPEN, CALL + OTHER, f"{THOUGHT}{CALL}"], []),
    "auto, strict": ({"tools": [tool("f", strict=True)]}, ["Hi", CALL], [OPEN, OTHER]),
    "auto, one call": ({"tools": [tool("f")], "parallel_tool_calls": False}, ["Hi", CALL], [CALL + OTHER]),
    "required": (
        {"tools": [tool("f"), tool("g")], "tool_choice": "required"},
        [CALL, OTHER, CALL + OTHER, f"{THOUGHT}{CALL}"],
        ["Hi", OPEN, "[TOOL_CALLS]h[ARGS]{}"],
    ),
    "named": (
        {"tools": [tool("f"), tool("g")], "tool_choice": named("f")},
        [CALL],
        ["Hi", OPEN, OTHER],
    ),
    "object": ({"response_format": {"type": "json_object"}}, ['{"a": 1}', "[1]"], ["Hi", "1", CALL]),
    "schema": (
        {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"const": 1}}}}},
        ['{"a": 1}'],
        ['{"a": 2}', "Hi"],
    ),
    "object or call": (
        {"tools": [tool("f")], "response_format": {"type": "json_object"}},
        ['{"a": 1}', CALL],
        ['{"a": }'],
    ),
}


class TestGrammar:
    @pytest.mark.parametrize("case", GRAMMARS)
    def test_it_takes_what_was_asked_for_and_nothing_else(self, v13: Renderer, case: str) -> None:
        fields, taken, refused = GRAMMARS[case]
        rendered = v13.chat(request(**fields))
        assert rendered.reasoning_ended is True, "the grammar says itself where reasoning may stand"
        assert rendered.sampling_params.structured_outputs is not None
        grammar = rendered.sampling_params.structured_outputs["grammar"]
        for answer in taken:
            assert accepts(v13, grammar, answer), answer
        for answer in refused:
            assert not accepts(v13, grammar, answer), answer

    @pytest.mark.parametrize(
        "fields",
        [
            {"structured_outputs": {"regex": "a+"}},
            {"structured_outputs": {"choice": ["a"]}},
            {"structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": " "}},
            {"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}},
        ],
    )
    def test_what_it_cannot_express_stays_as_it_was_asked(
        self, v13: Renderer, fields: dict[str, Any]
    ) -> None:
        rendered = v13.chat(request(**fields))
        assert rendered.sampling_params.structured_outputs is not None
        assert "grammar" not in rendered.sampling_params.structured_outputs
        assert rendered.reasoning_ended is False
        assert rendered.sampling_params.skip_special_tokens is False

    def test_older_tokenizers_have_none(self, v3: Renderer) -> None:
        rendered = v3.chat(request(tools=[tool("f")], tool_choice="required"))
        assert rendered.sampling_params.structured_outputs is not None
        assert set(rendered.sampling_params.structured_outputs) == {"json"}

    def test_without_a_parser_nothing_is_held(self, load: Load) -> None:
        bare = Renderer(load("mistral_v13"), RenderSettings())
        rendered = bare.chat(request(tools=[tool("f")], tool_choice="required"))
        assert rendered.sampling_params.structured_outputs is None
        assert rendered.reasoning_ended is None


def accepts(renderer: Renderer, grammar: str, answer: str) -> bool:
    """Whether llguidance takes the answer, its markers as special tokens, to its end."""
    import llguidance

    mistral, vocabulary, native = renderer._assets.mistral, renderer._assets.vocabulary, renderer._native
    assert mistral is not None
    assert isinstance(native, MistralChat)
    assert native._grammar is not None
    tokenizer = native._grammar._factory.llg_tokenizer
    ids: list[int] = []
    for part in answer.replace("[", "\0[").replace("]", "]\0").split("\0"):
        marker = vocabulary.token_id(part) if part.startswith("[") else None
        ids += [marker] if marker is not None else mistral.ids(part, add_special_tokens=False)
    matcher = llguidance.LLMatcher(tokenizer, llguidance.grammar_from("lark", grammar))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()
