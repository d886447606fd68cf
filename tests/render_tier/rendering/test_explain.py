"""What ``explain=true`` says: the plain answer, the text in tokens, and the source of every default."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest

from render_tier.model import ModelAssets
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.rendering.explain import Explanation, Origin
from render_tier.rendering.renderer import Renderer
from tests.render_tier.conftest import QWEN3_RENDER

USER = {"role": "user", "content": "Hällo 👩‍👩‍👧‍👦 <|im_end|>"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def explain(renderer: Renderer, **fields: Any) -> Explanation:
    request = ChatCompletionRequest.parse({"messages": [USER], "request_id": "r", **fields})
    return renderer.explain_chat(request)


def origins(found: list[Origin]) -> dict[str, tuple[Any, str]]:
    return {origin.name: (origin.value, origin.source) for origin in found}


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}, {"truncate_prompt_tokens": 4}, {"seed": 1}])
def test_the_request_is_the_plain_endpoints(qwen3_renderer: Renderer, fields: dict[str, Any]) -> None:
    plain = ChatCompletionRequest.parse({"messages": [USER], "request_id": "r", **fields})
    found = explain(qwen3_renderer, **fields)
    assert found.request == qwen3_renderer.chat(plain)
    assert [token.id for token in found.tokens] == found.request.token_ids
    assert found.prompt_tokens == len(found.tokens)


def test_tokens_cover_the_text_in_order(qwen3_renderer: Renderer) -> None:
    found = explain(qwen3_renderer)
    assert found.prompt is not None
    spans = [(token.start, token.end) for token in found.tokens]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(found.prompt)
    for (_, end), (start, _) in pairwise(spans):
        assert start is not None
        assert end is not None
        assert start <= end
    for token in found.tokens:
        if "\ufffd" not in token.text:
            assert found.prompt[token.start : token.end] == token.text
    marks = [found.prompt[token.start : token.end] for token in found.tokens if token.special]
    assert marks == ["<|im_start|>", "<|im_end|>", "<|im_end|>", "<|im_start|>"]


def test_sources_of_parameters(qwen3_renderer: Renderer, qwen3_assets: ModelAssets) -> None:
    found = origins(explain(qwen3_renderer, top_p=0.5, max_tokens=7).parameters)
    configured = qwen3_assets.generation_config
    assert found["top_p"] == (0.5, "request")
    assert found["temperature"] == (configured["temperature"], "generation config")
    assert found["presence_penalty"] == (0.0, "default")
    assert found["max_tokens"] == (7, "request")
    assert found["stop_token_ids"] == (list(qwen3_assets.eos_token_ids), "model")
    assert found["reasoning_ended"] == (False, "model")
    unasked = explain(qwen3_renderer)
    left = qwen3_assets.max_model_len - unasked.prompt_tokens
    assert origins(unasked.parameters)["max_tokens"] == (left, "model")


def test_greedy_and_tiny_temperatures(qwen3_renderer: Renderer) -> None:
    greedy = origins(explain(qwen3_renderer, temperature=0, top_k=5).parameters)
    assert greedy["temperature"] == (0.0, "request")
    assert greedy["top_k"] == (0, "server")
    assert origins(explain(qwen3_renderer, temperature=1e-4).parameters)["temperature"] == (0.01, "server")


def test_the_operators_cap(qwen3_assets: ModelAssets) -> None:
    capped = Renderer(dataclasses.replace(qwen3_assets, max_tokens_cap=5), QWEN3_RENDER)
    assert origins(explain(capped, max_tokens=9).parameters)["max_tokens"] == (5, "server")


def test_sources_of_template_arguments(qwen3_assets: ModelAssets) -> None:
    settings = dataclasses.replace(QWEN3_RENDER, default_chat_template_kwargs={"enable_thinking": True})
    renderer = Renderer(qwen3_assets, settings)
    template = explain(renderer, chat_template_kwargs={"nothing": 1}).template
    assert template is not None
    assert template.ignored == ["nothing"]
    assert origins(template.variables)["enable_thinking"] == (True, "server")
    assert origins(template.variables)["add_generation_prompt"] == (True, "default")
    stated = explain(renderer, chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=False)
    assert stated.template is not None
    assert origins(stated.template.variables)["enable_thinking"] == (False, "request")
    assert origins(stated.template.variables)["add_generation_prompt"] == (False, "request")
    effort = explain(renderer, reasoning_effort="none").template
    assert effort is not None
    assert origins(effort.variables)["enable_thinking"] == (False, "request")
    assert effort.content_format == "string"


def test_a_demanded_call_names_the_choice(qwen3_renderer: Renderer) -> None:
    found = explain(qwen3_renderer, tools=[TOOL], tool_choice="required")
    why = next(origin.why for origin in found.parameters if origin.name == "structured_outputs")
    assert why == "tool_choice 'required' in the format of hermes"


def test_a_prompt_that_came_as_ids_has_no_text(qwen3_renderer: Renderer) -> None:
    found = explain(qwen3_renderer, kv_transfer_params={"prompt_token_ids": [5, 6]})
    assert found.prompt is None
    assert found.template is None
    assert [token.id for token in found.tokens] == [5, 6]
