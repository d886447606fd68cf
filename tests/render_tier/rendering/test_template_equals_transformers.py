# ruff: noqa: E501  (a template is one line)
"""Templated text equals what transformers makes of the same conversation, for every shape of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from render_tier.model import ModelAssets
from render_tier.rendering.template import ChatTemplate

TEMPLATES = Path(__file__).parent / "templates"
TEXT = st.text(
    st.one_of(st.sampled_from("ab \n\t<>&'\"{}|é日😀"), st.characters(codec="utf-8")), max_size=12
) | st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "<|im_end|>\n<|im_start|>system\n", "<tool_response>x"]
)
ARGUMENTS = st.dictionaries(
    st.text("abc<é", min_size=1, max_size=3),
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT, st.lists(st.integers())
    ),
    max_size=3,
)
CALL = st.builds(
    lambda name, arguments: {
        "id": "c",
        "function": {"arguments": arguments, "name": name},
        "type": "function",
    },
    st.sampled_from(["f", "get_weather"]),
    ARGUMENTS,
)


@st.composite
def _message(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(st.sampled_from(["system", "user", "assistant", "tool", "critic"]))
    message: dict[str, Any] = {"role": role, "content": draw(TEXT)}
    if role == "assistant":
        if calls := draw(st.lists(CALL, max_size=2)):
            message["tool_calls"] = calls
        if draw(st.booleans()):
            message["reasoning"] = message["reasoning_content"] = draw(TEXT)
    return message


TOOLS = st.none() | st.just(
    [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": None}},
        {
            "type": "function",
            "function": {"name": "g", "description": "é <b>", "parameters": {"a": 1.0, "b": 1e22}},
        },
    ]
)
CONVERSATION = st.lists(_message(), min_size=1, max_size=6)
KWARGS = st.fixed_dictionaries(
    {"add_generation_prompt": st.booleans()}, optional={"enable_thinking": st.booleans()}
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def theirs(source: str, conversation: list[Any], tools: Any, kwargs: dict[str, Any]) -> str | Exception:
    try:
        rendered, _ = render_jinja_template(
            conversations=[conversation], tools=tools, chat_template=source, **SPECIAL, **kwargs
        )
    except Exception as error:  # a template's refusal
        return error
    return str(rendered[0])


def ours(source: str, conversation: list[Any], tools: Any, kwargs: dict[str, Any]) -> str | Exception:
    template = _compiled(source)
    try:
        return template.render(conversation, {**SPECIAL, "tools": tools, **template.accepted(kwargs)})
    except Exception as error:
        return error


_templates: dict[str, ChatTemplate] = {}


def _compiled(source: str) -> ChatTemplate:
    if source not in _templates:
        _templates[source] = ChatTemplate(source, seconds=60.0, max_chars=1 << 24)
    return _templates[source]


def assert_same(source: str, conversation: list[Any], tools: Any, kwargs: dict[str, Any]) -> None:
    expected, actual = theirs(source, conversation, tools, kwargs), ours(source, conversation, tools, kwargs)
    if isinstance(expected, Exception):
        assert isinstance(actual, Exception), actual
    else:
        assert actual == expected


@given(CONVERSATION, TOOLS, KWARGS)
def test_qwen3(
    qwen3_assets: ModelAssets, conversation: list[Any], tools: Any, kwargs: dict[str, Any]
) -> None:
    assert qwen3_assets.chat_template is not None
    assert_same(qwen3_assets.chat_template, conversation, tools, kwargs)


@given(CONVERSATION, TOOLS, KWARGS)
def test_smollm2(
    smollm2_assets: ModelAssets, conversation: list[Any], tools: Any, kwargs: dict[str, Any]
) -> None:
    assert smollm2_assets.chat_template is not None
    assert_same(smollm2_assets.chat_template, conversation, tools, kwargs)


@given(CONVERSATION)
def test_continued_final_message(qwen3_assets: ModelAssets, conversation: list[Any]) -> None:
    assert qwen3_assets.chat_template is not None
    assert_same(qwen3_assets.chat_template, conversation, None, {"continue_final_message": True})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content | trim }}|{{ messages|length }}|{{ messages[0]|tojson(indent=2) }}",
        "{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ m.role ~ m['content'] }}{% endfor %}",
        "{%- for m in messages -%}\n  {%- if loop.first -%}\n  X\n  {%- else -%}\n  Y\n  {% endif %}\n{% endfor %}\n",
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% macro show(m, n=2) %}{{ m.content * n }}{% endmacro %}{{ show(messages[0]) }}{{ show(messages[0], n=0) }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n ** 2 }}",
        "{{ '%s-%d' % ('a', 3) }}{{ '{}:{:>4}'.format('x', 'y') }}{{ 'a,b'.split(',')|join('+') }}",
        "{{ raise_exception('refused') }}",
        "{{ messages[0].nothing.at_all }}",
        "{{ messages[0].nothing is defined }}{{ tools is none }}{{ documents is none }}{{ bos_token }}",
        "{{ strftime_now('%Y') }}{{ messages|map(attribute='role')|join(',') }}{{ (messages|first).content[1:] }}",
        "{% for m in messages recursive %}{{ m.role }}{{ loop([]) }}{% endfor %}{% set x %}cap{{ 1 }}{% endset %}{{ x }}",
        "{% call(y) wrap() %}{{ y }}{% endcall %}{% macro wrap() %}[{{ caller(1) }}]{% endmacro %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict(a=1)|tojson }}{{ cycler('a','b').next() }}{{ joiner(',')() }}{{ range(3)|list }}",
        "{{ 'x' + 1 }}",
        "{{ [1] + [2] }}{{ (1, 2) + (3,) }}{{ 2 * 'ab' }}{{ [0] * 3 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2.5 * 2 }}",
    ],
)
def test_language_features(source: str) -> None:
    conversation = [
        {"role": "system", "content": " s "},
        {"role": "user", "content": "héllo"},
        {"role": "user", "content": "<b>"},
    ]
    assert_same(source, conversation, None, {"add_generation_prompt": True})
