"""What a client gets: which tokens a model saw and which it sampled, by ID, and what is known about them."""

from __future__ import annotations

from typing import Any

import msgspec


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered request."""

    token_ids: list[int]
    sampling_params: dict[str, Any]
    request: dict[str, Any]
    """The whole GenerateRequest, as engines take it."""
    continuation: dict[str, Any] | None
    """What became of the request's ``continuation``; None when it had none."""
    fingerprint: str | None
    """Of tokenizer, template and parsers."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One output."""

    request_id: str
    index: int
    """Of the choice in its answer."""
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    """With the stop token, if there was one."""
    logprobs: list[float] | None
    """Of the output's tokens, when they were asked for and there is one for each token."""
    finish_reason: str | None
    stop_reason: int | str | None
    message: dict[str, Any] | None
    """Of a chat: what stands for this output in the next request's messages. None for a bare generation."""
    fingerprint: str | None

    @property
    def continuation(self) -> dict[str, list[int]]:
        """For the next turn's request, beside its messages."""
        return {"prompt_token_ids": self.prompt_token_ids, "output_token_ids": self.output_token_ids}


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat's answer: its samples, and the body as the server wrote it."""

    samples: list[Sample]
    body: dict[str, Any]


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One of many samples. ``prompt`` and ``number`` say which: each pair occurs once, whatever was retried.

    Either ``sample`` or ``error`` is None.
    """

    prompt: int
    number: int
    sample: Sample | None
    error: str | None
    attempts: int
