"""What is derendered: one-token chunks of a Qwen3 answer that reasons, after prompts of chosen lengths."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent.parent
QWEN3 = ROOT / ".cache" / "models" / "qwen3"
PATH = "/v1/chat/completions/derender"
REASONING_SHARE = 0.6
PROSE = "The kettle sings while snow falls on the harbour, and 17 gulls argue about the price of herring. "
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
REQUEST_ID = "generate-tokens-chatcmpl-{}"


def _chunk(request_id: str, token: int) -> bytes:
    choice = b'{"index":0,"token_ids":[%d],"finish_reason":null,"stop_reason":null}' % token
    return b'{"request_id":"%s","choices":[%s],"usage":null}' % (request_id.encode(), choice)


@dataclass
class Workload:
    """``output``: token IDs of one generation. ``prompt``: of about the length asked for."""

    output: list[int]
    prompt: list[int]
    chat: dict[str, Any]

    def __post_init__(self) -> None:
        self._prompt_json = json.dumps(self.prompt, separators=(",", ":")).encode()
        self._chat_json = json.dumps(self.chat, separators=(",", ":")).encode()

    def full_call(self, stream: int, position: int, state: bytes) -> bytes:
        """The body of a client that sends everything each time. ``state``: JSON."""
        head = self._head(stream, position, state)
        return head + b',"prompt_token_ids":%s,"chat_request":%s}' % (self._prompt_json, self._chat_json)

    def named_call(self, stream: int, position: int, state: bytes, context: str) -> bytes:
        """The same with the context's digest in place of the context."""
        return self._head(stream, position, state) + b',"context":"%s"}' % context.encode()

    def peer_state(self, position: int) -> bytes:
        """What vLLM's ``stream_state`` is after that many chunks."""
        state = {
            "role_sent": True,
            "tools_streamed": False,
            "output_token_ids": self.output[:position],
            "output_chunk_lens": [1] * position,
            "last_tool_call_ids": [],
        }
        return json.dumps(state, separators=(",", ":")).encode()

    def opening(self, stream: int) -> dict[str, Any]:
        """The frame that opens a stream in a session, but for its number."""
        return {
            "endpoint": "chat",
            "request_id": REQUEST_ID.format(stream),
            "request": msgspec.Raw(self._chat_json),
            "prompt_token_ids": msgspec.Raw(self._prompt_json),
        }

    def _head(self, stream: int, position: int, state: bytes) -> bytes:
        chunk = _chunk(REQUEST_ID.format(stream), self.output[position % len(self.output)])
        return b'{"stream":true,"model":"qwen3","generate_chunk":%s,"stream_state":%s' % (chunk, state)


def long_model(into: Path, positions: int) -> Path:
    """The Qwen3 directory with room for long prompts."""
    into.mkdir(parents=True)
    for file in QWEN3.iterdir():
        if file.name != "config.json":
            (into / file.name).symlink_to(file.resolve())
    config = json.loads((QWEN3 / "config.json").read_text())
    (into / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    return into


def workload(prompt_tokens: int, output_tokens: int) -> Workload:
    tokenizer = Tokenizer.from_file(str(QWEN3 / "tokenizer.json"))
    prose = tokenizer.encode(PROSE).ids
    [think], [end] = (tokenizer.encode(marker).ids for marker in ("<think>", "</think>"))
    reasoning = int(output_tokens * REASONING_SHARE)
    output = [think, *(prose * (output_tokens // len(prose) + 1))][:reasoning]
    output += [end, *(prose * (output_tokens // len(prose) + 1))]
    question = PROSE * (prompt_tokens // len(prose))
    chat = {"model": "qwen3", "stream": True, "tools": [TOOL],
            "messages": [{"role": "user", "content": question}]}  # fmt: skip
    turn = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
    return Workload(output[:output_tokens], turn, chat)
