"""A served Qwen3 with parsers, and requests to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from render_tier.core.vocabulary import Vocabulary, build_vocabulary
from render_tier.derendering import Derenderer, DerenderSettings

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
EOS = 151645


@dataclass(frozen=True)
class Served:
    vocabulary: Vocabulary
    served_names: tuple[str, ...] = ("qwen3", "alias")
    vocab_size: int = 151936
    max_model_len: int = 4096
    eos_token_ids: tuple[int, ...] = (EOS, 151643)
    fingerprint: str = "one"
    generation_config: dict[str, Any] = field(default_factory=dict)


@dataclass
class Client:
    """Sends bodies as a client would and reads the answers."""

    derenderer: Derenderer
    encode: Callable[[str], list[int]]
    prompt: list[int]
    request: dict[str, Any] = field(default_factory=lambda: {"messages": [{"role": "user", "content": "hi"}]})
    request_id: str = "chatcmpl-1"

    def whole(
        self, ids: list[int], finish: str = "stop", *, more: dict[str, Any] | None = None, **choice: Any
    ) -> Any:
        body = {
            "generate_response": {
                "request_id": self.request_id,
                "choices": [{"index": 0, "token_ids": ids, "finish_reason": finish, **choice}],
            },
            "chat_request": self.request,
            "prompt_token_ids": self.prompt,
            **(more or {}),
        }
        return json.loads(self.derenderer.chat(json.dumps(body).encode()))

    def chunk(
        self,
        ids: list[int],
        state: Any = None,
        finish: str | None = None,
        *,
        more: dict[str, Any] | None = None,
        **choice: Any,
    ) -> Any:
        body = {
            "stream": True,
            "generate_chunk": {
                "request_id": self.request_id,
                "choices": [{"index": 0, "token_ids": ids, "finish_reason": finish, **choice}],
            },
            "stream_state": state,
            "chat_request": self.request,
            "prompt_token_ids": self.prompt,
            **(more or {}),
        }
        return json.loads(self.derenderer.chat(json.dumps(body).encode()))

    def stream(
        self, pieces: list[list[int]], finish: str = "stop", logprobs: list[Any] | None = None, **choice: Any
    ) -> list[Any]:
        """All answers; the finish comes with the last piece."""
        answers: list[Any] = []
        state, at = None, 0
        for number, ids in enumerate(pieces):
            last = number == len(pieces) - 1
            extra = dict(choice) if last else {}
            if logprobs is not None:
                extra["logprobs"] = {"content": logprobs[at : at + len(ids)]}
                at += len(ids)
            answers.append(self.chunk(ids, state, finish if last else None, **extra))
            state = answers[-1]["stream_state"]
        return answers


def folded(answers: list[Any]) -> dict[str, Any]:
    """A stream's chunks as the message that a client builds of them."""
    message: dict[str, Any] = {"role": None, "content": "", "reasoning": "", "tool_calls": []}
    finish: list[Any] = []
    logprobs: list[Any] = []
    token_ids: list[int] = []
    for answer in answers:
        choice = answer["chunk"]["choices"][0]
        delta = choice["delta"]
        message["role"] = delta["role"] or message["role"]
        message["content"] += delta["content"] or ""
        message["reasoning"] += delta["reasoning"] or ""
        for call in delta.get("tool_calls") or []:
            if call["id"] is not None:
                assert call["index"] == len(message["tool_calls"])
                message["tool_calls"].append(
                    {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                )
            else:
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        logprobs += (choice["logprobs"] or {}).get("content") or []
        token_ids += choice["token_ids"] or []
        if choice["finish_reason"] is not None:
            finish.append((choice["finish_reason"], choice["stop_reason"]))
    return {"message": message, "finish": finish, "logprobs": logprobs, "token_ids": token_ids}


def unfolded(response: Any) -> dict[str, Any]:
    """A whole answer in the same form."""
    choice = response["choices"][0]
    message = choice["message"]
    return {
        "message": {
            "role": message["role"],
            "content": message["content"] or "",
            "reasoning": message["reasoning"] or "",
            "tool_calls": [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", [])],
        },
        "finish": [(choice["finish_reason"], choice["stop_reason"])],
        "logprobs": (choice["logprobs"] or {}).get("content") or [],
        "token_ids": choice["token_ids"] or [],
    }


@pytest.fixture(scope="session")
def tokenizer(qwen3_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))


@pytest.fixture(scope="session")
def served(qwen3_dir: Path) -> Served:
    return Served(build_vocabulary(json.loads((qwen3_dir / "tokenizer.json").read_text(encoding="utf-8"))))


@pytest.fixture(scope="session")
def encode(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture
def client(served: Served, encode: Callable[[str], list[int]]) -> Callable[..., Client]:
    """A client of a fresh derenderer: ``client(request fields, **settings)``."""

    def make(request: dict[str, Any] | None = None, model: Served = served, **settings: Any) -> Client:
        options: dict[str, Any] = {"reasoning_parser": "qwen3", "tool_parser": "hermes", **settings}
        derenderer = Derenderer(model, DerenderSettings(**options), clock=lambda: 1000.9)
        prompt = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
        made = Client(derenderer, encode, prompt)
        made.request = {**made.request, **(request or {})}
        return made

    return make
