"""Answers to clients of token IDs, in the form of vLLM's ``/inference/v1/generate``: a chunk of a stream, and
the whole.

Fields that only engines could fill, and that are not passed on, are null: what engines tell each other, and
routed experts, sampling masks and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.core.coalescing import Output, WeightVersionSpan
from orchestrator.core.usage import Usage

Raw = msgspec.Raw
_ABSENT = msgspec.UNSET


class Logprobs(msgspec.Struct):
    content: list[Raw]


class Choice(msgspec.Struct):
    index: int
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int]
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: list[WeightVersionSpan] | None = None
    logprobs: Logprobs | None = None


class Chunk(msgspec.Struct):
    """The prompt's fields are in the first chunk alone, and only where the client asked."""

    request_id: str
    choices: list[Choice]
    prompt_token_ids: Raw | msgspec.UnsetType = _ABSENT
    mm_placeholders: Raw | msgspec.UnsetType = _ABSENT
    usage: None = None
    output_mode: str = "tokens"


class Answer(msgspec.Struct):
    request_id: str
    model: str | None
    created: int
    usage: dict[str, Any]
    choices: list[Choice]
    prompt_logprobs: Raw | None
    prompt_token_ids: Raw | None
    mm_placeholders: Raw | None
    prompt_token_id_logprobs: None = None
    metrics: None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    output_mode: str = "tokens"


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """What a client that asked for it is told of its prompt, as JSON."""

    token_ids: Raw
    mm_placeholders: Raw | None = None


_encoder = msgspec.json.Encoder()


def chunk(request_id: str, index: int, output: Output, echo: PromptEcho | None) -> Raw:
    """Of the choice at ``index``. ``echo`` comes with the first chunk."""
    message = Chunk(request_id, [_choice(index, output)])
    if echo is not None:
        message.prompt_token_ids = echo.token_ids
        if echo.mm_placeholders is not None:
            message.mm_placeholders = echo.mm_placeholders
    return Raw(_encoder.encode(message))


def whole(
    request_id: str,
    created: int,
    model: str | None,
    outputs: Sequence[Output],
    usage: Usage,
    *,
    echo: PromptEcho | None,
    prompt_logprobs: Raw | None,
) -> bytes:
    """``outputs`` are the choices in order."""
    return _encoder.encode(
        Answer(
            request_id,
            model,
            created,
            usage.as_json(),
            [_choice(index, output) for index, output in enumerate(outputs)],
            prompt_logprobs,
            None if echo is None else echo.token_ids,
            None if echo is None else echo.mm_placeholders,
        )
    )


def _choice(index: int, output: Output) -> Choice:
    return Choice(
        index,
        output.finish_reason,
        output.stop_reason,
        output.token_ids,
        weight_versions=output.weight_versions,
        logprobs=None if output.logprobs is None else Logprobs(output.logprobs),
    )
