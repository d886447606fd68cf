"""Messages requests of models whose chats no template writes: the prompt of the chat, and its length."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from render_tier.model import load_assets
from render_tier.protocol.anthropic import CountTokensRequest, MessagesRequest
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.rendering.renderer import Renderer
from render_tier.rendering.settings import RenderSettings
from tests.support.render_corpus import SERVERS, lay_out

PROMPT: dict[str, Any] = {
    "model": "m",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Hi"}],
}
CHAT = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, *PROMPT["messages"]]}


@pytest.fixture(scope="module")
def harmony(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    model = lay_out(SERVERS["gptoss"], model_dir("gptoss"), tmp_path_factory.mktemp("harmony"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "gpt_oss"}))
    assets = load_assets(str(model), served_names=("m",), max_model_len=300)
    return Renderer(assets, RenderSettings())


def test_the_prompt_is_the_chats(harmony: Renderer) -> None:
    rendered = harmony.render_messages(MessagesRequest.parse({**PROMPT, "max_tokens": 5}))
    chat = harmony.chat(ChatCompletionRequest.parse({**CHAT, "max_tokens": 5}))
    assert rendered.generate_request().token_ids == chat.token_ids
    assert harmony.count_tokens(CountTokensRequest.parse_count(PROMPT)) == len(chat.token_ids)


def test_thinking_cannot_be_disabled(harmony: Renderer) -> None:
    """It means no effort, which harmony has no word for; vLLM refuses it too."""
    disabled = {**PROMPT, "thinking": {"type": "disabled"}}
    with pytest.raises(BadRequest):
        harmony.render_messages(MessagesRequest.parse({**disabled, "max_tokens": 5}))
    with pytest.raises(BadRequest):
        harmony.count_tokens(CountTokensRequest.parse_count(disabled))
