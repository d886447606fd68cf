"""`render-tier serve` renders what `vllm launch render` renders: the same token IDs and sampling parameters.

Differences that are intended are taken out by `comparable`, one by one, with the reason beside each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import messages_corpus
from tests.support.render_corpus import comparable as corpus_comparable
from tests.support.render_corpus import without_eos
from tests.vllm.render_bodies import CHAT, COMPLETIONS

DEFAULTS: dict[str, Any] = {
    "n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "repetition_penalty": 1.0, "seed": None, "stop": [], "stop_token_ids": [],
    "bad_words": [], "ignore_eos": False, "max_tokens": 16, "min_tokens": 0, "logprobs": None,
    "prompt_logprobs": None, "logit_bias": None, "allowed_token_ids": None, "skip_special_tokens": True,
    "spaces_between_special_tokens": True, "include_stop_str_in_output": False, "structured_outputs": None,
    "output_kind": 0, "extra_args": None,
}  # fmt: skip
"""What an absent sampling field means. vLLM leaves out fields that equal these, `max_tokens` included."""

DERIVED = {"skip_clone", "skip_reading_prefix_cache", "output_text_buffer_length"}
"""vLLM's internal bookkeeping that reaches its wire; an engine computes it again from the other fields."""


@pytest.fixture(scope="module")
def eos(qwen3_dir: Path) -> set[int]:
    ids = json.loads((qwen3_dir / "generation_config.json").read_text())["eos_token_id"]
    return set(ids) if isinstance(ids, list) else {ids}


def comparable(rendered: dict[str, Any], eos: set[int]) -> dict[str, Any]:
    """A rendered request without what differs on purpose or at random."""
    fields = {key: value for key, value in rendered.items() if value is not None}
    del fields["request_id"]  # random
    fields.pop("warnings", None)  # ours alone: history that vLLM changes silently is named
    sampling = DEFAULTS | {k: v for k, v in fields.pop("sampling_params").items() if k not in DERIVED}
    # Ours adds the EOS IDs: an engine without tokenizer would not stop at them by itself.
    sampling["stop_token_ids"] = sorted(set(sampling["stop_token_ids"]) | eos)
    if sampling["structured_outputs"] is not None:
        # vLLM writes every member, null ones and private ones too.
        sampling["structured_outputs"] = {
            key: value
            for key, value in sampling["structured_outputs"].items()
            if value not in (None, False) and not key.startswith("_")
        }
    # vLLM adds an argument of one other model's template for every model.
    template_kwargs = fields.get("reasoning_parser_kwargs", {}).get("chat_template_kwargs", {})
    template_kwargs.pop("cohere_format", None)
    return {**fields, "sampling_params": sampling}


def render(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("name", CHAT)
def test_chat(name: str, peer: httpx.Client, ours: httpx.Client, eos: set[int]) -> None:
    path = "/v1/chat/completions/render"
    theirs = comparable(render(peer, path, CHAT[name]), eos)
    mine = comparable(render(ours, path, CHAT[name]), eos)
    assert mine["token_ids"] == theirs["token_ids"]
    assert mine == theirs


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(name: str, peer: httpx.Client, ours: httpx.Client, eos: set[int]) -> None:
    path = "/v1/completions/render"
    theirs = [comparable(one, eos) for one in render(peer, path, COMPLETIONS[name])]
    mine = [comparable(one, eos) for one in render(ours, path, COMPLETIONS[name])]
    assert [one["token_ids"] for one in mine] == [one["token_ids"] for one in theirs]
    assert mine == theirs


def test_messages(peer: httpx.Client, ours: httpx.Client, eos: set[int]) -> None:
    """Requests of every kind, refusals too: status, error type and parameter are equal."""
    wrong = []
    for name, (path, body) in messages_corpus.corpus("qwen3").items():
        theirs, mine = (
            without_eos(corpus_comparable(answer.status_code, answer.json()), tuple(eos))
            for answer in (client.post(path, json=body) for client in (peer, ours))
        )
        if mine != theirs and not messages_corpus.known("qwen3", name, mine, theirs):
            wrong.append((name, mine, theirs))
    assert not wrong, f"{len(wrong)} differ, the first: {wrong[0]}"


def test_max_tokens_is_never_left_out(ours: httpx.Client) -> None:
    """An engine takes an absent `max_tokens` as leave to fill the context."""
    body = CHAT["max_tokens 16"]
    assert render(ours, "/v1/chat/completions/render", body)["sampling_params"]["max_tokens"] == 16
    for one in render(ours, "/v1/completions/render", COMPLETIONS["text"]):
        assert one["sampling_params"]["max_tokens"] == 16
