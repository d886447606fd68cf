"""Answers in Mistral's format: calls as a JSON list without a marker, and IDs of calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from render_tier.derendering import Derenderer, DerenderSettings
from render_tier.model.mistral_tokenizer import MistralTokenizer
from tests.render_tier.derendering.conftest import Client, Served, folded, unfolded

NAMED = {"type": "function", "function": {"name": "f"}}
LIST = '[{"name": "f", "arguments": {"a": [1, 2]}}, {"name": "g", "arguments": {}}]'
CALLS = [("f", '{"a": [1, 2]}'), ("g", "{}")]


@pytest.fixture(scope="module")
def tekken(model_dir: Callable[[str], Path]) -> MistralTokenizer:
    return MistralTokenizer.load(model_dir("tekken_240911") / "tekken.json")


@pytest.fixture
def client(tekken: MistralTokenizer) -> Callable[..., Client]:
    model = Served(tekken.vocabulary(), ("m",), 131072, 4096, (tekken.eos_id,))

    def encode(text: str) -> list[int]:
        parts = re.split(r"(\[TOOL_CALLS\])", text)
        return [
            token
            for part in parts
            for token in ([9] if part == "[TOOL_CALLS]" else tekken.ids(part, add_special_tokens=False))
        ]

    def make(choice: Any) -> Client:
        settings = DerenderSettings(reasoning_parser="mistral", tool_parser="mistral")
        made = Client(Derenderer(model, settings, clock=lambda: 1000.9), encode, encode("hi"))
        tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
        made.request = {**made.request, "tools": tools, "tool_choice": choice}
        return made

    return make


def made(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["name"], call["arguments"]) for call in answer["message"]["tool_calls"]]


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("text", [LIST, "[TOOL_CALLS]" + LIST], ids=["bare", "marked"])
def test_demanded_calls_are_read_with_and_without_the_marker(
    client: Callable[..., Client], choice: Any, text: str
) -> None:
    ids = [*client(choice).encode(text), 2]
    whole = unfolded(client(choice).whole(ids))
    assert made(whole) == CALLS
    assert whole["message"]["content"] == ""
    for size in (1, 3, len(ids)):
        pieces = [ids[start : start + size] for start in range(0, len(ids), size)]
        streamed = folded(client(choice).stream(pieces))
        assert streamed["message"] == {**whole["message"], "role": "assistant"}


def test_where_no_call_is_demanded_a_list_is_text(client: Callable[..., Client]) -> None:
    ids = [*client("auto").encode(LIST), 2]
    assert unfolded(client("auto").whole(ids))["message"]["content"] == LIST


def test_ids_of_calls_are_such_as_the_model_reads(client: Callable[..., Client]) -> None:
    """mistral-common takes exactly nine letters and digits."""
    ids = [*client("required").encode(LIST), 2]
    first, again = (unfolded(client("required").whole(ids))["message"]["tool_calls"] for _ in range(2))
    assert [call["id"] for call in first] == [call["id"] for call in again]
    assert len({call["id"] for call in first}) == 2
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", call["id"]) for call in first)
