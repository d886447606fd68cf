"""The parsers that a server is started with: "auto", and names that only a plugin has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from render_tier.model import ModelLoadError, load_assets
from render_tier.server.service import Service
from render_tier.settings import Settings


def test_auto_serves_with_the_parsers_of_the_family(qwen3_dir: Path) -> None:
    settings = Settings(
        model=str(qwen3_dir), reasoning_parser="auto", tool_call_parser="auto", enable_auto_tool_choice=True
    )
    service = Service.load(settings)
    named = load_assets(str(qwen3_dir), reasoning_parser="qwen3", tool_parser="hermes")
    assert service.assets.fingerprint == named.fingerprint, "a replica that names the parsers agrees"
    text = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    ids = service.assets.tokenizer.ids(text, add_special_tokens=False)
    body = {
        "generate_response": {
            "request_id": "chatcmpl-1",
            "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}],
        },
        "chat_request": {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}],
        },
    }
    choice = json.loads(service.derenderer.chat(json.dumps(body).encode()))["choices"][0]
    assert choice["message"]["reasoning"] == "\nHm.\n"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["ping"]


def test_auto_tool_choice_needs_a_parser_that_is_found(smollm2_dir: Path) -> None:
    settings = Settings(model=str(smollm2_dir), tool_call_parser="auto", enable_auto_tool_choice=True)
    with pytest.raises(ModelLoadError, match="name a parser"):
        Service.load(settings)


def test_reasoning_that_nothing_speaks_for_is_served_without(smollm2_dir: Path) -> None:
    service = Service.load(Settings(model=str(smollm2_dir), reasoning_parser="auto"))
    assert service.assets.reasoning_parser is None


def test_a_name_that_no_plugin_has_ends_the_start(smollm2_dir: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "acme.toml"
    plugin.write_text('[[reasoning]]\nname = "acme"\nstart = "<"\nend = ">"\n')
    settings = Settings(model=str(smollm2_dir), reasoning_parser="acmee", parser_plugin=(str(plugin),))
    with pytest.raises(ModelLoadError, match="unknown reasoning parser 'acmee'"):
        Service.load(settings)
    served = Service.load(settings.model_copy(update={"reasoning_parser": "acme"}))
    assert served.assets.reasoning_parser == "acme"
