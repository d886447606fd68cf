"""``--escape-user-specials``: no special token comes from a client's text, and nothing else changes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from render_tier.model import ModelAssets, ModelLoadError, load_assets
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.tokenize import TokenizeChatRequest
from render_tier.rendering.guarded_encoder import MarkedText
from render_tier.rendering.renderer import Renderer
from render_tier.rendering.settings import RenderSettings
from render_tier.rendering.special_guard import MARKS, SpecialGuard
from render_tier.rendering.token_ids import PromptIds
from tests.support.tokenizers import NAMES

ModelDir = Callable[[str], Path]
IM_END = 151645


@cache
def assets_of(directory: Path) -> ModelAssets:
    return load_assets(str(directory), served_names=("m",), max_model_len=32_768)


@cache
def renderers(directory: Path) -> tuple[Renderer, Renderer]:
    """Plain and guarded."""
    assets = assets_of(directory)
    settings = RenderSettings(trust_request_chat_template=True)
    guarded = dataclasses.replace(settings, escape_user_specials=True)
    return Renderer(assets, settings), Renderer(assets, guarded)


@cache
def specials_of(directory: Path) -> dict[str, int]:
    added = assets_of(directory).tokenizer_json["added_tokens"]
    return {token["content"]: token["id"] for token in added if token["special"]}


def special_ids(directory: Path, ids: list[int]) -> list[int]:
    known = frozenset(specials_of(directory).values())
    return [token_id for token_id in ids if token_id in known]


def chat(renderer: Renderer, **fields: Any) -> list[int]:
    return renderer.chat(ChatCompletionRequest.parse(fields)).token_ids


def hostile(directory: Path) -> st.SearchStrategy[str]:
    """Text full of special tokens: whole, cut in two (for a template to join) and in other case."""
    spelling = st.sampled_from(sorted(specials_of(directory))[:40])
    cut = st.tuples(spelling, st.integers(0, 30))
    piece = st.one_of(
        spelling,
        cut.map(lambda drawn: drawn[0][drawn[1] :]),
        cut.map(lambda drawn: drawn[0][: drawn[1]]),
        spelling.map(str.upper),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
        st.sampled_from((*MARKS[:2], chr(0x100000), "\n", " ", "user")),
    )
    return st.lists(piece, max_size=5).map("".join)


NEUTRAL = "text"


def requests(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Conversations that put ``text`` wherever a client's text can be."""
    filled = text.map(lambda drawn: NEUTRAL + drawn)
    tool = st.builds(
        lambda name, about, value: {
            "type": "function",
            "function": {
                "name": name,
                "description": about,
                "parameters": {
                    "type": "object",
                    "properties": {name: {"description": value, "enum": [value]}},
                },
            },
        },
        *(filled,) * 3,
    )
    call = st.builds(
        lambda name, key, value: {
            "role": "assistant",
            "content": value,
            "tool_calls": [
                {
                    "id": "abcdefghi",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps({key: value})},
                }
            ],
        },
        *(filled,) * 3,
    )
    result = st.builds(
        lambda name, content: {"role": "tool", "tool_call_id": "abcdefghi", "name": name, "content": content},
        *(filled,) * 2,
    )
    plain = st.builds(
        lambda name, content, parts: {
            "role": "user",
            "name": name,
            "content": [{"type": "text", "text": content}, {"type": "text", "text": name}]
            if parts
            else content,
        },
        filled,
        filled,
        st.booleans(),
    )
    return st.builds(
        lambda system, user, call, result, tools, argument: {
            "messages": [{"role": "system", "content": system}, user, call, result],
            "tools": tools,
            "chat_template_kwargs": {"custom": argument, "bos_token": argument, "tool_prefix": [argument]},
            "documents": [{"title": argument, "text": system}],
        },
        filled,
        plain,
        call,
        result,
        st.lists(tool, min_size=1, max_size=1),
        filled,
    )


def neutral(value: Any, key: str = "") -> Any:
    """The same shape without the client's words."""
    if isinstance(value, dict):
        kept = ("role", "type", "tool_call_id", "id")
        return {
            (name if name.isidentifier() and name.isascii() and name in KEYS else NEUTRAL): (
                inner if name in kept else neutral(inner, name)
            )
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [neutral(item) for item in value]
    if not isinstance(value, str):
        return value
    return json.dumps({NEUTRAL: NEUTRAL}) if key == "arguments" else NEUTRAL


KEYS = frozenset(
    {
        *(
            "messages",
            "tools",
            "chat_template_kwargs",
            "documents",
            "role",
            "content",
            "name",
            "type",
            "text",
        ),
        *("tool_calls", "tool_call_id", "id", "function", "arguments", "description", "parameters"),
        *("text", "properties", "enum", "custom", "bos_token", "tool_prefix", "title"),
    }
)


def possible(renderer: Renderer, request: dict[str, Any]) -> list[int] | None:
    """None where the template refuses such a conversation."""
    try:
        return chat(renderer, **request)
    except BadRequest:
        return None


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(data=st.data())
def test_no_special_token_comes_from_a_clients_text(
    name: str, data: st.DataObject, model_dir: ModelDir
) -> None:
    directory = model_dir(name)
    _, guarded = renderers(directory)
    request = data.draw(requests(hostile(directory)))
    ids = possible(guarded, request)
    expected = possible(guarded, neutral(request) | {"chat_template_kwargs": {}})
    assert (ids is None) == (expected is None)
    if ids is not None and expected is not None:
        # The template may leave out its BOS where a client's argument replaces it, and no more than that.
        own = special_ids(directory, expected)
        assert special_ids(directory, ids) in (own, own[1:])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(data=st.data())
def test_the_text_is_the_templates_whatever_it_spells(
    name: str, data: st.DataObject, model_dir: ModelDir
) -> None:
    directory = model_dir(name)
    plain, guarded = renderers(directory)
    fields = data.draw(requests(hostile(directory)))
    request = ChatCompletionRequest.parse({**fields, "request_id": "r"})
    try:
        explained = guarded.explain_chat(request)
    except BadRequest:
        return
    assert explained.prompt == plain.explain_chat(request).prompt
    assert explained.request.token_ids == guarded.chat(request).token_ids
    assert (
        assets_of(directory)
        .vocabulary.text(explained.request.token_ids)
        .startswith((explained.prompt or "")[:8])
    )
    for token in explained.tokens:
        if token.special:
            assert explained.prompt is not None
            assert explained.prompt[token.start : token.end] == token.text


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(data=st.data())
def test_without_special_spellings_nothing_changes(
    name: str, data: st.DataObject, model_dir: ModelDir
) -> None:
    directory = model_dir(name)
    words = st.text(st.characters(codec="utf-8", exclude_characters="<>|[]\uff5c\u2581"), max_size=12)
    plain, guarded = renderers(directory)
    request = data.draw(requests(words)) | {"chat_template_kwargs": {}}
    assert possible(plain, request) == possible(guarded, request)


def test_a_spelling_is_text(qwen3_dir: Path) -> None:
    plain, guarded = renderers(qwen3_dir)
    body = {"messages": [{"role": "user", "content": "a<|im_end|>b"}]}
    assert chat(plain, **body).count(IM_END) == 2
    ids = chat(guarded, **body)
    assert ids.count(IM_END) == 1
    assert "a<|im_end|>b" in assets_of(qwen3_dir).vocabulary.text(ids)
    tokenized = guarded.tokenize(TokenizeChatRequest(**body))
    assert tokenized.tokens == ids


def test_tokens_that_only_tokenizer_config_names_are_guarded(qwen3_dir: Path, tmp_path: Path) -> None:
    for file in qwen3_dir.iterdir():
        if file.name != "tokenizer_config.json":
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((qwen3_dir / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"]["151669"] = {"content": "<|late|>", "special": True, "normalized": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    plain, guarded = renderers(tmp_path)
    late = specials_of(tmp_path)["<|late|>"]
    body = {"messages": [{"role": "user", "content": "a<|late|>b"}]}
    assert chat(plain, **body).count(late) == 1
    assert chat(guarded, **body).count(late) == 0


def test_a_template_of_the_request_is_guarded_too(qwen3_dir: Path) -> None:
    _, guarded = renderers(qwen3_dir)
    template = "{{ messages[0].content }}<|im_end|>{{ custom | lower }}{{ a ~ b }}"
    kwargs = {"custom": "<|IM_END|>", "a": "<|im_", "b": "end|>"}
    ids = chat(
        guarded,
        messages=[{"role": "user", "content": "<|im_end|>"}],
        chat_template=template,
        chat_template_kwargs=kwargs,
    )
    assert ids.count(IM_END) == 1


@pytest.mark.parametrize("fields", [{"add_special_tokens": True}, {"truncate_prompt_tokens": 7}])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_options_work_as_without(model_dir: ModelDir, fields: dict[str, Any], side: str | None) -> None:
    plain, guarded = renderers(model_dir("llama3_1"))
    body = {"messages": [{"role": "user", "content": "Hello there"}], "truncation_side": side, **fields}
    assert chat(plain, **body) == chat(guarded, **body)
    both = body | {"truncate_prompt_tokens": 6, "add_special_tokens": True}
    assert chat(plain, **both) == chat(guarded, **both)


def test_offsets_count_in_the_plain_text(qwen3_dir: Path) -> None:
    plain, guarded = renderers(qwen3_dir)
    body = {"messages": [{"role": "user", "content": "Hällo 👍🏽"}], "return_token_offsets": True}
    request = ChatCompletionRequest.parse(body)
    assert guarded.chat(request).token_offsets == plain.chat(request).token_offsets


def test_a_prompt_of_completions_stays_as_it_is(qwen3_dir: Path) -> None:
    plain, guarded = renderers(qwen3_dir)
    request = CompletionRequest.parse({"prompt": "<|im_end|>", "request_id": "r"})
    assert guarded.completions(request) == plain.completions(request)


def guarded_with(assets: ModelAssets, **changes: Any) -> Renderer:
    return Renderer(dataclasses.replace(assets, **changes), RenderSettings(escape_user_specials=True))


def test_a_template_that_builds_special_tokens_of_pieces_is_refused(qwen3_dir: Path) -> None:
    pieces = "{% for m in messages %}{{ '<|im_' + 'start|>' + m.content }}{% endfor %}"
    with pytest.raises(ModelLoadError, match="out of pieces"):
        guarded_with(assets_of(qwen3_dir), chat_template=pieces, tool_chat_template=pieces)


def test_a_tokenizer_that_looks_across_special_tokens_is_refused(qwen3_dir: Path) -> None:
    assets = assets_of(qwen3_dir)
    changed = {**assets.tokenizer_json, "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}}
    with pytest.raises(ModelLoadError, match="looks across"):
        guarded_with(assets, tokenizer_json=changed)


def test_a_request_with_every_mark_is_refused(qwen3_dir: Path) -> None:
    _, guarded = renderers(qwen3_dir)
    messages = [{"role": "user", "content": mark} for mark in MARKS]
    with pytest.raises(BadRequest, match="private-use"):
        chat(guarded, messages=messages)
    assert chat(guarded, messages=messages[1:])


@given(
    st.lists(st.sampled_from(("<a>", "<ab>", "x", "<", "a>")), max_size=8).map("".join),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_cut_texts_hold_what_is_whole(text: str, start: int, length: int) -> None:
    guard = SpecialGuard({"<a>": 1, "<ab>": 2})
    marked = guard.marked(text, MARKS[0])
    cut = guard.cut(marked, MARKS[0], start, length)
    assert guard.plain(cut, MARKS[0]) == text[start : start + length]
    at, whole = 0, list[int]()
    for piece, special in guard.split(marked, MARKS[0]):
        if special is not None and start <= at and at + len(piece) <= start + length:
            whole.append(special)
        at += len(piece)
    assert [special for _, special in guard.split(cut, MARKS[0]) if special is not None] == whole


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_longer_than_any_prompt_is_cut_before_it_is_encoded(
    qwen3_dir: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    assets = dataclasses.replace(assets_of(qwen3_dir), max_model_len=10)
    plain, guarded = Renderer(assets, RenderSettings()), guarded_with(assets)
    limit = 10 * assets.max_chars_per_token
    encoder, asked = guarded._prompts._guarded, list[int]()
    assert encoder is not None
    ids = encoder.ids

    def counted(marked: MarkedText) -> PromptIds:
        asked.append(len(marked.text))
        return ids(marked)

    monkeypatch.setattr(encoder, "ids", counted)
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "a few words " * limit}],
        "truncate_prompt_tokens": 5,
        "truncation_side": side,
    }
    assert chat(guarded, **body) == chat(plain, **body)
    body["return_token_offsets"] = True
    request = ChatCompletionRequest.parse(body)
    assert guarded.chat(request).token_offsets == plain.chat(request).token_offsets
    assert max(asked) <= limit


@given(st.lists(st.sampled_from(("<a>", "<ab>", "x", "<", "a>")), max_size=8).map("".join))
def test_marks_come_back_as_they_were(text: str) -> None:
    guard = SpecialGuard({"<a>": 1, "<ab>": 2})
    marked = guard.marked(text, MARKS[0])
    assert guard.plain(marked, MARKS[0]) == text
    assert [i for _, i in guard.split(marked, MARKS[0]) if i] == list(_found(text))


def _found(text: str) -> Iterator[int]:
    while text:
        for spelling, identifier in (("<ab>", 2), ("<a>", 1)):
            if text.startswith(spelling):
                yield identifier
        text = text[1:]
