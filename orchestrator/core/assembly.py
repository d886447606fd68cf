"""The bytes of an answer: SSE events that we add to derender's, and the bodies of whole-answer derender
calls.

A stream ends with ``[DONE]`` also after an error event. The ``openai`` client raises on the error event and
never reads further; readers that wait for ``[DONE]`` do not hang; and it is what the coupled server sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from orchestrator.core.coalescing import Output
from orchestrator.core.sse import DONE_FRAME, frame
from orchestrator.core.usage import Usage
from render_tier.protocol.errors import ApiError

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def error_frames(error: ApiError) -> bytes:
    """The end of a stream that failed after its headers were sent."""
    return frame(error.encode()) + DONE_FRAME


def choiceless_frame(
    object_name: str, response_id: str, created: int, model: str | None, fields: dict[str, Any]
) -> bytes:
    """A chunk without choices: the usage chunk, or the timing chunk for clients that asked."""
    chunk = {
        "id": response_id,
        "object": object_name,
        "created": created,
        "model": model,
        "choices": [],
    }
    return frame(msgspec.json.encode(chunk | fields))


def with_fields(body: bytes | msgspec.Raw, fields: dict[str, Any]) -> bytes:
    """A JSON object with some of its fields set; the others keep their bytes and their order."""
    parsed: dict[str, Any] = dict(_object_decoder.decode(body))
    return msgspec.json.encode(parsed | fields)


def engine_choice(index: int, output: Output) -> dict[str, Any]:
    """One choice in the shape of a generate reply."""
    return {
        "index": index,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "logprobs": None if output.logprobs is None else {"content": output.logprobs},
    }


def merged_generate_response(
    response_id: str,
    created: int,
    outputs: Sequence[Output],
    usage: Usage,
    *,
    prompt_token_ids: Any = None,
    prompt_logprobs: Any = None,
) -> dict[str, Any]:
    """One generate reply from n single-choice runs of a prompt, choices in order of their number."""
    return {
        "request_id": response_id,
        "created": created,
        "choices": [engine_choice(index, output) for index, output in enumerate(outputs)],
        "usage": usage.as_json(),
        "prompt_token_ids": prompt_token_ids,
        "prompt_logprobs": prompt_logprobs,
        "output_mode": "tokens",
    }
