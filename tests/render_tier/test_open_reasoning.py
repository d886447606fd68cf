"""A continued message that ends inside ``<think>``, with thinking switched off: the prompt decides.

The one place where render means to differ from vLLM about `reasoning_ended` (`OPEN_THINK_SWITCHED_OFF` in
`tests/support/render_corpus.py`). The model reads the prompt, not the switch: it goes on reasoning and closes
it. By the switch, the rest of the reasoning would reach the client as its answer, and an engine would hold
reasoning to the format of the answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.server.service import Service
from tests.support.render_app import QWEN3, load_service, settings_for

REST = 'so the answer is one.\n</think>\n\n{"a": 1}'
CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture(scope="module")
def service(qwen3_dir: Path) -> Service:
    return load_service(settings_for(qwen3_dir, **QWEN3))


def request(prefill: str | None, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "How many?"}]
    if prefill is not None:
        messages.append({"role": "assistant", "content": prefill})
        fields |= CONTINUED
    return {
        "messages": messages,
        "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"enable_thinking": False},
        **fields,
    }


@pytest.mark.parametrize(
    ("prefill", "ended"),
    [
        ("<think>\nLet me count, ", False),
        ("<think>\nLet me count.\n</think>\n\n", True),
        ("Let me count, ", True),
        (None, True),
    ],
)
def test_an_engine_holds_the_answer_to_its_format_where_reasoning_has_ended(
    service: Service, prefill: str | None, ended: bool
) -> None:
    rendered = service.renderer.chat(ChatCompletionRequest.parse(request(prefill)))
    assert rendered.sampling_params.structured_outputs == {"json_object": True}
    assert rendered.reasoning_ended is ended


def test_the_rest_of_the_reasoning_reaches_the_client_as_reasoning(service: Service) -> None:
    chat = request("<think>\nLet me count, ")
    rendered = service.renderer.chat(ChatCompletionRequest.parse(chat))
    ids = service.assets.tokenizer.ids(REST, add_special_tokens=False)
    body = {
        "chat_request": chat,
        "prompt_token_ids": rendered.token_ids,
        "generate_response": {
            "request_id": "r",
            "choices": [{"index": 0, "token_ids": [*ids, 151645], "finish_reason": "stop"}],
        },
    }
    answer = json.loads(service.derenderer.chat(json.dumps(body).encode()))
    message = answer["choices"][0]["message"]
    assert message["reasoning"].strip() == "so the answer is one."
    assert message["content"].strip() == '{"a": 1}'
