"""The generate answer, whole and as SSE: fields and their order as a tokens-only vLLM writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from orchestrator.embedded.backend import PromptLogprobs
from orchestrator.embedded.sampler import Ending, RankedToken, SampledToken
from render_tier.protocol.errors import ApiError

DONE_FRAME: Final = b"data: [DONE]\n\n"

ABORTED: Final = Ending("abort")


@dataclass
class Choice:
    """Tokens of one sequence that have not been written out yet, and how many there were in all."""

    index: int
    pending: list[SampledToken] = field(default_factory=list)
    total: int = 0
    ending: Ending | None = None
    started: bool = False

    def add(self, sampled: SampledToken, ending: Ending | None) -> None:
        self.pending.append(sampled)
        self.total += 1
        self.ending = ending

    def due(self, interval: int) -> bool:
        """Whether a stream writes now: at the first token, every ``interval`` tokens, and at the end."""
        return not self.started or self.ending is not None or len(self.pending) >= interval

    def take(self) -> dict[str, Any]:
        """The choice object with all pending tokens, which are forgotten."""
        tokens, self.pending = self.pending, []
        self.started = True
        end = self.ending
        versions = [{"version": "default", "start": 0, "end": self.total}] if end else None
        return {
            "index": self.index,
            "finish_reason": end.finish_reason if end else None,
            "stop_reason": end.stop_reason if end else None,
            "token_ids": [token.token for token in tokens],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": versions,
            "logprobs": _logprobs(tokens),
        }


def whole(
    *,
    request_id: str,
    model: str,
    created: int,
    prompt: Sequence[int],
    choices: Sequence[Choice],
    return_prompt: bool,
    prompt_logprobs: PromptLogprobs | None,
    kv_transfer_params: dict[str, Any] | None,
) -> bytes:
    completion = sum(choice.total for choice in choices)
    return msgspec.json.encode(
        {
            "request_id": request_id,
            "model": model,
            "created": created,
            "usage": _usage(len(prompt), completion),
            "prompt_logprobs": _prompt_logprobs(prompt_logprobs),
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": prompt if return_prompt else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": kv_transfer_params,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": [choice.take() for choice in choices],
        }
    )


@dataclass
class Stream:
    """Frames of one streamed answer."""

    request_id: str
    prompt: Sequence[int]
    choices: Sequence[Choice]
    interval: int
    include_usage: bool
    continuous_usage: bool
    return_prompt: bool

    def advance(self, index: int) -> bytes:
        """The frame for a choice that has just got a token, or nothing if it is not due."""
        choice = self.choices[index]
        return self._frame(choice) if choice.due(self.interval) else b""

    def abort(self) -> bytes:
        """End the choices that have not ended."""
        frames = []
        for choice in self.choices:
            if choice.ending is None:
                choice.ending = ABORTED
                frames.append(self._frame(choice))
        return b"".join(frames)

    def end(self) -> bytes:
        frames = b""
        if self.include_usage:
            usage = _usage(len(self.prompt), self._completion())
            kept = {key: value for key, value in usage.items() if value is not None}
            chunk = {"request_id": self.request_id, "usage": kept, "output_mode": "tokens", "choices": []}
            frames = _data(chunk)
        return frames + DONE_FRAME

    def _completion(self) -> int:
        return sum(choice.total for choice in self.choices)

    def _frame(self, choice: Choice) -> bytes:
        usage = _usage(len(self.prompt), self._completion()) if self.continuous_usage else None
        chunk: dict[str, Any] = {"request_id": self.request_id, "usage": usage}
        if self.return_prompt:
            self.return_prompt = False
            chunk["prompt_token_ids"] = self.prompt
        chunk["output_mode"] = "tokens"
        chunk["choices"] = [choice.take()]
        return _data(chunk)


def error_frames(error: ApiError) -> bytes:
    """A failure after the first byte of a stream."""
    return b"data: " + error.encode() + b"\n\n" + DONE_FRAME


def _data(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def _ranked(token: RankedToken) -> dict[str, Any]:
    return {"token_id": token.token, "logprob": token.logprob, "rank": token.rank}


def _logprobs(tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
    content = [
        {**_ranked(sampled.ranked[0]), "top_logprobs": [_ranked(token) for token in sampled.ranked]}
        for sampled in tokens
        if sampled.ranked is not None
    ]
    return {"content": content} if content else None


def _prompt_logprobs(logprobs: PromptLogprobs | None) -> list[Any] | None:
    if logprobs is None:
        return None
    return [
        None,
        *(
            {
                str(token.token): {"logprob": token.logprob, "rank": token.rank, "decoded_token": None}
                for token in position
            }
            for position in logprobs
        ),
    ]
